//! Whether the threads that poll still go round their loops.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

/// One thread's: it beats once a round.
#[derive(Debug, Clone, Default)]
pub(super) struct Pulse(Arc<AtomicU64>);

impl Pulse {
    /// A round begins. A load and a store, in a line that others read once a second.
    pub(super) fn beat(&self) {
        self.0.store(self.0.load(Relaxed).wrapping_add(1), Relaxed);
    }
}

/// Every thread's, as the supervisor watches them.
#[derive(Debug, Default)]
pub(super) struct Pulses(Vec<Watched>);

#[derive(Debug)]
struct Watched {
    name: String,
    pulse: Pulse,
    seen: u64,
}

impl Pulses {
    /// Watches one more thread, which is to beat.
    pub(super) fn add(&mut self, name: &str) -> Pulse {
        let pulse = Pulse::default();
        self.0.push(Watched { name: name.to_owned(), pulse: pulse.clone(), seen: 0 });
        pulse
    }

    /// Those that have not beaten since this was last asked.
    pub(super) fn stuck(&mut self) -> Vec<&str> {
        let stuck = self.0.iter_mut().filter_map(|watched| {
            let before = std::mem::replace(&mut watched.seen, watched.pulse.0.load(Relaxed));
            (before == watched.seen).then_some(&*watched.name)
        });
        stuck.collect()
    }
}
