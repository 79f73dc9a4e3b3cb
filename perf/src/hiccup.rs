//! Hiccups: how long the client itself was kept from polling.
//!
//! A poll loop that spins sees every stall of its own CPU (an interrupt, the scheduler, a hypervisor that takes the
//! CPU away) as a long time between two polls. Such a stall lengthens the latency of whatever is in flight, and no
//! server can do anything about it.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Gaps longer than this are counted one by one.
pub const LONG_NS: u64 = 100_000;

/// What the gaps between polls of one case looked like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hiccups {
    /// How often the client's loop polled.
    pub polls: u64,
    /// Median gap between two polls, in nanoseconds.
    pub p50_ns: u64,
    /// The gap that one poll in 10,000 exceeds, in nanoseconds.
    pub p9999_ns: u64,
    /// The longest gap, in nanoseconds.
    pub max_ns: u64,
    /// Gaps longer than 100 us.
    pub over_100_us: u64,
}

impl Hiccups {
    /// Summarises a histogram of gaps in nanoseconds.
    pub fn of(gaps: &Histogram<u64>) -> Self {
        Self {
            polls: gaps.len(),
            p50_ns: gaps.value_at_quantile(0.5),
            p9999_ns: gaps.value_at_quantile(0.9999),
            max_ns: gaps.max(),
            over_100_us: over(gaps, LONG_NS),
        }
    }
}

/// How many recorded values are longer than `limit`.
fn over(gaps: &Histogram<u64>, limit: u64) -> u64 {
    let long = gaps.iter_recorded().filter(|step| step.value_iterated_to() > gaps.highest_equivalent(limit));
    long.map(|step| step.count_at_value()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tally::histogram;

    #[test]
    fn long_gaps_are_counted() {
        let mut gaps = histogram();
        gaps.record_n(50, 1_000_000).unwrap();
        gaps.record_n(100_000, 3).unwrap();
        gaps.record_n(101_000, 2).unwrap();
        gaps.record(4_000_000).unwrap();
        let hiccups = Hiccups::of(&gaps);
        assert_eq!((hiccups.polls, hiccups.p50_ns, hiccups.over_100_us), (1_000_006, 50, 3));
        assert_eq!(hiccups.max_ns, gaps.max());
    }
}
