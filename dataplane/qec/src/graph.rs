//! The matching graph of a model: detectors, a boundary, and one edge for each pair that an error flips.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
};

use crate::{bits, dem::DetectorErrorModel, hyper::flip, mwpm::MwpmError, overlay::Overlay};

/// Weight of one unit of log-likelihood, ln((1 - p) / p). Weights are even, so that half of a path is an integer. The
/// least positive `f64` weighs 745 units: a path through as many detectors as a model can have fits into 62 bits.
pub(crate) const RESOLUTION: f64 = 4_294_967_296.0;
/// Weight of a missing path: above that of any path, and twice it does not overflow.
pub(crate) const FAR: i64 = i64::MAX / 4 * 2;

/// A lightest path or an edge: its weight, and which of the first 64 observables it flips.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Path {
    pub(crate) weight: i64,
    pub(crate) flips: u64,
}

impl Path {
    /// Of a path to the boundary: how far away an event can be for this one to matter to it. To touch one further away whose
    /// region is no larger, this one's region would have to reach beyond the boundary.
    #[inline]
    pub(crate) fn reach(self) -> i64 {
        (2 * self.weight).min(FAR)
    }
}

/// An edge as seen from one of its detectors. To the boundary, `to` means nothing.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Step {
    pub(crate) to: u32,
    /// See [`Graph::flips`].
    pub(crate) edge: u32,
    pub(crate) path: Path,
}

/// Stands for the boundary in the ends of an edge.
pub(crate) const BOUNDARY: u32 = u32::MAX;

/// Edges by detector, with the weights and flips of their errors.
#[derive(Debug)]
pub(crate) struct Graph {
    /// Index of the first step of each detector, and the end of the last one's.
    starts: Vec<u32>,
    steps: Vec<Step>,
    /// Edge of each detector to the boundary; weighs [`FAR`] if there is none.
    to_boundary: Vec<Step>,
    /// Words of observables that each edge flips.
    width: usize,
    /// Observables that each edge flips, `width` words each; empty where that is one.
    flips: Vec<u64>,
    certain_events: Vec<u64>,
    certain_flips: Vec<u64>,
}

struct Edge {
    one: u32,
    /// `None` for the boundary.
    other: Option<u32>,
    probability: f64,
    flips: Vec<u64>,
}

impl Graph {
    /// Collects the edges of a model. Each part of an `error(p)` becomes an independent error of probability p.
    pub(crate) fn new(model: &DetectorErrorModel) -> Result<Self, MwpmError> {
        let detectors = model.num_detectors();
        let mut certain_events = vec![0; bits::words_for(detectors)];
        let width = bits::words_for(model.num_observables()).max(1);
        let mut certain_flips = vec![0; width];
        let mut edges = edges(model, width)?;
        // An error that happens more often than not is taken to have happened, and its edge stands for its absence:
        // that makes every weight positive and leaves the least matching what it is.
        for edge in edges.iter_mut().filter(|edge| edge.probability > 0.5) {
            edge.probability = 1.0 - edge.probability;
            flip(&mut certain_flips, &edge.flips);
            for end in [Some(edge.one), edge.other].into_iter().flatten() {
                certain_events[end as usize / 64] ^= 1 << (end % 64);
            }
        }
        let weights: Vec<i64> = edges.iter().map(|edge| weight(edge.probability)).collect();
        let graph = Self::of(detectors, edges, &weights, width);
        Ok(Self { certain_events, certain_flips, ..graph })
    }

    /// The graph with one detector more than this one, in place of the boundary for the edges that `moves` names, by detector.
    /// Edges keep their indices, and flip nothing.
    pub(crate) fn split(&self, moves: impl Fn(u32, &Step) -> bool) -> Self {
        let added = self.num_detectors() as u32;
        let edge = |([one, other], step): ([u32; 2], Step)| {
            let to_boundary = moves(one, &step).then_some(added);
            let other = if other == BOUNDARY { to_boundary } else { Some(other) };
            let weight = step.path.weight;
            (Edge { one, other, probability: probability(weight), flips: vec![0] }, weight)
        };
        let (edges, weights): (_, Vec<_>) = self.edges().into_iter().map(edge).unzip();
        Self::of(added as usize + 1, edges, &weights, 1)
    }

