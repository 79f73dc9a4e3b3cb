//! Compare and Write as one ("Fused Operations"): other pairs on the same namespace come before or after.

use std::collections::VecDeque;

use berth_lease::{BlockOp, Op};
use berth_port::Nanos;
use berth_wire::nvme::{
    Sqe, Status,
    command::{Fuse, Pointer, Refused},
    io::Access,
    opcode::io as opcode,
};

use super::{Io, NSID, Turn};
use crate::{
    exclusive::Pass,
    namespace::BLOCK,
    queue::{Phase, Queue, Work},
};

/// Blocks of a pair: ACWU, which says 0, is one less.
const BLOCKS_MAX: u32 = 1;

/// Atomic Write Unit Exceeded.
const TOO_LONG: Status = Status::last(0x014);

/// The pairs of a queue.
#[derive(Debug, Default)]
pub(super) struct Fused {
    first: First,
    /// Those that wait for their data, or for others, in order.
    pairs: VecDeque<Pair>,
}

/// The command that came last, as the first of a pair.
#[derive(Debug, Default, Clone, Copy)]
enum First {
    /// No first of a pair.
    #[default]
    None,
    /// One that was refused.
    Refused,
    /// One that has this slot.
    Waits(usize, Pointer),
}

#[derive(Debug)]
struct Pair {
    compare: usize,
    write: usize,
    /// While it is compared and written.
    pass: Option<Pass>,
}

impl Io {
    /// Serves a command if it is one of a pair, or comes where the second of a pair should; `None` where it is for
    /// others to serve.
    pub(super) fn fuse(
        &mut self,
        queue: &mut Queue,
        index: usize,
        sqe: &Sqe,
        (pointer, data): (Pointer, &[u8]),
        now: Nanos,
    ) -> Option<Result<Turn, Refused>> {
        let fuse = sqe.fuse();
        if fuse != Fuse::Second {
            self.interrupt(queue);
        }
        let turn = match (fuse, std::mem::take(&mut self.fused.first)) {
            (Fuse::None, _) => return None,
            (Fuse::First, _) => self.first(queue, index, sqe, (pointer, data), now),
            (Fuse::Second, First::Waits(slot, theirs)) => {
                self.second(queue, index, sqe, (pointer, data), (slot, theirs), now)
            }
            (Fuse::Second, First::Refused) => Err(Refused::Status(Status::FAILED_FUSED)),
            (Fuse::Second, First::None) => Err(Refused::Status(Status::MISSING_FUSED)),
            (Fuse::Reserved, _) => Err(Refused::Status(Status::INVALID_FIELD)),
        };
        Some(turn)
    }

    /// What comes is not the second of a pair.
    pub(crate) fn interrupt(&mut self, queue: &mut Queue) {
        if let First::Waits(lonely, _) = std::mem::take(&mut self.fused.first) {
            queue.respond(lonely, Status::MISSING_FUSED);
        }
    }

    fn first(
        &mut self,
        queue: &mut Queue,
        index: usize,
        sqe: &Sqe,
        (pointer, data): (Pointer, &[u8]),
        now: Nanos,
    ) -> Result<Turn, Refused> {
        self.fused.first = First::Refused;
        if sqe.opcode != opcode::COMPARE || !self.fuses() {
            return Err(Refused::Status(Status::INVALID_FIELD));
        }
        self.admit(queue, index, sqe, Op::Read, (pointer, data), now)?;
        self.fused.first = First::Waits(index, pointer);
        Ok(Turn::Later)
    }

    fn second(
        &mut self,
        queue: &mut Queue,
        index: usize,
        sqe: &Sqe,
        (pointer, data): (Pointer, &[u8]),
        (compare, theirs): (usize, Pointer),
        now: Nanos,
    ) -> Result<Turn, Refused> {
        let admitted = if sqe.opcode == opcode::WRITE {
            self.admit(queue, index, sqe, Op::Write, (pointer, data), now)
        } else {
            Err(Refused::Status(Status::INVALID_FIELD))
        };
        let range = |queue: &Queue, index| {
            let access = queue.get(index).ask.access;
            (access.offset, access.len)
        };
        let agreed = admitted.and_then(|()| {
            let same = range(queue, index) == range(queue, compare);
            if same { Ok(()) } else { Err(Refused::Status(Status::INVALID_FIELD)) }
        });
        if let Err(refused) = agreed {
            queue.respond(compare, Status::FAILED_FUSED);
            return Err(refused);
        }
        self.fused.pairs.push_back(Pair { compare, write: index, pass: None });
        for (index, pointer) in [(compare, theirs), (index, pointer)] {
            if let Pointer::Transport(_) = pointer {
                queue.send(index, Phase::Asking);
            }
        }
        self.go_on_fused(queue, now);
        Ok(Turn::Later)
    }

