//! Bytes of a region that a device reaches.

use std::{ptr::NonNull, sync::Arc};

use berth_lease::Bytes as _;
use berth_store::Memory;
use berth_verbs::Registrable;

/// Part of a region's memory, which lives for as long as it is registered.
///
/// A device reaches the bytes as another processor would through shared memory: at any time, past every reference that
/// the language knows of. So nobody makes references of a region's bytes ([`Memory`] lends none): they are copied through
/// pointers, and a copy that a client writes into meanwhile comes out mixed, as it would between two cores.
pub(crate) struct Part {
    memory: Arc<Memory>,
    at: usize,
    len: usize,
}

impl Part {
    /// `len` bytes from `at` on; `None` where they are not within the memory.
    pub(crate) fn new(memory: &Arc<Memory>, at: u64, len: u64) -> Option<Self> {
        let within = at.checked_add(len).is_some_and(|end| end <= memory.len()) && len > 0;
        within.then(|| Self { memory: memory.clone(), at: at as usize, len: len as usize })
    }

    /// All of it.
    pub(crate) fn all(memory: &Arc<Memory>) -> Self {
        Self { memory: memory.clone(), at: 0, len: memory.len() as usize }
    }
}

// SAFETY: a `Memory` is zeroed when it is made, stays mapped at its place until the last `Arc` is dropped, and is only ever
// reached through pointers; `new` keeps the part within it.
unsafe impl Registrable for Part {
    fn base(&self) -> NonNull<u8> {
        // SAFETY: within the mapping.
        unsafe { self.memory.as_ptr().add(self.at) }
    }

    fn len(&self) -> usize {
        self.len
    }
}

#[cfg(test)]
mod tests {
    use berth_store::Backing;

    use super::*;

    #[test]
    fn a_part_is_within_its_memory() {
        let memory = Arc::new(Memory::new(8192, Backing::Ordinary, None).unwrap());
        let part = Part::new(&memory, 4096, 4096).unwrap();
        assert_eq!(part.base().addr().get() - memory.as_ptr().addr().get(), 4096);
        assert_eq!(part.len(), 4096);
        for (at, len) in [(4096, 4097), (8192, 1), (u64::MAX, 2), (0, 0)] {
            assert!(Part::new(&memory, at, len).is_none(), "{len} bytes at {at}");
        }
        drop(part);
        let all = Part::all(&memory);
        drop(memory);
        assert_eq!(all.len(), 8192, "it keeps the memory");
    }
}
