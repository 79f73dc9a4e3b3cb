//! What became of reloads.

use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

/// Reloads since the start.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reloaded {
    /// How many took effect.
    pub done: u64,
    /// How many were refused.
    pub refused: u64,
    /// Why the last one was refused, a line for each reason; empty: it was not.
    pub refusal: String,
}

/// The same, as the supervisor keeps it.
#[derive(Debug, Default)]
pub(crate) struct Reloads(Mutex<Reloaded>);

impl Reloads {
    /// A reload took effect.
    pub(crate) fn done(&self) {
        let mut reloads = self.lock();
        reloads.done += 1;
        reloads.refusal.clear();
    }

    /// A reload was refused, and all goes on as it was.
    pub(crate) fn refused(&self, why: String) {
        let mut reloads = self.lock();
        reloads.refused += 1;
        reloads.refusal = why;
    }

    /// All so far.
    pub(crate) fn now(&self) -> Reloaded {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Reloaded> {
        // Whole between any two statements.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
