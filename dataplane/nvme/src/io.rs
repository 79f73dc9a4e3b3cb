//! I/O queues: commands of the NVM command set on the namespace of a lease.

mod abort;
mod copy;
mod engine;
mod fused;
mod memory;
mod ranges;

use std::{
    collections::VecDeque,
    sync::Arc,
    task::{Context, Poll},
};

use berth_lease::{BlockOp, Op, Refusal};
use berth_lease_io::{Accesses, Buffers, Gate, Pool, Served};
use berth_port::Nanos;
use berth_wire::nvme::{
    Sqe, Status,
    command::{Pointer, Refused},
    io::{Access, CopyCommand, DatasetManagement},
    opcode::io as opcode,
    pdu::Fatal,
};

pub(crate) use self::copy::COPY_RANGES;
use self::{engine::block_op, fused::Fused};
use crate::{
    SGL, Target,
    admin::FAREWELL,
    controller::{Controller, QueueId},
    counts::{Counts, Event},
    namespace::{BLOCK, refused},
    queue::{Phase, Queue, Slot, Work},
    target::Subsystem,
};

/// The one namespace.
pub(crate) const NSID: u32 = 1;

/// What becomes of a command, where it did not fail.
pub(crate) enum Turn {
    /// It has succeeded, and is to be answered so.
    Done,
    /// It is answered later; the phase of its slot says what it waits for.
    Later,
}

/// One I/O queue.
#[derive(Debug)]
pub(crate) struct Io {
    controller: Arc<Controller>,
    subsystem: Arc<Subsystem>,
    id: QueueId,
    gate: Gate,
    accesses: Accesses,
    /// Accesses that have not been taken back from `accesses`.
    under_way: usize,
    pool: Arc<Pool>,
    /// The most bytes of it that this queue has: an eighth of the pool, or what one command needs.
    share: usize,
    /// Commands that wait for buffers, in order.
    waiting: VecDeque<u8>,
    /// Those for which the engine had no room.
    busy: VecDeque<u8>,
    fused: Fused,
    /// For the data of a capsule that comes next; and how many bytes that needs, where it waits for them.
    spare: (Buffers, Option<usize>),
    /// All data of a command is looked at before any of it is written, for it has digests.
    collects: bool,
    /// When the lease's end was seen first; [`FAREWELL`] later the queue closes.
    ended: Option<Nanos>,
}

impl Io {
    pub(crate) fn new(
        target: &Target,
        controller: Arc<Controller>,
        subsystem: Arc<Subsystem>,
        (id, over): (QueueId, Arc<std::sync::atomic::AtomicBool>),
        collects: bool,
    ) -> Self {
        let (gate, pool) = (target.gate().until(over), target.pool().clone());
        let share = (pool.size() / 8).max(subsystem.namespace.longest as usize);
        Self {
            controller,
            subsystem,
            id,
            gate,
            accesses: Accesses::default(),
            under_way: 0,
            pool,
            share,
            waiting: VecDeque::new(),
            busy: VecDeque::new(),
            fused: Fused::default(),
            spare: (Buffers::default(), None),
            collects,
            ended: None,
        }
    }

    /// Whether the queue has ended, for another reason than its lease's end.
    pub(crate) fn is_over(&self) -> bool {
        self.id.is_over() && !self.subsystem.has_ended()
    }

    /// Whether the host spoke in time; the association is over otherwise.
    pub(crate) fn hear(&self, now: Nanos) -> bool {
        let in_time = self.controller.hear(now);
        if !in_time {
            self.controller.end();
        }
        in_time
    }

    /// Whether the host has said nothing for too long; the association is over then.
    pub(crate) fn is_silent(&self, now: Nanos) -> bool {
        let silent = self.controller.is_silent(now);
        if silent {
            self.controller.end();
        }
        silent
    }

    /// Adds what the connection has counted to the controller's record.
    pub(crate) fn record(&self, counts: &Counts) {
        self.controller.record.add(counts);
    }

    /// A command has failed.
    #[cold]
    pub(crate) fn failed(&self, slot: &Slot, status: Status) {
        let lba = slot.ask.access.offset / BLOCK;
        self.controller.record.failed(self.id.number(), slot.cid, status, lba, NSID);
    }

    /// Whether the lease is not the host's any more.
    fn lease_has_ended(&mut self, now: Nanos) -> bool {
        let ask = self.subsystem.namespace.whole();
        self.subsystem.has_ended() || !matches!(self.gate.look(&ask, now), Ok(_) | Err(Refusal::Expired))
    }

