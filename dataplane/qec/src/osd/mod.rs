//! Belief propagation, and ordered (arXiv 2005.07016) or localized (arXiv 2406.18655) statistics decoding, on any errors.
//!
//! Min-sum messages between errors and detectors yield for each error a marginal, its log-likelihood given the events. If
//! those that are likelier than not make the syndrome, they are the answer. Otherwise elimination takes the errors in the
//! order of their marginals, likeliest first, and keeps those whose detectors are independent of the ones before: the
//! pivots. One set of pivots makes the syndrome. Every other error that is assumed as well makes another set, so a sweep over
//! single others, and pairs of the likeliest, finds lighter answers. Localized statistics let elimination take errors near the
//! events alone: a cluster of detectors around each event grows by its likeliest error until its pivots make its events.
//!
//! So there is an answer whenever a set of the model's errors makes the syndrome. Numbers are `f32`, in a fixed order: the same
//! shots have the same answers on every host.

mod beliefs;
mod clusters;
mod elimination;

pub(crate) use beliefs::Beliefs;

use crate::{dem::DetectorErrorModel, hyper::Hypergraph};

/// Most iterations of belief propagation.
pub const MAX_ITERATIONS: usize = 1000;
/// The greatest order of a combination sweep.
pub const MAX_ORDER: usize = 64;
/// Most detectors: elimination takes 2 bits for each pair of them, 64 MiB.
pub const MAX_DETECTORS: usize = 1 << 14;
/// Most errors, each of other detectors.
pub const MAX_ERRORS: usize = 1 << 18;
/// Most pairs of an error and a detector that it flips.
pub const MAX_EDGES: usize = 1 << 21;
/// Weight of one unit of log-likelihood, ln((1 - p) / p).
const RESOLUTION: f64 = (1 << 20) as f64;

/// When an iteration uses a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Schedule {
    /// Detector by detector, each with what those before it have sent. It needs about half as many iterations.
    Serial,
    /// In the next iteration: all detectors at once.
    Parallel,
}

/// The errors that elimination takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Statistics {
    /// All of them, likeliest first.
    Ordered,
    /// Those of clusters that grow around the events, each by its likeliest error, until they explain them. What it takes
    /// follows the clusters, not the model.
    Localized,
}

/// How belief propagation and ordered statistics decoding run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BpOsd {
    /// When an iteration uses a message.
    pub schedule: Schedule,
    /// Most iterations, 1 to [`MAX_ITERATIONS`].
    pub iterations: usize,
    /// The errors that elimination takes.
    pub statistics: Statistics,
    /// Order of the combination sweep, up to [`MAX_ORDER`]: pairs are tried of so many errors that were taken, and all single
    /// ones. 0 is no sweep: OSD-0, LSD-0.
    pub order: usize,
}

impl Default for BpOsd {
    fn default() -> Self {
        Self { schedule: Schedule::Serial, iterations: 60, statistics: Statistics::Ordered, order: 10 }
    }
}

/// Why a model does not make a decoder of ordered statistics.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OsdError {
    /// Too many errors or detectors.
    #[error(
        "{errors} errors flip {edges} detectors, {detectors} different ones; at most {MAX_ERRORS}, {MAX_EDGES} and \
         {MAX_DETECTORS} are possible"
    )]
    TooLarge {
        /// Errors with different detectors.
        errors: usize,
        /// Detectors that they flip, summed.
        edges: usize,
        /// Detectors of the model.
        detectors: usize,
    },
    /// A parameter is out of its range.
    #[error("bp_osd takes 1 to {MAX_ITERATIONS} iterations and an order of 0 to {MAX_ORDER}")]
    Parameters,
}

/// What is computed once from a model.
#[derive(Debug)]
pub(crate) struct OsdTables {
    parameters: BpOsd,
    graph: Hypergraph,
    /// ln((1 - p) / p) of each error.
    priors: Vec<f32>,
    /// The same, in units of [`RESOLUTION`].
    weights: Vec<u32>,
}

impl OsdTables {
    pub(crate) fn new(model: &DetectorErrorModel, parameters: BpOsd) -> Result<Self, OsdError> {
        if !(1..=MAX_ITERATIONS).contains(&parameters.iterations) || parameters.order > MAX_ORDER {
            return Err(OsdError::Parameters);
        }
        let graph = Hypergraph::new(model);
        let (errors, edges, detectors) = (graph.num_errors(), graph.num_edges(), model.num_detectors());
        if errors > MAX_ERRORS || edges > MAX_EDGES || detectors > MAX_DETECTORS {
            return Err(OsdError::TooLarge { errors, edges, detectors });
        }
        let (priors, weights) = graph.probabilities.iter().map(|p| prior(*p)).unzip();
        Ok(Self { parameters, graph, priors, weights })
    }

    /// Detectors of each error.
    pub(crate) fn all_detectors(&self) -> impl Iterator<Item = &[u32]> {
        (0..self.graph.num_errors()).map(|error| self.graph.detectors(error))
    }
}

/// Prior and weight of an error.
fn prior(probability: f64) -> (f32, u32) {
    let likelihood = (-probability).ln_1p() - probability.ln();
    (likelihood as f32, (likelihood * RESOLUTION).round().max(1.0) as u32)
}
