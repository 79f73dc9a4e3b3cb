//! The unit of work that a core polls.

use std::os::fd::RawFd;

use crate::{DeviceCounters, Nanos, Now, Recorder};

/// A unit of work that a core polls: a port joined to a service, or a worker at the other end of a ring.
///
/// A core owns its tasks and gives them turns. A turn is one dynamic call; the work on each frame or request within it
/// is monomorphised.
pub trait Task {
    /// Does at most one burst of work, and takes in new work only if `receive` is set. Never blocks. A task that has
    /// its core for itself (`alone`) may look for work several times.
    fn turn(&mut self, now: Now, receive: bool, alone: bool) -> Work;

    /// Number of requests taken in and not answered yet; a draining core waits for zero.
    fn outstanding(&self) -> usize {
        0
    }

    /// Whether other parts of this process can still hand it requests through memory, which no descriptor announces. A
    /// draining core serves them until they are gone.
    fn is_fed(&self) -> bool {
        false
    }

    /// A descriptor that becomes readable when there is work, as [`Port::wait_fd`](crate::Port::wait_fd).
    fn wait_fd(&self) -> Option<RawFd> {
        None
    }

    /// Called before the core sleeps: from now on [`Task::wait_fd`] has to announce work. False where there is some
    /// already; the core does not sleep then.
    fn rest(&mut self) -> bool {
        true
    }

    /// Calls `visit` with each counter of one part, as [`Port::counters`](crate::Port::counters) does.
    fn counters(&self, part: Part, visit: &mut dyn FnMut(&'static str, u64));

    /// Calls `visit` with each histogram that comes and goes, as
    /// [`Service::histograms`](crate::Service::histograms) does.
    fn histograms(&self, visit: &mut dyn FnMut(&'static str, &Recorder)) {
        let _ = visit;
    }

    /// Counters kept by the device of its port.
    fn device(&self) -> Option<Box<dyn DeviceCounters>> {
        None
    }
}

/// The parts of a task that keep counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The port, which carries frames.
    Port,
    /// The service or the handlers, which answer.
    Service,
}

/// What one turn of a task did.
#[derive(Debug, Clone, Copy, Default)]
pub struct Work {
    /// Number of frames or requests taken in.
    pub received: u64,
    /// Number of frames or requests answered, at once or late.
    pub replied: u64,
    /// Number of times it looked for work; all but the last found none.
    pub polls: u64,
    /// Time at which the last look began, or at which it dispatched its first frame if the clock was not read before.
    pub began: Nanos,
}

impl Work {
    /// Whether nothing was received or answered.
    #[inline]
    pub fn is_none(self) -> bool {
        self.received + self.replied == 0
    }
}
