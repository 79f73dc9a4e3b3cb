//! Copies to and from memory that others may write at the same time.
//!
//! Leased memory has no owner in this program: two peers may write the same bytes while a third reads them, on other
//! cores or by DMA. No reference to such bytes is ever made, and no ordinary load or store touches them. The copies
//! here count as one relaxed atomic access per byte, for which such races are defined; the result is a mix of old and
//! new bytes. On x86-64 the copy is a single string instruction, which the compiler cannot look into and which reads
//! and writes each byte once. Elsewhere it is the loop of byte accesses itself.

#[cfg(target_arch = "x86_64")]
use std::arch::asm;
#[cfg(not(target_arch = "x86_64"))]
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// Copies `len` bytes; either side may be shared.
///
/// # Safety
/// `from` must be valid for reads and `to` for writes of `len` bytes, and they must not overlap. A side that is not
/// shared follows Rust's usual rules for that access.
#[inline]
pub unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller vouches for both ranges; the instruction touches nothing else, and the direction flag is
    // clear on entry to every asm block.
    unsafe {
        asm!("rep movsb", inout("rcx") len => _, inout("rsi") from => _, inout("rdi") to => _, options(nostack, preserves_flags));
    }
    #[cfg(not(target_arch = "x86_64"))]
    for at in 0..len {
        // SAFETY: the caller vouches for both ranges; bytes are always aligned.
        unsafe {
            let byte = AtomicU8::from_ptr(from.add(at).cast_mut()).load(Relaxed);
            AtomicU8::from_ptr(to.add(at)).store(byte, Relaxed);
        }
    }
}

/// Sends off what this thread has stored to a device's memory, before any later store: stores to such memory are combined and
/// leave in any order. Other memory needs no more than release and acquire.
#[inline]
pub fn flush_stores() {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: the instruction orders stores, and does nothing else.
    unsafe {
        asm!("sfence", options(nostack, preserves_flags));
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: as above.
    unsafe {
        std::arch::asm!("dsb st", options(nostack, preserves_flags));
    }
    #[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri))))]
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}

/// Zeroes `len` bytes that may be shared.
///
/// # Safety
/// `to` must be valid for writes of `len` bytes.
pub(crate) unsafe fn zero(to: *mut u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: as in `copy`.
    unsafe {
        asm!("rep stosb", inout("rcx") len => _, inout("rdi") to => _, in("al") 0u8, options(nostack, preserves_flags));
    }
    #[cfg(not(target_arch = "x86_64"))]
    for at in 0..len {
        // SAFETY: as in `copy`.
        unsafe { AtomicU8::from_ptr(to.add(at)).store(0, Relaxed) };
    }
}