    /// A graph of edges with these weights, and of none that is certain.
    fn of(detectors: usize, edges: Vec<Edge>, weights: &[i64], width: usize) -> Self {
        let mut starts = vec![0; detectors + 1];
        for end in edges.iter().filter_map(|edge| Some([edge.one, edge.other?])).flatten() {
            starts[end as usize] += 1;
        }
        let mut end = 0;
        for start in &mut starts {
            end += *start;
            *start = end;
        }
        let nowhere = Step { to: 0, edge: 0, path: Path { weight: FAR, flips: 0 } };
        let mut steps = vec![nowhere; end as usize];
        let mut to_boundary = vec![nowhere; detectors];
        for (at, edge) in edges.iter().enumerate() {
            let path = Path { weight: weights[at], flips: edge.flips[0] };
            let step = Step { path, edge: at as u32, ..nowhere };
            let Some(other) = edge.other else {
                to_boundary[edge.one as usize] = step;
                continue;
            };
            for (from, to) in [(edge.one, other), (other, edge.one)] {
                let start = &mut starts[from as usize];
                *start -= 1;
                steps[*start as usize] = Step { to, ..step };
            }
        }
        for bounds in starts.array_windows::<2>() {
            steps[bounds[0] as usize..bounds[1] as usize].sort_by_key(|step| step.path.weight);
        }
        // Those of one word are in the paths.
        let wide = edges.into_iter().filter(|_| width > 1);
        let flips = wide.flat_map(|edge| edge.flips).collect();
        let (certain_events, certain_flips) = (vec![0; bits::words_for(detectors)], vec![0; width]);
        Self { starts, steps, to_boundary, width, flips, certain_events, certain_flips }
    }

