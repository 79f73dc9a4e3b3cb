//! What the admin address counts of itself.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use berth_port::{Family, Tables};

/// What the admin address counts.
pub(super) const COUNTERS: Tables = &[Event::TABLE];

const REFUSED: Family = Family::counter("refused", "requests to the admin address that were refused");
const REQUESTS: Family = Family::counter("requests", "requests to the admin address that were answered");

berth_port::counters! {
    /// How a request, or a connection without one, ended.
    pub(super) enum Event {
        Answered = answered: REQUESTS,
        Unauthorized = unauthorized: REFUSED { reason: "unauthorized" },
        ForeignHost = foreign_host: REFUSED { reason: "foreign_host" },
        NotFound = not_found: REFUSED { reason: "not_found" },
        NotAllowed = not_allowed: REFUSED { reason: "not_allowed" },
        /// The request was malformed, too slow, or its peer was gone.
        Failed = failed: REFUSED { reason: "failed" },
        /// It made room for a newer connection.
        Evicted = evicted: REFUSED { reason: "evicted" },
    }
}

/// One counter for each [`Event`].
#[derive(Debug, Default)]
pub(crate) struct Counts([AtomicU64; Event::TABLE.len()]);

impl Counts {
    pub(super) fn add(&self, event: Event) {
        self.0[event as usize].fetch_add(1, Relaxed);
    }

    /// Reports every counter under its name.
    pub(super) fn report(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        Event::report(self.0.iter().map(|count| count.load(Relaxed)), visit);
    }
}
