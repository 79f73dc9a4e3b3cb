//! The weights of a shot beside those of the graph: what errors of a first pass imply
//! ([`correlated`](crate::correlated)), or what the readout of the shot says ([`readout`](crate::readout)).

use crate::{
    graph::{BOUNDARY, FAR, Graph, Path, Step},
    mwpm::{Paths, Weights},
};

/// The end of a list of entries.
const NONE: u32 = u32::MAX;

/// The weights of a shot where they are not those of the graph.
#[derive(Debug, Default)]
pub(crate) struct Overlay {
    /// Weights of all edges of the graph; empty where they are its own.
    weights: Vec<i64>,
    /// Those of the graph, where there are others.
    own: Vec<i64>,
    /// For each detector, its first entry; empty without correlations.
    firsts: Vec<u32>,
    entries: Vec<Entry>,
    /// Detectors with entries.
    touched: Vec<u32>,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    step: Step,
    /// Next entry of the same detector.
    next: u32,
}

/// Entries for each detector that there is room for. Errors beyond that imply nothing.
const ENTRIES: usize = 16;

impl Overlay {
    pub(crate) fn new(paths: &Paths) -> Self {
        let detectors = if matches!(paths.weights, Weights::Correlated(_)) { paths.graph.num_detectors() } else { 0 };
        Self {
            weights: Vec::new(),
            own: Vec::new(),
            firsts: vec![NONE; detectors],
            entries: Vec::with_capacity(ENTRIES * detectors),
            touched: Vec::with_capacity(detectors),
        }
    }

    /// Steps that there is room for.
    pub(crate) fn room(&self) -> usize {
        self.entries.capacity()
    }

    /// Makes room for weights of each shot, at first those of the graph.
    pub(crate) fn weigh_all(&mut self, graph: &Graph) {
        self.own = graph.edges().into_iter().map(|(_, step)| step.path.weight).collect();
        self.weights.clone_from(&self.own);
    }

    /// Edges that there is room for.
    pub(crate) fn num_weights(&self) -> usize {
        self.weights.len()
    }

    /// Gives an edge of the graph the weight that `weigh` makes of its own.
    pub(crate) fn weigh(&mut self, edge: u32, weigh: impl FnOnce(i64) -> i64) {
        self.weights[edge as usize] = weigh(self.own[edge as usize]);
    }

    /// Gives an edge its own weight again.
    pub(crate) fn restore(&mut self, edge: u32) {
        self.weights[edge as usize] = self.own[edge as usize];
    }

    /// Lends the weights of all edges to, or gets them back from, another graph's of the same edges.
    pub(crate) fn swap_weights(&mut self, other: &mut Self) {
        std::mem::swap(&mut self.weights, &mut other.weights);
    }

    /// Forgets what the last shot has added.
    pub(crate) fn clear(&mut self) {
        for detector in self.touched.drain(..) {
            self.firsts[detector as usize] = NONE;
        }
        self.entries.clear();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Adds an edge that is lighter than the same one of the graph, as seen from a detector.
    pub(crate) fn add(&mut self, detector: u32, step: Step) {
        if self.entries.len() == self.entries.capacity() {
            return;
        }
        let first = &mut self.firsts[detector as usize];
        if *first == NONE {
            self.touched.push(detector);
        }
        let next = std::mem::replace(first, self.entries.len() as u32);
        self.entries.push(Entry { step, next });
    }

    fn added(&self, detector: u32) -> impl Iterator<Item = &Step> {
        let entry = |at: u32| self.entries.get(at as usize);
        let first = self.firsts.get(detector as usize).and_then(|first| entry(*first));
        std::iter::successors(first, move |one| entry(one.next)).map(|entry| &entry.step)
    }

    /// An edge of the graph with the weight that it has in this shot.
    fn weighed(&self, step: &Step) -> Step {
        let weight = self.weights.get(step.edge as usize).map_or(step.path.weight, |weight| *weight);
        Step { path: Path { weight, ..step.path }, ..*step }
    }

    /// Calls `take` for the edges of a detector to others. Where the graph's come lighter ones first, they end when it
    /// returns false.
    pub(crate) fn visit(&self, graph: &Graph, detector: u32, mut take: impl FnMut(&Step) -> bool) {
        if self.weights.is_empty() {
            let _ = graph.steps(detector).iter().all(&mut take);
        } else {
            for step in graph.steps(detector) {
                take(&self.weighed(step));
            }
        }
        for step in self.added(detector).filter(|step| step.to != BOUNDARY) {
            take(step);
        }
    }

    /// The edges of a detector to others.
    pub(crate) fn steps(&self, graph: &Graph, detector: u32) -> impl Iterator<Item = Step> {
        let own = graph.steps(detector).iter().map(|step| self.weighed(step));
        own.chain(self.added(detector).filter(|step| step.to != BOUNDARY).copied())
    }

    /// The lightest edge of a detector to the boundary.
    pub(crate) fn to_boundary(&self, detector: u32, graph: &Graph) -> Step {
        let added = self.added(detector).filter(|step| step.to == BOUNDARY).copied();
        let own = graph.to_boundary(detector);
        let own = if own.path.weight < FAR { self.weighed(&own) } else { own };
        added.fold(own, |one, other| if other.path.weight < one.path.weight { other } else { one })
    }
}
