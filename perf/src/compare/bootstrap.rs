//! Ratios of two measurements with confidence intervals, by resampling whole turns.
//!
//! Latencies within a turn are not independent: they share a queue, a cache state, a mood of the host. So a resample
//! draws turns with replacement, merges their histograms, and takes the percentiles of what that makes; how much those
//! differ from resample to resample is how much the figure would differ from run to run.
//!
//! A percentile interval of a few turns is too narrow, for their spread is estimated from few. It is widened as a t
//! interval is over a normal one: the tail probability is the normal one of `t * sqrt(n / (n - 1))` (Hesterberg's
//! expanded percentile interval).

use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF as _, Normal, StudentsT};

use crate::report::suite::{Estimate, Turn};

/// Resamples of each comparison.
pub const RESAMPLES: usize = 10_000;

/// How sure an interval is.
pub const CONFIDENCE: f64 = 0.95;

/// Turns that tell something about how much turns differ.
pub const FEWEST: usize = 4;

/// What is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Figure {
    /// The median latency.
    P50,
    /// The 99th percentile.
    P99,
    /// The 99.9th percentile.
    P99_9,
    /// Right answers per second.
    Rate,
}

impl Figure {
    /// All of them. The percentiles rise: one pass over the values finds them in this order.
    pub const ALL: [Self; 4] = [Self::P50, Self::P99, Self::P99_9, Self::Rate];

    /// Its name in tables: `p50`, `p99`, `p99.9` or `rate`.
    pub fn name(self) -> &'static str {
        match self {
            Self::P50 => "p50",
            Self::P99 => "p99",
            Self::P99_9 => "p99.9",
            Self::Rate => "rate",
        }
    }

    /// Whether more of it is worse.
    pub fn is_latency(self) -> bool {
        self != Self::Rate
    }

    fn quantile(self) -> Option<f64> {
        match self {
            Self::P50 => Some(0.5),
            Self::P99 => Some(0.99),
            Self::P99_9 => Some(0.999),
            Self::Rate => None,
        }
    }
}

/// Whether turns of the two measurements belong together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pairing {
    /// The n-th of both ran one after the other: a resample draws the same turns of both.
    Neighbours,
    /// No turn of one belongs to one of the other.
    Independent,
}

/// Resampled ratios of each figure, sorted, with the ratio of what was measured; `None` where there is nothing to divide.
pub struct Ratios([Option<(f64, Vec<f64>)>; 4]);

impl Ratios {
    /// Resamples the turns of `base` and `new` with a generator that always begins alike.
    ///
    /// # Panics
    /// Without turns, and for neighbours of different number.
    pub fn of(base: &[&Turn], new: &[&Turn], pairing: Pairing, resamples: usize) -> Self {
        assert!(!base.is_empty() && !new.is_empty() && (pairing == Pairing::Independent || base.len() == new.len()));
        let (base, new) = (Counted::of(base), Counted::of(new));
        let mut rng = fastrand::Rng::with_seed(0x0be7_c4ed);
        let measured = ratios(&base.figures(&vec![1; base.turns()]), &new.figures(&vec![1; new.turns()]));
        let mut drawn: [Vec<f64>; 4] = std::array::from_fn(|_| Vec::with_capacity(resamples));
        let (mut of_base, mut of_new) = (vec![0; base.turns()], vec![0; new.turns()]);
        for _ in 0..resamples {
            draw(&mut of_base, &mut rng);
            match pairing {
                Pairing::Neighbours => of_new.copy_from_slice(&of_base),
                Pairing::Independent => draw(&mut of_new, &mut rng),
            }
            for (drawn, ratio) in drawn.iter_mut().zip(ratios(&base.figures(&of_base), &new.figures(&of_new))) {
                drawn.extend(ratio);
            }
        }
        let mut measured = measured.into_iter();
        Self(drawn.map(|mut drawn| {
            drawn.sort_unstable_by(f64::total_cmp);
            measured.next().flatten().filter(|_| drawn.len() == resamples).map(|ratio| (ratio, drawn))
        }))
    }

