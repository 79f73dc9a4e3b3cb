//! Matching in two passes: errors that are parts of one mechanism make each other likelier.
//!
//! The first pass is matching as ever. Where it takes an edge for an error, the other parts of that edge's mechanisms are given
//! the probability that they have then, if that is greater than their own, and the second pass matches with these weights
//! (`PyMatching`'s `enable_correlations`).

use std::collections::{BTreeMap, HashMap};

use crate::{
    dem::DetectorErrorModel,
    graph::{BOUNDARY, Graph, Path, Step, weight},
    hyper::either,
    mwpm::Paths,
};

/// The end of a list of entries.
const NONE: u32 = u32::MAX;

/// What errors imply, computed once from a model.
#[derive(Debug)]
pub(crate) struct Correlations {
    /// The first of each edge's `implied`, and the end of the last one's.
    starts: Vec<u32>,
    /// Edges, and the weights that they have if the first edge is an error.
    implied: Vec<(u32, i64)>,
    /// Ends of each edge, and which of the first 64 observables it flips.
    ends: Vec<[u32; 2]>,
    flips: Vec<u64>,
}

impl Correlations {
    pub(crate) fn new(model: &DetectorErrorModel, graph: &Graph) -> Self {
        let (ends, steps): (Vec<_>, Vec<_>) = graph.edges().into_iter().unzip();
        let edges: HashMap<_, _> = ends.iter().copied().zip(0_u32..).collect();
        let mut marginals = vec![0.0; ends.len()];
        let mut joint = BTreeMap::<[u32; 2], f64>::new();
        for mechanism in model.mechanisms().filter(|mechanism| mechanism.probability() > 0.0) {
            let edge = |detectors: &[u32]| match *detectors {
                [one] => edges.get(&[one, BOUNDARY]).copied(),
                [one, other] => edges.get(&[one, other]).copied(),
                _ => None,
            };
            let parts: Vec<u32> = mechanism.parts().filter_map(|part| edge(part.detectors)).collect();
            for one in &parts {
                let marginal: &mut f64 = &mut marginals[*one as usize];
                *marginal = either(*marginal, mechanism.probability());
                for other in parts.iter().filter(|other| *other != one) {
                    let both = joint.entry([*one, *other]).or_default();
                    *both = either(*both, mechanism.probability());
                }
            }
        }
        let (mut starts, mut implied) = (vec![0; ends.len() + 1], Vec::new());
        for ([one, other], both) in joint {
            // An edge that stands for the absence of its error tells nothing.
            if marginals[one as usize].max(marginals[other as usize]) <= 0.5 {
                let lower = weight((both / marginals[one as usize]).min(0.5));
                if lower < steps[other as usize].path.weight {
                    implied.push((other, lower));
                }
            }
            starts[one as usize + 1] = implied.len() as u32;
        }
        // Edges without any begin where the one before ends.
        for at in 1..starts.len() {
            starts[at] = starts[at].max(starts[at - 1]);
        }
        let flips = steps.iter().map(|step| step.path.flips).collect();
        Self { starts, implied, ends, flips }
    }
}

/// What the errors of a shot's first pass imply: edges with lower weights, beside those of the graph.
#[derive(Debug, Default)]
pub(crate) struct Overlay {
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
        let detectors = if paths.correlations.is_some() { paths.graph.num_detectors() } else { 0 };
        Self {
            firsts: vec![NONE; detectors],
            entries: Vec::with_capacity(ENTRIES * detectors),
            touched: Vec::with_capacity(detectors),
        }
    }

    /// Steps that there is room for.
    pub(crate) fn room(&self) -> usize {
        self.entries.capacity()
    }

    /// Forgets the last shot.
    pub(crate) fn clear(&mut self) {
        for detector in self.touched.drain(..) {
            self.firsts[detector as usize] = NONE;
        }
        self.entries.clear();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Takes an edge of the first pass for an error.
    pub(crate) fn imply(&mut self, correlations: &Correlations, edge: u32) {
        let [start, end] = [edge, edge + 1].map(|at| correlations.starts[at as usize] as usize);
        for &(edge, weight) in &correlations.implied[start..end] {
            let [one, other] = correlations.ends[edge as usize];
            let path = Path { weight, flips: correlations.flips[edge as usize] };
            self.add(one, Step { to: other, edge, path });
            if other != BOUNDARY {
                self.add(other, Step { to: one, edge, path });
            }
        }
    }

    fn add(&mut self, detector: u32, step: Step) {
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

    fn all(&self, detector: u32) -> impl Iterator<Item = &Step> {
        let entry = |at: u32| self.entries.get(at as usize);
        std::iter::successors(entry(self.firsts[detector as usize]), move |one| entry(one.next))
            .map(|entry| &entry.step)
    }

    /// Edges of a detector to others.
    pub(crate) fn steps(&self, detector: u32) -> impl Iterator<Item = &Step> {
        self.all(detector).filter(|step| step.to != BOUNDARY)
    }

    /// The lightest edge of a detector to the boundary, of these and of the graph's.
    pub(crate) fn to_boundary(&self, detector: u32, graph: &Graph) -> Step {
        let own = self.all(detector).filter(|step| step.to == BOUNDARY).copied();
        own.fold(
            graph.to_boundary(detector),
            |one, other| if other.path.weight < one.path.weight { other } else { one },
        )
    }
}
