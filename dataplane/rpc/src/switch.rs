//! Replaces the program of a service or a worker while it runs, without a lock and without dropping anything on its core.

use std::mem;

use rtrb::{Consumer, Producer, RingBuffer};

use crate::{Handlers, Program};

/// The end of whoever makes new programs, such as a housekeeping thread.
///
/// A program is taken between two bursts: a request is checked and run by one program. A request that waits for a worker
/// is checked again by the worker, under the program that the worker has by then: a function that is gone by then is
/// answered as an unknown one. Whoever replaces both therefore replaces the worker's first, so that no request of a new
/// function finds an old worker.
#[derive(Debug)]
pub struct Switch<H> {
    to: Producer<Program<H>>,
    back: Consumer<Program<H>>,
}

/// The end of the service or worker.
#[derive(Debug)]
pub struct Updates<H> {
    from: Consumer<Program<H>>,
    back: Producer<Program<H>>,
}

/// Both ends of a way to replace one program.
pub fn switch<H>() -> (Switch<H>, Updates<H>) {
    let (to, from) = RingBuffer::new(1);
    // Two come back where one was taken, and not returned yet, when the next was sent.
    let (return_to, back) = RingBuffer::new(2);
    (Switch { to, back }, Updates { from, back: return_to })
}

impl<H> Switch<H> {
    /// Whether the last program sent was taken, so that another one can be.
    pub fn is_free(&self) -> bool {
        !self.to.is_full()
    }

    /// Sends a program, or gives it back where the last one was not taken yet.
    pub fn send(&mut self, program: Program<H>) -> Result<(), Program<H>> {
        self.collect();
        self.to.push(program).map_err(|rtrb::PushError::Full(program)| program)
    }

    /// Drops the programs that were replaced since, and returns how many.
    pub fn collect(&mut self) -> usize {
        std::iter::from_fn(|| self.back.pop().ok()).count()
    }
}

impl<H: Handlers> Updates<H> {
    /// Replaces the program if a new one was sent: a load, where none was.
    #[inline]
    pub(crate) fn apply(&mut self, program: &mut Program<H>) {
        if !self.from.is_empty() {
            self.replace(program);
        }
    }

    #[cold]
    fn replace(&mut self, program: &mut Program<H>) {
        if self.back.is_full() {
            return;
        }
        if let Ok(mut new) = self.from.pop() {
            new.succeed(program);
            // There is room for it.
            let _ = self.back.push(mem::replace(program, new));
        }
    }
}
