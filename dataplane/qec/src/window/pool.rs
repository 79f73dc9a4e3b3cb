//! Windows that wait for a core.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use crossbeam_queue::ArrayQueue;

use crate::decoder::{DecodeError, Decoder};

/// Most cores that decode the windows of one experiment.
pub const MAX_CORES: usize = 32;

/// Windows that wait for another core than the one that has their experiment. Any number of experiments may share it.
///
/// Nothing in it waits for a lock or allocates.
#[derive(Debug, Clone)]
pub struct Pool {
    waiting: Arc<ArrayQueue<Job>>,
    helpers: usize,
}

/// Which window of an experiment, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Window(u64),
    /// What lies between this window and the next.
    Gap(u64),
}

/// A window with its events, and with what decodes it.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) place: Place,
    pub(super) slice: usize,
    pub(super) decoder: Box<Decoder>,
    /// How often the decoder was out of steps before.
    pub(super) exhausted: u64,
}

/// What became of it; `None` if the decoder panicked.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) work: Work,
    pub(super) outcome: Option<Result<(), DecodeError>>,
}

#[derive(Debug)]
pub(super) struct Job {
    pub(super) work: Work,
    /// Where it goes then. Has room for it.
    pub(super) done: Arc<ArrayQueue<Done>>,
}

impl Work {
    pub(super) fn run(mut self) -> Done {
        let decoded = catch_unwind(AssertUnwindSafe(|| self.decoder.decode_words().map(drop)));
        Done { work: self, outcome: decoded.ok() }
    }
}

impl Pool {
    /// A pool that so many other cores help with, by [`Pool::help`] again and again.
    pub fn new(helpers: usize) -> Self {
        let helpers = helpers.min(MAX_CORES - 1);
        Self { waiting: Arc::new(ArrayQueue::new(4 * helpers.max(1))), helpers }
    }

    /// How many cores help.
    pub fn helpers(&self) -> usize {
        self.helpers
    }

    /// Decodes one of the windows that wait. Returns whether there was one.
    pub fn help(&self) -> bool {
        let Some(Job { work, done }) = self.waiting.pop() else { return false };
        // The experiment may have gone meanwhile; it has room for what it waits for.
        drop(done.push(work.run()));
        true
    }

    /// Hands a window to the others, or back if too many wait.
    pub(super) fn push(&self, job: Job) -> Result<(), Job> {
        self.waiting.push(job)
    }
}
