//! What became of connections.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// One number that only grows.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn add(&self) {
        self.0.fetch_add(1, Relaxed);
    }
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) taken: Count,
    pub(crate) gone: Count,
    pub(crate) refused: Count,
    pub(crate) full: Count,
    pub(crate) displaced: Count,
    pub(crate) malformed: Count,
    pub(crate) timed_out: Count,
}

impl Counters {
    pub(crate) fn report(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        let all = [
            ("rendezvous_peers", &self.taken),
            ("rendezvous_gone", &self.gone),
            ("rendezvous_refused", &self.refused),
            ("rendezvous_full", &self.full),
            ("rendezvous_displaced", &self.displaced),
            ("rendezvous_malformed", &self.malformed),
            ("rendezvous_timed_out", &self.timed_out),
        ];
        for (name, count) in all {
            visit(name, count.0.load(Relaxed));
        }
    }
}
