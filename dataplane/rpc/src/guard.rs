//! When a function that keeps failing rests.

use std::time::Duration;

use berth_port::Nanos;

/// How many calls in a row panic or overrun their budget before the function rests.
pub const MAX_STRIKES: u8 = 3;

/// How long a function rests; then one more strike sends it to rest again.
pub const COOL_OFF: Duration = Duration::from_millis(100);

/// One function's record.
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

    /// A call went well.
    #[inline]
    pub(crate) fn pass(&mut self) {
        self.strikes = 0;
    }

    /// A call panicked or overran its budget.
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
