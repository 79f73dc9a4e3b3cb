//! Sliding windows: an experiment of any length is decoded some rounds at a time, while its rounds arrive.
//!
//! The rounds of a model are the times of its detectors. A window is a model of its own: of the detectors of some
//! rounds, and of the errors that flip one of them and none of an earlier round; what these flip in rounds after the window is
//! left out. The errors of its first rounds, `commit` of them, are decided: what they flip is part of the answer, and what they
//! flip in later rounds is taken from the events there. The next window begins behind these rounds. The last one ends with the
//! experiment, and decides all that is left.
//!
//! What is decided of a window is an observable of its model: those of the experiment, and behind them one for each detector of
//! later rounds that a decided error flips. So any algorithm decodes windows. Windows with the same model share its tables.

mod intake;
mod model;
mod sample;
mod stream;

use std::{collections::HashMap, sync::Arc};

pub use intake::{Arrival, Experiment, Intake};
pub use sample::Sampler;
pub use stream::{Stream, StreamError};

use crate::{
    bits,
    decoder::{Algorithm, ModelError, Tables},
    dem::DetectorErrorModel,
    osd::BpOsd,
    relay::RelayBp,
};
use model::{Errors, Parts};

/// Most different windows of an experiment, each with tables of its own. A periodic experiment has about four.
pub const MAX_DIFFERENT: usize = 64;
/// Most detectors and rounds of all windows together, which may overlap.
pub const MAX_OVERLAPPING: usize = 1 << 26;

/// The algorithm that decodes windows; see [`Algorithm`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inner {
    /// [`Algorithm::Mwpm`]. The parts of an error are decided each by itself.
    Mwpm,
    /// [`Algorithm::CorrelatedMwpm`]. The same, but the parts that a window shows are known to belong together.
    CorrelatedMwpm,
    /// [`Algorithm::Lut`].
    Lut {
        /// Size of the largest error set in the table; at least 1.
        depth: usize,
    },
    /// [`Algorithm::RelayBp`].
    RelayBp(RelayBp),
    /// [`Algorithm::BpOsd`].
    BpOsd(BpOsd),
}

impl From<Inner> for Algorithm {
    fn from(inner: Inner) -> Self {
        match inner {
            Inner::Mwpm => Self::Mwpm,
            Inner::CorrelatedMwpm => Self::CorrelatedMwpm,
            Inner::Lut { depth } => Self::Lut { depth },
            Inner::RelayBp(parameters) => Self::RelayBp(parameters),
            Inner::BpOsd(parameters) => Self::BpOsd(parameters),
        }
    }
}

/// How an experiment is cut into windows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Rounds of a window.
    pub window: usize,
    /// Rounds of it that are decided, 1 to `window`.
    pub commit: usize,
    /// What decodes a window.
    pub inner: Inner,
}

/// Why a model cannot be cut into windows.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WindowError {
    /// `commit` is out of its range.
    #[error("a window of {window} rounds decides {commit} of them; 1 to {window} are possible")]
    Commit {
        /// Rounds of a window.
        window: usize,
        /// Rounds of it that are to be decided.
        commit: usize,
    },
    /// A detector has no time, so it is of no round.
    #[error("detector D{0} has no coordinates; windows need the last one, its time: detector(1, 2, 5) D{0}")]
    NoTime(usize),
    /// Too many rounds are in too many windows.
    #[error(
        "each round is in {windows} windows, which are more than {MAX_OVERLAPPING} detectors and rounds; use a greater commit"
    )]
    Overlapping {
        /// Windows that a round is in.
        windows: usize,
    },
    /// Too many windows have different errors.
    #[error("more than {MAX_DIFFERENT} windows have different errors: the rounds of the model are not alike")]
    NotAlike,
}

/// What is computed once from a model.
#[derive(Debug)]
pub(crate) struct Windows {
    window: usize,
    commit: usize,
    num_observables: usize,
    /// Detectors of each round, ascending.
    rounds: Vec<Vec<u32>>,
    /// Of each window which of the slices it is.
    plan: Vec<u32>,
    slices: Vec<Slice>,
    /// The first window that is the same as the next one, where neither is the last.
    periodic: Option<usize>,
    /// Rounds that a window can know of.
    reach: usize,
    /// Words that hold the events of any round.
    round_words: usize,
}

