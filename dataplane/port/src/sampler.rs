//! Which of many events are measured.

use std::time::Duration;

use crate::Nanos;

/// One event in so many is a sample.
///
/// Timing the stages of a burst takes four clock readings, some 35 ns: shared by 64 bursts, half a nanosecond for each.
pub const SAMPLE_EVERY: u32 = 64;

/// An event that comes so long after the last sample is one too: where little happens, all of it is seen.
pub const SAMPLE_AFTER: Duration = Duration::from_millis(1);

/// Picks one event in [`SAMPLE_EVERY`], and any that comes [`SAMPLE_AFTER`] the last pick. The first is picked.
#[derive(Debug, Default)]
pub struct Sampler {
    /// Events before the next sample.
    left: u32,
    after: Nanos,
}

impl Sampler {
    /// Whether an event that comes now is to be measured.
    #[inline]
    pub fn is_due(&self, now: Nanos) -> bool {
        self.left == 0 || now >= self.after
    }

    /// An event has come, and was measured or not.
    #[inline]
    pub fn seen(&mut self, sampled: bool, now: Nanos) {
        if sampled {
            *self = Self { left: SAMPLE_EVERY - 1, after: now + SAMPLE_AFTER };
        } else {
            self.left = self.left.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_in_so_many_and_any_after_a_pause_is_a_sample() {
        let mut sampler = Sampler::default();
        let mut sampled = |now| {
            let due = sampler.is_due(Nanos(now));
            sampler.seen(due, Nanos(now));
            due
        };
        let picks: Vec<_> = (0..200).filter(|now| sampled(*now)).collect();
        assert_eq!(picks, [0, 64, 128, 192]);
        let pause = SAMPLE_AFTER.as_nanos() as u64;
        assert_eq!([192 + pause - 1, 192 + pause, 192 + pause + 1].map(sampled), [false, true, false]);
    }
}
