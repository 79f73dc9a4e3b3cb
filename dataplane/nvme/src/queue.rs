//! The commands of one queue: a slot for each, from its capsule to its response.

use std::{collections::VecDeque, time::Duration};

use berth_lease::{Access, LeaseKey, Op};
use berth_lease_io::{AccessRequest, Buffers};
use berth_port::Nanos;
use berth_wire::nvme::{Cqe, Status};

/// The most commands of a queue: a TTAG has the slot in its low byte.
pub(crate) const DEPTH_MAX: u16 = 256;

/// Bytes that a slot keeps room for from one page to the next.
const PAGE_KEPT: usize = 4096;

/// How long a host may leave an R2T without data.
const DATA_PATIENCE: Duration = Duration::from_secs(10);

/// SQHD where flow control is off.
const NO_HEAD: u16 = 0xFFFF;

/// One queue's commands.
#[derive(Debug)]
pub(crate) struct Queue {
    /// As many as were in use at once.
    slots: Vec<Slot>,
    /// Those of them that nobody uses.
    free: Vec<u8>,
    /// The most slots there may be, up to [`DEPTH_MAX`].
    depth: usize,
    /// Those that have something to send, in order.
    ready: VecDeque<u8>,
    /// A bit for each command identifier in use.
    cids: Vec<u64>,
    /// Bytes of buffers that commands have which waited for them.
    held: usize,
    /// SQHD, and where it wraps; `None` where flow control is off.
    head: Option<(u16, u16)>,
}

/// A command, from its capsule to its answer.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) cid: u16,
    /// Whether the identifier is its own; else it is refused because that is in use.
    owns_cid: bool,
    /// Different for each command that the slot has: what a late `H2CData` does not know.
    generation: u8,
    pub(crate) phase: Phase,
    pub(crate) work: Work,
    /// The bytes of the lease that it reads or writes.
    pub(crate) ask: AccessRequest,
    /// Bytes of its data.
    pub(crate) len: u32,
    /// Bytes of its data that have come, or were sent.
    pub(crate) moved: u32,
    /// R2TO: offset of the first byte that the last R2T asked for.
    pub(crate) from: u32,
    /// Offset behind the last byte that it asked for.
    pub(crate) until: u32,
    /// The turn in which its capsule was accepted.
    pub(crate) accepted: Nanos,
    /// When the last R2T was sent, or data for it came last.
    pub(crate) since: Nanos,
    /// The turn in which the last of its data from the host came.
    pub(crate) ready: Option<Nanos>,
    /// The turn in which its last access to blocks had ended.
    pub(crate) accessed: Option<Nanos>,
    /// What it ends with once all data is there that was asked for.
    pub(crate) fault: Option<Status>,
    /// Its data, where that is neither sent from nor written to the lease as it is.
    pub(crate) buffers: Buffers,
    /// Bytes of them, where it waited for them.
    held: usize,
    /// The same of admin commands, of which the rest is zero, and ranges.
    pub(crate) page: Vec<u8>,
    /// Dwords 0 and 1 of its completion.
    pub(crate) result: u64,
}

/// The one thing that a command waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Nothing: there is no command.
    Free,
    /// Buffers.
    Waiting,
    /// Room for an R2T.
    Asking,
    /// The data that an R2T asked for.
    Receiving,
    /// Blocks.
    Accessing,
    /// Room for its data.
    Sending,
    /// Room for its response.
    Responding(Status),
    /// Another command, or an event.
    Parked,
}

/// What a command does with its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    /// Nothing: it is served when it comes.
    Control,
    /// Sends what the lease holds.
    Read,
    /// Writes it to the lease, and flushes that.
    Write { flush: bool },
    /// Compares the lease with it.
    Compare,
    /// Compares or writes, as one with another command.
    Fused { flush: bool },
    /// Reads what the lease holds, and sends nothing.
    Verify,
    /// It is this many ranges, of which so many have been looked at, which are deallocated or left alone.
    Ranges { count: u16, done: u16, deallocate: bool },
    /// Copies ranges, of which so many have been copied, to the block where the next one belongs.
    Copy(Copy),
    /// Zeroes a range.
    Zero { flush: bool },
    /// Makes durable what was written before.
    Flush,
}

/// Progress of Copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Copy {
    /// Ranges, and how many have been copied.
    pub(crate) ranges: (u16, u16),
    /// The block that the next one goes to.
    pub(crate) to: u64,
    /// The next one has been read.
    pub(crate) is_read: bool,
    pub(crate) flush: bool,
}

/// As many commands are under way as the queue has entries: the host has sent one too many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Full;

