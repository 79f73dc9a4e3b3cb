//! Minimum-weight perfect matching.
//!
//! Detectors are vertices. Error mechanisms that flip one or two of them are edges to the boundary or between them. The
//! most likely errors behind a set of events form a matching of least weight, of each event with another or with the
//! boundary, at the distances of the graph. `matching` finds it, exactly, for any number of events; `few` tries all
//! matchings if there are so few events and detectors that this is faster. The steps of a shot are limited: what is unmatched
//! then is matched by union-find, which is not exact.

use crate::{
    decoder::DecodeError,
    dem::DetectorErrorModel,
    few::Few,
    graph::{FAR, Graph, Path, RESOLUTION},
    matching::{Anchors, Matching, Stop},
    nearest::Nearest,
};

/// Steps of a decode unless [`Decoder::within`](crate::Decoder::within) says otherwise: so many, and so many for each detector
/// of the model. It is several times what hard shots of surface codes take.
pub const STEPS: u64 = 10_000;
/// Steps for each detector of the model, in addition to [`STEPS`].
pub const STEPS_PER_DETECTOR: u64 = 100;
/// Steps for each microsecond that a call may take: a step has 20 ns, which leaves some for what is not counted as steps, above
/// all union-find.
pub const STEPS_PER_US: u64 = 50;

/// Why a model does not make a matching decoder.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MwpmError {
    /// An error mechanism, or a part of one, flips more than two detectors.
    #[error(
        "line {line}: an error flips {detectors} detectors; matching needs parts of at most two, with ^ between them \
         (Stim: detector_error_model(decompose_errors=True))"
    )]
    NotGraphlike {
        /// Line in the model's text, from 1.
        line: u32,
        /// Number of detectors that the part flips.
        detectors: usize,
    },
}

/// Tables for matching, computed once from a model.
#[derive(Debug)]
pub(crate) struct Paths {
    pub(crate) graph: Graph,
    pub(crate) nearest: Nearest,
    few: Few,
    pub(crate) anchors: Anchors,
}

impl Paths {
    pub(crate) fn new(model: &DetectorErrorModel) -> Result<Self, MwpmError> {
        let graph = Graph::new(model)?;
        let nearest = Nearest::new(&graph);
        let few = Few::new(&graph);
        let anchors = Anchors::new(&graph, &nearest);
        Ok(Self { graph, nearest, few, anchors })
    }
}

/// Scratch memory for matching.
#[derive(Debug)]
pub(crate) struct Matcher {
    /// Detectors with an event.
    events: Vec<u32>,
    matching: Matching,
    weight: i64,
    /// Steps of a shot.
    pub(crate) steps: u64,
    /// Shots that took more.
    pub(crate) exhausted: u64,
}

impl Matcher {
    pub(crate) fn new(paths: &Paths) -> Self {
        let detectors = paths.graph.num_detectors();
        Self {
            events: Vec::with_capacity(detectors),
            matching: Matching::new(&paths.graph),
            weight: 0,
            steps: STEPS + STEPS_PER_DETECTOR * detectors as u64,
            exhausted: 0,
        }
    }

    /// Flips of a least-weight matching of the events, which are given as one bit per detector.
    #[inline]
    pub(crate) fn decode(&mut self, paths: &Paths, events: &[u64], out: &mut [u64]) -> Result<(), DecodeError> {
        self.events.clear();
        for (index, (events, certain)) in events.iter().zip(paths.graph.certain_events()).enumerate() {
            let mut word = events ^ certain;
            while word != 0 {
                self.events.push(index as u32 * 64 + word.trailing_zeros());
                word &= word - 1;
            }
        }
        self.matching.forget();
        let simple = match self.events[..] {
            [] => Some(Path { weight: 0, flips: 0 }),
            [one] => Some(self.matching.bounded(one, paths)),
            _ => paths.few.run(&self.events),
        };
        let Path { weight, flips } = match simple {
            Some(path) if path.weight >= FAR => return Err(DecodeError::Unmatchable),
            Some(path) => path,
            None => self.matching.run(&self.events, paths, self.steps).or_else(|stop| self.finish(stop, paths))?,
        };
        self.weight = weight;
        out.copy_from_slice(paths.graph.certain_flips());
        if paths.graph.is_wide() {
            self.matching.flip(paths, out);
        } else {
            out[0] ^= flips;
        }
        Ok(())
    }

    /// Matches the events of a shot that is out of steps.
    #[cold]
    fn finish(&mut self, stop: Stop, paths: &Paths) -> Result<Path, DecodeError> {
        if stop == Stop::Unmatchable {
            return Err(DecodeError::Unmatchable);
        }
        self.exhausted += 1;
        self.matching.finish(paths).ok_or(DecodeError::Unmatchable)
    }

    /// Weight of the last matching, in units of ln((1 - p) / p).
    pub(crate) fn weight(&self) -> f64 {
        self.weight as f64 / RESOLUTION
    }
}