    /// The ratio of a figure with its interval, of `turns` turns on the smaller side; `None` if any ratio was none.
    pub fn estimate(&self, figure: Figure, confidence: f64, turns: usize) -> Option<Estimate> {
        let (ratio, drawn) = self.0[figure as usize].as_ref()?;
        let tail = tail(confidence, turns);
        let at = |share: f64| drawn[((share * drawn.len() as f64) as usize).min(drawn.len() - 1)];
        Some(Estimate { ratio: *ratio, low: at(tail).min(*ratio), high: at(1.0 - tail).max(*ratio) })
    }
}

/// What lies beyond each end of a percentile interval of so many turns.
fn tail(confidence: f64, turns: usize) -> f64 {
    let n = turns.max(2) as f64;
    let t = StudentsT::new(0.0, 1.0, n - 1.0).expect("degrees of freedom are positive");
    let reach = t.inverse_cdf(0.5 + confidence / 2.0) * (n / (n - 1.0)).sqrt();
    Normal::standard().cdf(-reach)
}

/// Draws as many turns as there are: how often each.
fn draw(times: &mut [u64], rng: &mut fastrand::Rng) {
    times.fill(0);
    for _ in 0..times.len() {
        times[rng.usize(..times.len())] += 1;
    }
}

fn ratios(base: &[f64; 4], new: &[f64; 4]) -> [Option<f64>; 4] {
    std::array::from_fn(|i| Some(new[i] / base[i]).filter(|ratio| ratio.is_finite() && *ratio > 0.0))
}

/// The turns of one side: every value that any of them recorded, and how often each recorded it.
struct Counted {
    values: Vec<u64>,
    /// Turn by turn: places among the values, and a count for each.
    counts: Vec<Vec<(usize, u64)>>,
    rates: Vec<f64>,
}

impl Counted {
    fn of(turns: &[&Turn]) -> Self {
        let pairs = || turns.iter().flat_map(|turn| turn.histogram.pairs());
        let mut values: Vec<u64> = pairs().map(|(value, _)| *value).collect();
        values.sort_unstable();
        values.dedup();
        let place = |value: &u64| values.binary_search(value).expect("all values were gathered");
        let counts = turns
            .iter()
            .map(|turn| turn.histogram.pairs().iter().map(|(value, count)| (place(value), *count)).collect())
            .collect();
        Self { values, counts, rates: turns.iter().map(|turn| turn.answered_per_s).collect() }
    }

    fn turns(&self) -> usize {
        self.rates.len()
    }