    /// Whether there are buffers for the data of a capsule; else it has to wait.
    pub(crate) fn prepare(&mut self, capsule: usize, counts: &mut Counts) -> bool {
        let (spare, wanted) = &mut self.spare;
        if capsule == 0 || self.subsystem.namespace.engine.is_none() || spare.size() == capsule {
            return true;
        }
        spare.clear();
        if self.pool.take(capsule, 0, spare) {
            *wanted = None;
            return true;
        }
        if wanted.replace(capsule).is_none() {
            counts.add(Event::BufferWaits);
        }
        false
    }

    /// Gives back what a capsule did not need.
    pub(crate) fn settle(&mut self) {
        self.spare.0.clear();
    }

    /// Serves a command, which has a slot.
    pub(crate) fn command(
        &mut self,
        queue: &mut Queue,
        index: usize,
        sqe: &Sqe,
        (pointer, data): (Pointer, &[u8]),
        counts: &mut Counts,
        now: Nanos,
    ) -> Result<Turn, Refused> {
        counts.add(match sqe.opcode {
            opcode::READ => Event::Reads,
            opcode::WRITE => Event::Writes,
            _ => Event::Others,
        });
        if let Some(turn) = self.fuse(queue, index, sqe, (pointer, data), now) {
            return turn;
        }
        let all = sqe.opcode == opcode::FLUSH && sqe.nsid.get() == u32::MAX;
        if sqe.nsid.get() != NSID && !all && is_known(sqe.opcode) {
            return Err(Refused::Status(Status::INVALID_NAMESPACE));
        }
        let rw = Access::of(sqe);
        match sqe.opcode {
            opcode::READ => {
                queue.slot(index).work = Work::Read;
                self.range(queue, index, Op::Read, rw, pointer)?;
                if let Pointer::Capsule(len) = pointer {
                    return Err(in_capsule(len));
                }
                self.read(queue, index, counts, now)
            }
            opcode::WRITE => {
                queue.slot(index).work = Work::Write { flush: rw.fua && self.flushes() };
                self.range(queue, index, Op::Write, rw, pointer)?;
                self.take(queue, index, (pointer, data), counts, now)
            }
            opcode::COMPARE => {
                queue.slot(index).work = Work::Compare;
                self.range(queue, index, Op::Read, rw, pointer)?;
                self.take(queue, index, (pointer, data), counts, now)
            }
            opcode::FLUSH => self.flush(queue, index, now),
            opcode::WRITE_ZEROES => self.zero(queue, index, rw, now),
            opcode::VERIFY => {
                queue.slot(index).work = Work::Verify;
                self.range(queue, index, Op::Read, rw, no_data(rw))?;
                self.read(queue, index, counts, now)
            }
            opcode::DATASET_MANAGEMENT => {
                self.manage(queue, index, DatasetManagement::of(sqe), pointer)?;
                self.take(queue, index, (pointer, data), counts, now)
            }
            opcode::COPY => {
                self.accept_copy(queue, index, CopyCommand::of(sqe), pointer)?;
                self.take(queue, index, (pointer, data), counts, now)
            }
            _ => Err(Refused::Status(Status::INVALID_OPCODE)),
        }
    }

    /// Settles which bytes a command is about.
    fn range(&self, queue: &mut Queue, index: usize, op: Op, rw: Access, pointer: Pointer) -> Result<(), Refused> {
        let namespace = &self.subsystem.namespace;
        let blocks = u64::from(rw.blocks);
        if blocks * BLOCK > u64::from(namespace.longest) {
            return Err(Refused::Status(Status::INVALID_FIELD));
        }
        let slot = queue.slot(index);
        slot.ask = namespace.ask(op, rw.slba, blocks).map_err(Refused::Status)?;
        slot.len = (blocks * BLOCK) as u32;
        if u64::from(pointer.len()) != blocks * BLOCK {
            return Err(Refused::Status(Status::SGL_LENGTH_INVALID));
        }
        Ok(())
    }

    fn read(&mut self, queue: &mut Queue, index: usize, counts: &mut Counts, now: Nanos) -> Result<Turn, Refused> {
        let slot = queue.slot(index);
        match self.gate.check(&slot.ask, now) {
            Err(refusal) => return Err(self.refused(refusal, Op::Read)),
            Ok(Served::Done) if slot.work == Work::Verify => return Ok(Turn::Done),
            Ok(Served::Done) => queue.send(index, Phase::Sending),
            Ok(Served::Blocks) => self.wait(queue, index, counts, now),
        }
        Ok(Turn::Later)
    }

