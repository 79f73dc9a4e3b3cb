//! Memory with a fixed address, for slots, regions, registered memory and block buffers.
//!
//! Devices, remote peers and other processes may access such memory at any time, which Rust's references do not allow
//! for. It is therefore handed out as a pointer, and [`Memory::read_at`] and its siblings copy through that.

mod copy;
mod heap;
mod part;

use std::{fmt, ptr::NonNull};

pub use copy::{copy, flush_stores};
pub use heap::Heap;
pub use part::Part;

/// A range of memory with a fixed address.
///
/// # Safety
/// As long as the value lives, [`Memory::size`] bytes from [`Memory::base`] on must be mapped, initialised, readable
/// and writable from any thread. Both methods must always return the same. No other value of this process may lead to
/// the bytes, and the implementation must not make references to them; a holder of the value who lends it to nobody
/// may.
pub unsafe trait Memory: Send + Sync + 'static {
    /// Address of the first byte.
    fn base(&self) -> NonNull<u8>;

    /// Length in bytes.
    fn size(&self) -> usize;

    /// Fills `into` with the bytes from offset `at` on. A byte that is written meanwhile is copied as old or new.
    ///
    /// # Panics
    /// If the range is not within the memory.
    #[inline]
    fn read_at(&self, at: usize, into: &mut [u8]) {
        let from = range(self, at, into.len());
        // SAFETY: both ranges are that long; no reference is made of the memory, so `into` lies elsewhere.
        unsafe { copy::copy(from, into.as_mut_ptr(), into.len()) };
    }

    /// Copies `from` to the bytes from offset `at` on.
    ///
    /// # Panics
    /// As [`Memory::read_at`].
    #[inline]
    fn write_at(&self, at: usize, from: &[u8]) {
        let to = range(self, at, from.len());
        // SAFETY: as in `read_at`.
        unsafe { copy::copy(from.as_ptr(), to, from.len()) };
    }

    /// Zeroes `len` bytes from offset `at` on.
    ///
    /// # Panics
    /// As [`Memory::read_at`].
    fn zero_at(&self, at: usize, len: usize) {
        let to = range(self, at, len);
        // SAFETY: the range is that long.
        unsafe { copy::zero(to, len) };
    }
}

impl fmt::Debug for dyn Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Memory({} bytes)", self.size())
    }
}

/// Address of offset `at`, once the range is checked.
#[inline]
fn range(memory: &(impl Memory + ?Sized), at: usize, len: usize) -> *mut u8 {
    let size = memory.size();
    let within = at.checked_add(len).is_some_and(|end| end <= size);
    assert!(within, "{len} bytes at {at} are not within {size} bytes of memory");
    // SAFETY: the offset is within the memory.
    unsafe { memory.base().as_ptr().add(at) }
}
