//! The two clocks of a node.

use std::time::{SystemTime, UNIX_EPOCH};

use berth_fabric::Clock as Unix;
use berth_host::TscClock;
use berth_port::{Clock as _, Nanos, Now};

/// How far a sender's clock may be ahead of the host's, in microseconds: 30 days.
const AHEAD: u64 = 30 * 24 * 3600 * 1_000_000;

/// Highest nonce to accept now. Nonces start at the sender's time in microseconds; a sender whose clock was years ahead
/// would shut out its own key until then. A host whose clock was never set cannot tell, and accepts any.
pub(crate) fn highest_nonce(wall: Nanos) -> u64 {
    if Unix::is_set(wall) { wall.0 / 1000 + AHEAD } else { u64::MAX }
}

/// Monotonic time of the poll loops, together with Unix time.
#[derive(Debug, Clone)]
pub(crate) struct Clock(TscClock);

impl Clock {
    /// `clock` is the one that the poll loops read, so that both see a lease end at the same moment.
    pub(crate) fn new(clock: TscClock) -> Self {
        Self(clock)
    }

    /// Monotonic time.
    pub(crate) fn mono(&self) -> Nanos {
        self.0.now().mono
    }

    /// Monotonic time, and Unix time by the host's clock.
    pub(crate) fn now(&self) -> Now {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Now { mono: self.mono(), wall: Nanos(wall.as_nanos() as u64) }
    }
}
