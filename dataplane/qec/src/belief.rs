//! Matching with the beliefs of a shot (arXiv 2203.04948): what belief propagation on whole errors makes of the events gives each
//! edge its weight.
//!
//! Sum-product messages between detectors and errors, whose parts are together, yield the odds of each error given the events. An
//! edge has the probability that one of the errors has happened which it is a part of, and weighs -ln of that: unlike
//! ln((1 - p) / p) it is not negative where an error is likelier than not.

use std::collections::HashMap;

use crate::{
    dem::{DetectorErrorModel, cancel_pairs},
    graph::{BOUNDARY, Graph, surprise},
    hyper::{Hypergraph, flip, starts},
};

/// Iterations for each shot. More do not make fewer answers wrong.
const ITERATIONS: usize = 5;
/// The greatest odds that a detector tells an error, and the least the other way round.
const MOST: f32 = 1e6;
/// The same of the odds of an error, after all detectors. What is divided by a message stays finite.
const MOST_ODDS: f32 = 1e18;
/// The least size of a bias, which is divided by.
const LEAST_BIAS: f32 = 1e-9;

/// What is computed once from a model.
#[derive(Debug)]
pub(crate) struct Beliefs {
    errors: Hypergraph,
    /// p / (1 - p) of each error.
    odds: Vec<f32>,
    /// The first of each edge's errors, and the end of the last one's. An edge without any keeps its own weight.
    starts: Vec<u32>,
    of_edges: Vec<u32>,
}

impl Beliefs {
    pub(crate) fn new(model: &DetectorErrorModel, graph: &Graph) -> Self {
        let errors = Hypergraph::new(model);
        let edges: HashMap<_, _> = graph.edges().into_iter().map(|(ends, _)| ends).zip(0_u32..).collect();
        // The parts of errors with the same detectors are those of the first one.
        let mut unknown: HashMap<_, _> =
            (0..errors.num_errors()).map(|error| (errors.detectors(error), error)).collect();
        let mut of_edges = vec![Vec::new(); edges.len()];
        let mut kept = Vec::new();
        for mechanism in model.mechanisms().filter(|mechanism| mechanism.probability() > 0.0) {
            let edge = |detectors: &[u32]| match *detectors {
                [one] => edges.get(&[one, BOUNDARY]).copied(),
                [one, other] => edges.get(&[one, other]).copied(),
                _ => None,
            };
            let mut parts: Vec<u32> = mechanism.parts().filter_map(|part| edge(part.detectors)).collect();
            let count = cancel_pairs(&mut parts);
            parts.truncate(count);
            // An edge may stand for the absence of an error that happens more often than not.
            if mechanism.probability() > 0.5 {
                kept.extend(parts);
                continue;
            }
            let mut detectors: Vec<u32> = mechanism.parts().flat_map(|part| part.detectors).copied().collect();
            let count = cancel_pairs(&mut detectors);
            if let Some(error) = unknown.remove(&detectors[..count]) {
                for edge in parts {
                    of_edges[edge as usize].push(error as u32);
                }
            }
        }
        for edge in kept {
            of_edges[edge as usize].clear();
        }
        Self {
            odds: errors.probabilities.iter().map(|p| (p / (1.0 - p)) as f32).collect(),
            starts: starts(&of_edges),
            of_edges: of_edges.concat(),
            errors,
        }
    }
}

/// Scratch memory of a decoder.
#[derive(Debug)]
pub(crate) struct Posteriors {
    /// By error.
    odds: Vec<f32>,
    /// By edge of the errors' graph, the odds that the detector has told the error.
    messages: Vec<f32>,
    /// Of a detector, how much likelier each of its errors is not to have happened, from -1 to 1.
    biases: Vec<f32>,
    /// Events that are to be explained, and those that are left.
    events: Vec<u64>,
    left: Vec<u64>,
}

impl Posteriors {
    pub(crate) fn new(beliefs: &Beliefs) -> Self {
        let errors = &beliefs.errors;
        let words = errors.certain_events.len();
        let most = errors.detector_starts.array_windows::<2>().map(|[start, end]| end - start).max();
        Self {
            odds: vec![0.0; errors.num_errors()],
            messages: vec![0.0; errors.num_edges()],
            biases: Vec::with_capacity(most.unwrap_or(0) as usize),
            events: vec![0; words],
            left: vec![0; words],
        }
    }

    /// Calls `each` for edges, with the weights that they have given the events, a bit for each detector.
    pub(crate) fn of(&mut self, beliefs: &Beliefs, events: &[u64], mut each: impl FnMut(u32, i64)) {
        self.events.copy_from_slice(events);
        flip(&mut self.events, &beliefs.errors.certain_events);
        self.odds.copy_from_slice(&beliefs.odds);
        self.messages.fill(1.0);
        for _ in 0..ITERATIONS {
            self.iterate(&beliefs.errors);
            if self.is_solution(&beliefs.errors) {
                break;
            }
        }
        for (edge, [start, end]) in (0..).zip(beliefs.starts.array_windows::<2>()) {
            if start < end {
                let errors = &beliefs.of_edges[*start as usize..*end as usize];
                let odds = errors.iter().map(|error| self.odds[*error as usize]);
                each(edge, surprise(odds.map(|odds| odds / (1.0 + odds)).sum::<f32>().into()));
            }
        }
    }

    /// Each detector sees what those before it have sent.
    fn iterate(&mut self, graph: &Hypergraph) {
        for (detector, [start, end]) in graph.detector_starts.array_windows::<2>().enumerate() {
            let errors = &graph.edge_errors[*start as usize..*end as usize];
            let messages = &mut self.messages[*start as usize..*end as usize];
            self.biases.clear();
            let mut product = if self.events[detector / 64] >> (detector % 64) & 1 == 1 { -1.0 } else { 1.0 };
            for (error, message) in errors.iter().zip(&*messages) {
                // Without what this detector has told them.
                let odds = self.odds[*error as usize];
                let bias = (message - odds) / (message + odds);
                let bias = bias.abs().max(LEAST_BIAS).copysign(bias);
                product *= bias;
                self.biases.push(bias);
            }
            for ((error, message), bias) in errors.iter().zip(messages).zip(&self.biases) {
                // The product of the others is at most 1: rounding alone makes odds below 0, or infinite ones.
                let sent = ((bias - product) / (bias + product)).abs().clamp(1.0 / MOST, MOST);
                let odds = &mut self.odds[*error as usize];
                *odds = (*odds * (sent / *message)).clamp(1.0 / MOST_ODDS, MOST_ODDS);
                *message = sent;
            }
        }
    }

    /// Whether the errors that are likelier than not make the events.
    fn is_solution(&mut self, graph: &Hypergraph) -> bool {
        self.left.copy_from_slice(&self.events);
        for (error, _) in self.odds.iter().enumerate().filter(|(_, odds)| **odds > 1.0) {
            for detector in graph.detectors(error) {
                self.left[*detector as usize / 64] ^= 1 << (detector % 64);
            }
        }
        self.left.iter().all(|word| *word == 0)
    }
}
