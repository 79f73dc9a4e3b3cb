//! Whether the threads that poll still go round their loops.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

/// One thread's: it beats once a round.
#[derive(Debug, Clone, Default)]
pub(super) struct Pulse(Arc<Beats>);

/// In lines of their own: what lay beside them would be taken from its core in each round. Two lines, since processors
/// fetch them in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Beats(AtomicU64);

impl Pulse {
    /// A round begins. A load and a store, in lines that others read once a second.
    pub(super) fn beat(&self) {
        let Beats(beats) = &*self.0;
        beats.store(beats.load(Relaxed).wrapping_add(1), Relaxed);
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
            let before = std::mem::replace(&mut watched.seen, watched.pulse.0.0.load(Relaxed));
            (before == watched.seen).then_some(&*watched.name)
        });
        stuck.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_shares_the_lines_of_a_pulse() {
        let mut pulses = Pulses::default();
        let places = [(); 8].map(|()| Arc::as_ptr(&pulses.add("t").0) as usize);
        assert!(size_of::<Beats>() == 128 && places.iter().all(|place| place % 128 == 0), "{places:?}");
    }
}
