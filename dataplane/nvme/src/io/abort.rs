//! Commands that their host wants aborted.

use berth_wire::nvme::Status;

use super::Io;
use crate::queue::{Phase, Queue, Work};

impl Io {
    /// Whether an Abort command names this queue.
    #[inline]
    pub(crate) fn is_asked(&self) -> bool {
        self.controller.aborts.asks(self.id.number())
    }

    /// Decides on the Abort commands that name this queue. Data of the command in slot `receiving` is just coming.
    #[cold]
    pub(crate) fn abort(&mut self, queue: &mut Queue, receiving: Option<usize>) {
        let controller = self.controller.clone();
        controller.aborts.decide(self.id.number(), |cid| self.abort_one(queue, cid, receiving));
        controller.wake();
    }

    /// Aborts a command that waits: for buffers, for room to ask for its data, or for the data. Where data has begun to
    /// come, the rest of what was asked for is thrown away first, so that none of it comes for a command that is over.
    fn abort_one(&mut self, queue: &mut Queue, cid: u16, receiving: Option<usize>) -> bool {
        let Some(index) = queue.by_cid(cid) else { return false };
        let slot = queue.slot(index);
        if let Work::Fused { .. } = slot.work {
            return false;
        }
        match slot.phase {
            Phase::Waiting => {
                self.waiting.retain(|waiting| usize::from(*waiting) != index);
                self.busy.retain(|busy| usize::from(*busy) != index);
                queue.respond(index, Status::ABORT_REQUESTED);
            }
            // It has its turn to send already.
            Phase::Asking => slot.phase = Phase::Responding(Status::ABORT_REQUESTED),
            Phase::Receiving if receiving == Some(index) || slot.moved > slot.from => {
                slot.fault = Some(Status::ABORT_REQUESTED);
            }
            Phase::Receiving => queue.respond(index, Status::ABORT_REQUESTED),
            Phase::Free | Phase::Accessing | Phase::Sending | Phase::Responding(_) | Phase::Parked => return false,
        }
        true
    }
}
