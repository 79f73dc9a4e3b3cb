//! Unix time that ignores steps of the host's clock.

use std::time::Duration;

use berth_port::{Nanos, Now};

/// Unix time, anchored once to monotonic time. Leases and the journal use it.
///
/// Capability tokens do not: their times are set and checked by the host's clock as it is now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Clock {
    anchor: Now,
}

/// If the journal's latest time leads the host's clock by more than this, it is not believed.
const LEAD: Duration = Duration::from_hours(24);

/// 2023-01-01T00:00Z. A host whose clock is before it has not been told the time yet.
const NO_CLOCK: Nanos = Nanos(1_672_531_200_000_000_000);

impl Clock {
    /// Whether the host's clock was far ahead when the journal's latest time was written, and has been set right since.
    /// A clock that was never set, as on a host without a battery, says nothing about that.
    pub(crate) fn was_wrong(latest: Nanos, wall: Nanos) -> bool {
        Self::is_set(wall) && latest - wall > LEAD
    }

    /// Whether the host's clock was ever set. Until then it shows a time before 2023.
    pub fn is_set(wall: Nanos) -> bool {
        wall >= NO_CLOCK
    }

    /// Starts at the host's time, but not before `latest`, so that time never goes back within a journal.
    pub fn new(now: Now, latest: Nanos) -> Self {
        Self { anchor: Now { mono: now.mono, wall: now.wall.max(latest) } }
    }

    /// Unix time that belongs to a monotonic time. Times before the anchor give the anchor's.
    pub fn unix(&self, mono: Nanos) -> Nanos {
        self.anchor.wall + (mono - self.anchor.mono)
    }

    /// Monotonic time that belongs to a Unix time. Times up to the anchor give the anchor's.
    pub fn mono(&self, unix: Nanos) -> Nanos {
        self.anchor.mono + (unix - self.anchor.wall)
    }

    /// A monotonic time for the wire: Unix seconds, rounded down. Nothing is announced to end later than it does.
    pub fn unix_secs(&self, mono: Nanos) -> u64 {
        self.unix(mono).0 / 1_000_000_000
    }
}

/// A duration from an operation's params.
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
