//! The decoder that is most accurate within a deadline.

use std::time::{Duration, Instant};

use berth_qec::{Decoder, dem::DetectorErrorModel};

use super::Rate;
use crate::tally;

/// One of so many shots may be later than the deadline.
const ONE_LATE_OF: usize = 1000;
/// Shots that are decoded before time is taken.
const WARM_UP: usize = 200;
/// How often a decode is timed that was late before.
const TRIES: usize = 3;

/// Shots of a model, by chance.
#[derive(Debug, Clone)]
pub struct Samples {
    events: Vec<u8>,
    flips: Vec<u8>,
    shots: usize,
}

impl Samples {
    /// Draws at least one shot; the same ones for the same seed.
    pub fn draw(model: &DetectorErrorModel, shots: usize, seed: u64) -> Self {
        let shots = shots.max(1);
        let (of_events, of_flips) = (model.num_detectors().div_ceil(8), model.num_observables().div_ceil(8));
        let mut samples = Self { events: vec![0; shots * of_events], flips: vec![0; shots * of_flips], shots };
        let mut random = fastrand::Rng::with_seed(seed);
        for mechanism in model.mechanisms().filter(|mechanism| mechanism.probability() > 0.0) {
            // Between two shots in which it happens there is a geometrically distributed number of others.
            let scale = (-mechanism.probability()).ln_1p().recip();
            let mut others = || ((1.0 - random.f64()).ln() * scale) as usize;
            let mut shot = others();
            while shot < shots {
                for part in mechanism.parts() {
                    let events = &mut samples.events[shot * of_events..][..of_events];
                    part.detectors.iter().for_each(|at| events[*at as usize / 8] ^= 1 << (at % 8));
                    let flips = &mut samples.flips[shot * of_flips..][..of_flips];
                    flips.iter_mut().zip(part.observables.to_le_bytes()).for_each(|(byte, of_part)| *byte ^= of_part);
                }
                shot = shot.saturating_add(1).saturating_add(others());
            }
        }
        samples
    }

    /// The detection events of each shot with its flips.
    fn each(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let (of_events, of_flips) = (self.events.len() / self.shots, self.flips.len() / self.shots);
        (0..self.shots).map(move |shot| {
            (&self.events[shot * of_events..][..of_events], &self.flips[shot * of_flips..][..of_flips])
        })
    }
}

/// What a decoder did with some shots, one at a time.
#[derive(Debug, Clone, Copy)]
pub struct Measured {
    /// Predictions that were wrong or missing, of the shots decoded: not all, where it was late too often before.
    pub rate: Rate,
    /// Decodes that took longer than the deadline.
    pub late: u64,
    /// Whether at most one of 1000 was late.
    pub fits: bool,
    /// Half of the decodes took at most so long.
    pub p50: Duration,
    /// 999 of 1000 did.
    pub p99_9: Duration,
    /// The longest one.
    pub longest: Duration,
}

/// Decodes the samples one at a time, until it is known that too many are late. Times include a reading of the clock. A late
/// decode is timed again, and is only late if it always is: a host that takes the CPU away says nothing of the algorithm.
pub fn measure(decoder: &mut Decoder, samples: &Samples, deadline: Duration) -> Measured {
    let mut predicted = vec![0; decoder.num_observables().div_ceil(8)];
    for (events, _) in samples.each().take(WARM_UP) {
        let _ = decoder.decode(events, &mut predicted);
    }
    let (mut rate, mut late, mut times) = (Rate { errors: 0, shots: 0 }, 0, tally::histogram());
    let may_be_late = (samples.shots / ONE_LATE_OF) as u64;
    for (events, flips) in samples.each() {
        let (mut answered, mut took) = (false, Duration::MAX);
        for _ in 0..TRIES {
            let started = Instant::now();
            answered = decoder.decode(events, &mut predicted).is_ok();
            took = took.min(started.elapsed());
            if took <= deadline {
                break;
            }
        }
        times.saturating_record(took.as_nanos() as u64);
        rate.shots += 1;
        rate.errors += u64::from(!answered || predicted != flips);
        late += u64::from(took > deadline);
        if late > may_be_late {
            break;
        }
    }
    let at = |quantile| Duration::from_nanos(times.value_at_quantile(quantile));
    Measured { rate, late, fits: late <= may_be_late, p50: at(0.5), p99_9: at(0.999), longest: at(1.0) }
}

/// Which one fits with the fewest errors, and of those the quickest.
pub fn best<'a>(measured: impl IntoIterator<Item = Option<&'a Measured>>) -> Option<usize> {
    let fitting = measured.into_iter().enumerate().filter_map(|(at, one)| Some((at, one.filter(|one| one.fits)?)));
    Some(fitting.min_by_key(|(_, one)| (one.rate.errors, one.p50))?.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_as_frequent_as_the_model_says() {
        let model = "error(0.25) D0 L1\nerror(0) D1\nerror(1) D2 L0\nerror(0.5) D3 D0 ^ D3 L9";
        let model = DetectorErrorModel::parse(model).unwrap();
        let shots = 40_000;
        let samples = Samples::draw(&model, shots, 3);
        let share = |bit: fn(&[u8], &[u8]) -> bool| {
            samples.each().filter(|(events, flips)| bit(events, flips)).count() as f64 / shots as f64
        };
        // 40,000 coins are 0.5 +- 0.0025.
        assert!((share(|_, flips| flips[0] & 2 > 0) - 0.25).abs() < 0.02);
        assert!((share(|_, flips| flips[1] & 2 > 0) - 0.5).abs() < 0.02);
        // One of two independent errors: 0.25 * 0.5 + 0.75 * 0.5.
        assert!((share(|events, _| events[0] & 1 > 0) - 0.5).abs() < 0.02);
        assert!((share(|_, flips| flips[0] & 2 > 0 && flips[1] & 2 > 0) - 0.125).abs() < 0.02);
        // D3 is flipped twice or not at all.
        assert!(samples.each().all(|(events, flips)| events[0] & 0b1110 == 0b0100 && flips[0] & 1 > 0));
        let again = Samples::draw(&model, shots, 3);
        assert_eq!((&again.events, &again.flips), (&samples.events, &samples.flips));
        assert_ne!(Samples::draw(&model, shots, 4).flips, samples.flips);
    }

    #[test]
    fn the_fewest_errors_within_the_deadline_win() {
        let one = |errors, fits, p50| Measured {
            rate: Rate { errors, shots: 100 },
            late: 0,
            fits,
            p50: Duration::from_nanos(p50),
            p99_9: Duration::ZERO,
            longest: Duration::ZERO,
        };
        let all = [one(0, false, 1), one(3, true, 1), one(2, true, 9), one(2, true, 8), one(2, true, 9)];
        assert_eq!(best(all.iter().map(Some)), Some(3));
        assert_eq!(best([None, Some(&all[1])]), Some(1));
        assert_eq!(best([None, Some(&all[0])]), None);
    }
}
