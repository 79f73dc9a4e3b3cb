//! Accesses to blocks, and the buffers that they wait for.

use berth_lease::{BlockError, BlockOp, Op};
use berth_lease_io::Ended;
use berth_port::Nanos;
use berth_wire::nvme::Status;

use super::Io;
use crate::{
    counts::{Counts, Event},
    queue::{Copy, Phase, Queue, Slot, Work},
};

/// Namespace Not Ready, for now.
const BUSY: Status = Status::retryable(0x082);

/// ENOSPC.
const NO_SPACE: i32 = 28;

impl Io {
    /// Has a command wait for buffers, and all that wait go on where there are any.
    pub(super) fn wait(&mut self, queue: &mut Queue, index: usize, counts: &mut Counts, now: Nanos) {
        queue.slot(index).phase = Phase::Waiting;
        self.waiting.push_back(index as u8);
        self.go_on(queue, now);
        if self.waiting.back() == Some(&(index as u8)) {
            counts.add(Event::BufferWaits);
        }
    }

    /// What the first command that waits needs of the pool, and has to leave there; `None` where none waits, or this
    /// queue has its share.
    pub(super) fn wanted(&self, queue: &Queue) -> Option<(usize, usize)> {
        let slot = queue.get(usize::from(*self.waiting.front()?));
        let len = slot.len as usize;
        // What waits for a host leaves room for what does not.
        let leave = if needs_no_host(slot.work) { 0 } else { self.pool.size() / 4 };
        (queue.held() == 0 || queue.held() + len <= self.share).then_some((len, leave))
    }

    /// Goes on with commands that wait for buffers.
    pub(crate) fn go_on(&mut self, queue: &mut Queue, now: Nanos) {
        while let Some((len, leave)) = self.wanted(queue)
            && let Some(&index) = self.waiting.front()
        {
            let index = usize::from(index);
            if !self.pool.take(len, leave, &mut queue.slot(index).buffers) {
                return;
            }
            queue.hold(index, len);
            self.waiting.pop_front();
            if needs_no_host(queue.slot(index).work) {
                self.start(queue, index, BlockOp::Read, now);
            } else {
                queue.send(index, Phase::Asking);
            }
        }
    }

    /// Starts what a command does with the blocks, if it may still.
    pub(super) fn start(&mut self, queue: &mut Queue, index: usize, op: BlockOp, now: Nanos) {
        let slot = queue.slot(index);
        slot.phase = Phase::Accessing;
        match self.accesses.start(&self.gate, &slot.ask, op, &mut slot.buffers, index as u64, now) {
            Ok(()) => self.under_way += 1,
            Err(refusal) => {
                let status = self.status(refusal, slot.ask.access.op);
                queue.respond(index, status);
            }
        }
    }

    /// Goes on with a command whose access to blocks has ended; false where there is none.
    pub(crate) fn finish(&mut self, queue: &mut Queue, counts: &mut Counts, now: Nanos) -> bool {
        if self.under_way == 0 {
            return false;
        }
        let Some(Ended { tag, buffers, result }) = self.accesses.next() else { return false };
        self.under_way -= 1;
        let index = tag as usize;
        let slot = queue.slot(index);
        (slot.buffers, slot.accessed) = (buffers, Some(now));
        let op = slot.ask.access.op;
        match (result, slot.work) {
            (result, Work::Fused { .. }) => {
                let status = result.map_or_else(|error| failed(error, op), |()| Status::SUCCESS);
                self.fused_ended(queue, index, status, now);
            }
            (Err(BlockError::Busy), _) if self.under_way > 0 => {
                slot.phase = Phase::Waiting;
                self.busy.push_back(index as u8);
                return true;
            }
            (Err(error), _) => queue.respond(index, failed(error, op)),
            (Ok(()), Work::Read) => match self.gate.check(&slot.ask, now) {
                Ok(_) => queue.send(index, Phase::Sending),
                Err(refusal) => queue.respond(index, self.status(refusal, op)),
            },
            (Ok(()), Work::Write { flush: true } | Work::Zero { flush: true }) => {
                slot.work = Work::Flush;
                slot.buffers.clear();
                self.start(queue, index, BlockOp::Flush, now);
            }
            (Ok(()), Work::Ranges { .. }) => self.ranges(queue, index, now),
            (Ok(()), Work::Copy(copy)) => self.copied(queue, index, copy, counts, now),
            (Ok(()), _) => queue.respond(index, Status::SUCCESS),
        }
        // The engine has room again.
        if let Some(index) = self.busy.pop_front() {
            let index = usize::from(index);
            let op = block_op(queue.get(index));
            self.start(queue, index, op, now);
        }
        true
    }
}

/// Whether a command that waits for buffers has all else.
fn needs_no_host(work: Work) -> bool {
    matches!(work, Work::Read | Work::Verify | Work::Copy(_))
}

#[cold]
fn failed(error: BlockError, op: Op) -> Status {
    match (error, op) {
        (BlockError::Busy, _) => BUSY,
        (BlockError::Miscompare, _) => Status::COMPARE_FAILURE,
        (BlockError::Io(NO_SPACE), _) => Status::CAPACITY_EXCEEDED,
        (BlockError::Io(_), Op::Read) => Status::UNRECOVERED_READ_ERROR,
        (BlockError::Io(_), Op::Write) => Status::WRITE_FAULT,
    }
}

/// What a command that has all it needs does with the blocks.
pub(super) fn block_op(slot: &Slot) -> BlockOp {
    match slot.work {
        Work::Read | Work::Verify | Work::Copy(Copy { is_read: false, .. }) => BlockOp::Read,
        Work::Compare => BlockOp::Compare,
        Work::Write { .. } | Work::Fused { .. } | Work::Copy(_) => BlockOp::Write,
        Work::Zero { .. } => BlockOp::Zero(slot.ask.access.len),
        Work::Ranges { .. } => BlockOp::Discard(slot.ask.access.len),
        Work::Flush | Work::Control => BlockOp::Flush,
    }
}
