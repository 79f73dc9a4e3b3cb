//! Suspends functions that keep failing.

use std::time::Duration;

use berth_port::Nanos;

/// After this many calls in a row that panic or overrun their budget, a function is suspended.
pub const MAX_STRIKES: u8 = 3;

/// How long a function is suspended. Afterwards, a single failure suspends it again.
pub const COOL_OFF: Duration = Duration::from_millis(100);

/// Failures of one function.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Guard {
    strikes: u8,
    rests_until: Nanos,
}

impl Guard {
    /// Whether the function may be called.
    #[inline]
    pub(crate) fn admits(&self, now: Nanos) -> bool {
        now >= self.rests_until
    }

    /// Records a call that succeeded in time.
    #[inline]
    pub(crate) fn pass(&mut self) {
        self.strikes = 0;
    }

    /// Records a call that panicked or overran its budget.
    #[cold]
    pub(crate) fn strike(&mut self, now: Nanos) {
        self.strikes += 1;
        if self.strikes == MAX_STRIKES {
            self.strikes -= 1;
            self.rests_until = now + COOL_OFF;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn three_strikes_in_a_row_rest_the_function_and_one_more_after_it() {
        let mut guard = Guard::default();
        for now in [1, 2] {
            guard.strike(Nanos(now * MS));
        }
        guard.pass();
        for now in [3, 4] {
            guard.strike(Nanos(now * MS));
            assert!(guard.admits(Nanos(now * MS)));
        }
        guard.strike(Nanos(5 * MS));
        assert!(!guard.admits(Nanos(5 * MS)));
        assert!(!guard.admits(Nanos(105 * MS - 1)));
        assert!(guard.admits(Nanos(105 * MS)));
        guard.strike(Nanos(106 * MS));
        assert!(!guard.admits(Nanos(107 * MS)), "the trial failed");
        guard.pass();
        guard.strike(Nanos(300 * MS));
        assert!(guard.admits(Nanos(300 * MS)), "the trial went well");
    }
}
