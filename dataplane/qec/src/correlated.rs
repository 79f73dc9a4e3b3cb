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
};

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

    /// Calls `each` with what an edge implies if it is an error: both directions of edges, with the weights that they have then.
    pub(crate) fn of(&self, edge: u32, mut each: impl FnMut(u32, Step)) {
        let [start, end] = [edge, edge + 1].map(|at| self.starts[at as usize] as usize);
        for &(edge, weight) in &self.implied[start..end] {
            let [one, other] = self.ends[edge as usize];
            let path = Path { weight, flips: self.flips[edge as usize] };
            each(one, Step { to: other, edge, path });
            if other != BOUNDARY {
                each(other, Step { to: one, edge, path });
            }
        }
    }
}
