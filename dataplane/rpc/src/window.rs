//! A task that decodes windows of experiments which other cores have.

use berth_port::{Now, Part, Tables, Task, Work};
use berth_qec::window::Pool;

/// Decodes the windows that wait in a pool. Owned by the core that has time for them.
#[derive(Debug)]
pub struct WindowHelper {
    pool: Pool,
    counts: Counts,
}

berth_port::counters! {
    /// What it did.
    struct Counts {
        windows: "windows of experiments that were decoded for sessions, mostly of other cores",
    }
}

/// Declarations of its counters.
pub const WINDOW_COUNTERS: Tables = &[Counts::TABLE];

impl WindowHelper {
    /// Helps those who put windows into the pool.
    pub fn new(pool: Pool) -> Self {
        Self { pool, counts: Counts::default() }
    }
}

impl Task for WindowHelper {
    #[inline]
    fn turn(&mut self, now: Now, receive: bool, _: bool) -> Work {
        // What waits at the end of a drain is decoded by those who wait for it.
        let decoded = u64::from(receive && self.pool.help());
        self.counts.windows += decoded;
        Work { received: decoded, replied: decoded, polls: 1, began: now.mono }
    }

    fn counters(&self, part: Part, visit: &mut dyn FnMut(&'static str, u64)) {
        if part == Part::Service {
            self.counts.report(visit);
        }
    }
}
