//! The matching graph of a model: detectors, a boundary, and one edge for each pair that an error flips.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
};

use crate::{
    bits,
    dem::{DetectorErrorModel, Symptoms},
    mwpm::MwpmError,
};

/// Weight of one unit of log-likelihood, ln((1 - p) / p). Weights are even, so that half of a path is an integer. The
/// least positive `f64` weighs 745 units: a path through as many detectors as a model can have fits into 62 bits.
pub(crate) const RESOLUTION: f64 = 4_294_967_296.0;
/// Weight of a missing path: above that of any path, and twice it does not overflow.
pub(crate) const FAR: i64 = i64::MAX / 4 * 2;

/// A lightest path or an edge: its weight, and the observables that it flips.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Path {
    pub(crate) weight: i64,
    pub(crate) flips: u64,
}

/// An edge as seen from one of its detectors.
#[derive(Debug, Clone, Copy)]
struct Step {
    to: u32,
    path: Path,
}

/// Edges by detector, with the weights and flips of their errors.
#[derive(Debug)]
pub(crate) struct Graph {
    /// Index of the first step of each detector, and the end of the last one's.
    starts: Vec<u32>,
    steps: Vec<Step>,
    /// Edge of each detector to the boundary; weighs [`FAR`] if there is none.
    to_boundary: Vec<Path>,
    certain_events: Vec<u64>,
    certain_flips: u64,
}

struct Edge {
    one: u32,
    /// `None` for the boundary.
    other: Option<u32>,
    probability: f64,
    flips: u64,
}

impl Graph {
    /// Collects the edges of a model. Each part of an `error(p)` becomes an independent error of probability p.
    pub(crate) fn new(model: &DetectorErrorModel) -> Result<Self, MwpmError> {
        let detectors = model.num_detectors();
        let mut certain_events = vec![0; bits::words_for(detectors)];
        let mut certain_flips = 0;
        let mut edges = edges(model)?;
        // An error that happens more often than not is taken to have happened, and its edge stands for its absence:
        // that makes every weight positive and leaves the least matching what it is.
        for edge in edges.iter_mut().filter(|edge| edge.probability > 0.5) {
            edge.probability = 1.0 - edge.probability;
            certain_flips ^= edge.flips;
            for end in [Some(edge.one), edge.other].into_iter().flatten() {
                certain_events[end as usize / 64] ^= 1 << (end % 64);
            }
        }
        let mut starts = vec![0; detectors + 1];
        for end in edges.iter().filter_map(|edge| Some([edge.one, edge.other?])).flatten() {
            starts[end as usize] += 1;
        }
        let mut end = 0;
        for start in &mut starts {
            end += *start;
            *start = end;
        }
        let nowhere = Path { weight: FAR, flips: 0 };
        let mut steps = vec![Step { to: 0, path: nowhere }; end as usize];
        let mut to_boundary = vec![nowhere; detectors];
        for edge in edges {
            let path = Path { weight: weight(edge.probability), flips: edge.flips };
            let Some(other) = edge.other else {
                to_boundary[edge.one as usize] = path;
                continue;
            };
            for (from, to) in [(edge.one, other), (other, edge.one)] {
                let start = &mut starts[from as usize];
                *start -= 1;
                steps[*start as usize] = Step { to, path };
            }
        }
        Ok(Self { starts, steps, to_boundary, certain_events, certain_flips })
    }

    /// Lightest path from each detector to the boundary.
    pub(crate) fn paths_to_boundary(&self) -> Vec<Path> {
        let mut paths = self.to_boundary.clone();
        let reached = |(at, path): (usize, &Path)| (path.weight < FAR).then_some(Reverse((path.weight, at as u32)));
        let mut queue: BinaryHeap<_> = paths.iter().enumerate().filter_map(reached).collect();
        while let Some(Reverse((weight, at))) = queue.pop() {
            let path = paths[at as usize];
            if path.weight < weight {
                continue;
            }
            for step in self.steps(at) {
                let weight = weight + step.path.weight;
                if weight < paths[step.to as usize].weight {
                    paths[step.to as usize] = Path { weight, flips: path.flips ^ step.path.flips };
                    queue.push(Reverse((weight, step.to)));
                }
            }
        }
        paths
    }

