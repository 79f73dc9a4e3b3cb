//! The two times that the node goes by.

use std::time::{SystemTime, UNIX_EPOCH};

use berth_host::TscClock;
use berth_port::{Clock as _, Nanos, Now};

/// The monotonic time of the poll loops, with Unix time beside it.
#[derive(Debug, Clone)]
pub(crate) struct Clock(TscClock);

impl Clock {
    /// The clock that the poll loops read, so that both see a lease end at the same moment.
    pub(crate) fn new(clock: TscClock) -> Self {
        Self(clock)
    }

    /// Monotonic time.
    pub(crate) fn mono(&self) -> Nanos {
        self.0.now().mono
    }

    /// Monotonic time, and Unix time as the host has it.
    pub(crate) fn now(&self) -> Now {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Now { mono: self.mono(), wall: Nanos(wall.as_nanos() as u64) }
    }
}