impl Queue {
    /// For so many commands at once. `flow_control` says where SQHD wraps.
    pub(crate) fn new(depth: u16, flow_control: Option<u16>) -> Self {
        let depth = depth.min(DEPTH_MAX);
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            depth: depth.into(),
            ready: VecDeque::with_capacity(depth.into()),
            cids: vec![0; 1 << 10],
            held: 0,
            head: flow_control.map(|entries| (0, entries)),
        }
    }

    /// A slot for a command that has just come. Its identifier may be in use: then it must be refused.
    pub(crate) fn open(&mut self, cid: u16, now: Nanos) -> Result<(usize, bool), Full> {
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.slots.len() < self.depth => {
                self.slots.push(Slot::free());
                (self.slots.len() - 1) as u8
            }
            None => return Err(Full),
        };
        if let Some((head, entries)) = &mut self.head {
            *head = (*head + 1) % *entries;
        }
        let (word, bit) = (&mut self.cids[usize::from(cid) / 64], 1 << (cid % 64));
        let unused = *word & bit == 0;
        *word |= bit;
        let slot = &mut self.slots[usize::from(index)];
        slot.generation = slot.generation.wrapping_add(1);
        (slot.cid, slot.owns_cid, slot.phase) = (cid, unused, Phase::Parked);
        (slot.moved, slot.until, slot.fault, slot.result, slot.work) = (0, 0, None, 0, Work::Control);
        (slot.accepted, slot.ready, slot.accessed) = (now, None, None);
        Ok((index.into(), unused))
    }

    /// The command is over and has been answered.
    pub(crate) fn close(&mut self, index: usize) {
        self.release(index);
        let slot = &mut self.slots[index];
        if slot.owns_cid {
            self.cids[usize::from(slot.cid) / 64] &= !(1 << (slot.cid % 64));
        }
        slot.phase = Phase::Free;
        slot.page.clear();
        slot.page.shrink_to(PAGE_KEPT);
        self.free.push(index as u8);
    }

    /// Has the command go on when there is room to send.
    pub(crate) fn send(&mut self, index: usize, phase: Phase) {
        self.slots[index].phase = phase;
        self.ready.push_back(index as u8);
    }

    /// Has the command answered when what other commands have to send is sent.
    pub(crate) fn respond(&mut self, index: usize, status: Status) {
        self.send(index, Phase::Responding(status));
    }

    /// The first command that has something to send.
    #[inline]
    pub(crate) fn first(&self) -> Option<usize> {
        self.ready.front().map(|index| usize::from(*index))
    }

    /// That has nothing more to send.
    pub(crate) fn sent(&mut self) {
        self.ready.pop_front();
    }

    #[inline]
    pub(crate) fn slot(&mut self, index: usize) -> &mut Slot {
        &mut self.slots[index]
    }

    #[inline]
    pub(crate) fn get(&self, index: usize) -> &Slot {
        &self.slots[index]
    }

    /// A command has buffers of so many bytes, for which it waited.
    pub(crate) fn hold(&mut self, index: usize, bytes: usize) {
        self.slots[index].held = bytes;
        self.held += bytes;
    }

    /// Gives a command's buffers back.
    pub(crate) fn release(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        self.held -= std::mem::take(&mut slot.held);
        slot.buffers.clear();
    }

    /// Bytes of buffers that commands have which waited for them.
    pub(crate) fn held(&self) -> usize {
        self.held
    }

    /// Whether the host has not sent data that was asked for in time.
    pub(crate) fn is_late(&self, now: Nanos) -> bool {
        self.slots.iter().any(|slot| slot.phase == Phase::Receiving && now > slot.since + DATA_PATIENCE)
    }

    /// TTAG of the command's R2T: its slot in the low byte, the slot's generation in the high one.
    pub(crate) fn ttag(&self, index: usize) -> u16 {
        u16::from(self.slots[index].generation) << 8 | index as u16
    }

    /// The slot of the command that waits for the data of an R2T with this TTAG.
    pub(crate) fn by_ttag(&self, ttag: u16) -> Option<usize> {
        let index = usize::from(ttag & 0xFF);
        let slot = self.slots.get(index)?;
        (slot.phase == Phase::Receiving && u16::from(slot.generation) == ttag >> 8).then_some(index)
    }

    /// The slot of the command under way with this CID.
    pub(crate) fn by_cid(&self, cid: u16) -> Option<usize> {
        self.slots.iter().position(|slot| slot.phase != Phase::Free && slot.owns_cid && slot.cid == cid)
    }

    /// The completion of a command.
    pub(crate) fn completion(&self, index: usize, status: Status) -> Cqe {
        let slot = &self.slots[index];
        Cqe::new(slot.cid, self.head.map_or(NO_HEAD, |(head, _)| head), slot.result, status)
    }

    /// Whether a read that succeeds needs no response (SUCCESS flag of `C2HData`): flow control is off.
    pub(crate) fn omits_responses(&self) -> bool {
        self.head.is_none()
    }
}

impl Slot {
    fn free() -> Self {
        let access = Access { op: Op::Read, key: LeaseKey(0), generation: None, offset: 0, len: 0, well_formed: true };
        Self {
            cid: 0,
            owns_cid: false,
            generation: 0,
            phase: Phase::Free,
            work: Work::Control,
            ask: AccessRequest { id: None, access },
            len: 0,
            moved: 0,
            from: 0,
            until: 0,
            accepted: Nanos(0),
            since: Nanos(0),
            ready: None,
            accessed: None,
            fault: None,
            buffers: Buffers::default(),
            held: 0,
            page: Vec::new(),
            result: 0,
        }
    }
}
