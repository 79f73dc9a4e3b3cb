//! Who holds leases under which token, and which leases the revocation of a token ends.

use std::collections::BTreeMap;

use super::record::Slot;

/// Pairs of token and holder. Each is stored once, however many leases it has.
#[derive(Debug, Default)]
pub(super) struct Grantees {
    by_token: BTreeMap<Grantee, GranteeIndex>,
    all: Vec<Known>,
    /// Unused indices.
    free: Vec<GranteeIndex>,
    /// For each lease, its neighbours in the list of its grantee.
    links: Vec<Links>,
}

/// A token, and a holder of leases under it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Grantee {
    pub(super) token: u128,
    pub(super) holder: u128,
}

/// A grantee's index.
#[derive(Debug, Clone, Copy)]
pub(super) struct GranteeIndex(u32);

#[derive(Debug)]
struct Known {
    grantee: Grantee,
    /// Number of records that refer to it.
    records: u32,
    /// Head of the list of leases that a revocation of the token ends.
    first: Option<Slot>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Links {
    previous: Option<Slot>,
    next: Option<Slot>,
}

impl Grantees {
    /// Makes room for `capacity` slots.
    pub(super) fn new(capacity: usize) -> Self {
        Self { links: Vec::with_capacity(capacity), ..Self::default() }
    }

    /// The grantee of a new record; adds it if it is new.
    pub(super) fn join(&mut self, grantee: Grantee) -> GranteeIndex {
        let Self { by_token, all, free, .. } = self;
        let index = *by_token.entry(grantee).or_insert_with(|| {
            let known = Known { grantee, records: 0, first: None };
            if let Some(index) = free.pop() {
                all[index.0 as usize] = known;
                return index;
            }
            all.push(known);
            GranteeIndex(all.len() as u32 - 1)
        });
        all[index.0 as usize].records += 1;
        index
    }

    /// Counts a record less, and drops a grantee without records.
    pub(super) fn leave(&mut self, index: GranteeIndex) {
        let known = &mut self.all[index.0 as usize];
        known.records -= 1;
        if known.records == 0 {
            self.by_token.remove(&known.grantee);
            self.free.push(index);
        }
    }

    pub(super) fn get(&self, index: GranteeIndex) -> Grantee {
        self.all[index.0 as usize].grantee
    }

    /// Adds a lease to those that a revocation of its token ends.
    pub(super) fn list(&mut self, index: GranteeIndex, slot: Slot) {
        if self.links.len() <= slot.index() {
            self.links.resize(slot.index() + 1, Links::default());
        }
        let next = self.all[index.0 as usize].first.replace(slot);
        self.links[slot.index()] = Links { previous: None, next };
        if let Some(next) = next {
            self.links[next.index()].previous = Some(slot);
        }
    }

    /// Removes a lease from that list.
    pub(super) fn unlist(&mut self, index: GranteeIndex, slot: Slot) {
        let Links { previous, next } = std::mem::take(&mut self.links[slot.index()]);
        match previous {
            Some(previous) => self.links[previous.index()].next = next,
            None => self.all[index.0 as usize].first = next,
        }
        if let Some(next) = next {
            self.links[next.index()].previous = previous;
        }
    }

    /// Leases that a revocation of `token` ends.
    pub(super) fn under(&self, token: u128) -> impl Iterator<Item = Slot> {
        let holders = Grantee { token, holder: 0 }..=Grantee { token, holder: u128::MAX };
        self.by_token.range(holders).flat_map(|(_, index)| self.of(*index))
    }

    /// Leases of `holder` that revocations of their tokens would end. Looks at every grantee.
    pub(super) fn held_by(&self, holder: u128) -> impl Iterator<Item = Slot> {
        let held = self.by_token.iter().filter(move |(grantee, _)| grantee.holder == holder);
        held.flat_map(|(_, index)| self.of(*index))
    }

    fn of(&self, index: GranteeIndex) -> impl Iterator<Item = Slot> {
        std::iter::successors(self.all[index.0 as usize].first, |slot| self.links[slot.index()].next)
    }
}
