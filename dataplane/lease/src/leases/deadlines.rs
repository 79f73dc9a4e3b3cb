//! The next deadline of each lease: a heap that knows the position of every lease in it, so that any can be removed.
//! General heaps of this kind find their items by hash; here a slot is an index, which saves that memory.

use berth_port::Nanos;

use super::record::Slot;

/// Position of a lease that is not in the heap.
const NOWHERE: u32 = u32::MAX;

/// At most one deadline per lease, earliest first.
#[derive(Debug)]
pub(super) struct Deadlines {
    /// A binary heap: no element is due before its parent, at half its position.
    heap: Vec<Slot>,
    by_slot: Vec<Deadline>,
}

/// Packed into 12 bytes, as there is one per lease.
#[derive(Debug, Clone, Copy)]
#[repr(C, packed(4))]
struct Deadline {
    at: Nanos,
    position: u32,
}

impl Deadlines {
    /// Makes room for `capacity` slots.
    pub(super) fn new(capacity: usize) -> Self {
        Self { heap: Vec::with_capacity(capacity), by_slot: Vec::with_capacity(capacity) }
    }

    /// Sets the deadline of a lease, and replaces an earlier one.
    pub(super) fn set(&mut self, slot: Slot, at: Nanos) {
        if self.by_slot.len() <= slot.index() {
            self.by_slot.resize(slot.index() + 1, Deadline { at, position: NOWHERE });
        }
        let deadline = &mut self.by_slot[slot.index()];
        deadline.at = at;
        if deadline.position == NOWHERE {
            deadline.position = self.heap.len() as u32;
            self.heap.push(slot);
        }
        self.settle(slot);
    }

    /// Removes the deadline of a lease, if it has one.
    pub(super) fn clear(&mut self, slot: Slot) {
        let Some(deadline) = self.by_slot.get_mut(slot.index()).filter(|deadline| deadline.position != NOWHERE) else {
            return;
        };
        let position = std::mem::replace(&mut deadline.position, NOWHERE) as usize;
        self.heap.swap_remove(position);
        if let Some(moved) = self.heap.get(position).copied() {
            self.by_slot[moved.index()].position = position as u32;
            self.settle(moved);
        }
    }

    /// Removes and returns the lease whose deadline came first, if it is due.
    pub(super) fn pop(&mut self, now: Nanos) -> Option<Slot> {
        let first = *self.heap.first()?;
        let due = self.at(first) <= now;
        due.then(|| {
            self.clear(first);
            first
        })
    }

    fn at(&self, slot: Slot) -> Nanos {
        self.by_slot[slot.index()].at
    }

    /// Moves a lease up or down to its place in the heap.
    fn settle(&mut self, slot: Slot) {
        let at = self.at(slot);
        let mut position = self.by_slot[slot.index()].position as usize;
        while position > 0 && at < self.at(self.heap[(position - 1) / 2]) {
            position = self.take_place(position, (position - 1) / 2);
        }
        loop {
            let children = 2 * position + 1..(2 * position + 3).min(self.heap.len());
            let Some(child) = children.min_by_key(|child| self.at(self.heap[*child])) else { break };
            if at <= self.at(self.heap[child]) {
                break;
            }
            position = self.take_place(position, child);
        }
        self.heap[position] = slot;
        self.by_slot[slot.index()].position = position as u32;
    }

    /// Moves the lease at `from` to `to`; returns the position that is now vacant.
    fn take_place(&mut self, to: usize, from: usize) -> usize {
        let slot = self.heap[from];
        self.heap[to] = slot;
        self.by_slot[slot.index()].position = to as u32;
        from
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_earliest_comes_first_whatever_was_changed(
            steps in proptest::collection::vec((0..3_u8, 0..20_usize, 0..50_u64), 1..200),
        ) {
            let (mut deadlines, mut model) = (Deadlines::new(4), BTreeMap::new());
            for (step, index, at) in steps {
                let slot = Slot::new(index);
                match step {
                    0 => {
                        deadlines.set(slot, Nanos(at));
                        model.insert(index, at);
                    }
                    1 => {
                        deadlines.clear(slot);
                        model.remove(&index);
                    }
                    _ => {
                        let first = model.values().min().copied().filter(|first| *first <= at);
                        let popped = deadlines.pop(Nanos(at)).map(Slot::index);
                        prop_assert_eq!(popped.and_then(|index| model.remove(&index)), first);
                    }
                }
            }
            let mut left: Vec<u64> = model.values().copied().collect();
            left.sort_unstable();
            for at in left {
                prop_assert_eq!(deadlines.pop(Nanos(at)).and_then(|slot| model.remove(&slot.index())), Some(at));
            }
            prop_assert_eq!(deadlines.pop(Nanos(u64::MAX)), None);
        }
    }
}
