//! How leases are stored: one record each, next to the table's line, which has the rest.

use std::{
    collections::BTreeMap,
    num::NonZeroU32,
    ops::{Index, IndexMut, Range},
    time::Duration,
};

use berth_port::Nanos;

use super::{
    Holding, Item, Lease, Leases, Standing,
    grantees::{Grantee, GranteeIndex},
};
use crate::{Entry, LeaseId, LeaseKey};

/// Index of a record, plus one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Slot(NonZeroU32);

impl Slot {
    pub(super) fn new(index: usize) -> Self {
        Self(u32::try_from(index + 1).ok().and_then(NonZeroU32::new).expect("fewer leases than 2^32"))
    }

    pub(super) fn index(self) -> usize {
        self.0.get() as usize - 1
    }
}

/// The part of a lease that the table's line lacks.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each says something else, in a byte")]
pub(super) struct Record {
    pub(super) key: LeaseKey,
    grace: Nanos,
    pub(super) standing: Standing,
    pub(super) grantee: GranteeIndex,
    fenced: bool,
    /// Whether the arena counts its extent as taken.
    pub(super) holds: bool,
    /// Revoked only while its contents are being moved, and still listed by token.
    pub(super) moving: bool,
    /// Whether it lives and its expiry was reported: its deadline is then the end of its grace.
    pub(super) in_grace: bool,
}

/// The records of all leases.
#[derive(Debug)]
pub(super) struct Records {
    slots: Vec<Option<Record>>,
    free: Vec<Slot>,
    /// The record of each line of the table; `None` if the line is free or an attachment's.
    by_line: Vec<Option<Slot>>,
    /// Leases without a line: those without bytes, and those that are over but not released.
    unpublished: BTreeMap<LeaseKey, (Slot, Lease)>,
}

impl Records {
    /// Makes room for `capacity` leases in a table of `lines` lines. Unused room is reserved but takes up no memory.
    pub(super) fn new(capacity: usize, lines: usize) -> Self {
        Self {
            slots: Vec::with_capacity(capacity),
            free: Vec::new(),
            by_line: vec![None; lines],
            unpublished: BTreeMap::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(super) fn slots(&self) -> impl Iterator<Item = Slot> {
        (0..self.slots.len()).filter(|index| self.slots[*index].is_some()).map(Slot::new)
    }

    /// Number of places for leases, taken or free.
    pub(super) fn places(&self) -> usize {
        self.slots.len()
    }

    /// Slots of the leases in these places.
    pub(super) fn slots_among(&self, places: Range<usize>) -> impl Iterator<Item = Slot> {
        places.filter(|place| self.slots.get(*place).is_some_and(Option::is_some)).map(Slot::new)
    }

    fn insert(&mut self, record: Record) -> Slot {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            Slot::new(self.slots.len() - 1)
        });
        self.slots[slot.index()] = Some(record);
        slot
    }
}

impl Index<Slot> for Records {
    type Output = Record;
    fn index(&self, slot: Slot) -> &Record {
        self.slots[slot.index()].as_ref().expect("a slot is named only while it has a record")
    }
}

impl IndexMut<Slot> for Records {
    fn index_mut(&mut self, slot: Slot) -> &mut Record {
        self.slots[slot.index()].as_mut().expect("a slot is named only while it has a record")
    }
}

impl Leases {
    /// Slot of a lease; `None` for an attachment's key.
    pub(super) fn slot(&self, key: LeaseKey) -> Option<Slot> {
        match self.writer.line_of(key) {
            Some(line) => self.records.by_line[line],
            None => self.records.unpublished.get(&key).map(|(slot, _)| *slot),
        }
    }

    /// A lease and its slot, whatever its standing.
    pub(super) fn known(&self, id: LeaseId) -> Option<(Slot, Lease)> {
        let slot = self.slot(id.key())?;
        Some((slot, self.lease(slot))).filter(|(_, lease)| lease.id == id)
    }

    /// Assembles the whole lease.
    pub(super) fn lease(&self, slot: Slot) -> Lease {
        let Record { key, grace, standing, grantee, fenced, .. } = self.records[slot];
        let Some(entry) = self.writer.get(key) else { return self.records.unpublished[&key].1 };
        let Entry { id, generation, rights, region, base, len, first, expires, .. } = entry;
        let Grantee { token, holder } = self.grantees.get(grantee);
        let (holds, grace) = (Holding::Bytes(region), Duration::from_nanos(grace.0));
        Lease { id, holds, base, len, first, rights, generation, holder, token, expires, grace, standing, fenced }
    }

    /// Stores a new lease and returns its slot.
    pub(super) fn store(&mut self, lease: &Lease, holds: bool) -> Slot {
        let Lease { id, holder, token, grace, standing, fenced, .. } = *lease;
        let grantee = self.grantees.join(Grantee { token, holder });
        let (key, grace) = (id.key(), Nanos(0) + grace);
        self.accounts.take(holder, Item::Leases, 1);
        self.accounts.take(holder, Item::Bytes, if holds { self.places.extent(lease).len } else { 0 });
        let slot = self.records.insert(Record {
            key,
            grace,
            standing,
            grantee,
            fenced,
            holds,
            moving: false,
            in_grace: false,
        });
        if let Some(line) = self.writer.line_of(key) {
            self.records.by_line[line] = Some(slot);
        } else {
            self.records.unpublished.insert(key, (slot, *lease));
        }
        slot
    }

    /// Changes a lease and publishes the change.
    pub(super) fn change(&mut self, slot: Slot, change: impl FnOnce(&mut Lease)) -> Lease {
        let mut lease = self.lease(slot);
        change(&mut lease);
        let record = &mut self.records[slot];
        (record.standing, record.fenced) = (lease.standing, lease.fenced);
        let key = record.key;
        if let Some(entry) = self.entry(&lease) {
            self.writer.update(&entry);
        } else {
            if let Some(line) = self.writer.line_of(key) {
                self.writer.remove(key);
                self.records.by_line[line] = None;
            }
            self.records.unpublished.insert(key, (slot, lease));
        }
        lease
    }

    /// Drops a lease that is over and holds nothing.
    pub(super) fn erase(&mut self, slot: Slot) {
        let Some(Record { key, grantee, .. }) = self.records.slots[slot.index()].take() else { return };
        self.records.free.push(slot);
        self.records.unpublished.remove(&key);
        let Grantee { holder, .. } = self.grantees.get(grantee);
        self.grantees.leave(grantee);
        self.kept.remove(&key);
        let pages = self.pages.remove(&key).map_or(0, |pages| pages.len());
        self.accounts.give(holder, Item::PageState, pages as u64);
        self.accounts.give(holder, Item::Leases, 1);
    }
}