    /// Takes the data of a command: from its capsule, or by R2T.
    fn take(
        &mut self,
        queue: &mut Queue,
        index: usize,
        (pointer, data): (Pointer, &[u8]),
        counts: &mut Counts,
        now: Nanos,
    ) -> Result<Turn, Refused> {
        let slot = queue.slot(index);
        let op = slot.ask.access.op;
        let place = self.gate.check(&slot.ask, now).map_err(|refusal| self.refused(refusal, op))?;
        let is_kept = is_kept(slot.work);
        match (pointer, place) {
            (Pointer::Capsule(_), _) if is_kept => self.piece(queue, index, data, now),
            (Pointer::Transport(_), _) if is_kept => {
                queue.send(index, Phase::Asking);
                return Ok(Turn::Later);
            }
            (Pointer::Capsule(_), Served::Done) => self.piece(queue, index, data, now),
            (Pointer::Capsule(_), Served::Blocks) => {
                std::mem::swap(&mut slot.buffers, &mut self.spare.0);
                self.piece(queue, index, data, now);
            }
            (Pointer::Transport(_), Served::Done) if !self.collects => {
                queue.send(index, Phase::Asking);
                return Ok(Turn::Later);
            }
            (Pointer::Transport(_), _) => {
                self.wait(queue, index, counts, now);
                return Ok(Turn::Later);
            }
        }
        self.received(queue, index, counts, now);
        Ok(Turn::Later)
    }

    /// Takes what comes next of the data of a command.
    pub(crate) fn piece(&mut self, queue: &mut Queue, index: usize, piece: &[u8], now: Nanos) {
        let slot = queue.slot(index);
        if slot.fault.is_none() {
            let at = slot.moved;
            if is_kept(slot.work) {
                slot.page.extend_from_slice(piece);
            } else if slot.buffers.size() > 0 {
                slot.buffers.write_at(at as usize, piece);
            } else {
                let ask = slot.ask;
                let done = if slot.work == Work::Compare {
                    self.compare(&ask, at.into(), piece, now)
                } else {
                    self.gate
                        .write_part(&ask, at.into(), piece, now)
                        .map_err(|refusal| self.status(refusal, Op::Write))
                        .map(drop)
                };
                slot.fault = done.err();
            }
        }
        slot.moved += piece.len() as u32;
        slot.since = now;
    }

    /// All data that was asked for is there.
    pub(crate) fn received(&mut self, queue: &mut Queue, index: usize, counts: &mut Counts, now: Nanos) {
        let slot = queue.slot(index);
        slot.ready = Some(now);
        if let Work::Fused { .. } = slot.work {
            slot.phase = Phase::Parked;
            return self.go_on_fused(queue, now);
        }
        // After a wrong digest the rest is taken too, and thrown away.
        let takes_rest = matches!(slot.fault, None | Some(Status::TRANSIENT_TRANSPORT_ERROR));
        if takes_rest && slot.moved < slot.len {
            return queue.send(index, Phase::Asking);
        }
        if let Some(fault) = slot.fault {
            return queue.respond(index, fault);
        }
        match slot.work {
            Work::Ranges { .. } => return self.ranges(queue, index, now),
            Work::Copy(_) => return self.copy_ranges(queue, index, counts, now),
            _ => {}
        }
        if self.subsystem.namespace.engine.is_some() {
            let op = block_op(slot);
            return self.start(queue, index, op, now);
        }
        let mut status = Status::SUCCESS;
        if slot.buffers.size() > 0 {
            status = self.store(queue, index, now);
        }
        queue.respond(index, status);
    }

    fn flush(&mut self, queue: &mut Queue, index: usize, now: Nanos) -> Result<Turn, Refused> {
        let namespace = &self.subsystem.namespace;
        let (ask, last) = (namespace.whole(), namespace.blocks - 1);
        self.gate.look(&ask, now).map_err(|refusal| self.refused(refusal, Op::Read))?;
        if !self.flushes() || !namespace.rights.contains(Op::Write.right()) {
            return Ok(Turn::Done);
        }
        let slot = queue.slot(index);
        slot.work = Work::Flush;
        // A flush is not about any bytes; a host that may write may write the last block.
        slot.ask = namespace.ask(Op::Write, last, 1).map_err(Refused::Status)?;
        self.start(queue, index, BlockOp::Flush, now);
        Ok(Turn::Later)
    }

