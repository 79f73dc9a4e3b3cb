//! The detectors around each detector, nearest first.

use crate::graph::{FAR, Graph, Path, Walk};

/// The most memory of all lists, where that leaves each [`FEWEST`] detectors.
const MEMORY: usize = 32 << 20;
const FEWEST: usize = 16;
const MOST: usize = 256;

/// For each detector a list of the nearest others, as far as memory allows.
///
/// Two detectors with a path between them that weighs no less than both paths to the boundary need not be matched
/// together. They are left out, and so are those that are twice as far as the boundary: one of two such detectors has
/// the other on its list, if any has.
#[derive(Debug)]
pub(crate) struct Nearest {
    rows: Vec<Row>,
    detectors: Vec<u32>,
    paths: Vec<Path>,
}

/// What there is of a detector.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Row {
    /// Where its list starts and ends in all lists.
    pub(crate) start: u32,
    pub(crate) end: u32,
    /// The distance below which the list is complete.
    pub(crate) limit: i64,
    /// The lightest path to the boundary.
    pub(crate) boundary: Path,
}

impl Row {
    /// How far another detector on the list can be: its event's region would have to go beyond the boundary to touch
    /// one that is further away and no larger.
    #[inline]
    pub(crate) fn reach(&self) -> i64 {
        (2 * self.boundary.weight).min(FAR)
    }
}

impl Nearest {
    pub(crate) fn new(graph: &Graph) -> Self {
        let count = graph.num_detectors();
        let most = (MEMORY / (size_of::<Path>() + size_of::<u32>()) / count.max(1)).clamp(FEWEST, MOST);
        let boundary = graph.paths_to_boundary();
        let (mut rows, mut detectors, mut paths) = (Vec::with_capacity(count), Vec::new(), Vec::new());
        let mut walk = Walk::new(count);
        for from in 0..count as u32 {
            let start = detectors.len();
            let mut row = Row { start: start as u32, end: 0, limit: 0, boundary: boundary[from as usize] };
            row.limit = row.reach();
            walk.run(graph, from, row.limit, |to, path| {
                if to != from && path.weight < row.boundary.weight + boundary[to as usize].weight {
                    if detectors.len() - start == most {
                        row.limit = path.weight;
                        return false;
                    }
                    detectors.push(to);
                    paths.push(path);
                }
                true
            });
            row.end = detectors.len() as u32;
            rows.push(row);
        }
        detectors.shrink_to_fit();
        paths.shrink_to_fit();
        Self { rows, detectors, paths }
    }

    /// What there is of a detector.
    #[inline]
    pub(crate) fn row(&self, detector: u32) -> &Row {
        &self.rows[detector as usize]
    }

    /// The detectors of all lists.
    #[inline]
    pub(crate) fn detectors(&self) -> &[u32] {
        &self.detectors
    }

    /// The paths to the detectors of all lists.
    #[inline]
    pub(crate) fn paths(&self) -> &[Path] {
        &self.paths
    }

    /// Whether two detectors at a distance are nearer to each other than to the boundary.
    pub(crate) fn are_near(&self, one: u32, other: u32, weight: i64) -> bool {
        weight < self.row(one).boundary.weight + self.row(other).boundary.weight
    }
}
