//! The commands of a host's queue.

use std::collections::VecDeque;

use berth_port::Nanos;
use berth_wire::nvme::{Sgl, Sqe};

use super::{Command, DEPTH_MAX, Data};

/// Bits of an identifier that are the slot.
const SLOT_BITS: u32 = DEPTH_MAX.trailing_zeros();

/// A slot for each command that is under way.
#[derive(Debug)]
pub(super) struct Slots {
    all: Vec<Slot>,
    free: Vec<u16>,
    /// Those that have something to send, in order, each once.
    ready: VecDeque<u16>,
}

/// A command.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slot {
    pub(super) sqe: Sqe,
    pub(super) data: Data,
    pub(super) phase: Phase,
    /// Bytes of its data that have come, or were sent.
    pub(super) moved: u32,
    /// A digest of its data was wrong.
    pub(super) corrupt: bool,
    pub(super) since: Nanos,
}

/// What a command waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Nothing: there is none.
    Free,
    /// Room to be sent.
    Queued,
    /// Its end, or data.
    Sent,
    /// Room for the data that an R2T of this TTAG asked for, up to this byte.
    Asked { ttag: u16, until: u32 },
}

impl Slots {
    pub(super) fn new(depth: u16) -> Self {
        let depth = depth.clamp(1, DEPTH_MAX);
        let free = |index: u16| {
            let sqe = Sqe::new(0, index, 0);
            Slot { sqe, data: Data::None, phase: Phase::Free, moved: 0, corrupt: false, since: Nanos(0) }
        };
        Self {
            all: (0..depth).map(free).collect(),
            free: (0..depth).rev().collect(),
            ready: VecDeque::with_capacity(depth.into()),
        }
    }

    /// Commands that are under way.
    pub(super) fn used(&self) -> usize {
        self.all.len() - self.free.len()
    }

    /// Takes a command, to be sent: its data in the capsule where there are at most `in_capsule` bytes of it.
    pub(super) fn open(&mut self, command: Command, in_capsule: u32, now: Nanos) -> Option<usize> {
        let index = self.free.pop()?;
        let slot = &mut self.all[usize::from(index)];
        // A completion that comes late is not taken for the next command's.
        let cid = slot.sqe.cid.get().wrapping_add(1 << SLOT_BITS);
        let sgl = match command.data {
            Data::None => Sgl::transport(0),
            Data::Out(len) if len <= in_capsule => Sgl::in_capsule(len),
            Data::In(len) | Data::Out(len) => Sgl::transport(len),
        };
        let mut sqe = command.sqe;
        (sqe.cid, sqe.sgl) = (cid.into(), sgl);
        *slot = Slot { sqe, data: command.data, phase: Phase::Queued, moved: 0, corrupt: false, since: now };
        self.ready.push_back(index);
        Some(index.into())
    }

    /// The command of this identifier, if the controller knows of it.
    #[inline]
    pub(super) fn by_cid(&self, cid: u16) -> Option<usize> {
        let index = usize::from(cid & (DEPTH_MAX - 1));
        let slot = self.all.get(index)?;
        let known = slot.sqe.cid.get() == cid && !matches!(slot.phase, Phase::Free | Phase::Queued);
        known.then_some(index)
    }

    #[inline]
    pub(super) fn get(&mut self, index: usize) -> &mut Slot {
        &mut self.all[index]
    }

    /// The first that has something to send.
    #[inline]
    pub(super) fn first(&self) -> Option<usize> {
        self.ready.front().map(|index| usize::from(*index))
    }

    /// That has nothing more to send for now.
    #[inline]
    pub(super) fn sent(&mut self) {
        if let Some(index) = self.ready.pop_front() {
            self.all[usize::from(index)].phase = Phase::Sent;
        }
    }

    /// Has the command send what an R2T asked for.
    pub(super) fn ask(&mut self, index: usize, ttag: u16, until: u32) {
        self.all[index].phase = Phase::Asked { ttag, until };
        self.ready.push_back(index as u16);
    }

    /// The command has ended.
    #[inline]
    pub(super) fn close(&mut self, index: usize) {
        let slot = &mut self.all[index];
        if matches!(slot.phase, Phase::Asked { .. }) {
            self.ready.retain(|ready| usize::from(*ready) != index);
        }
        slot.phase = Phase::Free;
        self.free.push(index as u16);
    }

    /// Whether a command was accepted before this time and has not ended.
    pub(super) fn has_older(&self, than: Nanos) -> bool {
        self.all.iter().any(|slot| slot.phase != Phase::Free && slot.since < than)
    }
}
