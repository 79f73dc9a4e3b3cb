//! Time, which is an argument: no state machine below the appliance reads a clock.

use std::{
    ops::{Add, Sub},
    time::Duration,
};

/// Nanoseconds since an epoch that the clock's owner chose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Nanos(pub u64);

/// The time of one poll, read once per burst.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Now {
    /// Monotonic time, for durations and deadlines.
    pub mono: Nanos,
    /// PTP (TAI) time since 1970, to compare with stamps from a peer's clock.
    pub wall: Nanos,
}

impl Now {
    /// The same instant plus `by`, on both clocks.
    #[must_use]
    pub fn after(self, by: Duration) -> Self {
        Self { mono: self.mono + by, wall: self.wall + by }
    }
}

impl Add<Duration> for Nanos {
    type Output = Self;
    fn add(self, by: Duration) -> Self {
        Self(self.0.saturating_add(by.as_nanos() as u64))
    }
}

/// The time from `earlier` to `self`; zero if `earlier` is later.
impl Sub for Nanos {
    type Output = Duration;
    fn sub(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// The clock of a poll loop: read once per burst, and around calls that have a time budget.
pub trait Clock: Clone {
    /// Reads both clocks.
    fn now(&self) -> Now;
}
