//! What every way to leased bytes counts.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use berth_admission::Limit;
use berth_lease::{Op, Refusal};

use crate::Failure;

/// One countable thing. Up to [`Event::Malformed`] they are outcomes: every message has exactly one, sooner or later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    Read,
    Written,
    Greeted,
    Pinged,
    UnknownLease,
    Revoked,
    Expired,
    StaleGeneration,
    BadRequest,
    TooLong,
    OutOfRange,
    Denied,
    Busy,
    StorageFailed,
    NotTheirs,
    OverQuota,
    LimitedPeer,
    LimitedCrowd,
    LimitedPort,
    Malformed,
    Received,
    BytesRead,
    BytesWritten,
    Unroutable,
}

/// The counters' names, in the order of [`Event`].
const NAMES: [&str; 24] = [
    "read",
    "written",
    "greeted",
    "pinged",
    "unknown_lease",
    "revoked",
    "expired",
    "stale_generation",
    "bad_request",
    "too_long",
    "out_of_range",
    "denied",
    "busy",
    "storage_failed",
    "not_theirs",
    "over_quota",
    "limited_peer",
    "limited_crowd",
    "limited_port",
    "malformed",
    "received",
    "bytes_read",
    "bytes_written",
    "unroutable",
];

/// The counters of one core or one connection.
#[derive(Debug, Clone, Default)]
pub struct Counts([u64; NAMES.len()]);

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
        NAMES.iter().zip(&self.0).for_each(|(name, count)| visit(name, *count));
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
pub struct Totals([AtomicU64; NAMES.len()]);

impl Totals {
    /// Adds `counts` and sets them to zero.
    pub fn take(&self, counts: &mut Counts) {
        for (total, count) in self.0.iter().zip(&mut counts.0).filter(|(_, count)| **count > 0) {
            total.fetch_add(std::mem::take(count), Relaxed);
        }
    }

    /// Reports every counter under its name.
    pub fn report(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        NAMES.iter().zip(&self.0).for_each(|(name, total)| visit(name, total.load(Relaxed)));
    }
}
