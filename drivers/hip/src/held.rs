//! What goes when a session's GPU with a driver does: the process, and then what it was charged.

use std::{
    task::{Context, Waker},
    thread,
    time::{Duration, Instant},
};

use berth_gpu::{Command, SessionGpu, Standing};

use crate::books::Books;

/// How long the memory of a lease may take to be zeroed.
const SCRUBBED_WITHIN: Duration = Duration::from_secs(2);

pub(crate) struct Held {
    // It is dropped first, which waits until the process has ended.
    pub(crate) gpu: Option<SessionGpu>,
    pub(crate) books: Books,
}

impl Held {
    /// Has the process, in this life of it, zero what a lease had, and waits for that. What it does not come to in time, the
    /// driver has to see to: nobody but the process reaches it.
    pub(crate) fn scrub(&self, life: u64) {
        let Some(gpu) = self.gpu.as_ref().filter(|_| self.books.is_leased()) else { return };
        let mut last = None;
        for (at, len) in &self.books.memory {
            last = Some(gpu.tell(life, zero(*at, *len)));
        }
        let Some(last) = last else { return };
        let until = Instant::now() + SCRUBBED_WITHIN;
        let mut results = Vec::new();
        while gpu.standing(life) == Standing::Serves && Instant::now() < until {
            let _ = gpu.results(life, &mut Context::from_waker(Waker::noop()), &mut results);
            if results.drain(..).any(|(number, _)| number == last) {
                return;
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Zeroes an allocation.
pub(crate) fn zero(at: u64, len: u64) -> Command {
    Command::Set { at, len, value: 0 }
}
