//! Minimum-weight perfect matching.
//!
//! Detectors are vertices, error mechanisms that flip one or two of them are edges to the boundary or to each other.
//! The likeliest errors behind a set of events are a matching of least weight, each event to another or to the
//! boundary, at the distances of the graph. All distances are computed beforehand, so most syndromes need no graph
//! search:
//!
//! 1. Two events that are no nearer to each other than to the boundary need not be matched together. That relation
//!    splits the events into groups, and least matchings of the groups make a least matching of all.
//! 2. A group of up to [`MAX_EXACT`] events is matched by dynamic programming over its subsets: exact, no allocation.
//! 3. A larger group goes to fusion-blossom's blossom algorithm, on the whole graph.

use fusion_blossom::{
    mwpm_solver::{PrimalDualSolver, SolverSerial},
    util::{SolverInitializer, SyndromePattern},
};

use crate::{decoder::DecodeError, dem::DetectorErrorModel, graph::Graph};

/// The most detectors of a matching decoder: its distances take 12 bytes for each pair of them.
pub const MAX_DETECTORS: usize = 4096;
/// The most events of a group that are matched by dynamic programming, which takes time in 2^n.
pub const MAX_EXACT: usize = 8;

/// Why a model makes no matching decoder.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MwpmError {
    /// An error mechanism, or a part of one, flips more than two detectors.
    #[error(
        "line {line}: an error flips {detectors} detectors; matching needs parts of at most two, with ^ between them \
         (Stim: detector_error_model(decompose_errors=True))"
    )]
    NotGraphlike {
        /// 1-based line of the model.
        line: u32,
        /// Detectors of the part.
        detectors: usize,
    },
    /// The table of distances would be too large.
    #[error("the model has {0} detectors; matching takes at most {MAX_DETECTORS}")]
    TooManyDetectors(usize),
}

/// A matching decoder.
#[derive(Debug)]
pub(crate) struct Mwpm {
    graph: Graph,
    distances: Distances,
    blossom: Blossom,
    scratch: Scratch,
}

/// Least distances between detectors, and from each to the boundary, which is the last column.
#[derive(Debug)]
struct Distances {
    columns: usize,
    weights: Vec<u32>,
    flips: Vec<u64>,
}

/// No path.
const UNREACHABLE: u32 = u32::MAX;

#[derive(Debug)]
struct Scratch {
    /// Events that no group has taken yet.
    rest: Vec<u32>,
    group: Vec<u32>,
    /// Least weight and its flips, for each subset of a group.
    best: Vec<(u64, u64)>,
}

impl Mwpm {
    pub(crate) fn new(model: &DetectorErrorModel) -> Result<Self, MwpmError> {
        let detectors = model.num_detectors();
        if detectors > MAX_DETECTORS {
            return Err(MwpmError::TooManyDetectors(detectors));
        }
        let graph = Graph::new(model)?;
        let mut distances = Distances {
            columns: detectors + 1,
            weights: Vec::with_capacity(detectors * (detectors + 1)),
            flips: Vec::with_capacity(detectors * (detectors + 1)),
        };
        for detector in 0..detectors {
            for (weight, flips) in graph.paths_from(detector) {
                distances.weights.push(weight.unwrap_or(UNREACHABLE));
                distances.flips.push(flips);
            }
        }
        let blossom = Blossom::new(&graph);
        let scratch = Scratch {
            rest: Vec::with_capacity(detectors),
            group: Vec::with_capacity(detectors),
            best: vec![(0, 0); 1 << MAX_EXACT],
        };
        Ok(Self { graph, distances, blossom, scratch })
    }

    /// The flips of the least matching of the events, a bit for each detector.
    #[inline]
    pub(crate) fn decode(&mut self, events: &[u64]) -> Result<u64, DecodeError> {
        let Scratch { rest, group, best } = &mut self.scratch;
        rest.clear();
        for (index, (events, certain)) in events.iter().zip(self.graph.certain_events()).enumerate() {
            let mut word = events ^ certain;
            while word != 0 {
                rest.push(index as u32 * 64 + word.trailing_zeros());
                word &= word - 1;
            }
        }
        let mut flips = self.graph.certain_flips();
        while let Some(first) = rest.pop() {
            group.clear();
            group.push(first);
            let mut grown = 0;
            while grown < group.len() {
                let from = group[grown];
                grown += 1;
                let mut at = 0;
                while at < rest.len() {
                    if self.distances.may_match(from, rest[at]) {
                        group.push(rest.swap_remove(at));
                    } else {
                        at += 1;
                    }
                }
            }
            flips ^= match group[..] {
                [one] => self.distances.to_boundary(one)?,
                // They are in one group because the path between them is the lighter choice.
                [one, other] => self.distances.flips(one, other),
                _ if group.len() <= MAX_EXACT => self.distances.match_exactly(group, best)?,
                _ => self.blossom.decode(group, &self.distances)?,
            };
        }
        Ok(flips)
    }
}

