//! What a session has on a GPU with a driver, and what it is charged for that.

use std::{
    any::Any,
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use berth_hip_session::soft::{Budget, LOWEST, Reserved};
use berth_wire::hip::Code;

/// What allocations are charged in, and begin at multiples of.
pub(crate) const ALIGN: u64 = 256;

/// Most allocations of a session on one GPU.
pub(crate) const ALLOCATIONS_MAX: usize = 16_384;

/// Where the allocations of all sessions lie, on all such GPUs: by their beginning, the end.
pub(crate) type Places = Mutex<BTreeMap<u64, u64>>;

/// What a session has.
pub(crate) struct Books {
    budget: Arc<Budget>,
    /// Of the session, on all of its devices.
    quota: Arc<Budget>,
    places: Arc<Places>,
    pub(crate) used: u64,
    /// Length of each allocation, by its address.
    pub(crate) memory: BTreeMap<u64, u64>,
    /// What is charged for each module.
    pub(crate) modules: HashMap<u64, u64>,
    /// Of a leased device.
    reserved: Option<Reserved>,
}

impl Books {
    /// Of a session that has nothing.
    pub(crate) fn new(budget: Arc<Budget>, quota: Arc<Budget>, places: Arc<Places>) -> Self {
        let (memory, modules) = Default::default();
        Self { budget, quota, places, used: 0, memory, modules, reserved: None }
    }

    /// Bytes that can still be taken.
    pub(crate) fn free_bytes(&self) -> u64 {
        self.quota.left().min(self.budget.left())
    }

    /// Whether they are of a lease.
    pub(crate) fn is_leased(&self) -> bool {
        self.reserved.is_some()
    }

    /// Forgets all, and has so many bytes from then on, which are this session's alone. Nothing is forgotten if others use
    /// them.
    pub(crate) fn confine(&mut self, bytes: u64, held: Box<dyn Any + Send>) -> Result<(), Code> {
        // What the session has of them stays its own throughout.
        let reserved = Reserved::take(self.budget.clone(), self.used, bytes, held)?;
        self.quota.give_back(std::mem::take(&mut self.used));
        self.clear();
        self.reserved = Some(reserved);
        (self.budget, self.quota) = (Budget::new(bytes), Budget::new(bytes));
        Ok(())
    }

    /// Counts bytes as used.
    pub(crate) fn charge(&mut self, bytes: u64) -> Result<(), Code> {
        if !self.quota.take(bytes) {
            return Err(Code::OUT_OF_MEMORY);
        }
        if !self.budget.take(bytes) {
            self.quota.give_back(bytes);
            return Err(Code::OUT_OF_MEMORY);
        }
        self.used += bytes;
        Ok(())
    }

    /// Counts them as free again.
    pub(crate) fn refund(&mut self, bytes: u64) {
        self.used -= bytes;
        self.quota.give_back(bytes);
        self.budget.give_back(bytes);
    }

    /// Where all sessions' allocations lie.
    pub(crate) fn all_places(&self) -> MutexGuard<'_, BTreeMap<u64, u64>> {
        // Each entry is whole.
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters allocations, if nobody has any byte of them, or will have on a software GPU.
    pub(crate) fn enter(&mut self, made: &[(u64, u64)]) -> bool {
        // It is not kept by a borrow of the books, which change below.
        let places = self.places.clone();
        let mut places = places.lock().unwrap_or_else(PoisonError::into_inner);
        let is_free = |(at, len): &(u64, u64)| {
            let Some(end) = at.checked_add(*len).filter(|end| *end <= LOWEST) else { return false };
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
