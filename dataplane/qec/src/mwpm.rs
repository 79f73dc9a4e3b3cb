//! Minimum-weight perfect matching.
//!
//! Detectors are vertices. Error mechanisms that flip one or two of them are edges to the boundary or between them. The
//! most likely errors behind a set of events form a matching of least weight, of each event with another or with the
//! boundary, at the distances of the graph. `matching` finds it, exactly, for any number of events; `few` tries all
//! matchings if there are so few events and detectors that this is faster. The steps of a shot are limited: what is unmatched
//! then is matched by union-find, which is not exact. A second pass may follow (`correlated`). Belief
//! propagation may give the weights of a shot (`belief`), or it may bring some of its own (`readout`), and ask how much heavier
//! another answer is (`gap`).

use std::sync::Arc;

use crate::{
    belief::{Beliefs, Posteriors},
    correlated::Correlations,
    decoder::DecodeError,
    dem::DetectorErrorModel,
    few::Few,
    gap::Gap,
    graph::{FAR, Graph, Path, RESOLUTION, probability, weight},
    hyper::{either, flip},
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
    pub(crate) weights: Weights,
}

/// With which weights a shot is matched.
#[derive(Debug)]
pub(crate) enum Weights {
    /// Those of the graph.
    Own,
    /// The same, then those that the errors of the first matching imply.
    Correlated(Correlations),
    /// Those of belief propagation.
    Believed(Box<Beliefs>),
}

impl Paths {
    pub(crate) fn new(model: &DetectorErrorModel) -> Result<Self, MwpmError> {
        Ok(Self::of(Graph::new(model)?, Weights::Own))
    }

    /// For matching in two passes.
    pub(crate) fn correlated(model: &DetectorErrorModel) -> Result<Self, MwpmError> {
        let graph = Graph::new(model)?;
        let correlations = Correlations::new(model, &graph);
        Ok(Self::of(graph, Weights::Correlated(correlations)))
    }

    /// For matching with beliefs.
    pub(crate) fn believed(model: &DetectorErrorModel) -> Result<Self, MwpmError> {
        let graph = Graph::new(model)?;
        let beliefs = Beliefs::new(model, &graph);
        Ok(Self::of(graph, Weights::Believed(Box::new(beliefs))))
    }

    /// The tables of a graph.
    pub(crate) fn of(graph: Graph, weights: Weights) -> Self {
        let nearest = Nearest::new(&graph);
        let is_plain = !graph.is_wide() && matches!(weights, Weights::Own);
        let few = if is_plain { Few::new(&graph) } else { Few::default() };
        let anchors = Anchors::new(&graph, &nearest);
        Self { graph, nearest, few, anchors, weights }
    }

    /// Whether the errors of matched paths have to be known, one by one.
    pub(crate) fn is_traced(&self) -> bool {
        self.graph.is_wide() || matches!(self.weights, Weights::Correlated(_))
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
    /// Of the last matching. The path has the flips of the first 64 observables.
    path: Path,
    /// Whether it has the least weight.
    is_least: bool,
    /// Edges whose weights are not those of the graph.
    weighed: Vec<u32>,
    gaps: Option<Gaps>,
    posteriors: Option<Posteriors>,
    /// Steps of a shot.
    pub(crate) steps: u64,
    /// Shots that took more.
    pub(crate) exhausted: u64,
}

/// What matching with other flips needs.
#[derive(Debug)]
struct Gaps {
    tables: Arc<Gap>,
    events: Vec<u32>,
    /// `None` if there are no observables.
    matching: Option<Matching>,
}

impl Matcher {
    pub(crate) fn new(paths: &Paths) -> Self {
        let detectors = paths.graph.num_detectors();
        let mut matcher = Self {
            events: Vec::with_capacity(detectors),
            matching: Matching::new(paths),
            path: Path { weight: 0, flips: 0 },
            is_least: true,
            weighed: Vec::new(),
            gaps: None,
            posteriors: None,
            steps: STEPS + STEPS_PER_DETECTOR * detectors as u64,
            exhausted: 0,
        };
        match &paths.weights {
            Weights::Own => {}
            Weights::Correlated(_) => matcher.steps *= PASSES,
            Weights::Believed(beliefs) => {
                matcher.weigh_all(paths);
                matcher.posteriors = Some(Posteriors::new(beliefs));
            }
        }
        matcher
    }

