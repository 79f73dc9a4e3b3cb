//! The errors of matched paths, one by one.

use super::{Matching, NONE};
use crate::{
    graph::{FAR, Graph, Path, Step, Walk},
    mwpm::Paths,
    overlay::Overlay,
};

/// What is matched, and scratch memory to find the paths. Empty where nobody asks for their errors.
#[derive(Debug)]
pub(super) struct Trace {
    /// Detectors that are matched; the second one is [`NONE`] for the boundary.
    pairs: Vec<[u32; 2]>,
    /// For detectors near the end of a path, how far away it is.
    distances: Vec<i64>,
    /// These detectors.
    known: Vec<u32>,
}

impl Trace {
    pub(super) fn new(paths: &Paths) -> Self {
        let detectors = if paths.is_traced() { paths.graph.num_detectors() } else { 0 };
        Self {
            pairs: Vec::with_capacity(detectors),
            distances: vec![FAR; detectors],
            known: Vec::with_capacity(detectors),
        }
    }

    /// Notes a matched path.
    #[inline]
    pub(super) fn note(&mut self, one: u32, other: u32) {
        if !self.distances.is_empty() {
            self.pairs.push([one, other]);
        }
    }

    fn know(&mut self, detector: u32, distance: i64) {
        let known = &mut self.distances[detector as usize];
        if *known == FAR {
            *known = distance;
            self.known.push(detector);
        }
    }

    fn forget(&mut self) {
        for detector in self.known.drain(..) {
            self.distances[detector as usize] = FAR;
        }
    }

    /// Notes how far from `to` the detectors are that the lightest path to it from `from` can lead through.
    fn measure(&mut self, from: u32, to: u32, paths: &Paths, overlay: Option<&Overlay>, walk: &mut Walk) {
        self.forget();
        self.know(to, 0);
        // If `from` is on the list of `to`, all detectors between them are.
        let row = paths.nearest.row(to);
        let list = if overlay.is_none() { row.start as usize..row.end as usize } else { 0..0 };
        for (detector, path) in paths.nearest.detectors()[list.clone()].iter().zip(&paths.nearest.paths()[list]) {
            self.know(*detector, path.weight);
            if *detector == from {
                return;
            }
        }
        walk.run(&paths.graph, overlay, to, FAR, |detector, path| {
            self.know(detector, path.weight);
            detector != from
        });
    }

    /// Notes how far from `to` the detectors are up to the boundary; returns the one that the lightest path comes from.
    fn measure_boundary(&mut self, to: u32, graph: &Graph, overlay: &Overlay, walk: &mut Walk) -> u32 {
        self.forget();
        let (mut last, mut least) = (to, FAR);
        walk.run(graph, Some(overlay), to, FAR, |detector, path| {
            self.know(detector, path.weight);
            let weight = path.weight + overlay.to_boundary(detector, graph).path.weight;
            if weight < least {
                (last, least) = (detector, weight);
            }
            path.weight < least
        });
        last
    }
}

impl Matching {
    /// Begins a shot, which may take so many steps: forgets what was matched, and the weights of the last one.
    #[inline]
    pub(crate) fn begin(&mut self, steps: u64) {
        self.trace.pairs.clear();
        self.is_overlaid = false;
        self.steps = steps;
    }

    /// Matches a detector with the boundary.
    #[inline]
    pub(crate) fn bounded(&mut self, detector: u32, paths: &Paths) -> Path {
        self.trace.note(detector, NONE);
        paths.nearest.row(detector).boundary
    }

    /// Calls `each` for each edge of all matched paths, which are forgotten.
    pub(crate) fn errors(&mut self, paths: &Paths, mut each: impl FnMut(u32)) {
        let (graph, trace) = (&paths.graph, &mut self.trace);
        let overlay = self.is_overlaid.then_some(&self.overlay);
        let limit = |detector: u32| paths.nearest.row(detector).limit;
        let to_boundary = |detector: u32| paths.nearest.row(detector).boundary.weight;
        while let Some([from, to]) = trace.pairs.pop() {
            let (mut at, to) = match (to, overlay) {
                (NONE, None) => {
                    let mut at = from;
                    while graph.to_boundary(at).path.weight != to_boundary(at) {
                        at = follow(graph, None, at, to_boundary, &mut each);
                    }
                    each(graph.to_boundary(at).edge);
                    continue;
                }
                (NONE, Some(overlay)) => {
                    let last = trace.measure_boundary(from, graph, overlay, &mut self.walk);
                    each(overlay.to_boundary(last, graph).edge);
                    (last, from)
                }
                _ => {
                    // The one whose list reaches further has the other on it, if one of them has.
                    let (from, to) = if limit(from) > limit(to) { (to, from) } else { (from, to) };
                    trace.measure(from, to, paths, overlay, &mut self.walk);
                    (from, to)
                }
            };
            while at != to {
                at = follow(graph, overlay, at, |detector| trace.distances[detector as usize], &mut each);
            }
        }
    }
}

/// Takes an edge of a lightest path; returns the detector that it leads to.
fn follow(
    graph: &Graph,
    overlay: Option<&Overlay>,
    at: u32,
    left: impl Fn(u32) -> i64,
    each: &mut impl FnMut(u32),
) -> u32 {
    let is_next = |step: &Step| left(step.to) + step.path.weight == left(at);
    let step = match overlay {
        None => graph.steps(at).iter().copied().find(is_next),
        Some(overlay) => overlay.steps(graph, at).find(is_next),
    };
    let step = step.expect("a lightest path leads on from each of its detectors");
    each(step.edge);
    step.to
}
