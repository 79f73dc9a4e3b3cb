//! What every way to leased bytes counts.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use berth_admission::Limit;
use berth_lease::{Op, Refusal};

use crate::Failure;

berth_port::counters! {
    /// One countable thing. Up to [`Event::Malformed`] they are outcomes: every message has exactly one, sooner or later.
    pub(crate) enum Event {
        Read = "read",
        Written = "written",
        Greeted = "greeted",
        Pinged = "pinged",
        UnknownLease = "unknown_lease",
        Revoked = "revoked",
        Expired = "expired",
        StaleGeneration = "stale_generation",
        BadRequest = "bad_request",
        TooLong = "too_long",
        OutOfRange = "out_of_range",
        Denied = "denied",
        Busy = "busy",
        StorageFailed = "storage_failed",
        NotTheirs = "not_theirs",
        OverQuota = "over_quota",
        LimitedPeer = "limited_peer",
        LimitedCrowd = "limited_crowd",
        LimitedPort = "limited_port",
        Malformed = "malformed",
        Received = "received",
        BytesRead = "bytes_read",
        BytesWritten = "bytes_written",
        Unroutable = "unroutable",
    }
}

/// The counters of one core or one connection.
#[derive(Debug, Clone, Default)]
pub struct Counts([u64; Event::NAMES.len()]);

impl Counts {
    #[inline]
    pub(crate) fn add(&mut self, event: Event) {
        self.0[event as usize] += 1;
    }

    /// Counts how an access of `len` bytes ended.
    #[inline]
    pub(crate) fn outcome(&mut self, op: Op, len: u64, outcome: Result<(), Failure>) {
        let (event, bytes) = match (outcome, op) {
            (Ok(()), Op::Read) => (Event::Read, Event::BytesRead),
            (Ok(()), Op::Write) => (Event::Written, Event::BytesWritten),
            (Err(failure), _) => return self.add(failure.into()),
        };
        self.add(event);
        self.0[bytes as usize] += len;
    }

    /// Reports every counter under its name.
    pub fn report(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        Event::NAMES.iter().zip(&self.0).for_each(|(name, count)| visit(name, *count));
    }
}

impl From<Failure> for Event {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Refused(Refusal::Unknown) => Self::UnknownLease,
            Failure::Refused(Refusal::Revoked) => Self::Revoked,
            Failure::Refused(Refusal::Expired) => Self::Expired,
            Failure::Refused(Refusal::StaleGeneration) => Self::StaleGeneration,
            Failure::Refused(Refusal::BadRequest) => Self::BadRequest,
            Failure::Refused(Refusal::TooLong) => Self::TooLong,
            Failure::Refused(Refusal::OutOfRange) => Self::OutOfRange,
            Failure::Refused(Refusal::Denied) => Self::Denied,
            Failure::Busy => Self::Busy,
            Failure::Storage => Self::StorageFailed,
        }
    }
}

impl From<Limit> for Event {
    fn from(limit: Limit) -> Self {
        match limit {
            Limit::Peer => Self::LimitedPeer,
            Limit::Crowd => Self::LimitedCrowd,
            Limit::All => Self::LimitedPort,
        }
    }
}

/// Counters that many tasks add theirs to.
#[derive(Debug, Default)]
pub struct Totals([AtomicU64; Event::NAMES.len()]);

impl Totals {
    /// Adds `counts` and sets them to zero.
    pub fn take(&self, counts: &mut Counts) {
        for (total, count) in self.0.iter().zip(&mut counts.0).filter(|(_, count)| **count > 0) {
            total.fetch_add(std::mem::take(count), Relaxed);
        }
    }

    /// Reports every counter under its name.
    pub fn report(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        Event::NAMES.iter().zip(&self.0).for_each(|(name, total)| visit(name, total.load(Relaxed)));
    }
}