    /// The figures of turns drawn so often, in the order of [`Figure::ALL`].
    fn figures(&self, times: &[u64]) -> [f64; 4] {
        let mut merged = vec![0_u64; self.values.len()];
        for (counts, times) in self.counts.iter().zip(times).filter(|(_, times)| **times > 0) {
            for (place, count) in counts {
                merged[*place] = merged[*place].saturating_add(count.saturating_mul(*times));
            }
        }
        let total: f64 = merged.iter().map(|count| *count as f64).sum();
        let (mut below, mut at) = (0.0, 0);
        // Percentiles rise in the order of the figures, so one pass finds them all.
        Figure::ALL.map(|figure| {
            let Some(quantile) = figure.quantile() else {
                let drawn: u64 = times.iter().sum();
                let rates = self.rates.iter().zip(times).map(|(rate, times)| rate * *times as f64);
                return rates.sum::<f64>() / drawn as f64;
            };
            while at + 1 < merged.len() && below + (merged[at] as f64) < quantile * total {
                below += merged[at] as f64;
                at += 1;
            }
            self.values.get(at).map_or(0.0, |value| *value as f64)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        hiccup::Hiccups,
        report::{json::Latency, sparse::Sparse},
        tally::{Counts, histogram},
    };

    /// A turn whose latencies are log-normal around 10 us times `scale`, with a mood of its own.
    fn turn(rng: &mut fastrand::Rng, scale: f64, mood: f64) -> Turn {
        // A sum of uniform numbers is near enough to a normal one.
        let mut normal = || (0..12).map(|_| rng.f64()).sum::<f64>() - 6.0;
        let factor = scale * (mood * normal()).exp();
        let mut latencies = histogram();
        for _ in 0..300 {
            latencies.record((10_000.0 * factor * (0.15 * normal()).exp()) as u64).unwrap();
        }
        Turn {
            at_s: 0.0,
            seconds: 1.0,
            answered_per_s: 1e5 / factor,
            counts: Counts::default(),
            latency: Latency::of(&latencies),
            histogram: Sparse::of(&latencies),
            hiccups: Hiccups::of(&histogram()),
            bounce_before: None,
            bounce_after: None,
        }
    }

    fn turns(rng: &mut fastrand::Rng, count: usize, scale: f64) -> Vec<Turn> {
        (0..count).map(|_| turn(rng, scale, 0.01)).collect()
    }

    fn estimate(rng: &mut fastrand::Rng, count: usize, scale: f64, figure: Figure) -> Estimate {
        let (base, new) = (turns(rng, count, 1.0), turns(rng, count, scale));
        let ratios =
            Ratios::of(&base.iter().collect::<Vec<_>>(), &new.iter().collect::<Vec<_>>(), Pairing::Independent, 300);
        ratios.estimate(figure, CONFIDENCE, count).unwrap()
    }

    /// Runs of the same distribution differ in their moods, and 95 % intervals exclude 1 about once in 20 times.
    #[test]
    fn the_same_distribution_is_rarely_found_different() {
        let mut rng = fastrand::Rng::with_seed(1);
        for (count, figure) in
            [(5, Figure::P50), (9, Figure::P50), (9, Figure::P99), (9, Figure::Rate), (20, Figure::P99_9)]
        {
            let trials = 200;
            let flagged = (0..trials).filter(|_| {
                let Estimate { low, high, .. } = estimate(&mut rng, count, 1.0, figure);
                low > 1.0 || high < 1.0
            });
            // 5 % of 200 are 10; 22 is four standard deviations more.
            let flagged = flagged.count();
            assert!(flagged <= 22, "{flagged} of {trials} with {count} turns, {}", figure.name());
        }
    }

    #[test]
    fn a_shift_of_five_per_cent_is_found() {
        let mut rng = fastrand::Rng::with_seed(2);
        for figure in [Figure::P50, Figure::Rate] {
            let trials = 50;
            let found = (0..trials).filter(|_| {
                let Estimate { ratio, low, high } = estimate(&mut rng, 9, 1.05, figure);
                assert!(low <= ratio && ratio <= high);
                if figure.is_latency() { low > 1.0 } else { high < 1.0 }
            });
            let found = found.count();
            assert!(found >= 48, "{found} of {trials}, {}", figure.name());
        }
    }

    /// Whole turns are drawn, so many samples of one mood are no evidence.
    #[test]
    fn moods_of_turns_widen_the_interval() {
        let mut rng = fastrand::Rng::with_seed(3);
        let mut width = |mood: f64| {
            let (base, new): (Vec<_>, Vec<_>) =
                (0..9).map(|_| (turn(&mut rng, 1.0, mood), turn(&mut rng, 1.0, mood))).unzip();
            let ratios = Ratios::of(
                &base.iter().collect::<Vec<_>>(),
                &new.iter().collect::<Vec<_>>(),
                Pairing::Independent,
                300,
            );
            let Estimate { low, high, .. } = ratios.estimate(Figure::P50, CONFIDENCE, 9).unwrap();
            high / low
        };
        assert!(width(0.1) > 1.0 + 4.0 * (width(0.01) - 1.0));
    }

    #[test]
    fn neighbours_share_their_moods() {
        let mut rng = fastrand::Rng::with_seed(4);
        let base = turns(&mut rng, 9, 1.0);
        let all: Vec<_> = base.iter().collect();
        let same = Ratios::of(&all, &all, Pairing::Neighbours, 100).estimate(Figure::P50, CONFIDENCE, 9).unwrap();
        assert_eq!((same.ratio, same.low, same.high), (1.0, 1.0, 1.0));
    }

    #[test]
    fn fewer_turns_have_wider_intervals() {
        assert!((tail(0.95, 10_000) - 0.025).abs() < 1e-4);
        assert!(tail(0.95, 4) < 0.001 && tail(0.95, 9) < 0.01);
    }

    #[test]
    fn nothing_answered_is_nothing_to_divide() {
        let mut silent = turn(&mut fastrand::Rng::with_seed(5), 1.0, 0.0);
        silent.histogram = Sparse::default();
        silent.answered_per_s = 0.0;
        let ratios = Ratios::of(&[&silent], &[&silent], Pairing::Independent, 10);
        assert_eq!(Figure::ALL.map(|figure| ratios.estimate(figure, CONFIDENCE, 1)), [None; 4]);
    }
}
