//! The errors of a model whatever the number of detectors that they flip: the graph of belief propagation.

use std::collections::BTreeMap;

use crate::{bits, dem::DetectorErrorModel};

/// Errors of different detectors, and which detectors and observables they flip. An edge is a pair of an error and a
/// detector that it flips.
#[derive(Debug)]
pub(crate) struct Hypergraph {
    /// The first edge of each detector, and the end of the last one's.
    pub(crate) detector_starts: Vec<u32>,
    /// The error of each edge; edges stand by detector, then by error.
    pub(crate) edge_errors: Vec<u32>,
    /// The first of each error's `error_edges`, and the end of the last one's.
    pub(crate) error_starts: Vec<u32>,
    /// The edges of each error, by detector.
    pub(crate) error_edges: Vec<u32>,
    /// The detectors of these edges.
    pub(crate) error_detectors: Vec<u32>,
    /// Of each error, at most one half.
    pub(crate) probabilities: Vec<f64>,
    /// Words of observables that each error flips.
    pub(crate) width: usize,
    /// Observables that each error flips, `width` words each.
    flips: Vec<u64>,
    /// Events of the errors that are taken to have happened, a bit each.
    pub(crate) certain_events: Vec<u64>,
    /// Flips of these.
    pub(crate) certain_flips: Vec<u64>,
}

/// Errors of the same detectors.
#[derive(Debug, Default)]
struct Merged {
    /// That an odd number of them happens.
    probability: f64,
    /// The same, by the observables that they flip, the highest word first.
    of_flips: BTreeMap<Vec<u64>, f64>,
}

/// Probability that one of two independent errors happens, and not both.
pub(crate) fn either(p: f64, q: f64) -> f64 {
    p + q - 2.0 * p * q
}

impl Hypergraph {
    /// Takes each mechanism as one error, its parts together. Errors of the same detectors are one, with the
    /// observables that are likeliest. Errors are ordered by their detectors.
    pub(crate) fn new(model: &DetectorErrorModel) -> Self {
        let width = bits::words_for(model.num_observables()).max(1);
        let mut merged = BTreeMap::<Vec<u32>, Merged>::new();
        let mut certain_events = vec![0; bits::words_for(model.num_detectors())];
        let mut certain_flips = vec![0; width];
        for mechanism in model.mechanisms() {
            let mut detectors: Vec<u32> = mechanism.parts().flat_map(|part| part.detectors).copied().collect();
            let kept = crate::dem::cancel_pairs(&mut detectors);
            detectors.truncate(kept);
            let mut flips = vec![0; width];
            mechanism.parts().for_each(|part| part.flip(&mut flips));
            let mut probability = mechanism.probability();
            if probability > 0.5 {
                probability = 1.0 - probability;
                flip(&mut certain_flips, &flips);
                for detector in &detectors {
                    certain_events[*detector as usize / 64] ^= 1 << (detector % 64);
                }
            }
            // What no detector shows cannot be decoded.
            if probability > 0.0 && !detectors.is_empty() {
                let error = merged.entry(detectors).or_default();
                error.probability = either(error.probability, probability);
                flips.reverse();
                let of_flips = error.of_flips.entry(flips).or_default();
                *of_flips = either(*of_flips, probability);
            }
        }
        let mut by_detector = vec![Vec::new(); model.num_detectors()];
        for (error, detectors) in merged.keys().enumerate() {
            for detector in detectors {
                by_detector[*detector as usize].push(error as u32);
            }
        }
        let mut by_error = vec![Vec::new(); merged.len()];
        for (edge, error) in by_detector.iter().flatten().enumerate() {
            by_error[*error as usize].push(edge as u32);
        }
        Self {
            detector_starts: starts(&by_detector),
            edge_errors: by_detector.concat(),
            error_starts: starts(&by_error),
            error_edges: by_error.concat(),
            error_detectors: merged.keys().flatten().copied().collect(),
            probabilities: merged.values().map(|error| error.probability).collect(),
            width,
            flips: merged.values().flat_map(|error| likeliest(error).iter().rev()).copied().collect(),
            certain_events,
            certain_flips,
        }
    }

    pub(crate) fn num_errors(&self) -> usize {
        self.probabilities.len()
    }

    pub(crate) fn num_edges(&self) -> usize {
        self.edge_errors.len()
    }

    /// Observables that an error flips.
    pub(crate) fn flips(&self, error: usize) -> &[u64] {
        &self.flips[error * self.width..][..self.width]
    }

    /// Detectors that an error flips, ascending.
    pub(crate) fn detectors(&self, error: usize) -> &[u32] {
        &self.error_detectors[self.error_starts[error] as usize..self.error_starts[error + 1] as usize]
    }
}

/// Adds flips to others.
pub(crate) fn flip(words: &mut [u64], flips: &[u64]) {
    words.iter_mut().zip(flips).for_each(|(word, flips)| *word ^= flips);
}

/// The observables of the likeliest of errors with the same detectors; of equally likely ones, the lowest.
fn likeliest(error: &Merged) -> &[u64] {
    let mut likeliest: (&[u64], f64) = (&[], 0.0);
    for (flips, probability) in &error.of_flips {
        if *probability > likeliest.1 {
            likeliest = (flips, *probability);
        }
    }
    likeliest.0
}

/// Where each list begins once all stand one after the other, and the end of the last.
pub(crate) fn starts(lists: &[Vec<u32>]) -> Vec<u32> {
    let mut starts = vec![0];
    starts.extend(lists.iter().scan(0, |end, list| {
        *end += list.len() as u32;
        Some(*end)
    }));
    starts
}