    /// Makes room for shots that bring weights.
    pub(crate) fn weigh_all(&mut self, paths: &Paths) {
        self.matching.overlay.weigh_all(&paths.graph);
        self.weighed.reserve(self.matching.overlay.num_weights());
        // As of a second pass, which also walks the graph.
        self.steps *= PASSES;
    }

    /// Makes room for the gaps of shots.
    pub(crate) fn take_gaps(&mut self, tables: Arc<Gap>) {
        // The one with the most edges between detectors has room for the others.
        let largest = tables.splits.iter().map(|split| &split.paths).max_by_key(|paths| paths.graph.num_steps());
        let matching = largest.map(Matching::new);
        self.gaps = Some(Gaps { events: Vec::with_capacity(self.events.capacity() + 1), matching, tables });
    }

    pub(crate) fn has_gaps(&self) -> bool {
        self.gaps.is_some()
    }

    /// Takes the detectors with events, which are given as one bit per detector.
    #[inline]
    fn load(&mut self, paths: &Paths, events: &[u64]) {
        self.events.clear();
        for (index, (events, certain)) in events.iter().zip(paths.graph.certain_events()).enumerate() {
            let mut word = events ^ certain;
            while word != 0 {
                self.events.push(index as u32 * 64 + word.trailing_zeros());
                word &= word - 1;
            }
        }
        self.matching.begin(self.steps);
        self.is_least = true;
    }

    /// Flips of a least-weight matching of the events, which are given as one bit per detector.
    #[inline]
    pub(crate) fn decode(&mut self, paths: &Paths, events: &[u64], out: &mut [u64]) -> Result<(), DecodeError> {
        self.load(paths, events);
        match (&paths.weights, &mut self.posteriors) {
            (Weights::Correlated(correlations), _) => return self.decode_twice(paths, correlations, out),
            (Weights::Believed(beliefs), Some(posteriors)) if !self.events.is_empty() => {
                let overlay = &mut self.matching.overlay;
                posteriors.of(beliefs, events, |edge, weight| overlay.weigh(edge, |_| weight));
                return self.decode_overlaid(paths, out);
            }
            _ => {}
        }
        let least = least(&mut self.matching, paths, &self.events);
        self.path = least.or_else(|stop| self.finish(stop, paths))?;
        answer(&mut self.matching, paths, self.path.flips, out);
        Ok(())
    }

    /// The same with other probabilities of some edges, at most one half each: pairs of an edge and that it is wrong as well.
    pub(crate) fn decode_weighed(
        &mut self,
        paths: &Paths,
        events: &[u64],
        wrong: impl Iterator<Item = (u32, f64)>,
        out: &mut [u64],
    ) -> Result<(), DecodeError> {
        self.load(paths, events);
        let overlay = &mut self.matching.overlay;
        for edge in self.weighed.drain(..) {
            overlay.restore(edge);
        }
        for (edge, wrong) in wrong {
            overlay.weigh(edge, |own| weight(either(probability(own), wrong)));
            self.weighed.push(edge);
        }
        self.decode_overlaid(paths, out)
    }

    /// Flips of a least-weight matching with the weights of the shot.
    fn decode_overlaid(&mut self, paths: &Paths, out: &mut [u64]) -> Result<(), DecodeError> {
        let least = self.matching.run_overlaid(&self.events, paths);
        self.path = least.or_else(|stop| self.finish(stop, paths))?;
        answer(&mut self.matching, paths, self.path.flips, out);
        Ok(())
    }

