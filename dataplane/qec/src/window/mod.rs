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
//!
//! Windows that slide wait for each other. Those of a [`Layout::Parallel`] do not (arXiv 2209.08552), so that many cores decode
//! them at once: they stand side by side, and decide errors in their middle. What lies between the decided parts of two neighbours is
//! a gap, a window as well, which takes what these have decided for granted, before it and behind it.
//!
//! ```text
//! rounds   0         window     2 window    3 window
//! windows  |=======.. |..=====.. |..======= |      = decided, . not
//! gaps            |---|-|     |---|-|              - begins after both windows beside it
//! ```

mod intake;
mod model;
mod parallel;
mod plan;
mod pool;
mod rows;
mod sample;
mod stream;

pub use intake::{Arrival, Experiment, Intake};
pub(crate) use plan::Windows;
pub use pool::{MAX_CORES, Pool};
pub use sample::Sampler;
pub use stream::{Stream, StreamError};

use crate::{decoder::Algorithm, osd::BpOsd, relay::RelayBp};

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
    /// [`Algorithm::BeliefMwpm`]. Likewise.
    BeliefMwpm,
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
            Inner::BeliefMwpm => Self::BeliefMwpm,
            Inner::Lut { depth } => Self::Lut { depth },
            Inner::RelayBp(parameters) => Self::RelayBp(parameters),
            Inner::BpOsd(parameters) => Self::BpOsd(parameters),
        }
    }
}

/// Which windows there are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Layout {
    /// A window begins behind what the one before decides, which is its first rounds.
    #[default]
    Sliding,
    /// Windows stand side by side and decide rounds in their middle; what lies between these is decided last.
    Parallel,
}

/// How an experiment is cut into windows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Rounds of a window.
    pub window: usize,
    /// Rounds of it that are decided, 1 to `window`.
    pub commit: usize,
    /// Which windows there are.
    pub layout: Layout,
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
    /// Parallel windows have too few rounds between them, or decide too few.
    #[error(
        "parallel windows of {window} rounds decide {commit}; the errors of this model need {least} to be decided at least, and as \
         many to be left"
    )]
    Parallel {
        /// Rounds of a window.
        window: usize,
        /// Rounds of it that are to be decided.
        commit: usize,
        /// The fewest for both.
        least: usize,
    },
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
