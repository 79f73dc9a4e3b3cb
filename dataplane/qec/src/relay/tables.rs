//! What relay belief propagation computes once from a model.

use super::{MAX_ITERATIONS, MAX_LEGS, MAX_RELAYS, RelayBp, UNIT};
use crate::{dem::DetectorErrorModel, hyper::Hypergraph};

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
    pub(crate) graph: Hypergraph,
    pub(crate) priors: Vec<i16>,
    /// By leg, then by error.
    pub(crate) strengths: Vec<Row>,
}

impl Relay {
    pub(crate) fn new(model: &DetectorErrorModel, parameters: RelayBp) -> Result<Self, RelayError> {
        let RelayBp { relays, legs, iterations, seed, arithmetic: _ } = parameters;
        let given = [(relays, MAX_RELAYS), (legs, MAX_LEGS), (iterations, MAX_ITERATIONS)];
        if given.iter().any(|(value, most)| !(1..=*most).contains(value)) {
            return Err(RelayError::Parameters);
        }
        let graph = Hypergraph::new(model);
        let (errors, edges) = (graph.num_errors(), graph.num_edges());
        if errors > MAX_ERRORS || edges > MAX_EDGES || errors * legs > MAX_STRENGTHS {
            return Err(RelayError::TooLarge { errors, edges, legs });
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
        let priors = graph.probabilities.iter().map(|probability| prior(*probability)).collect();
        Ok(Self { parameters, graph, priors, strengths })
    }
}

/// The prior of an error with a probability of at most one half, 1 at least.
fn prior(probability: f64) -> i16 {
    let likelihood = (-probability).ln_1p() - probability.ln();
    (likelihood * UNIT).round().clamp(1.0, PRIOR_MAX) as i16
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
