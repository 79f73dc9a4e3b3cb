//! What relay belief propagation computes once from a model.

use std::collections::BTreeMap;

use super::{MAX_ITERATIONS, MAX_LEGS, MAX_RELAYS, RelayBp, UNIT};
use crate::{bits, dem::DetectorErrorModel};

/// Most errors, each of other detectors: their weights sum to less than 2^32.
pub const MAX_ERRORS: usize = 1 << 16;
/// Most pairs of an error and a detector that it flips.
pub const MAX_EDGES: usize = 1 << 20;
/// Most memory strengths of all legs, of 16 bytes each.
const MAX_STRENGTHS: usize = 1 << 22;
/// The greatest prior, 32 units of log-likelihood.
const PRIOR_MAX: f64 = 2047.0;
/// The one strength of the first relay's first leg, in units of 2^-15.
const FIRST_STRENGTH: i16 = 4096;
/// The least and the greatest of the other strengths.
const STRENGTHS: (i16, i16) = (-7864, 21627);

/// Why a model does not make a decoder by relay belief propagation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RelayError {
    /// Too many errors or detectors that they flip.
    #[error(
        "{errors} errors flip {edges} detectors, with {legs} legs; at most {MAX_ERRORS} errors, {MAX_EDGES} detectors \
         and {MAX_STRENGTHS} errors times legs are possible"
    )]
    TooLarge {
        /// Errors with different detectors.
        errors: usize,
        /// Detectors that they flip, summed.
        edges: usize,
        /// Legs asked for.
        legs: usize,
    },
    /// A parameter is out of its range.
    #[error("relay_bp takes 1 to {MAX_RELAYS} relays, 1 to {MAX_LEGS} legs and 1 to {MAX_ITERATIONS} iterations")]
    Parameters,
}

/// One row of what the relays have, of each one value.
pub(crate) type Row = [i16; MAX_RELAYS];

/// The graph of a model, and the strengths of all legs.
#[derive(Debug)]
pub(crate) struct Relay {
    pub(crate) parameters: RelayBp,
    /// The first edge of each detector, and the end of the last one's.
    pub(crate) detector_starts: Vec<u32>,
    /// The error of each edge; edges stand by detector, then by error.
    pub(crate) edge_errors: Vec<u32>,
    /// The first of each error's `error_edges`, and the end of the last one's.
    pub(crate) error_starts: Vec<u32>,
    /// The edges of each error, by detector.
    pub(crate) error_edges: Vec<u32>,
    pub(crate) priors: Vec<i16>,
    /// Observables that each error flips.
    pub(crate) flips: Vec<u64>,
    /// By leg, then by error.
    pub(crate) strengths: Vec<Row>,
    /// Events of the errors that are taken to have happened, a bit each.
    pub(crate) certain_events: Vec<u64>,
    /// Flips of these.
    pub(crate) certain_flips: u64,
}

/// Errors of the same detectors.
#[derive(Debug, Default)]
struct Merged {
    /// That an odd number of them happens.
    probability: f64,
    /// The same, by the observables that they flip.
    of_flips: BTreeMap<u64, f64>,
}

/// Probability that one of two independent errors happens, and not both.
fn either(p: f64, q: f64) -> f64 {
    p + q - 2.0 * p * q
}