    /// Lightest path from each detector to the boundary.
    pub(crate) fn paths_to_boundary(&self) -> Vec<Path> {
        let mut paths: Vec<Path> = self.to_boundary.iter().map(|step| step.path).collect();
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

    /// Edges as seen from each of their detectors, but for those to the boundary.
    pub(crate) fn num_steps(&self) -> usize {
        self.steps.len()
    }

    /// Events of the errors that are assumed to have happened, one bit per detector.
    pub(crate) fn certain_events(&self) -> &[u64] {
        &self.certain_events
    }

    /// Flips of the errors that are assumed to have happened.
    pub(crate) fn certain_flips(&self) -> &[u64] {
        &self.certain_flips
    }

    /// Whether there are more observables than the flips of a [`Path`] have room for.
    pub(crate) fn is_wide(&self) -> bool {
        self.width > 1
    }

    /// Observables that an edge flips, 64 in a word, where there are more than 64.
    pub(crate) fn flips(&self, edge: u32) -> &[u64] {
        &self.flips[edge as usize * self.width..][..self.width]
    }

    /// Edge of a detector to the boundary; weighs [`FAR`] if there is none.
    pub(crate) fn to_boundary(&self, detector: u32) -> Step {
        self.to_boundary[detector as usize]
    }

    /// All edges: their ends, the lower detector first, and the step from there.
    pub(crate) fn edges(&self) -> Vec<([u32; 2], Step)> {
        let of = |(detector, to_boundary): (u32, &Step)| {
            let to_boundary = Some(([detector, BOUNDARY], *to_boundary)).filter(|(_, step)| step.path.weight < FAR);
            let steps = self.steps(detector).iter().filter(move |step| step.to > detector);
            steps.map(move |step| ([detector, step.to], *step)).chain(to_boundary)
        };
        let mut edges: Vec<_> = (0..).zip(&self.to_boundary).flat_map(of).collect();
        edges.sort_unstable_by_key(|(_, step)| step.edge);
        edges
    }

    /// Edges of a detector, except for the one to the boundary, lighter ones first.
    pub(crate) fn steps(&self, detector: u32) -> &[Step] {
        &self.steps[self.starts[detector as usize] as usize..self.starts[detector as usize + 1] as usize]
    }
}

fn edges(model: &DetectorErrorModel, width: usize) -> Result<Vec<Edge>, MwpmError> {
    let mut edges: Vec<Edge> = Vec::new();
    let mut known = HashMap::new();
    for mechanism in model.mechanisms().filter(|mechanism| mechanism.probability() > 0.0) {
        for part in mechanism.parts() {
            let (one, other) = match *part.detectors {
                // Nothing shows whether it happened.
                [] => continue,
                [one] => (one, None),
                [one, other] => (one, Some(other)),
                _ => return Err(MwpmError::NotGraphlike { line: mechanism.line(), detectors: part.detectors.len() }),
            };
            let probability = mechanism.probability();
            let at = *known.entry((one, other)).or_insert(edges.len());
            if let Some(edge) = edges.get_mut(at) {
                // One of two independent errors, not both. The first one's observables stay, as in PyMatching.
                edge.probability += probability - 2.0 * edge.probability * probability;
            } else {
                let mut flips = vec![0; width];
                part.flip(&mut flips);
                edges.push(Edge { one, other, probability, flips });
            }
        }
    }
    Ok(edges)
}

/// Weight of an error with a probability of at most one half.
pub(crate) fn weight(probability: f64) -> i64 {
    // That of an error that is certain not to happen is what rounding left of 1 - p; it gets the greatest weight.
    let likelihood = (-probability).ln_1p() - probability.max(f64::from_bits(1)).ln();
    2 * ((likelihood * (RESOLUTION / 2.0)).round() as i64).max(1)
}

/// -ln of a probability, as a weight.
pub(crate) fn surprise(probability: f64) -> i64 {
    2 * ((-probability.max(f64::MIN_POSITIVE).ln() * (RESOLUTION / 2.0)).round() as i64).max(1)
}

/// Probability of an error with this weight, to ten digits.
pub(crate) fn probability(weight: i64) -> f64 {
    (1.0 + (weight as f64 / RESOLUTION).exp()).recip()
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
    /// A walk that has room for the whole graph and so many steps beside it: it takes each edge at most once in each direction.
    pub(crate) fn new(graph: &Graph, more: usize) -> Self {
        Self {
            paths: vec![Path { weight: FAR, flips: 0 }; graph.num_detectors()],
            known: Vec::with_capacity(graph.num_detectors()),
            queue: BinaryHeap::with_capacity(graph.steps.len() + more + 1),
        }
    }

    /// Begins anew at a detector.
    pub(crate) fn begin(&mut self, from: u32) {
        for detector in self.known.drain(..) {
            self.paths[detector as usize].weight = FAR;
        }
        self.queue.clear();
        self.reach(from, Path { weight: 0, flips: 0 });
    }

    /// Takes a path to a detector if it is the lightest so far.
    #[inline]
    pub(crate) fn reach(&mut self, to: u32, path: Path) -> bool {
        let known = &mut self.paths[to as usize];
        let is_lighter = path.weight < known.weight;
        if is_lighter {
            if known.weight == FAR {
                self.known.push(to);
            }
            *known = path;
            self.queue.push(Reverse((path.weight, to)));
        }
        is_lighter
    }

    /// The next detector nearer than `limit`, and the lightest path there.
    #[inline]
    pub(crate) fn next(&mut self, limit: i64) -> Option<(u32, Path)> {
        while let Some(Reverse((weight, at))) = self.queue.pop() {
            let path = self.paths[at as usize];
            if path.weight == weight {
                return (weight < limit).then_some((at, path));
            }
        }
        None
    }

    /// Visits each detector nearer than `limit`, until `visit` returns false. Paths do not cross the boundary.
    pub(crate) fn run(
        &mut self,
        graph: &Graph,
        overlay: Option<&Overlay>,
        from: u32,
        limit: i64,
        mut visit: impl FnMut(u32, Path) -> bool,
    ) {
        self.begin(from);
        while let Some((at, path)) = self.next(limit) {
            if !visit(at, path) {
                return;
            }
            let take = |step: &Step| {
                let weight = path.weight + step.path.weight;
                if weight < limit {
                    self.reach(step.to, Path { weight, flips: path.flips ^ step.path.flips });
                }
                weight < limit
            };
            match overlay {
                Some(overlay) => overlay.visit(graph, at, take),
                None => _ = graph.steps(at).iter().all(take),
            }
        }
    }
}
