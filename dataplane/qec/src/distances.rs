//! All shortest paths of a matching graph.

use crate::graph::Graph;

/// No path.
pub(crate) const UNREACHABLE: u32 = u32::MAX;

/// The weight of the lightest path between each two detectors, and from each to the boundary, and what it flips.
#[derive(Debug)]
pub(crate) struct Distances {
    num_detectors: usize,
    weights: Vec<u32>,
    flips: Vec<u64>,
    weights_to_boundary: Vec<u32>,
    flips_to_boundary: Vec<u64>,
}

impl Distances {
    pub(crate) fn new(graph: &Graph) -> Self {
        let num_detectors = graph.num_detectors();
        let mut distances = Self {
            num_detectors,
            weights: Vec::with_capacity(num_detectors * num_detectors),
            flips: Vec::with_capacity(num_detectors * num_detectors),
            weights_to_boundary: Vec::with_capacity(num_detectors),
            flips_to_boundary: Vec::with_capacity(num_detectors),
        };
        for detector in 0..num_detectors {
            let paths = graph.paths_from(detector);
            let (boundary, paths) = paths.split_last().expect("the boundary is always a vertex");
            distances.weights.extend(paths.iter().map(|path| path.0.unwrap_or(UNREACHABLE)));
            distances.flips.extend(paths.iter().map(|path| path.1));
            distances.weights_to_boundary.push(boundary.0.unwrap_or(UNREACHABLE));
            distances.flips_to_boundary.push(boundary.1);
        }
        distances
    }

    pub(crate) fn num_detectors(&self) -> usize {
        self.num_detectors
    }

    /// The weight between two events, where it is less than that of matching both with the boundary.
    #[inline]
    pub(crate) fn if_nearer(&self, one: u32, other: u32) -> Option<u32> {
        let together = self.weights[one as usize * self.num_detectors + other as usize];
        let apart = u64::from(self.to_boundary(one)) + u64::from(self.to_boundary(other));
        (together != UNREACHABLE && u64::from(together) < apart).then_some(together)
    }

    /// The weight from an event to the boundary, or [`UNREACHABLE`].
    #[inline]
    pub(crate) fn to_boundary(&self, event: u32) -> u32 {
        self.weights_to_boundary[event as usize]
    }

    /// What the path between two events flips.
    #[inline]
    pub(crate) fn flips(&self, one: u32, other: u32) -> u64 {
        self.flips[one as usize * self.num_detectors + other as usize]
    }

    /// What the path from an event to the boundary flips.
    #[inline]
    pub(crate) fn flips_to_boundary(&self, event: u32) -> u64 {
        self.flips_to_boundary[event as usize]
    }
}