    /// Answers a shot without a least matching, by union-find if it is out of steps.
    #[cold]
    fn finish(&mut self, stop: Stop, paths: &Paths) -> Result<Path, DecodeError> {
        if stop == Stop::Unmatchable {
            return Err(DecodeError::Unmatchable);
        }
        self.exhausted += 1;
        self.is_least = false;
        self.matching.finish(paths).ok_or(DecodeError::Unmatchable)
    }

    /// See [`correlated`](crate::correlated). A shot that is out of steps keeps what it has of the first pass.
    fn decode_twice(&mut self, paths: &Paths, correlations: &Correlations, out: &mut [u64]) -> Result<(), DecodeError> {
        let first = self.matching.run(&self.events, paths);
        self.path = first.or_else(|stop| self.finish(stop, paths))?;
        let graph = &paths.graph;
        out.copy_from_slice(graph.certain_flips());
        out[0] ^= if graph.is_wide() { 0 } else { self.path.flips };
        let mut overlay = std::mem::take(&mut self.matching.overlay);
        overlay.clear();
        self.matching.errors(paths, |edge| {
            if graph.is_wide() {
                flip(out, graph.flips(edge));
            }
            correlations.of(edge, |detector, step| overlay.add(detector, step));
        });
        self.matching.overlay = overlay;
        if !self.matching.overlay.is_empty() && self.is_least {
            match self.matching.run_overlaid(&self.events, paths) {
                Ok(path) => {
                    self.path = path;
                    answer(&mut self.matching, paths, path.flips, out);
                }
                Err(_) => self.exhausted += 1,
            }
        }
        Ok(())
    }

    /// How much heavier the lightest matching with other flips is than the last one, in units of ln((1 - p) / p). Infinite if
    /// there is none, 0 where it is not known, as the shot was out of steps. `None` without room for gaps.
    pub(crate) fn gap(&mut self) -> Option<f64> {
        let Gaps { tables, events, matching } = self.gaps.as_mut()?;
        if !self.is_least {
            return Some(0.0);
        }
        let Some(matching) = matching else { return Some(f64::INFINITY) };
        matching.begin(self.matching.steps());
        let is_weighed = self.matching.is_overlaid();
        matching.overlay.swap_weights(&mut self.matching.overlay);
        let mut least = Ok(FAR);
        for split in &tables.splits {
            split.load_other(&self.events, self.path.flips, events);
            let other = if is_weighed {
                matching.run_overlaid(events, &split.paths)
            } else {
                self::least(matching, &split.paths, events)
            };
            match other {
                Ok(other) => least = least.map(|least: i64| least.min(other.weight)),
                Err(Stop::Unmatchable) => {}
                Err(Stop::Exhausted) => {
                    least = Err(());
                    break;
                }
            }
        }
        matching.overlay.swap_weights(&mut self.matching.overlay);
        Some(match least {
            Err(()) => 0.0,
            Ok(FAR) => f64::INFINITY,
            Ok(least) => (least - self.path.weight) as f64 / RESOLUTION,
        })
    }

    /// Weight of the last matching, in units of ln((1 - p) / p).
    pub(crate) fn weight(&self) -> f64 {
        self.path.weight as f64 / RESOLUTION
    }
}

/// A least-weight matching of some events with the weights of the graph.
#[inline]
fn least(matching: &mut Matching, paths: &Paths, events: &[u32]) -> Result<Path, Stop> {
    let simple = match *events {
        [] => Some(Path { weight: 0, flips: 0 }),
        [one] => Some(matching.bounded(one, paths)),
        _ => paths.few.run(events),
    };
    match simple {
        Some(path) if path.weight >= FAR => Err(Stop::Unmatchable),
        Some(path) => Ok(path),
        None => matching.run(events, paths),
    }
}
