//! Copy: ranges of blocks, one after the other, to one place.

use berth_lease::{BlockOp, Op};
use berth_port::Nanos;
use berth_wire::nvme::{
    Status,
    command::{Pointer, Refused},
    io::{CopyCommand, CopyRange},
};

use super::{Io, memory::STEP};
use crate::{
    counts::Counts,
    namespace::BLOCK,
    queue::{Copy, Queue, Work},
};

/// Source ranges of a Copy, at most.
pub(crate) const COPY_RANGES: usize = 16;

/// Command Size Limit Exceeded.
const TOO_MUCH: Status = Status::last(0x183);

impl Io {
    /// Settles how many ranges a Copy has.
    pub(super) fn accept_copy(
        &self,
        queue: &mut Queue,
        index: usize,
        command: CopyCommand,
        pointer: Pointer,
    ) -> Result<(), Refused> {
        if command.format != 0 {
            return Err(Refused::Status(Status::INVALID_FIELD));
        }
        if command.ranges > COPY_RANGES {
            return Err(Refused::Status(TOO_MUCH));
        }
        if pointer.len() as usize != command.ranges * CopyRange::LEN {
            return Err(Refused::Status(Status::SGL_LENGTH_INVALID));
        }
        let flush = command.fua && self.flushes();
        let slot = queue.slot(index);
        slot.work =
            Work::Copy(Copy { ranges: (command.ranges as u16, 0), to: command.destination, is_read: false, flush });
        slot.ask = self.subsystem.namespace.ask(Op::Write, command.destination, 1).map_err(Refused::Status)?;
        slot.len = pointer.len();
        Ok(())
    }

    /// Begins with the ranges of a Copy, which are all there.
    pub(super) fn copy_ranges(&mut self, queue: &mut Queue, index: usize, counts: &mut Counts, now: Nanos) {
        let namespace = &self.subsystem.namespace;
        let slot = queue.slot(index);
        let Work::Copy(copy) = slot.work else { return };
        let ranges = CopyRange::parse_all(&slot.page, copy.ranges.0.into()).unwrap_or_default();
        let blocks: u64 = ranges.iter().map(|range| u64::from(range.blocks())).sum();
        let refused = if blocks * BLOCK > namespace.longest.into() {
            Some(TOO_MUCH)
        } else if !ranges.iter().all(|range| range.is_within(namespace.blocks)) {
            Some(Status::LBA_OUT_OF_RANGE)
        } else {
            namespace.ask(Op::Write, copy.to, blocks).err()
        };
        match refused {
            Some(status) => queue.respond(index, status),
            None if namespace.engine.is_none() => {
                let status = self.copy_memory(queue, index, copy, now).err().unwrap_or(Status::SUCCESS);
                queue.respond(index, status);
            }
            None => self.copy_next(queue, index, copy, counts, now),
        }
    }

    fn copy_memory(&mut self, queue: &mut Queue, index: usize, mut copy: Copy, now: Nanos) -> Result<(), Status> {
        let mut step = [0; STEP];
        for nth in 0..copy.ranges.0 {
            copy.ranges.1 = nth;
            let Some((slba, blocks)) = next_range(queue, index, copy) else { break };
            let from = self.subsystem.namespace.ask(Op::Read, slba, blocks)?;
            let to = self.subsystem.namespace.ask(Op::Write, copy.to, blocks)?;
            let len = (blocks * BLOCK) as usize;
            for at in (0..len).step_by(STEP) {
                let piece = &mut step[..STEP.min(len - at)];
                let read = self.gate.read_part(&from, at as u64, piece, now);
                read.map_err(|refusal| self.status(refusal, Op::Read))?;
                let written = self.gate.write_part(&to, at as u64, piece, now);
                written.map_err(|refusal| self.status(refusal, Op::Write))?;
            }
            copy.to += blocks;
        }
        Ok(())
    }

    /// Has the next range of blocks read, once there are buffers; or ends, after the last.
    fn copy_next(&mut self, queue: &mut Queue, index: usize, copy: Copy, counts: &mut Counts, now: Nanos) {
        let Some((slba, blocks)) = next_range(queue, index, copy) else {
            if copy.flush {
                queue.slot(index).work = Work::Flush;
                return self.start(queue, index, BlockOp::Flush, now);
            }
            return queue.respond(index, Status::SUCCESS);
        };
        match self.subsystem.namespace.ask(Op::Read, slba, blocks) {
            Ok(ask) => {
                let slot = queue.slot(index);
                (slot.ask, slot.len, slot.work) = (ask, (blocks * BLOCK) as u32, Work::Copy(copy));
                self.wait(queue, index, counts, now);
            }
            Err(status) => queue.respond(index, status),
        }
    }

    /// Goes on with a range that was read, or written.
    pub(super) fn copied(&mut self, queue: &mut Queue, index: usize, copy: Copy, counts: &mut Counts, now: Nanos) {
        let blocks = u64::from(queue.get(index).len) / BLOCK;
        if copy.is_read {
            queue.release(index);
            let ranges = (copy.ranges.0, copy.ranges.1 + 1);
            let copy = Copy { ranges, to: copy.to + blocks, is_read: false, ..copy };
            return self.copy_next(queue, index, copy, counts, now);
        }
        match self.subsystem.namespace.ask(Op::Write, copy.to, blocks) {
            Ok(ask) => {
                let slot = queue.slot(index);
                (slot.ask, slot.work) = (ask, Work::Copy(Copy { is_read: true, ..copy }));
                self.start(queue, index, BlockOp::Write, now);
            }
            Err(status) => queue.respond(index, status),
        }
    }
}

/// The first block of the next range, and how many it has.
fn next_range(queue: &Queue, index: usize, copy: Copy) -> Option<(u64, u64)> {
    let (count, done) = copy.ranges;
    let ranges = CopyRange::parse_all(&queue.get(index).page, count.into())?;
    ranges.get(usize::from(done)).map(|range| (range.slba.get(), range.blocks().into()))
}
