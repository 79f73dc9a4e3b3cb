//! The iterations in floating point, of so many relays at once: a row has a value of each.

use super::{MAX_RELAYS, tables::Relay};
use crate::{decoder::DecodeError, hyper::flip};

/// Scratch memory of a decoder, for `L` relays.
#[derive(Debug)]
pub(crate) struct Floats<const L: usize> {
    priors: Vec<f64>,
    /// By error.
    marginals: Vec<[f64; L]>,
    /// By edge, from the detector to the error, and from the error to the detector.
    sent: Vec<[f64; L]>,
    taken: Vec<[f64; L]>,
    /// Of the last solution.
    weight: f64,
}

/// A row of what `f` makes of each relay's values.
#[inline(always)]
fn each<const L: usize>(a: [f64; L], b: [f64; L], f: impl Fn(f64, f64) -> f64) -> [f64; L] {
    std::array::from_fn(|at| f(a[at], b[at]))
}

impl<const L: usize> Floats<L> {
    pub(crate) fn new(tables: &Relay) -> Self {
        let probabilities = tables.graph.probabilities.iter();
        let priors: Vec<f64> = probabilities.map(|p| ((1.0 - p) / p).ln()).collect();
        let edges = tables.graph.num_edges();
        Self {
            marginals: vec![[0.0; L]; priors.len()],
            sent: vec![[0.0; L]; edges],
            taken: vec![[0.0; L]; edges],
            weight: 0.0,
            priors,
        }
    }

    /// Flips of the lightest of the solutions that come first for the events, a bit for each detector.
    pub(crate) fn decode(&mut self, tables: &Relay, events: &[u64], flips: &mut [u64]) -> Result<(), DecodeError> {
        flips.copy_from_slice(&tables.graph.certain_flips);
        if events == tables.graph.certain_events {
            self.weight = 0.0;
            return Ok(());
        }
        for (marginals, prior) in self.marginals.iter_mut().zip(&self.priors) {
            *marginals = [*prior; L];
        }
        let (relays, iterations) = (tables.parameters.relays, tables.parameters.iterations);
        for strengths in tables.strengths.chunks(self.priors.len().max(1)) {
            for (taken, error) in self.taken.iter_mut().zip(&tables.graph.edge_errors) {
                *taken = [self.priors[*error as usize]; L];
            }
            self.detectors(tables, events);
            for _ in 0..iterations {
                self.errors(tables, strengths);
                // Whether this is a solution is seen with the messages of the next iteration.
                let solved = self.detectors(tables, events);
                let solutions = (0..relays).filter(|relay| solved[*relay]);
                let weighed = solutions.map(|relay| (self.weight_of(relay), relay));
                if let Some((weight, relay)) = weighed.min_by(|one, other| one.0.total_cmp(&other.0)) {
                    self.weight = weight;
                    let happened = self.marginals.iter().enumerate().filter(|(_, marginals)| marginals[relay] <= 0.0);
                    happened.for_each(|(error, _)| flip(flips, tables.graph.flips(error)));
                    return Ok(());
                }
            }
        }
        Err(DecodeError::NoSolution)
    }

    /// Weight of the last solution: the sum of ln((1 - p) / p).
    pub(crate) fn weight(&self) -> f64 {
        self.weight
    }

    /// Step 2 of the [definition](super), of all errors.
    fn errors(&mut self, tables: &Relay, strengths: &[[i16; MAX_RELAYS]]) {
        let Self { priors, marginals, sent, taken, .. } = self;
        let bounds = tables.graph.error_starts.array_windows::<2>();
        for (((marginals, prior), strengths), [start, end]) in
            marginals.iter_mut().zip(priors).zip(strengths).zip(bounds)
        {
            let strengths: [f64; L] = std::array::from_fn(|at| f64::from(strengths[at]) / 32768.0);
            let mut sums =
                each(*marginals, strengths, |marginal, strength| *prior * (1.0 - strength) + marginal * strength);
            let edges = &tables.graph.error_edges[*start as usize..*end as usize];
            for edge in edges {
                taken[*edge as usize] = sums;
                sums = each(sums, sent[*edge as usize], |sum, message| sum + message);
            }
            *marginals = sums;
            let mut sums = [0.0; L];
            for edge in edges.iter().rev() {
                let edge = *edge as usize;
                taken[edge] = each(taken[edge], sums, |before, behind| before + behind);
                sums = each(sums, sent[edge], |sum, message| sum + message);
            }
        }
    }

    /// Step 1 of the [definition](super), of all detectors. Returns of which relays the errors make the syndrome.
    fn detectors(&mut self, tables: &Relay, events: &[u64]) -> [bool; L] {
        let mut solved = [true; L];
        for (detector, [start, end]) in tables.graph.detector_starts.array_windows::<2>().enumerate() {
            let word = detector / 64;
            let event = (events[word] ^ tables.graph.certain_events[word]) >> (detector % 64) & 1 != 0;
            let (mut parities, mut signs) = ([event; L], [event; L]);
            let (mut least, mut second) = ([f64::MAX; L], [f64::MAX; L]);
            let edges = *start as usize..*end as usize;
            for (error, taken) in tables.graph.edge_errors[edges.clone()].iter().zip(&self.taken[edges.clone()]) {
                let marginals = &self.marginals[*error as usize];
                for at in 0..L {
                    parities[at] ^= marginals[at] <= 0.0;
                    signs[at] ^= taken[at].is_sign_negative();
                    let size = taken[at].abs();
                    let greater = if size < least[at] { least[at] } else { size };
                    second[at] = if greater < second[at] { greater } else { second[at] };
                    least[at] = if size < least[at] { size } else { least[at] };
                }
            }
            for at in 0..L {
                solved[at] &= !parities[at];
            }
            // The least of the others: of the least itself it is the second, which is the same if two are the least.
            for (sent, taken) in self.sent[edges.clone()].iter_mut().zip(&self.taken[edges]) {
                for at in 0..L {
                    #[expect(clippy::float_cmp, reason = "it is one of them")]
                    let size = if taken[at].abs() == least[at] { second[at] } else { least[at] };
                    sent[at] = if signs[at] ^ taken[at].is_sign_negative() { -size } else { size };
                }
            }
        }
        solved
    }

    /// Weight of what a relay takes to have happened.
    fn weight_of(&self, relay: usize) -> f64 {
        let happened = self.marginals.iter().zip(&self.priors).filter(|(marginals, _)| marginals[relay] <= 0.0);
        happened.map(|(_, prior)| prior).sum()
    }
}
