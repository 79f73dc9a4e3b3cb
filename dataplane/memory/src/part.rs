//! A range of shared memory.

use std::{ptr::NonNull, sync::Arc};

use crate::{Memory, copy, range};

/// A part of a memory, which it keeps alive. Parts may overlap.
#[derive(Debug, Clone)]
pub struct Part {
    memory: Arc<dyn Memory>,
    at: usize,
    size: usize,
}

impl Part {
    /// `size` bytes from offset `at` on; `None` if they are not within the memory.
    pub fn new(memory: Arc<dyn Memory>, at: usize, size: usize) -> Option<Self> {
        let within = at.checked_add(size).is_some_and(|end| end <= memory.size());
        within.then_some(Self { memory, at, size })
    }

    /// Address of the first byte.
    #[inline]
    pub fn base(&self) -> NonNull<u8> {
        // SAFETY: within the memory.
        unsafe { self.memory.base().add(self.at) }
    }

    /// Length in bytes.
    #[inline]
    pub fn size(&self) -> usize {
        self.size
    }

    /// [`Memory::read_at`] with offsets from the start of this part.
    #[inline]
    pub fn read_at(&self, at: usize, into: &mut [u8]) {
        self.check(at, into.len());
        self.memory.read_at(self.at + at, into);
    }

    /// [`Memory::write_at`] with offsets from the start of this part.
    #[inline]
    pub fn write_at(&self, at: usize, from: &[u8]) {
        self.check(at, from.len());
        self.memory.write_at(self.at + at, from);
    }

    /// Copies `len` bytes from offset `at` on to `to`, from its offset `to_at` on.
    ///
    /// # Panics
    /// If either range is not within its memory, or they overlap.
    pub fn copy_to(&self, at: usize, to: &(impl Memory + ?Sized), to_at: usize, len: usize) {
        self.check(at, len);
        let (from, to) = (range(&*self.memory, self.at + at, len), range(to, to_at, len));
        assert_apart(from, to, len);
        // SAFETY: both ranges are that long, and do not overlap.
        unsafe { copy(from, to, len) };
    }

    /// Fills `len` bytes from offset `at` on with those of `from`, from its offset `from_at` on.
    ///
    /// # Panics
    /// As [`Part::copy_to`].
    pub fn copy_from(&self, at: usize, from: &(impl Memory + ?Sized), from_at: usize, len: usize) {
        self.check(at, len);
        let (to, from) = (range(&*self.memory, self.at + at, len), range(from, from_at, len));
        assert_apart(from, to, len);
        // SAFETY: as above.
        unsafe { copy(from, to, len) };
    }

    fn check(&self, at: usize, len: usize) {
        let within = at.checked_add(len).is_some_and(|end| end <= self.size);
        assert!(within, "{len} bytes at {at} are not within {} bytes of memory", self.size);
    }
}

fn assert_apart(from: *mut u8, to: *mut u8, len: usize) {
    assert!(from.addr().abs_diff(to.addr()) >= len, "{len} bytes are copied onto themselves");
}

impl<M: Memory> From<Arc<M>> for Part {
    fn from(memory: Arc<M>) -> Self {
        Self { at: 0, size: memory.size(), memory }
    }
}

impl From<Arc<dyn Memory>> for Part {
    fn from(memory: Arc<dyn Memory>) -> Self {
        Self { at: 0, size: memory.size(), memory }
    }
}

impl<M: Memory> From<M> for Part {
    fn from(memory: M) -> Self {
        Arc::new(memory).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Heap;

    #[test]
    fn a_part_is_within_its_memory_and_keeps_it() {
        let memory: Arc<dyn Memory> = Arc::new(Heap::new(8192));
        let part = Part::new(memory.clone(), 4096, 4096).unwrap();
        assert_eq!(part.base().addr().get() - memory.base().addr().get(), 4096);
        assert_eq!(part.size(), 4096);
        for (at, size) in [(4096, 4097), (8192, 1), (usize::MAX, 2)] {
            assert!(Part::new(memory.clone(), at, size).is_none(), "{size} bytes at {at}");
        }
        part.write_at(1, &[7]);
        let (mut whole, mut own) = ([0; 2], [0; 2]);
        memory.read_at(4096, &mut whole);
        part.read_at(0, &mut own);
        assert_eq!((whole, own), ([0, 7], [0, 7]));
        let beyond = std::panic::AssertUnwindSafe(|| part.read_at(4095, &mut [0; 2]));
        assert!(std::panic::catch_unwind(beyond).is_err());
        let other = Heap::new(4);
        part.copy_to(0, &other, 1, 2);
        let mut copied = [9; 4];
        other.read_at(0, &mut copied);
        assert_eq!(copied, [0, 0, 7, 0]);
        part.copy_from(7, &other, 2, 1);
        memory.read_at(4096 + 6, &mut own);
        assert_eq!(own, [0, 7]);
        for (at, to, to_at, len) in [(4095, &other, 0, 2), (0, &other, 3, 2)] {
            let beyond = std::panic::AssertUnwindSafe(|| part.copy_to(at, to, to_at, len));
            assert!(std::panic::catch_unwind(beyond).is_err(), "{len} bytes from {at} to {to_at}");
        }
        let onto_itself = std::panic::AssertUnwindSafe(|| part.copy_from(0, &*memory, 4097, 2));
        assert!(std::panic::catch_unwind(onto_itself).is_err());
        drop(part);
        let all = Part::from(memory.clone());
        assert_eq!((all.size(), Arc::strong_count(&memory)), (8192, 2));
    }
}
