//! What a session on a GPU of NVIDIA's has, and what it is charged for that.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use berth_hip_session::soft::Budget;
use berth_wire::hip::Code;

/// What allocations are charged in, and begin at multiples of.
pub(crate) const ALIGN: u64 = 256;

/// Where the allocations of all sessions lie: by their beginning, the end.
pub(crate) type Places = Mutex<BTreeMap<u64, u64>>;

/// What a session has.
pub(crate) struct Books {
    pub(crate) budget: Arc<Budget>,
    places: Arc<Places>,
    pub(crate) quota: u64,
    pub(crate) used: u64,
    /// Length of each allocation, by its address.
    pub(crate) memory: BTreeMap<u64, u64>,
    /// What is charged for each module.
    pub(crate) modules: HashMap<u64, u64>,
}

impl Books {
    /// Of a session that has nothing.
    pub(crate) fn new(budget: Arc<Budget>, places: Arc<Places>, quota: u64) -> Self {
        Self { budget, places, quota, used: 0, memory: BTreeMap::new(), modules: HashMap::new() }
    }

    /// Counts bytes as used.
    pub(crate) fn charge(&mut self, bytes: u64) -> Result<(), Code> {
        if bytes > self.quota - self.used || !self.budget.take(bytes) {
            return Err(Code::OUT_OF_MEMORY);
        }
        self.used += bytes;
        Ok(())
    }

    /// Counts them as free again.
    pub(crate) fn refund(&mut self, bytes: u64) {
        self.used -= bytes;
        self.budget.give_back(bytes);
    }

    /// Where all sessions' allocations lie.
    pub(crate) fn all_places(&self) -> MutexGuard<'_, BTreeMap<u64, u64>> {
        // Each entry is whole.
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters allocations, if nobody has any byte of them.
    pub(crate) fn enter(&mut self, made: &[(u64, u64)]) -> bool {
        // It is not kept by a borrow of the books, which change below.
        let places = self.places.clone();
        let mut places = places.lock().unwrap_or_else(PoisonError::into_inner);
        let is_free = |(at, len): &(u64, u64)| {
            let Some(end) = at.checked_add(*len) else { return false };
            at.is_multiple_of(ALIGN) && places.range(..end).next_back().is_none_or(|(_, taken)| taken <= at)
        };
        if !made.iter().all(is_free) {
            return false;
        }
        places.extend(made.iter().map(|(at, len)| (*at, at + len)));
        self.memory.extend(made.iter().copied());
        true
    }

    /// Forgets all.
    pub(crate) fn clear(&mut self) {
        let mut places = self.all_places();
        for at in self.memory.keys() {
            places.remove(at);
        }
        drop(places);
        self.memory.clear();
        self.modules.clear();
        self.refund(self.used);
    }
}

impl Drop for Books {
    fn drop(&mut self) {
        self.clear();
    }
}
