//! The matching graph of a model: detectors, a boundary, and one edge for each pair that some error flips.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
};

use crate::{
    bits,
    dem::{DetectorErrorModel, Symptoms},
    mwpm::MwpmError,
};

/// The weight of one unit of log-likelihood, ln((1 - p) / p). Weights are even, as fusion-blossom needs.
const RESOLUTION: f64 = 32768.0;
/// Probabilities nearer to 0 than this are taken as this: it bounds weights, and with them every path, to 32 bits.
const LEAST_PROBABILITY: f64 = 1e-6;

/// The graph.
#[derive(Debug)]
pub(crate) struct Graph {
    num_detectors: usize,
    edges: Vec<Edge>,
    /// The edges at each vertex; the boundary is the last one.
    edges_at: Vec<Vec<u32>>,
    certain_events: Vec<u64>,
    certain_flips: u64,
}

#[derive(Debug)]
struct Edge {
    ends: (u32, u32),
    probability: f64,
    weight: u32,
    flips: u64,
}

impl Graph {
    /// Gathers the edges of a model. `error(p)` with parts is one independent error of probability p for each part.
    pub(crate) fn new(model: &DetectorErrorModel) -> Result<Self, MwpmError> {
        let num_detectors = model.num_detectors();
        let mut graph = Self {
            num_detectors,
            edges: Vec::new(),
            edges_at: vec![Vec::new(); num_detectors + 1],
            certain_events: vec![0; bits::words_for(num_detectors)],
            certain_flips: 0,
        };
        let mut known = HashMap::new();
        for mechanism in model.mechanisms().filter(|mechanism| mechanism.probability() > 0.0) {
            for Symptoms { detectors, observables } in mechanism.parts() {
                let ends = match *detectors {
                    // Nothing shows whether it happened.
                    [] => continue,
                    [one] => (one, num_detectors as u32),
                    [one, other] => (one, other),
                    _ => return Err(MwpmError::NotGraphlike { line: mechanism.line(), detectors: detectors.len() }),
                };
                let probability = mechanism.probability();
                let at = *known.entry(ends).or_insert(graph.edges.len());
                if let Some(edge) = graph.edges.get_mut(at) {
                    // One of two independent errors, not both. The first one's observables stay, as in PyMatching.
                    edge.probability += probability - 2.0 * edge.probability * probability;
                } else {
                    graph.edges.push(Edge { ends, probability, weight: 0, flips: observables });
                }
            }
        }
        for at in 0..graph.edges.len() {
            graph.weigh(at);
        }
        Ok(graph)
    }

    /// Gives an edge its weight. An error that happens more often than not is taken to have happened, and the edge
    /// stands for its absence: that makes every weight positive and leaves the least matching what it is.
    fn weigh(&mut self, at: usize) {
        let edge = &mut self.edges[at];
        let ends = [edge.ends.0, edge.ends.1];
        if edge.probability > 0.5 {
            edge.probability = 1.0 - edge.probability;
            self.certain_flips ^= edge.flips;
            for end in ends.into_iter().filter(|&end| (end as usize) < self.num_detectors) {
                self.certain_events[end as usize / 64] ^= 1 << (end % 64);
            }
        }
        let probability = edge.probability.max(LEAST_PROBABILITY);
        edge.weight = 2 * ((((1.0 - probability) / probability).ln() * RESOLUTION / 2.0).round() as u32).max(1);
        for end in ends {
            self.edges_at[end as usize].push(at as u32);
        }
    }

    pub(crate) fn num_detectors(&self) -> usize {
        self.num_detectors
    }

    /// Events of the errors that are taken to have happened, a bit for each detector.
    pub(crate) fn certain_events(&self) -> &[u64] {
        &self.certain_events
    }

    /// Flips of the errors that are taken to have happened.
    pub(crate) fn certain_flips(&self) -> u64 {
        self.certain_flips
    }

    /// Each edge's ends and weight. The boundary is the vertex after the last detector.
    pub(crate) fn edges(&self) -> impl Iterator<Item = (u32, u32, u32)> {
        self.edges.iter().map(|edge| (edge.ends.0, edge.ends.1, edge.weight))
    }

    /// The least weight of a path from a detector to every vertex, the boundary last, and the path's flips. `None`:
    /// there is no path. Paths end at the boundary, they do not cross it.
    pub(crate) fn paths_from(&self, from: usize) -> Vec<(Option<u32>, u64)> {
        let mut paths = vec![(None, 0u64); self.num_detectors + 1];
        let mut queue = BinaryHeap::from([Reverse((0u32, from as u32, 0u64))]);
        while let Some(Reverse((weight, vertex, flips))) = queue.pop() {
            let path = &mut paths[vertex as usize];
            if path.0.is_some() {
                continue;
            }
            *path = (Some(weight), flips);
            if vertex as usize == self.num_detectors {
                continue;
            }
            for &edge in &self.edges_at[vertex as usize] {
                let edge = &self.edges[edge as usize];
                let next = edge.ends.0 ^ edge.ends.1 ^ vertex;
                if paths[next as usize].0.is_none() {
                    queue.push(Reverse((weight + edge.weight, next, flips ^ edge.flips)));
                }
            }
        }
        paths
    }

    /// One detector of each connected part of the graph that has no edge to the boundary.
    pub(crate) fn components_without_boundary(&self) -> impl Iterator<Item = usize> {
        let mut seen = vec![false; self.num_detectors + 1];
        (0..self.num_detectors).filter(move |&detector| {
            if seen[detector] {
                return false;
            }
            let mut bounded = false;
            let mut stack = vec![detector];
            while let Some(vertex) = stack.pop() {
                if vertex == self.num_detectors {
                    bounded = true;
                } else if !std::mem::replace(&mut seen[vertex], true) {
                    let ends = self.edges_at[vertex].iter().map(|&edge| self.edges[edge as usize].ends);
                    stack.extend(ends.map(|ends| (ends.0 ^ ends.1) as usize ^ vertex));
                }
            }
            !bounded
        })
    }
}