    pub(crate) fn num_detectors(&self) -> usize {
        self.to_boundary.len()
    }

    /// Events of the errors that are assumed to have happened, one bit per detector.
    pub(crate) fn certain_events(&self) -> &[u64] {
        &self.certain_events
    }

    /// Flips of the errors that are assumed to have happened.
    pub(crate) fn certain_flips(&self) -> u64 {
        self.certain_flips
    }

    /// Edges of a detector, except for the one to the boundary.
    fn steps(&self, detector: u32) -> &[Step] {
        &self.steps[self.starts[detector as usize] as usize..self.starts[detector as usize + 1] as usize]
    }
}

fn edges(model: &DetectorErrorModel) -> Result<Vec<Edge>, MwpmError> {
    let mut edges: Vec<Edge> = Vec::new();
    let mut known = HashMap::new();
    for mechanism in model.mechanisms().filter(|mechanism| mechanism.probability() > 0.0) {
        for Symptoms { detectors, observables, .. } in mechanism.parts() {
            let (one, other) = match *detectors {
                // Nothing shows whether it happened.
                [] => continue,
                [one] => (one, None),
                [one, other] => (one, Some(other)),
                _ => return Err(MwpmError::NotGraphlike { line: mechanism.line(), detectors: detectors.len() }),
            };
            let probability = mechanism.probability();
            let at = *known.entry((one, other)).or_insert(edges.len());
            if let Some(edge) = edges.get_mut(at) {
                // One of two independent errors, not both. The first one's observables stay, as in PyMatching.
                edge.probability += probability - 2.0 * edge.probability * probability;
            } else {
                edges.push(Edge { one, other, probability, flips: observables });
            }
        }
    }
    Ok(edges)
}

/// Weight of an error with a probability of at most one half.
fn weight(probability: f64) -> i64 {
    // That of an error that is certain not to happen is what rounding left of 1 - p; it gets the greatest weight.
    let likelihood = (-probability).ln_1p() - probability.max(f64::from_bits(1)).ln();
    2 * ((likelihood * (RESOLUTION / 2.0)).round() as i64).max(1)
}

/// Visits detectors in the order of their distance from one detector.
#[derive(Debug, Default)]
pub(crate) struct Walk {
    /// Lightest known path to each detector.
    paths: Vec<Path>,
    /// Detectors with a known path.
    known: Vec<u32>,
    queue: BinaryHeap<Reverse<(i64, u32)>>,
}

impl Walk {
    /// A walk that has room for the whole graph: it takes each edge at most once in each direction.
    pub(crate) fn new(graph: &Graph) -> Self {
        Self {
            paths: vec![Path { weight: FAR, flips: 0 }; graph.num_detectors()],
            known: Vec::with_capacity(graph.num_detectors()),
            queue: BinaryHeap::with_capacity(graph.steps.len() + 1),
        }
    }

    /// Visits each detector nearer than `limit`, until `visit` returns false. Paths do not cross the boundary.
    pub(crate) fn run(&mut self, graph: &Graph, from: u32, limit: i64, mut visit: impl FnMut(u32, Path) -> bool) {
        for detector in self.known.drain(..) {
            self.paths[detector as usize].weight = FAR;
        }
        self.queue.clear();
        self.queue.push(Reverse((0, from)));
        self.paths[from as usize] = Path { weight: 0, flips: 0 };
        self.known.push(from);
        while let Some(Reverse((weight, at))) = self.queue.pop() {
            let path = self.paths[at as usize];
            if path.weight < weight {
                continue;
            }
            if !visit(at, path) {
                return;
            }
            for step in graph.steps(at) {
                let weight = weight + step.path.weight;
                let known = &mut self.paths[step.to as usize];
                if weight < known.weight && weight < limit {
                    if known.weight == FAR {
                        self.known.push(step.to);
                    }
                    *known = Path { weight, flips: path.flips ^ step.path.flips };
                    self.queue.push(Reverse((weight, step.to)));
                }
            }
        }
    }
}
