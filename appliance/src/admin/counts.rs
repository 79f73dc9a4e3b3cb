//! What the admin address counts of itself.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// How a request, or a connection without one, ended.
#[derive(Debug, Clone, Copy)]
pub(super) enum Event {
    Answered,
    Unauthorized,
    ForeignHost,
    NotFound,
    NotAllowed,
    /// The request was malformed, too slow, or its peer was gone.
    Failed,
    /// It made room for a newer connection.
    Evicted,
}

/// The counters' names, in the order of [`Event`].
const NAMES: [&str; 7] = ["answered", "unauthorized", "foreign_host", "not_found", "not_allowed", "failed", "evicted"];

/// One counter for each [`Event`].
#[derive(Debug, Default)]
pub(crate) struct Counts([AtomicU64; NAMES.len()]);

impl Counts {
    pub(super) fn add(&self, event: Event) {
        self.0[event as usize].fetch_add(1, Relaxed);
    }

    /// Reports every counter under its name.
    pub(super) fn report(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        NAMES.iter().zip(&self.0).for_each(|(name, count)| visit(name, count.load(Relaxed)));
    }
}
