//! Lists of the nearest detectors around each detector.

use crate::graph::{Graph, Path, Walk};

/// Limit on the memory of all lists, unless that leaves less than [`FEWEST`] detectors to each.
const MEMORY: usize = 32 << 20;
const FEWEST: usize = 16;
const MOST: usize = 256;

/// For each detector, the nearest others, nearest first, as far as memory allows.
///
/// Two detectors need not be matched with each other if the path between them weighs no less than both paths to the
/// boundary together. Such pairs are left out, and so are detectors that are twice as far away as the boundary: if a
/// pair is listed at all, one of the two has the other on its list.
#[derive(Debug)]
pub(crate) struct Nearest {
    rows: Vec<Row>,
    detectors: Vec<u32>,
    paths: Vec<Path>,
}

/// List and boundary of one detector.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Row {
    /// Start and end of its list in the array of all lists.
    pub(crate) start: u32,
    pub(crate) end: u32,
    /// Distance below which the list is complete.
    pub(crate) limit: i64,
    /// Lightest path to the boundary.
    pub(crate) boundary: Path,
}

impl Nearest {
    pub(crate) fn new(graph: &Graph) -> Self {
        let count = graph.num_detectors();
        let most = (MEMORY / (size_of::<Path>() + size_of::<u32>()) / count.max(1)).clamp(FEWEST, MOST);
        let boundary = graph.paths_to_boundary();
        let (mut rows, mut detectors, mut paths) = (Vec::with_capacity(count), Vec::new(), Vec::new());
        let mut walk = Walk::new(graph, 0);
        for from in 0..count as u32 {
            let start = detectors.len();
            let mut row = Row { start: start as u32, end: 0, limit: 0, boundary: boundary[from as usize] };
            row.limit = row.boundary.reach();
            walk.run(graph, None, from, row.limit, |to, path| {
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

    /// List and boundary of this detector.
    #[inline]
    pub(crate) fn row(&self, detector: u32) -> &Row {
        &self.rows[detector as usize]
    }

    /// Detectors of all lists, one after the other.
    #[inline]
    pub(crate) fn detectors(&self) -> &[u32] {
        &self.detectors
    }

    /// Paths to the detectors of all lists.
    #[inline]
    pub(crate) fn paths(&self) -> &[Path] {
        &self.paths
    }

    /// Whether two detectors at this distance are nearer to each other than to the boundary.
    pub(crate) fn are_near(&self, one: u32, other: u32, weight: i64) -> bool {
        weight < self.row(one).boundary.weight + self.row(other).boundary.weight
    }
}
