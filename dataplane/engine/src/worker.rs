//! What a thread beside the lcores shows: a worker, and the rings that it serves in turn.

use berth_port::{Nanos, Sampler};

use crate::{
    PUBLISH_EVERY, Recorder, Telemetry,
    telemetry::{Publisher, WorkerBoard},
};

/// Measures a worker thread. Like a lane's counters, what it shows is stored by that thread and read by any.
#[derive(Debug)]
pub struct WorkerMeter {
    name: String,
    telemetry: Telemetry,
    rings: Vec<Ring>,
    /// The turn that the next one ends.
    last: Option<(usize, Nanos, usize)>,
    publish_at: Nanos,
    elapsed_ns: u64,
}

#[derive(Debug)]
struct Ring {
    board: Publisher,
    worker_time: Recorder,
    sampler: Sampler,
    busy_ns: u64,
}

impl WorkerMeter {
    /// A meter for a thread without rings. The name appears in `telemetry`.
    pub fn new(name: impl Into<String>, telemetry: &Telemetry) -> Self {
        let (name, telemetry) = (name.into(), telemetry.clone());
        Self { name, telemetry, rings: Vec::new(), last: None, publish_at: Nanos(0), elapsed_ns: 0 }
    }

    /// Adds a ring from `port`; `report` visits what its worker counts.
    pub fn add(&mut self, port: impl Into<String>, report: impl Fn(&mut dyn FnMut(&'static str, u64))) {
        let board = Publisher::new(|visit| {
            times(0, 0, visit);
            report(visit);
        });
        let worker_time = Recorder::default();
        let (name, port) = (self.name.clone(), port.into());
        let counters = board.board();
        self.telemetry.add_worker(WorkerBoard { name, port, counters, worker_time: worker_time.reader() });
        self.rings.push(Ring { board, worker_time, sampler: Sampler::default(), busy_ns: 0 });
    }

    /// Ring `index` had a turn that began at `now`, and served so many requests. It lasts until the next one begins.
    #[inline]
    pub fn turn(&mut self, index: usize, now: Nanos, served: usize) {
        if cfg!(feature = "no-telemetry") {
            return;
        }
        if let Some((index, began, served)) = self.last.replace((index, now, served)) {
            let took = now.0.saturating_sub(began.0);
            self.elapsed_ns += took;
            if served > 0 {
                let ring = &mut self.rings[index];
                ring.busy_ns += took;
                let sampled = ring.sampler.is_due(began);
                ring.sampler.seen(sampled, began);
                if sampled {
                    ring.worker_time.record_n(took / served as u64, served as u64);
                }
            }
        }
    }

    /// Whether it is time to publish every ring.
    #[inline]
    pub fn is_due(&mut self, now: Nanos) -> bool {
        let due = now >= self.publish_at && !cfg!(feature = "no-telemetry");
        if due {
            self.publish_at = now + PUBLISH_EVERY;
        }
        due
    }

    /// Shows what ring `index` has counted.
    #[cold]
    pub fn publish(&mut self, index: usize, report: impl Fn(&mut dyn FnMut(&'static str, u64))) {
        let Ring { board, busy_ns, .. } = &mut self.rings[index];
        board.publish(|visit| {
            times(self.elapsed_ns, *busy_ns, visit);
            report(visit);
        });
    }
}

fn times(elapsed_ns: u64, busy_ns: u64, visit: &mut dyn FnMut(&'static str, u64)) {
    visit("elapsed_ns", elapsed_ns);
    visit("busy_ns", busy_ns);
}
