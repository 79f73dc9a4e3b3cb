//! Choice of the events that are measured.

use std::time::Duration;

use crate::Nanos;

/// One event in this many is measured.
///
/// Timing the stages of a burst takes four clock readings, about 35 ns; over 64 bursts that is half a nanosecond each.
pub const SAMPLE_EVERY: u32 = 64;

/// An event this long after the last sample is measured, too. If there is little traffic, all of it is.
pub const SAMPLE_AFTER: Duration = Duration::from_millis(1);

/// Picks one event in [`SAMPLE_EVERY`], and any event [`SAMPLE_AFTER`] the last pick. The first event is picked.
#[derive(Debug, Default)]
pub struct Sampler {
    /// Events until the next sample.
    left: u32,
    after: Nanos,
}

impl Sampler {
    /// Whether an event at `now` is to be measured.
    #[inline]
    pub fn is_due(&self, now: Nanos) -> bool {
        self.left == 0 || now >= self.after
    }

    /// Counts an event, measured or not.
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
