//! What every way to leased bytes counts.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use berth_admission::Limit;
use berth_lease::{Op, Refusal};
use berth_port::{Family, Tables};

use crate::Failure;

/// Declarations of the counters of every way to leased bytes.
pub const COUNTERS: Tables = &[Event::TABLE];

const MESSAGES: Family = Family::counter("messages", "messages about leased bytes");
const ACCESSES: Family = Family::counter("accesses", "messages about leased bytes that were answered with success");
const BYTES: Family = Family::counter("access_bytes", "leased bytes read and written");
const REFUSED: Family = Family::counter("access_refused", "accesses to leased bytes that were refused");
const DROPPED: Family = Family::counter("access_dropped", "messages about leased bytes that are malformed");
const UNROUTABLE: Family =
    Family::counter("access_unroutable", "answers about leased bytes without a route to their peer");

berth_port::counters! {
    /// One countable thing. Up to [`Event::Malformed`] they are outcomes: every message has exactly one, sooner or later.
    pub(crate) enum Event {
        Read = read: ACCESSES { op: "read" },
        Written = written: ACCESSES { op: "write" },
        Greeted = greeted: ACCESSES { op: "greet" },
        Pinged = pinged: ACCESSES { op: "ping" },
        UnknownLease = unknown_lease: REFUSED { reason: "unknown_lease" },
        Revoked = revoked: REFUSED { reason: "revoked" },
        Expired = expired: REFUSED { reason: "expired" },
        StaleGeneration = stale_generation: REFUSED { reason: "stale_generation" },
        BadRequest = bad_request: REFUSED { reason: "bad_request" },
        TooLong = too_long: REFUSED { reason: "too_long" },
        OutOfRange = out_of_range: REFUSED { reason: "out_of_range" },
        Denied = denied: REFUSED { reason: "denied" },
        Busy = busy: REFUSED { reason: "busy" },
        StorageFailed = storage_failed: REFUSED { reason: "storage_failed" },
        NotTheirs = not_theirs: REFUSED { reason: "not_theirs" },
        OverQuota = over_quota: REFUSED { reason: "over_quota" },
        LimitedPeer = limited_peer: REFUSED { reason: "peer_limit" },
        LimitedCrowd = limited_crowd: REFUSED { reason: "crowd_limit" },
        LimitedPort = limited_port: REFUSED { reason: "port_limit" },
        Malformed = malformed: DROPPED { reason: "malformed" },
        Received = received: MESSAGES,
        BytesRead = bytes_read: BYTES { op: "read" },
        BytesWritten = bytes_written: BYTES { op: "write" },
        Unroutable = unroutable: UNROUTABLE,
    }
}

/// The counters of one core or one connection.
#[derive(Debug, Clone, Default)]
pub struct Counts([u64; Event::TABLE.len()]);

impl Counts {
    #[inline]
    pub(crate) fn add(&mut self, event: Event) {
        self.0[event as usize] += 1;
    }

    /// Counts how an access of `len` bytes ended; the bytes too where it was done.
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
        Event::report(self.0, visit);
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
pub struct Totals([AtomicU64; Event::TABLE.len()]);

impl Totals {
    /// Adds `counts` and sets them to zero.
    pub fn take(&self, counts: &mut Counts) {
        for (total, count) in self.0.iter().zip(&mut counts.0).filter(|(_, count)| **count > 0) {
            total.fetch_add(std::mem::take(count), Relaxed);
        }
    }

    /// Reports every counter under its name.
    pub fn report(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        Event::report(self.0.iter().map(|total| total.load(Relaxed)), visit);
    }
}
