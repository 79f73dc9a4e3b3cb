//! Whether the threads that poll still go round their loops, and the control plane serves its node.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

/// Looks without a beat that the control plane is granted: its threads share their CPUs.
const PATIENCE: u32 = 2;

/// One thread's: it beats once a round.
#[derive(Debug, Clone, Default)]
pub(super) struct Heartbeat(Arc<Beats>);

/// In lines of their own: what lay beside them would be taken from its core in each round. Two lines, since processors
/// fetch them in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Beats(AtomicU64);

impl Heartbeat {
    /// A round begins. A load and a store, in lines that others read once a second.
    pub(super) fn beat(&self) {
        let Beats(beats) = &*self.0;
        beats.store(beats.load(Relaxed).wrapping_add(1), Relaxed);
    }
}

/// Every thread's, as the supervisor watches them.
#[derive(Debug, Default)]
pub(super) struct Heartbeats(Vec<Watched>);

/// Who beats.
#[derive(Debug)]
enum Source {
    Thread(Heartbeat),
    /// The control plane, whose beats it counts itself.
    Control(Arc<AtomicU64>),
}

impl Source {
    fn beats(&self) -> u64 {
        match self {
            Self::Thread(heartbeat) => heartbeat.0.0.load(Relaxed),
            Self::Control(beats) => beats.load(Relaxed),
        }
    }
}

#[derive(Debug)]
struct Watched {
    name: String,
    source: Source,
    seen: u64,
    /// Looks in a row that found no beat, and how many of those are granted.
    missed: u32,
    patience: u32,
}

impl Heartbeats {
    /// Watches one more thread, which is to beat.
    pub(super) fn add(&mut self, name: &str) -> Heartbeat {
        let heartbeat = Heartbeat::default();
        self.watch(name, Source::Thread(heartbeat.clone()), 0);
        heartbeat
    }

    /// Watches the control plane, by what it counts.
    pub(super) fn add_control(&mut self, beats: Arc<AtomicU64>) {
        self.watch("control", Source::Control(beats), PATIENCE);
    }

    fn watch(&mut self, name: &str, source: Source, patience: u32) {
        self.0.push(Watched { name: name.to_owned(), source, seen: 0, missed: 0, patience });
    }

    /// Those that have not beaten since this was last asked, or for longer where they are granted more.
    pub(super) fn stuck(&mut self) -> Vec<&str> {
        let stuck = self.0.iter_mut().filter_map(|watched| {
            let before = std::mem::replace(&mut watched.seen, watched.source.beats());
            watched.missed = if before == watched.seen { watched.missed + 1 } else { 0 };
            (watched.missed > watched.patience).then_some(&*watched.name)
        });
        stuck.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_shares_the_cache_lines_of_a_heartbeat() {
        let mut heartbeats = Heartbeats::default();
        let places = [(); 8].map(|()| Arc::as_ptr(&heartbeats.add("t").0) as usize);
        assert!(size_of::<Beats>() == 128 && places.iter().all(|place| place % 128 == 0), "{places:?}");
    }
}
