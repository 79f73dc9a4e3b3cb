//! The complementary gap: how much heavier the lightest set of errors is that flips other observables than the answer does.
//!
//! An observable is a string from boundary to boundary: each of its errors between two detectors can be moved to the
//! boundary, by flipping it with the detectors on one side. Then only errors at the boundary flip it. The boundary that they
//! lead to becomes a detector of its own, whose event says that an odd number of them happened (arXiv 2312.04522): the lightest
//! matching with the other event is the lightest answer with the other flip, as exact as the answer itself.

use crate::{
    bits,
    decoder::{Kind, Tables},
    mwpm::{Paths, Weights},
};

/// Observables that there can be.
pub const MAX_OBSERVABLES: usize = 64;

/// Why a decoder has no gap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum GapError {
    /// The algorithm does not find the lightest answer with other flips.
    #[error("only mwpm finds the lightest answer with other flips")]
    Algorithm,
    /// There are too many observables.
    #[error("the model has {0} observables, of which {MAX_OBSERVABLES} are possible")]
    Observables(usize),
    /// Errors flip an observable an odd number of times in a circle, as in codes without boundary.
    #[error(
        "errors between detectors flip L{observable} an odd number of times in a circle through D{detector}: which answer is the \
         next is not a matching"
    )]
    Circle {
        /// The observable.
        observable: usize,
        /// A detector of the circle.
        detector: u32,
    },
}

/// What the gaps of shots need, computed once from the tables of a decoder. It never changes, so decoders on many cores share it.
#[derive(Debug)]
pub struct Gap {
    pub(crate) splits: Vec<Split>,
}

/// The graph in which one observable is a detector, the last one.
#[derive(Debug)]
pub(crate) struct Split {
    pub(crate) paths: Paths,
    observable: usize,
    /// Detectors whose events flip the observable, now that it is at the boundary; a bit each.
    moved: Vec<u64>,
}

impl Gap {
    /// Prepares gaps for decoders with these tables.
    pub fn new(tables: &Tables) -> Result<Self, GapError> {
        let Kind::Mwpm(paths) = &tables.kind else { return Err(GapError::Algorithm) };
        if !matches!(paths.weights, Weights::Own) {
            return Err(GapError::Algorithm);
        }
        if tables.num_observables > MAX_OBSERVABLES {
            return Err(GapError::Observables(tables.num_observables));
        }
        let splits = (0..tables.num_observables).map(|observable| Split::new(paths, observable));
        Ok(Self { splits: splits.collect::<Result<_, _>>()? })
    }
}

impl Split {
    fn new(paths: &Paths, observable: usize) -> Result<Self, GapError> {
        let detectors = paths.graph.num_detectors();
        let mut moved: Vec<Option<bool>> = vec![None; detectors];
        let mut reached = Vec::new();
        for first in 0..detectors as u32 {
            if moved[first as usize].is_none() {
                moved[first as usize] = Some(false);
                reached.push(first);
            }
            while let Some(detector) = reached.pop() {
                let side = moved[detector as usize] == Some(true);
                for step in paths.graph.steps(detector) {
                    let side = side != (step.path.flips >> observable & 1 == 1);
                    match &mut moved[step.to as usize] {
                        Some(known) if *known == side => {}
                        Some(_) => return Err(GapError::Circle { observable, detector }),
                        unknown => {
                            *unknown = Some(side);
                            reached.push(step.to);
                        }
                    }
                }
            }
        }
        let is_moved = |detector: u32| moved[detector as usize] == Some(true);
        let graph = paths.graph.split(|detector, step| is_moved(detector) != (step.path.flips >> observable & 1 == 1));
        let mut words = vec![0; bits::words_for(detectors)];
        for detector in (0..detectors as u32).filter(|detector| is_moved(*detector)) {
            words[detector as usize / 64] |= 1 << (detector % 64);
        }
        Ok(Self { paths: Paths::of(graph, Weights::Own), observable, moved: words })
    }

    /// The events of answers with the other flip: those of the shot, and that of the observable.
    pub(crate) fn load_other(&self, events: &[u32], flips: u64, out: &mut Vec<u32>) {
        out.clear();
        out.extend(events);
        let moved = |event: &u32| self.moved[*event as usize / 64] >> (event % 64) & 1;
        let parity = events.iter().fold(flips >> self.observable & 1, |parity, event| parity ^ moved(event));
        if parity == 0 {
            out.push(self.paths.graph.num_detectors() as u32 - 1);
        }
    }
}