    /// Settles what one of a pair is about, and takes what data its capsule has.
    fn admit(
        &mut self,
        queue: &mut Queue,
        index: usize,
        sqe: &Sqe,
        op: Op,
        (pointer, data): (Pointer, &[u8]),
        now: Nanos,
    ) -> Result<(), Refused> {
        if sqe.nsid.get() != NSID {
            return Err(Refused::Status(Status::INVALID_NAMESPACE));
        }
        let rw = Access::of(sqe);
        if rw.blocks > BLOCKS_MAX {
            return Err(Refused::Status(TOO_LONG));
        }
        self.range(queue, index, op, rw, pointer)?;
        let slot = queue.slot(index);
        slot.work = Work::Fused { flush: op == Op::Write && rw.fua && self.flushes() };
        self.gate.check(&slot.ask, now).map_err(|refusal| self.refused(refusal, op))?;
        if let Pointer::Capsule(_) = pointer {
            self.piece(queue, index, data, now);
        }
        Ok(())
    }

    /// Goes on with the first pair, where it has its data and no other is at it.
    pub(crate) fn go_on_fused(&mut self, queue: &mut Queue, now: Nanos) {
        while let Some(pair) = self.fused.pairs.front_mut() {
            let (compare, write) = (pair.compare, pair.write);
            let has_all = [compare, write].iter().all(|index| queue.get(*index).moved == queue.get(*index).len);
            if !has_all || pair.pass.is_some() {
                return;
            }
            let fault = [compare, write].iter().find_map(|index| queue.get(*index).fault);
            if let Some(fault) = fault {
                self.end_pair(queue, fault, Status::FAILED_FUSED);
                continue;
            }
            let Some(pass) = Pass::take(&self.subsystem) else { return };
            if self.subsystem.namespace.engine.is_none() {
                let (first, second) = self.compare_and_write(queue, compare, write, now);
                self.end_pair(queue, first, second);
                continue;
            }
            if !self.load(queue, compare) || !self.load(queue, write) {
                return;
            }
            pair_of(&mut self.fused).pass = Some(pass);
            self.start(queue, compare, BlockOp::Compare, now);
            if queue.get(compare).phase != Phase::Accessing {
                // Refused, and answered.
                self.fused.pairs.pop_front();
                queue.respond(write, Status::FAILED_FUSED);
            }
        }
    }

    /// Both on memory.
    fn compare_and_write(&mut self, queue: &Queue, compare: usize, write: usize, now: Nanos) -> (Status, Status) {
        let slot = queue.get(compare);
        if let Err(status) = self.compare(&slot.ask, 0, &slot.page, now) {
            return (status, Status::FAILED_FUSED);
        }
        let slot = queue.get(write);
        match self.gate.write(&slot.ask, &slot.page, now) {
            Ok(_) => (Status::SUCCESS, Status::SUCCESS),
            Err(refusal) => (Status::FAILED_FUSED, self.status(refusal, Op::Write)),
        }
    }

    /// Puts a command's data where the engine takes it from; false where there is no buffer.
    fn load(&mut self, queue: &mut Queue, index: usize) -> bool {
        let slot = queue.slot(index);
        if slot.buffers.size() == 0 {
            if !self.pool.take(BLOCK as usize, 0, &mut slot.buffers) {
                return false;
            }
            slot.buffers.write_at(0, &slot.page);
        }
        true
    }

    /// Goes on with a pair of which one command has ended with `status`.
    pub(super) fn fused_ended(&mut self, queue: &mut Queue, index: usize, status: Status, now: Nanos) {
        let Some(pair) = self.fused.pairs.front() else { return };
        let (compare, write) = (pair.compare, pair.write);
        match status {
            Status::SUCCESS if index == compare => {
                queue.slot(compare).phase = Phase::Parked;
                self.start(queue, write, BlockOp::Write, now);
                if queue.get(write).phase != Phase::Accessing {
                    // Refused, and answered.
                    self.fused.pairs.pop_front();
                    queue.respond(compare, Status::FAILED_FUSED);
                }
            }
            Status::SUCCESS if queue.get(write).work == (Work::Fused { flush: true }) => {
                queue.slot(write).work = Work::Fused { flush: false };
                queue.slot(write).buffers.clear();
                self.start(queue, write, BlockOp::Flush, now);
                if queue.get(write).phase != Phase::Accessing {
                    self.fused.pairs.pop_front();
                    queue.respond(compare, Status::FAILED_FUSED);
                }
            }
            Status::SUCCESS => self.end_pair(queue, Status::SUCCESS, Status::SUCCESS),
            _ if index == compare => self.end_pair(queue, status, Status::FAILED_FUSED),
            _ => self.end_pair(queue, Status::FAILED_FUSED, status),
        }
        self.go_on_fused(queue, now);
    }

    /// Answers both of the first pair.
    fn end_pair(&mut self, queue: &mut Queue, compare: Status, write: Status) {
        if let Some(pair) = self.fused.pairs.pop_front() {
            queue.respond(pair.compare, compare);
            queue.respond(pair.write, write);
        }
    }

    /// Whether the first pair waits for another one to be done, or for a buffer.
    pub(super) fn waits_for_pass(&self, queue: &Queue) -> bool {
        self.fused.pairs.front().is_some_and(|pair| {
            let has_all = |index: usize| queue.get(index).moved == queue.get(index).len;
            pair.pass.is_none() && has_all(pair.compare) && has_all(pair.write)
        })
    }

    /// Whether there are pairs on this namespace.
    fn fuses(&self) -> bool {
        self.subsystem.namespace.fuses()
    }
}

fn pair_of(fused: &mut Fused) -> &mut Pair {
    fused.pairs.front_mut().expect("the pair that goes on")
}
