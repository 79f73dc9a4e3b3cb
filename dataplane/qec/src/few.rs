//! Least matchings of a few events in a small graph, by trying all of them.

use crate::graph::{FAR, Graph, Path, Walk};

/// Limit on the detectors of a graph with a table. It takes 16 bytes per pair, and should stay in a core's cache.
const MOST_DETECTORS: usize = 128;
/// Limit on the events. Six have 76 matchings, which take no longer than one search.
const MOST_EVENTS: usize = 6;

/// Lightest paths between all detectors of a small graph.
#[derive(Debug, Default)]
pub(crate) struct Few {
    detectors: usize,
    /// For each detector the paths to all others; in its own place, the path to the boundary. Empty for a large graph.
    paths: Vec<Path>,
}

impl Few {
    pub(crate) fn new(graph: &Graph) -> Self {
        let detectors = graph.num_detectors();
        let mut paths = Vec::new();
        if detectors <= MOST_DETECTORS {
            paths.resize(detectors * detectors, Path { weight: FAR, flips: 0 });
            let mut walk = Walk::new(graph, 0);
            for (from, boundary) in graph.paths_to_boundary().into_iter().enumerate() {
                let row = &mut paths[from * detectors..][..detectors];
                walk.run(graph, None, from as u32, FAR, |to, path| {
                    row[to as usize] = path;
                    true
                });
                row[from] = boundary;
            }
        }
        Self { detectors, paths }
    }

    /// The least matching of some events; [`FAR`] if there is none. `None` if there are too many events or detectors.
    #[inline]
    pub(crate) fn run(&self, events: &[u32]) -> Option<Path> {
        if events.len() > MOST_EVENTS || self.paths.is_empty() {
            return None;
        }
        let mut least = Path { weight: FAR, flips: 0 };
        self.branch(events, (1 << events.len()) - 1, Path { weight: 0, flips: 0 }, &mut least);
        Some(least)
    }

    /// Tries every partner of the first unmatched event that can still lead to the least matching.
    fn branch(&self, events: &[u32], unmatched: u32, so_far: Path, least: &mut Path) {
        if unmatched == 0 {
            *least = so_far;
            return;
        }
        let first = events[unmatched.trailing_zeros() as usize];
        let row = &self.paths[first as usize * self.detectors..][..self.detectors];
        let mut others = unmatched;
        while others != 0 {
            let other = events[others.trailing_zeros() as usize];
            let path = row[other as usize];
            let weight = so_far.weight + path.weight;
            if weight < least.weight {
                let rest = unmatched & (unmatched - 1) & !(others & others.wrapping_neg());
                self.branch(events, rest, Path { weight, flips: so_far.flips ^ path.flips }, least);
            }
            others &= others - 1;
        }
    }
}
