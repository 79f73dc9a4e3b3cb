//! Minimum-weight perfect matching.
//!
//! Detectors are vertices. Error mechanisms that flip one or two of them are edges to the boundary or between them. The
//! most likely errors behind a set of events form a matching of least weight, of each event with another or with the
//! boundary, at the distances of the graph. `matching` finds it, exactly, for any number of events; `few` tries all
//! matchings if there are so few events and detectors that this is faster. The steps of a shot are limited: what is unmatched
//! then is matched by union-find, which is not exact. A second pass may follow (`correlated`).

use crate::{
    correlated::Correlations,
    decoder::DecodeError,
    dem::DetectorErrorModel,
    few::Few,
    graph::{FAR, Graph, Path, RESOLUTION},
    hyper::flip,
    matching::{Anchors, Matching, Stop},
    nearest::Nearest,
};

/// Steps of a decode unless [`Decoder::within`](crate::Decoder::within) says otherwise: so many, and so many for each detector
/// of the model. It is several times what hard shots of surface codes take.
pub const STEPS: u64 = 10_000;
/// Steps for each detector of the model, in addition to [`STEPS`].
pub const STEPS_PER_DETECTOR: u64 = 100;
/// How many times as many both passes have together, of which the second looks at more.
const PASSES: u64 = 4;
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
    /// For matching in two passes.
    pub(crate) correlations: Option<Correlations>,
}

impl Paths {
    pub(crate) fn new(model: &DetectorErrorModel, correlated: bool) -> Result<Self, MwpmError> {
        let graph = Graph::new(model)?;
        let nearest = Nearest::new(&graph);
        let correlations = correlated.then(|| Correlations::new(model, &graph));
        let is_traced = graph.is_wide() || correlated;
        let few = if is_traced { Few::default() } else { Few::new(&graph) };
        let anchors = Anchors::new(&graph, &nearest);
        Ok(Self { graph, nearest, few, anchors, correlations })
    }

    /// Whether the errors of matched paths have to be known, one by one.
    pub(crate) fn is_traced(&self) -> bool {
        self.graph.is_wide() || self.correlations.is_some()
    }
}

/// The flips of a matching, of which the paths have those of the first 64 observables.
#[inline]
fn answer(matching: &mut Matching, paths: &Paths, flips: u64, out: &mut [u64]) {
    let graph = &paths.graph;
    out.copy_from_slice(graph.certain_flips());
    if graph.is_wide() {
        matching.errors(paths, |edge| flip(out, graph.flips(edge)));
    } else {
        out[0] ^= flips;
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
            matching: Matching::new(paths),
            weight: 0,
            steps: (STEPS + STEPS_PER_DETECTOR * detectors as u64)
                * if paths.correlations.is_some() { PASSES } else { 1 },
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
        if let Some(correlations) = &paths.correlations {
            return self.decode_twice(paths, correlations, out);
        }
        let simple = match self.events[..] {
            [] => Some(Path { weight: 0, flips: 0 }),
            [one] => Some(self.matching.bounded(one, paths)),
            _ => paths.few.run(&self.events),
        };
        let Path { weight, flips } = match simple {
            Some(path) if path.weight >= FAR => return Err(DecodeError::Unmatchable),
            Some(path) => path,
            None => self.first_pass(paths)?,
        };
        self.weight = weight;
        answer(&mut self.matching, paths, flips, out);
        Ok(())
    }

    /// Matches the events, by union-find what is left when the shot is out of steps.
    #[inline]
    fn first_pass(&mut self, paths: &Paths) -> Result<Path, DecodeError> {
        self.matching.run(&self.events, paths, self.steps).or_else(|stop| self.finish(stop, paths))
    }

    #[cold]
    fn finish(&mut self, stop: Stop, paths: &Paths) -> Result<Path, DecodeError> {
        if stop == Stop::Unmatchable {
            return Err(DecodeError::Unmatchable);
        }
        self.exhausted += 1;
        self.matching.finish(paths).ok_or(DecodeError::Unmatchable)
    }

    /// See [`correlated`](crate::correlated). A shot that is out of steps keeps what it has of the first pass.
    fn decode_twice(&mut self, paths: &Paths, correlations: &Correlations, out: &mut [u64]) -> Result<(), DecodeError> {
        let exhausted = self.exhausted;
        let Path { weight, flips } = self.first_pass(paths)?;
        self.weight = weight;
        let graph = &paths.graph;
        out.copy_from_slice(graph.certain_flips());
        out[0] ^= if graph.is_wide() { 0 } else { flips };
        let mut overlay = std::mem::take(&mut self.matching.overlay);
        overlay.clear();
        self.matching.errors(paths, |edge| {
            if graph.is_wide() {
                flip(out, graph.flips(edge));
            }
            overlay.imply(correlations, edge);
        });
        self.matching.overlay = overlay;
        if !self.matching.overlay.is_empty() && exhausted == self.exhausted {
            match self.matching.run_again(&self.events, paths) {
                Ok(Path { weight, flips }) => {
                    self.weight = weight;
                    answer(&mut self.matching, paths, flips, out);
                }
                Err(_) => self.exhausted += 1,
            }
        }
        Ok(())
    }

    /// Weight of the last matching, in units of ln((1 - p) / p).
    pub(crate) fn weight(&self) -> f64 {
        self.weight as f64 / RESOLUTION
    }
}
