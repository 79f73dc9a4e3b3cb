//! A port's peers on its core: their entries in the address vector, and what each has under way.

use std::net::IpAddr;

use berth_port::Peer as Name;

use crate::endpoint::FiAddr;

/// A peer that may send.
#[derive(Debug)]
pub(crate) struct Peer {
    /// Address of its endpoint.
    address: Box<[u8]>,
    pub(crate) at: FiAddr,
    /// The name that frames give it.
    pub(crate) name: Name,
}

/// A place for a peer. It stays taken until everything under way to its peer has ended.
#[derive(Debug, Default)]
struct Slot {
    peer: Option<Peer>,
    /// Number of buffers with messages to it.
    held: usize,
    /// Number of receives posted for it alone.
    posted: usize,
    /// Last round of sends in which the provider took no more for it.
    full_in: u64,
}

#[derive(Debug)]
pub(crate) struct Roster {
    slots: Box<[Slot]>,
    /// Slots by entry of the address vector.
    entries: Vec<Option<u32>>,
    /// Number of peers ever inserted.
    joined: u32,
}

impl Roster {
    pub(crate) fn new(limit: usize) -> Self {
        // Peers that were removed may keep their places for a while.
        let slots = std::iter::repeat_with(Slot::default).take(2 * limit).collect();
        Self { slots, entries: Vec::new(), joined: 0 }
    }

    /// Slot of the peer at an entry of the address vector.
    #[inline]
    pub(crate) fn by_entry(&self, at: FiAddr) -> Option<(u32, &Peer)> {
        let slot = (*self.entries.get(at.index()?)?)?;
        Some((slot, self.peer(slot)?))
    }

    /// Slot of the peer with this name in frames.
    #[inline]
    pub(crate) fn by_name(&self, name: Name) -> Option<u32> {
        let Name::Connection { number, .. } = name else { return None };
        let slot = number as usize % self.slots.len();
        self.slots[slot].peer.as_ref().is_some_and(|peer| peer.name == name).then_some(slot as u32)
    }

    #[inline]
    pub(crate) fn peer(&self, slot: u32) -> Option<&Peer> {
        self.slots[slot as usize].peer.as_ref()
    }

    fn free(&self) -> Option<u32> {
        let free = self.slots.iter().position(|slot| slot.peer.is_none() && slot.held == 0 && slot.posted == 0);
        free.map(|slot| slot as u32)
    }

    /// Adds a peer and returns its slot; `host` is `None` if unknown. `None` if there is no place, or its entry is
    /// taken.
    pub(crate) fn insert(&mut self, address: Box<[u8]>, at: FiAddr, host: Option<IpAddr>) -> Option<u32> {
        let (slot, entry) = (self.free()?, at.index()?);
        if self.by_entry(at).is_some() || entry >= MAX_ENTRIES {
            return None;
        }
        self.entries.resize(self.entries.len().max(entry + 1), None);
        self.entries[entry] = Some(slot);
        // The number tells the slot, and is not used again soon.
        let rounds = u32::MAX / self.slots.len() as u32;
        self.joined = (self.joined + 1) % rounds;
        let name = Name::Connection { number: self.joined * self.slots.len() as u32 + slot, host };
        self.slots[slot as usize].peer = Some(Peer { address, at, name });
        Some(slot)
    }

    /// Removes the peer with this address; returns its slot and its entry.
    pub(crate) fn remove(&mut self, address: &[u8]) -> Option<(u32, FiAddr)> {
        let of = |slot: &Slot| slot.peer.as_ref().is_some_and(|peer| *peer.address == *address);
        let slot = self.slots.iter().position(of)?;
        let Peer { at, .. } = self.slots[slot].peer.take()?;
        if let Some(entry) = at.index() {
            self.entries[entry] = None;
        }
        Some((slot as u32, at))
    }

    /// Whether a peer may hold one more buffer while `free` are left. It never gets more than are left, so whatever
    /// peers leave unread, some buffers remain for the others.
    #[inline]
    pub(crate) fn may_hold(&self, slot: u32, free: usize) -> bool {
        self.slots[slot as usize].held < free
    }

    #[inline]
    pub(crate) fn hold(&mut self, slot: u32) {
        self.slots[slot as usize].held += 1;
    }

    #[inline]
    pub(crate) fn release(&mut self, slot: u32) {
        self.slots[slot as usize].held -= 1;
    }

    /// Counts a receive posted for this peer alone.
    #[inline]
    pub(crate) fn post(&mut self, slot: u32) {
        self.slots[slot as usize].posted += 1;
    }

    /// Counts the end of such a receive.
    #[inline]
    pub(crate) fn end(&mut self, slot: u32) {
        self.slots[slot as usize].posted -= 1;
    }

    /// Notes that the provider took no more for a peer in this round.
    pub(crate) fn set_full(&mut self, slot: u32, round: u64) {
        self.slots[slot as usize].full_in = round;
    }

    #[inline]
    pub(crate) fn is_full(&self, slot: u32, round: u64) -> bool {
        self.slots[slot as usize].full_in == round
    }
}

/// Limit on an entry's number. Entries of address vectors are small; a provider with larger ones is not worth the
/// memory.
const MAX_ENTRIES: usize = 1 << 20;
