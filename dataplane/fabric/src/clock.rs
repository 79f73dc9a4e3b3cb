//! Unix time that steps of the host's clock do not move.

use std::time::Duration;

use berth_port::{Nanos, Now};

/// Unix time, anchored once to monotonic time: what leases and the journal count in.
///
/// Capability tokens do not use it: their times are made and checked against the host's clock as it is now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Clock {
    anchor: Now,
}

/// How far the journal's latest time may lead the host's clock and still be believed.
const LEAD: Duration = Duration::from_hours(24);

/// 2023-01-01T00:00Z: a host whose clock is before it has not been told the time yet.
const NO_CLOCK: Nanos = Nanos(1_672_531_200_000_000_000);

impl Clock {
    /// Whether the host's clock was far ahead when the journal's latest time was written, and is not any more. One that
    /// was never set, as on a host without a battery, tells nothing about it.
    pub(crate) fn was_wrong(latest: Nanos, wall: Nanos) -> bool {
        Self::is_set(wall) && latest - wall > LEAD
    }

    /// Whether the host's clock was ever set.
    pub fn is_set(wall: Nanos) -> bool {
        wall >= NO_CLOCK
    }

    /// A clock that begins with the host's time, but not before `latest`, so that time never goes back in a journal.
    pub fn new(now: Now, latest: Nanos) -> Self {
        Self { anchor: Now { mono: now.mono, wall: now.wall.max(latest) } }
    }

    /// Unix time at a monotonic time; before the anchor it is the anchor's.
    pub fn unix(&self, mono: Nanos) -> Nanos {
        self.anchor.wall + (mono - self.anchor.mono)
    }

    /// Monotonic time at a Unix time; at or before the anchor it is the anchor's.
    pub fn mono(&self, unix: Nanos) -> Nanos {
        self.anchor.mono + (unix - self.anchor.wall)
    }

    /// A monotonic time as the wire has it: Unix seconds, rounded down, so that nothing ends before it was said to.
    pub fn unix_secs(&self, mono: Nanos) -> u64 {
        self.unix(mono).0 / 1_000_000_000
    }
}

/// A duration of an op's params.
pub(crate) fn secs(secs: u32) -> Duration {
    Duration::from_secs(secs.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_of_the_hosts_clock_move_nothing() {
        let second = |n: u64| Nanos(n * 1_000_000_000);
        let clock = Clock::new(Now { mono: second(5), wall: second(1000) }, second(3));
        assert_eq!((clock.unix(second(7)), clock.mono(second(1002))), (second(1002), second(7)));
        assert_eq!((clock.unix(second(1)), clock.mono(second(1))), (second(1000), second(5)));
        assert_eq!((clock.unix_secs(second(7)), clock.unix_secs(Nanos(7_999_999_999))), (1002, 1002));
        // A host whose clock went back since the journal was written.
        let clock = Clock::new(Now { mono: second(5), wall: second(10) }, second(1000));
        assert_eq!(clock.unix(second(7)), second(1002));
    }
}
