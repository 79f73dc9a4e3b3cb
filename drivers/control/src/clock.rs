//! The two times that the node goes by.

use std::time::{SystemTime, UNIX_EPOCH};

use berth_fabric::Clock as Unix;
use berth_host::TscClock;
use berth_port::{Clock as _, Nanos, Now};

/// How far a sender's clock may be ahead of the host's: 30 days, in microseconds.
const AHEAD: u64 = 30 * 24 * 3600 * 1_000_000;

/// The highest nonce to accept at this time: nonces start at a sender's time in microseconds. One that started years
/// ahead would shut its key out until then. A host whose clock was never set cannot tell.
pub(crate) fn highest_nonce(wall: Nanos) -> u64 {
    if Unix::is_set(wall) { wall.0 / 1000 + AHEAD } else { u64::MAX }
}

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