impl Relay {
    /// Takes each mechanism as one error, its parts together. Errors of the same detectors are one, with the
    /// observables that are likeliest.
    pub(crate) fn new(model: &DetectorErrorModel, parameters: RelayBp) -> Result<Self, RelayError> {
        let RelayBp { relays, legs, iterations, seed } = parameters;
        let given = [(relays, MAX_RELAYS), (legs, MAX_LEGS), (iterations, MAX_ITERATIONS)];
        if given.iter().any(|(value, most)| !(1..=*most).contains(value)) {
            return Err(RelayError::Parameters);
        }
        let num_detectors = model.num_detectors();
        let (merged, certain_events, certain_flips) = merge(model);
        let (errors, edges) = (merged.len(), merged.iter().map(|(detectors, _)| detectors.len()).sum());
        if errors > MAX_ERRORS || edges > MAX_EDGES || errors * legs > MAX_STRENGTHS {
            return Err(RelayError::TooLarge { errors, edges, legs });
        }
        let mut by_detector = vec![Vec::new(); num_detectors];
        for (error, (detectors, _)) in merged.iter().enumerate() {
            for detector in detectors {
                by_detector[*detector as usize].push(error as u32);
            }
        }
        let mut by_error = vec![Vec::new(); errors];
        for (edge, error) in by_detector.iter().flatten().enumerate() {
            by_error[*error as usize].push(edge as u32);
        }
        let mut random = Random(seed);
        let mut strengths = Vec::with_capacity(errors * legs);
        for leg in 0..legs {
            for _ in 0..errors {
                let mut row: Row = std::array::from_fn(|_| random.between(STRENGTHS));
                if leg == 0 {
                    row[0] = FIRST_STRENGTH;
                }
                strengths.push(row);
            }
        }
        Ok(Self {
            parameters,
            detector_starts: starts(&by_detector),
            edge_errors: by_detector.concat(),
            error_starts: starts(&by_error),
            error_edges: by_error.concat(),
            priors: merged.iter().map(|(_, error)| prior(error.probability)).collect(),
            flips: merged.iter().map(|(_, error)| likeliest(error)).collect(),
            strengths,
            certain_events,
            certain_flips,
        })
    }
}

type Errors = Vec<(Vec<u32>, Merged)>;

/// The errors that can happen, by their detectors; of those that happen more often than not, that they do not happen,
/// and what they do.
fn merge(model: &DetectorErrorModel) -> (Errors, Vec<u64>, u64) {
    let mut merged = BTreeMap::<Vec<u32>, Merged>::new();
    let mut certain_events = vec![0; bits::words_for(model.num_detectors())];
    let mut certain_flips = 0;
    for mechanism in model.mechanisms() {
        let mut detectors: Vec<u32> = mechanism.parts().flat_map(|part| part.detectors).copied().collect();
        let kept = crate::dem::cancel_pairs(&mut detectors);
        detectors.truncate(kept);
        let flips = mechanism.parts().fold(0, |flips, part| flips ^ part.observables);
        let mut probability = mechanism.probability();
        if probability > 0.5 {
            probability = 1.0 - probability;
            certain_flips ^= flips;
            for detector in &detectors {
                certain_events[*detector as usize / 64] ^= 1 << (detector % 64);
            }
        }
        // What no detector shows cannot be decoded.
        if probability > 0.0 && !detectors.is_empty() {
            let error = merged.entry(detectors).or_default();
            error.probability = either(error.probability, probability);
            let of_flips = error.of_flips.entry(flips).or_default();
            *of_flips = either(*of_flips, probability);
        }
    }
    (merged.into_iter().collect(), certain_events, certain_flips)
}

/// The observables of the likeliest of errors with the same detectors; of equally likely ones, the lowest.
fn likeliest(error: &Merged) -> u64 {
    let mut likeliest = (0, 0.0);
    for (flips, probability) in &error.of_flips {
        if *probability > likeliest.1 {
            likeliest = (*flips, *probability);
        }
    }
    likeliest.0
}

/// The prior of an error with a probability of at most one half, 1 at least.
fn prior(probability: f64) -> i16 {
    let likelihood = (-probability).ln_1p() - probability.ln();
    (likelihood * UNIT).round().clamp(1.0, PRIOR_MAX) as i16
}

fn starts(lists: &[Vec<u32>]) -> Vec<u32> {
    let mut starts = vec![0];
    starts.extend(lists.iter().scan(0, |end, list| {
        *end += list.len() as u32;
        Some(*end)
    }));
    starts
}

/// `SplitMix64`.
struct Random(u64);

impl Random {
    fn between(&mut self, (least, most): (i16, i16)) -> i16 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = self.0;
        x = (x ^ x >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^= x >> 31;
        let span = u64::from(most.abs_diff(least)) + 1;
        (i64::from(least) + (((x >> 32) * span) >> 32) as i64) as i16
    }
}
