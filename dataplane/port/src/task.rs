//! What a core polls.

use std::os::fd::RawFd;

use crate::{DeviceCounters, Nanos, Now};

/// What a core polls: a port joined to a service, or a worker at the other end of a ring.
///
/// A core owns its tasks and gives each a turn after another. A turn is one dynamic call; what it does for each frame
/// or request is monomorphised within the task.
pub trait Task {
    /// Does at most one burst of what there is to do, and takes in new work only if `receive` says so. Never blocks.
    /// A task that has its core `alone` may look for work several times.
    fn turn(&mut self, now: Now, receive: bool, alone: bool) -> Work;

    /// How many requests were taken in and not answered yet; a draining core waits for zero.
    fn outstanding(&self) -> usize {
        0
    }

    /// Whether others of this process can still hand it requests, by memory that no descriptor announces. A draining
    /// core goes on serving them until they are gone.
    fn is_fed(&self) -> bool {
        false
    }

    /// A descriptor that polls readable when there is work to take in, as [`Port::wait_fd`](crate::Port::wait_fd).
    fn wait_fd(&self) -> Option<RawFd> {
        None
    }

    /// Reports every counter of one part, as [`Port::counters`](crate::Port::counters) does.
    fn counters(&self, part: Part, visit: &mut dyn FnMut(&'static str, u64));

    /// What the device of its port counts.
    fn device(&self) -> Option<Box<dyn DeviceCounters>> {
        None
    }
}

/// The parts of a task that count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// What carries frames.
    Port,
    /// What answers.
    Service,
}

/// What one turn of a task did.
#[derive(Debug, Clone, Copy, Default)]
pub struct Work {
    /// Frames or requests taken in.
    pub received: u64,
    /// Those answered, at once or later.
    pub replied: u64,
    /// How often it looked for work; all but the last found none.
    pub polls: u64,
    /// When the last look began, or dispatched its first frame where the clock was not read before it.
    pub began: Nanos,
}

impl Work {
    /// Whether it did nothing.
    #[inline]
    pub fn is_none(self) -> bool {
        self.received + self.replied == 0
    }
}