impl Distances {
    #[inline]
    fn weight(&self, from: u32, to: u32) -> u32 {
        self.weights[from as usize * self.columns + to as usize]
    }

    #[inline]
    fn flips(&self, from: u32, to: u32) -> u64 {
        self.flips[from as usize * self.columns + to as usize]
    }

    #[inline]
    fn boundary(&self) -> u32 {
        self.columns as u32 - 1
    }

    /// Whether some least matching may have to pair these two, rather than each with the boundary.
    #[inline]
    fn may_match(&self, one: u32, other: u32) -> bool {
        let apart = u64::from(self.weight(one, self.boundary())) + u64::from(self.weight(other, self.boundary()));
        let together = self.weight(one, other);
        together != UNREACHABLE && u64::from(together) < apart
    }

    #[inline]
    fn to_boundary(&self, event: u32) -> Result<u64, DecodeError> {
        if self.weight(event, self.boundary()) == UNREACHABLE {
            return Err(DecodeError::Unmatchable);
        }
        Ok(self.flips(event, self.boundary()))
    }

    /// The flips of the least matching of a group: the best of each subset comes from pairing its highest event with
    /// the boundary, or with each other event of the subset.
    fn match_exactly(&self, group: &[u32], best: &mut [(u64, u64)]) -> Result<u64, DecodeError> {
        const NONE: u64 = u64::MAX / 2;
        let mut weights = [[NONE; MAX_EXACT]; MAX_EXACT];
        for (i, &one) in group.iter().enumerate() {
            for (j, &other) in group.iter().enumerate() {
                let to = if i == j { self.boundary() } else { other };
                let weight = self.weight(one, to);
                weights[i][j] = if weight == UNREACHABLE { NONE } else { u64::from(weight) };
            }
        }
        // The second word is the index of the subset that the choice leaves, until the way back.
        best[0] = (0, 0);
        for subset in 1..1usize << group.len() {
            let highest = subset.ilog2() as usize;
            let others = subset ^ 1 << highest;
            let row = &weights[highest];
            let mut choice = (row[highest].saturating_add(best[others].0), others as u64);
            let mut left = others;
            while left != 0 {
                let other = left.trailing_zeros() as usize;
                left &= left - 1;
                let remaining = others ^ 1 << other;
                let weight = row[other].saturating_add(best[remaining].0);
                if weight < choice.0 {
                    choice = (weight, remaining as u64);
                }
            }
            best[subset] = (choice.0.min(NONE), choice.1);
        }
        let mut subset = (1usize << group.len()) - 1;
        if best[subset].0 >= NONE {
            return Err(DecodeError::Unmatchable);
        }
        let mut flips = 0;
        while subset != 0 {
            let remaining = best[subset].1 as usize;
            let highest = group[subset.ilog2() as usize];
            let other = subset ^ remaining ^ 1 << subset.ilog2();
            let to = if other == 0 { self.boundary() } else { group[other.trailing_zeros() as usize] };
            flips ^= self.flips(highest, to);
            subset = remaining;
        }
        Ok(flips)
    }
}

/// fusion-blossom's solver, kept between syndromes.
struct Blossom {
    solver: SolverSerial,
    syndrome: SyndromePattern,
}

impl std::fmt::Debug for Blossom {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Blossom").finish_non_exhaustive()
    }
}

impl Blossom {
    fn new(graph: &Graph) -> Self {
        let boundary = graph.num_detectors();
        let mut edges: Vec<_> =
            graph.edges().map(|(from, to, weight)| (from as usize, to as usize, weight as isize)).collect();
        // The solver needs a way out for every event. This one is taken only where the group has none.
        let forbidden = edges.iter().map(|edge| edge.2).sum::<isize>() + 2;
        edges.extend(graph.components_without_boundary().map(|detector| (detector, boundary, forbidden)));
        let initializer = SolverInitializer::new(boundary + 1, edges, vec![boundary]);
        Self { solver: SolverSerial::new(&initializer), syndrome: SyndromePattern::new(Vec::new(), Vec::new()) }
    }

    fn decode(&mut self, group: &[u32], distances: &Distances) -> Result<u64, DecodeError> {
        let defects = &mut self.syndrome.defect_vertices;
        defects.clear();
        defects.extend(group.iter().map(|&event| event as usize));
        self.solver.solve(&self.syndrome);
        let matching = self.solver.perfect_matching();
        let mut flips = Ok(0);
        for (one, other) in &matching.peer_matchings {
            let (one, other) = (one.get_representative_vertex(), other.get_representative_vertex());
            flips = flips.map(|flips| flips ^ distances.flips(one as u32, other as u32));
        }
        for (one, _boundary) in &matching.virtual_matchings {
            let to_boundary = distances.to_boundary(one.get_representative_vertex() as u32);
            flips = flips.and_then(|flips| Ok(flips ^ to_boundary?));
        }
        self.solver.clear();
        flips
    }
}