    fn zero(&mut self, queue: &mut Queue, index: usize, rw: Access, now: Nanos) -> Result<Turn, Refused> {
        self.range(queue, index, Op::Write, rw, no_data(rw))?;
        let flush = rw.fua && self.flushes();
        let slot = queue.slot(index);
        slot.work = Work::Zero { flush };
        match self.gate.zero(&slot.ask, now) {
            Err(refusal) => Err(self.refused(refusal, Op::Write)),
            Ok(Served::Done) => Ok(Turn::Done),
            Ok(Served::Blocks) => {
                let op = block_op(slot);
                self.start(queue, index, op, now);
                Ok(Turn::Later)
            }
        }
    }

    /// Whether the lease has ended and the host was told so for long enough.
    pub(crate) fn ended_long_ago(&mut self, now: Nanos) -> bool {
        if !self.lease_has_ended(now) {
            return false;
        }
        now > *self.ended.get_or_insert(now) + FAREWELL
    }

    /// Sends `into` the data of a read of memory from `at` on.
    #[inline]
    pub(crate) fn copy(&mut self, queue: &mut Queue, index: usize, into: &mut [u8], now: Nanos) -> Result<(), Status> {
        let slot = queue.slot(index);
        let read = self.gate.read_part(&slot.ask, slot.moved.into(), into, now);
        read.map(drop).map_err(|refusal| self.status(refusal, Op::Read))
    }

    /// Accesses under way, and commands that wait for buffers which no message of this host sets free.
    pub(crate) fn outstanding(&self, queue: &Queue) -> usize {
        // While a capsule waits, no input is taken that could set any free.
        let waits = self.spare.1.is_some() || self.wanted(queue).is_some() && queue.held() == 0;
        self.under_way + usize::from(waits) + usize::from(self.waits_for_pass(queue))
    }

    pub(crate) fn poll(&self, queue: &Queue, cx: &Context<'_>) -> Poll<()> {
        if self.is_asked() || self.under_way > 0 && self.accesses.poll(cx).is_ready() {
            return Poll::Ready(());
        }
        if let Some(len) = self.spare.1
            && self.pool.poll(len, 0, cx).is_ready()
        {
            return Poll::Ready(());
        }
        if self.waits_for_pass(queue)
            && self.subsystem.fused.poll(cx).is_ready()
            && self.pool.poll(2 * BLOCK as usize, 0, cx).is_ready()
        {
            return Poll::Ready(());
        }
        match self.wanted(queue) {
            Some((len, leave)) => self.pool.poll(len, leave, cx),
            None => Poll::Pending,
        }
    }

    /// Whether Flush and FUA do anything: the lease lies behind an engine that has something to flush.
    fn flushes(&self) -> bool {
        self.subsystem.namespace.engine.is_some_and(|engine| engine.flush)
    }

    #[cold]
    fn refused(&self, refusal: Refusal, op: Op) -> Refused {
        Refused::Status(self.status(refusal, op))
    }

    /// What the host is told of a refusal: a lease that ended fails for good, a queue that ended does not.
    #[cold]
    fn status(&self, refusal: Refusal, op: Op) -> Status {
        if self.is_over() { QUEUE_DELETED } else { refused(refusal, op) }
    }
}

/// The pointer that a command on a range would have if it transferred that.
fn no_data(rw: Access) -> Pointer {
    Pointer::Transport(rw.blocks * BLOCK as u32)
}

/// Command Aborted due to SQ Deletion.
const QUEUE_DELETED: Status = Status::retryable(0x008);

/// A descriptor of data in the capsule of a command that brings none.
fn in_capsule(len: u32) -> Refused {
    if len > 0 { Refused::Fatal(Fatal::unsupported(SGL)) } else { Refused::Status(Status::SGL_TYPE_INVALID) }
}

fn is_known(code: u8) -> bool {
    use opcode::{COMPARE, COPY, DATASET_MANAGEMENT, FLUSH, READ, VERIFY, WRITE, WRITE_ZEROES};
    matches!(code, FLUSH | READ | WRITE | COMPARE | WRITE_ZEROES | VERIFY | DATASET_MANAGEMENT | COPY)
}

/// Whether a command's data is kept until it is complete, and then looked at by us.
fn is_kept(work: Work) -> bool {
    matches!(work, Work::Ranges { .. } | Work::Fused { .. } | Work::Copy(_))
}
