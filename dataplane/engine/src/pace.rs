//! Decides when the answers of a burst should not wait for its end.

use std::time::Duration;

use berth_port::Nanos;

/// Answers are transmitted once they have waited this long for the handlers of later frames. It is many times the cost
/// of a transmit call of a polled device, and about that of a system call.
pub const TRANSMIT_AFTER: Duration = Duration::from_micros(2);

/// If frames take this long, the clock is read after each: the 15 ns of a reading are then 5 %.
const SLOW: Duration = Duration::from_nanos(300);

/// If frames take less, the clock is first read after this many, then after twice as many, and so on.
const FIRST_READING: u32 = 4;

/// How fast a lane's frames are handled, learned from burst to burst.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// Whether frames take [`SLOW`] or longer.
    slow: bool,
    /// Time of the last reading; the next field counts frames since.
    read: Nanos,
    frames: u32,
    next_reading: u32,
    transmitted: Nanos,
}

impl Pace {
    /// Begins a burst, when its first frame is dispatched.
    #[inline]
    pub(crate) fn begin(&mut self, now: Nanos) {
        let slow = self.slow;
        *self = Self { slow, read: now, frames: 0, next_reading: FIRST_READING, transmitted: now };
    }

    /// Counts a handled frame; `known` is the time if it was read anyway. Returns whether to transmit now.
    #[inline]
    pub(crate) fn handled(&mut self, known: Option<Nanos>, clock: impl FnOnce() -> Nanos) -> bool {
        self.frames += 1;
        if !self.slow && known.is_none() && self.frames < self.next_reading {
            return false;
        }
        let now = known.unwrap_or_else(clock);
        self.slow = now - self.read >= SLOW * self.frames;
        // Slow frames of a whole burst double it more often than it has bits.
        self.next_reading = self.next_reading.saturating_mul(2);
        (self.read, self.frames) = (now, 0);
        let due = now - self.transmitted >= TRANSMIT_AFTER;
        if due {
            self.transmitted = now;
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Number of clock readings for a burst with these times per frame, and the frames after which it transmits.
    fn burst(pace: &mut Pace, took: &[u64]) -> (u32, Vec<usize>) {
        let (mut readings, mut now) = (0, 1_000_000);
        pace.begin(Nanos(now));
        let mut transmits = Vec::new();
        for (index, took) in took.iter().enumerate() {
            now += took;
            let clock = || {
                readings += 1;
                Nanos(now)
            };
            if pace.handled(None, clock) {
                transmits.push(index + 1);
            }
        }
        (readings, transmits)
    }

    #[test]
    fn fast_frames_cost_few_readings_and_transmit_at_the_end() {
        let mut pace = Pace::default();
        for _ in 0..3 {
            assert_eq!(burst(&mut pace, &[50; 32]), (3, vec![]));
            assert_eq!(burst(&mut pace, &[50; 3]), (0, vec![]));
        }
    }

    #[test]
    fn slow_frames_transmit_as_they_are_answered() {
        let mut pace = Pace::default();
        // Not known to be slow at first: the fourth tells, and each one from then on.
        assert_eq!(burst(&mut pace, &[5_000; 32]), (29, (4..=32).collect()));
        assert_eq!(burst(&mut pace, &[5_000; 32]), (32, (1..=32).collect()));
        // Of 800 ns each, the third makes 2 us full.
        assert_eq!(burst(&mut pace, &[800; 9]), (9, vec![3, 6, 9]));
        assert_eq!(burst(&mut pace, &[5_000]), (1, vec![1]));
        // A fast one ends it.
        assert_eq!(burst(&mut pace, &[50; 32]).1, []);
        assert_eq!(burst(&mut pace, &[50; 32]).0, 3);
    }
}
