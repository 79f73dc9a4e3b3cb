//! Minimum-weight perfect matching.
//!
//! Detectors are vertices, error mechanisms that flip one or two of them are edges to the boundary or to each other.
//! The likeliest errors behind a set of events are a matching of least weight, each event to another or to the
//! boundary, at the distances of the graph. All distances are computed beforehand, so most syndromes need no graph
//! search:
//!
//! 1. Two events that are no nearer to each other than to the boundary need not be matched together. That relation
//!    splits the events into groups, and least matchings of the groups make a least matching of all.
//! 2. A group is matched exactly by branch and bound (`search`), without allocating, within a fixed number of steps.
//!    That suffices for every shot of the surface codes in `perf/data`.
//! 3. A group for which it does not suffice goes to fusion-blossom, on the whole graph. Dense syndromes, which a broken
//!    or hostile sender makes, take milliseconds there.

use fusion_blossom::{
    mwpm_solver::{PrimalDualSolver, SolverSerial},
    util::{SolverInitializer, SyndromePattern},
};

use crate::{
    decoder::DecodeError,
    dem::DetectorErrorModel,
    distances::{Distances, UNREACHABLE},
    graph::Graph,
    search::{Found, Search},
};

/// The most detectors of a matching decoder: its distances take 12 bytes for each pair of them.
pub const MAX_DETECTORS: usize = 4096;

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

/// What matching knows of a model.
#[derive(Debug)]
pub(crate) struct Paths {
    certain_events: Vec<u64>,
    certain_flips: u64,
    distances: Distances,
    /// The graph as fusion-blossom takes it.
    solver: SolverInitializer,
}

/// What matching works with.
#[derive(Debug)]
pub(crate) struct Matcher {
    search: Search,
    blossom: Blossom,
    /// Events that no group has taken yet.
    rest: Vec<u32>,
    group: Vec<u32>,
}

impl Paths {
    pub(crate) fn new(model: &DetectorErrorModel) -> Result<Self, MwpmError> {
        let detectors = model.num_detectors();
        if detectors > MAX_DETECTORS {
            return Err(MwpmError::TooManyDetectors(detectors));
        }
        let graph = Graph::new(model)?;
        Ok(Self {
            certain_events: graph.certain_events().to_vec(),
            certain_flips: graph.certain_flips(),
            distances: Distances::new(&graph),
            solver: initializer(&graph),
        })
    }
}

impl Matcher {
    pub(crate) fn new(paths: &Paths) -> Self {
        let detectors = paths.distances.num_detectors();
        Self {
            search: Search::new(),
            blossom: Blossom::new(&paths.solver),
            rest: Vec::with_capacity(detectors),
            group: Vec::with_capacity(detectors),
        }
    }

    /// The flips of the least matching of the events, a bit for each detector.
    #[inline]
    pub(crate) fn decode(&mut self, paths: &Paths, events: &[u64]) -> Result<u64, DecodeError> {
        let distances = &paths.distances;
        self.rest.clear();
        for (index, (events, certain)) in events.iter().zip(&paths.certain_events).enumerate() {
            let mut word = events ^ certain;
            while word != 0 {
                self.rest.push(index as u32 * 64 + word.trailing_zeros());
                word &= word - 1;
            }
        }
        let mut flips = paths.certain_flips;
        while let Some(first) = self.rest.pop() {
            self.take_group(first, distances);
            flips ^= match self.group[..] {
                [one] if distances.to_boundary(one) == UNREACHABLE => return Err(DecodeError::Unmatchable),
                [one] => distances.flips_to_boundary(one),
                // They are in one group because the path between them is the lighter choice.
                [one, other] => distances.flips(one, other),
                _ => match self.search.run(&self.group, distances) {
                    Found::Flips(flips) => flips,
                    Found::Nothing => return Err(DecodeError::Unmatchable),
                    Found::GaveUp => self.blossom.decode(&self.group, distances)?,
                },
            };
        }
        Ok(flips)
    }

    /// Moves the group of an event out of the rest.
    #[inline]
    fn take_group(&mut self, first: u32, distances: &Distances) {
        self.group.clear();
        self.group.push(first);
        let mut grown = 0;
        while grown < self.group.len() {
            let from = self.group[grown];
            grown += 1;
            let mut at = 0;
            while at < self.rest.len() {
                if distances.if_nearer(from, self.rest[at]).is_some() {
                    self.group.push(self.rest.swap_remove(at));
                } else {
                    at += 1;
                }
            }
        }
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

/// The graph for fusion-blossom.
fn initializer(graph: &Graph) -> SolverInitializer {
    let boundary = graph.num_detectors();
    let mut edges: Vec<_> =
        graph.edges().map(|(from, to, weight)| (from as usize, to as usize, weight as isize)).collect();
    // The solver needs a way out for every event. This one is taken only where the group has none.
    let forbidden = edges.iter().map(|edge| edge.2).sum::<isize>() + 2;
    edges.extend(graph.components_without_boundary().map(|detector| (detector, boundary, forbidden)));
    SolverInitializer::new(boundary + 1, edges, vec![boundary])
}

impl Blossom {
    fn new(graph: &SolverInitializer) -> Self {
        Self { solver: SolverSerial::new(graph), syndrome: SyndromePattern::new(Vec::new(), Vec::new()) }
    }

    fn decode(&mut self, group: &[u32], distances: &Distances) -> Result<u64, DecodeError> {
        let defects = &mut self.syndrome.defect_vertices;
        defects.clear();
        defects.extend(group.iter().map(|&event| event as usize));
        self.solver.solve(&self.syndrome);
        let matching = self.solver.perfect_matching();
        self.solver.clear();
        let mut flips = 0;
        for (one, other) in &matching.peer_matchings {
            let (one, other) = (one.get_representative_vertex(), other.get_representative_vertex());
            flips ^= distances.flips(one as u32, other as u32);
        }
        for (one, _boundary) in &matching.virtual_matchings {
            let one = one.get_representative_vertex() as u32;
            if distances.to_boundary(one) == UNREACHABLE {
                return Err(DecodeError::Unmatchable);
            }
            flips ^= distances.flips_to_boundary(one);
        }
        Ok(flips)
    }
}