/// The windows of one model.
#[derive(Debug)]
struct Slice {
    tables: Arc<Tables>,
    /// For each round of it where its detectors stand in `detectors`.
    starts: Vec<u32>,
    /// By round and place in it, the detector of the window's model.
    detectors: Vec<u32>,
    /// Round, counted from the first of the window, and place of the detectors that decided errors flip in later rounds.
    later: Vec<(u32, u32)>,
}

impl Windows {
    pub(crate) fn new(model: &DetectorErrorModel, parameters: Window) -> Result<Self, ModelError> {
        let Window { window, commit, inner } = parameters;
        if !(1..=window).contains(&commit) {
            return Err(WindowError::Commit { window, commit }.into());
        }
        let parts = match inner {
            Inner::Mwpm => Parts::Apart,
            Inner::CorrelatedMwpm => Parts::Linked,
            _ => Parts::Together,
        };
        let errors = Errors::new(model, parts)?;
        let count = errors.rounds.len();
        let windows = window.min(count).div_ceil(commit);
        if (count + model.num_detectors()).saturating_mul(windows) > MAX_OVERLAPPING {
            return Err(WindowError::Overlapping { windows }.into());
        }
        let (mut plan, mut slices) = (Vec::new(), Vec::new());
        let mut known = HashMap::new();
        let mut reach = window.min(count);
        for first in (0..).map(|at| at * commit) {
            let cut = errors.cut(first, window, commit);
            let slice = match known.get(&cut.key) {
                Some(slice) => *slice,
                None if slices.len() == MAX_DIFFERENT => return Err(WindowError::NotAlike.into()),
                None => {
                    let slice = slices.len() as u32;
                    reach = cut.later.iter().fold(reach, |reach, (round, _)| reach.max(*round as usize + 1));
                    slices.push(Slice {
                        tables: Arc::new(Tables::new(&cut.model, inner.into())?),
                        starts: cut.starts,
                        detectors: cut.detectors,
                        later: cut.later,
                    });
                    known.insert(cut.key, slice);
                    slice
                }
            };
            plan.push(slice);
            if first.saturating_add(window) >= count {
                break;
            }
        }
        let inner_windows = &plan[..plan.len() - 1];
        let largest = errors.rounds.iter().map(Vec::len).max().unwrap_or(0);
        Ok(Self {
            window,
            commit,
            num_observables: model.num_observables(),
            periodic: inner_windows.array_windows::<2>().position(|[one, next]| one == next),
            plan,
            slices,
            rounds: errors.rounds,
            reach,
            round_words: bits::words_for(largest).max(1),
        })
    }

    /// Detectors of each round of the model, ascending.
    pub(crate) fn rounds(&self) -> &[Vec<u32>] {
        &self.rounds
    }

    /// The first round of the repeated part of longer experiments: the one behind the first window that is the same as the next.
    fn edge(&self) -> Option<u64> {
        self.periodic.map(|first| (first * self.commit + self.window) as u64)
    }

    /// How often `commit` rounds come in addition in an experiment of so many rounds; for ever in one without end.
    fn repeats(&self, total: Option<u64>) -> Result<u64, StreamError> {
        let (model, commit) = (self.rounds.len() as u64, self.commit as u64);
        let repeated = match total {
            None => u64::MAX,
            Some(total) if total >= model && (total - model).is_multiple_of(commit) => (total - model) / commit,
            Some(_) => return Err(StreamError::Rounds { model, commit }),
        };
        if repeated > 0 && self.periodic.is_none() {
            return Err(StreamError::Rounds { model, commit });
        }
        Ok(repeated)
    }

    /// The round of the model that this one of an experiment is like.
    fn in_model(&self, round: u64, repeated: u64) -> u64 {
        let Some(edge) = self.edge().filter(|_| repeated > 0) else { return round };
        let commit = self.commit as u64;
        match round.checked_sub(edge) {
            None => round,
            Some(after) if after / commit >= repeated => round - repeated * commit,
            Some(after) => edge + after % commit,
        }
    }
}
