//! The memory that the kernel reads into and writes from.

use std::{slice, sync::Arc};

use berth_memory::{Heap, Memory};
use io_uring::IoUring;

/// Requests in progress at a time.
pub(crate) const SLOTS: usize = 64;

/// Bytes of a slot's buffer.
pub(crate) const SLOT: usize = 64 << 10;

/// Memories that can be registered beside the slots.
const OTHERS: usize = 63;

/// A buffer for each slot, and memory of others that is registered.
pub(crate) struct Buffers {
    slots: Heap,
    /// By index, which begins after the slots'; none where the kernel registers nothing.
    others: Option<Vec<Arc<dyn Memory>>>,
}

impl Buffers {
    pub(crate) fn new(ring: &IoUring) -> Self {
        let slots = Heap::new(SLOTS * SLOT);
        let sparse = ring.submitter().register_buffers_sparse(1 + OTHERS as u32).is_ok();
        let others = (sparse && register(ring, 0, &slots)).then(Vec::new);
        Self { slots, others }
    }

    /// Whether the kernel knows the slots.
    pub(crate) fn are_registered(&self) -> bool {
        self.others.is_some()
    }

    /// Makes memory known to the kernel, if it takes more of it.
    pub(crate) fn register(&mut self, ring: &IoUring, memory: Arc<dyn Memory>) {
        if let Some(others) = self.others.as_mut().filter(|others| others.len() < OTHERS)
            && register(ring, 1 + others.len() as u32, &*memory)
        {
            others.push(memory);
        }
    }

    /// By which index the kernel knows the slots.
    pub(crate) fn slot_index(&self) -> Option<u16> {
        self.others.as_ref().map(|_| 0)
    }

    /// By which index the kernel knows the memory at an address.
    pub(crate) fn index(&self, address: usize) -> Option<u16> {
        let others = self.others.as_ref()?;
        let found = others.iter().position(|one| address.wrapping_sub(one.base().addr().get()) < one.size());
        found.map(|index| 1 + index as u16)
    }

    pub(crate) fn address(&self, slot: usize) -> *mut u8 {
        assert!(slot < SLOTS);
        // SAFETY: the buffers are that long.
        unsafe { self.slots.base().as_ptr().add(slot * SLOT) }
    }

    /// The bytes of a slot.
    ///
    /// # Safety
    /// No step of the slot's task is under way.
    pub(crate) unsafe fn bytes(&mut self, slot: usize) -> &mut [u8] {
        // SAFETY: the slot's buffer is that long and initialised, the caller says that the kernel does not use it, and the
        // borrow of self keeps others away.
        unsafe { slice::from_raw_parts_mut(self.address(slot), SLOT) }
    }
}

fn register(ring: &IoUring, index: u32, memory: &dyn Memory) -> bool {
    let all = libc::iovec { iov_base: memory.base().as_ptr().cast(), iov_len: memory.size() };
    // SAFETY: the kernel keeps these pages, and uses them for steps only, each of which keeps its memory.
    unsafe { ring.submitter().register_buffers_update(index, &[all], None) }.is_ok()
}
