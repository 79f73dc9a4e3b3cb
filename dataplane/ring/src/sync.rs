//! One direction of a ring: its flags and its slots, in real memory or under loom.
//!
//! ```text
//! host API   flags: 8 B per slot, 8 to a line      slots: size bytes, apart from the flags
//! internal   slot: word (8 B), then size bytes: a header of 24 bytes and 32 of payload share the word's line
//! ```

#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicBool, Ordering};

use berth_memory::flush_stores;
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, Ordering};

#[cfg(loom)]
pub(crate) use model::Lane;
#[cfg(not(loom))]
pub(crate) use real::Lane;

use crate::{SlotIndex, abi::FREE};

/// Bytes at the front of a slot that are compared before and after its dispatch: the longest message header.
pub(crate) const HEAD: usize = 24;

/// Number of flags in a cache line.
const FLAGS_PER_LINE: u32 = 8;

impl Lane {
    /// Number of zero flags from `i` on. Looks no further than the line of `i` and the last of `slots`.
    ///
    /// One look per line instead of one per slot saves a transfer of the line from the other core for each message.
    #[inline]
    pub(crate) fn free_run(&self, i: SlotIndex, slots: u32) -> u32 {
        let end = slots.min((i.0 / FLAGS_PER_LINE + 1) * FLAGS_PER_LINE);
        (i.0..end).take_while(|&i| self.load(SlotIndex(i)) == FREE).count() as u32
    }

    /// Copies `from` to the front of the slot, which lies in memory of a device, and announces it. Stores there are
    /// combined, and leave in any order: the fences keep the flag behind the message, and send it off at once.
    ///
    /// # Panics
    /// If `from` is longer than the slot.
    #[inline]
    pub(crate) fn post(&self, i: SlotIndex, from: &[u8]) {
        self.put(i, from);
        flush_stores();
        self.store(i, self.address(i));
        flush_stores();
    }

    /// Clears the flag of a slot in memory of a device, before any later store.
    pub(crate) fn withdraw(&self, i: SlotIndex) {
        self.store(i, FREE);
        flush_stores();
    }
}

/// Size in bytes of the word in front of each slot of an internal ring.
#[cfg(not(loom))]
pub(crate) const WORD: usize = size_of::<u64>();

#[cfg(not(loom))]
mod real {
    use std::{
        ptr::NonNull,
        sync::atomic::{AtomicU64, Ordering},
    };

    use super::{HEAD, WORD};
    use crate::SlotIndex;

    /// Pointers to the flags and slots of one direction, in the host's view.
    #[derive(Debug, Clone)]
    pub(crate) struct Lane {
        flags: NonNull<AtomicU64>,
        /// Bytes from one flag to the next.
        flag_stride: usize,
        is_internal: bool,
        data: NonNull<u8>,
        stride: usize,
        size: usize,
        /// Address of slot 0 in the view of the flags' reader; equal to `data` on host memory.
        view: u64,
    }

    // SAFETY: the memory outlives the lane and allows access from any thread (contract of `Lane::new`); who may touch
    // which slot is decided by the flags, and by there being one producer and one dispatcher.
    unsafe impl Send for Lane {}

    impl Lane {
        /// # Safety
        /// `flags` must be 8-aligned. `slots` flags and `slots` slots of `size` bytes at `stride` must be valid for
        /// reads and writes from any thread for as long as the lane is used, and be referred to by no Rust reference.
        pub(crate) unsafe fn new(
            flags: NonNull<u64>,
            data: NonNull<u8>,
            stride: usize,
            size: usize,
            view: u64,
        ) -> Self {
            Self { flags: flags.cast(), flag_stride: size_of::<u64>(), is_internal: false, data, stride, size, view }
        }

        /// A lane whose slots have their words in front of them.
        ///
        /// # Safety
        /// `base` and `stride` must be multiples of 8. `slots` stretches of [`WORD`] and `size` bytes at `stride` must
        /// be zeroed, valid for reads and writes from any thread for as long as the lane is used, and be referred to by
        /// no Rust reference.
        pub(crate) unsafe fn internal(base: NonNull<u8>, stride: usize, size: usize) -> Self {
            // SAFETY: the slot starts behind the word, within the stretch that the caller vouches for.
            let data = unsafe { base.add(WORD) };
            Self { flags: base.cast(), flag_stride: stride, is_internal: true, data, stride, size, view: 0 }
        }

        /// Whether flags are words that carry the length of a message.
        #[inline]
        pub(crate) fn is_internal(&self) -> bool {
            self.is_internal
        }

        #[inline]
        pub(crate) fn slot_size(&self) -> usize {
            self.size
        }

        #[inline]
        fn flag(&self, i: SlotIndex) -> &AtomicU64 {
            // SAFETY: indices come from cursors below the slot count; the flag is aligned and valid per `new`.
            unsafe { &*self.flags.as_ptr().byte_add(i.0 as usize * self.flag_stride) }
        }

        #[inline]
        fn slot(&self, i: SlotIndex) -> *mut u8 {
            // SAFETY: as above, the offset stays within the slots.
            unsafe { self.data.as_ptr().add(i.0 as usize * self.stride) }
        }

        #[inline]
        pub(crate) fn load(&self, i: SlotIndex) -> u64 {
            self.flag(i).load(Ordering::Acquire)
        }

        #[inline]
        pub(crate) fn store(&self, i: SlotIndex, flag: u64) {
            self.flag(i).store(flag, Ordering::Release);
        }

        /// The flag that announces slot `i`: its address in the view of the flag's reader.
        #[inline]
        pub(crate) fn address(&self, i: SlotIndex) -> u64 {
            self.view.wrapping_add(i.0 as u64 * self.stride as u64)
        }

        /// Whether `flag` is the address of slot `i`, in the other side's view or in the host's.
        #[inline]
        pub(crate) fn announces(&self, i: SlotIndex, flag: u64) -> bool {
            flag == self.address(i) || flag == self.slot(i) as u64
        }

        /// A copy of the slot's first bytes, read volatile because a faulty peer may be writing them.
        #[inline]
        pub(crate) fn head(&self, i: SlotIndex) -> [u8; HEAD] {
            // SAFETY: a slot has at least HEAD bytes (checked by `Geometry`), and a byte array needs no alignment.
            unsafe { self.slot(i).cast::<[u8; HEAD]>().read_volatile() }
        }

        /// Prefetches the slot's first line, so that it arrives together with its flag.
        #[inline]
        pub(crate) fn prefetch(&self, i: SlotIndex) {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a prefetch faults on no address.
            unsafe {
                use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
                _mm_prefetch::<_MM_HINT_T0>(self.slot(i).cast());
            }
        }

        /// Copies `from` to the front of the slot, even if another side writes to it at the same time.
        ///
        /// # Panics
        /// If `from` is longer than the slot.
        pub(crate) fn copy_in(&self, i: SlotIndex, from: &[u8]) {
            assert!(from.len() <= self.size);
            // SAFETY: the slot is valid per `new` and that long; `from` lies elsewhere.
            unsafe { berth_memory::copy(from.as_ptr(), self.slot(i), from.len()) };
        }

        /// Copies `from` to the front of the slot in words, which memory of a device takes best.
        ///
        /// # Panics
        /// If `from` is longer than the slot.
        #[inline]
        pub(crate) fn put(&self, i: SlotIndex, from: &[u8]) {
            assert!(from.len() <= self.size);
            let words = from.chunks_exact(8);
            let (rest, slot) = (words.remainder(), self.slot(i));
            for (at, word) in words.enumerate() {
                let word = u64::from_ne_bytes(word.try_into().expect("eight bytes"));
                // SAFETY: within the slot; slots are multiples of 64 bytes from an aligned base (`ring::posted`).
                unsafe { AtomicU64::from_ptr(slot.add(8 * at).cast()).store(word, Ordering::Relaxed) };
            }
            // SAFETY: as above.
            unsafe { berth_memory::copy(rest.as_ptr(), slot.add(from.len() - rest.len()), rest.len()) };
        }

        /// Copies the front of the slot to `into`, even if another side writes to it at the same time.
        ///
        /// # Panics
        /// If `into` is longer than the slot.
        pub(crate) fn copy_out(&self, i: SlotIndex, into: &mut [u8]) {
            assert!(into.len() <= self.size);
            // SAFETY: as in `copy_in`.
            unsafe { berth_memory::copy(self.slot(i), into.as_mut_ptr(), into.len()) };
        }

        /// Lends the first `len` bytes of the slot for reading.
        ///
        /// # Safety
        /// The caller must own the slot by the flag protocol, at least for reading. `len` is at most the slot size.
        #[inline]
        pub(crate) unsafe fn read<R>(&self, i: SlotIndex, len: usize, f: impl FnOnce(&[u8]) -> R) -> R {
            debug_assert!(len <= self.size, "a message longer than its slot");
            // SAFETY: the slot is valid per `new`, and not written while the caller owns it.
            f(unsafe { std::slice::from_raw_parts(self.slot(i), len) })
        }

        /// Lends the slot for writing.
        ///
        /// # Safety
        /// The caller must own the slot exclusively, by the flag protocol.
        #[inline]
        pub(crate) unsafe fn write<R>(&self, i: SlotIndex, f: impl FnOnce(&mut [u8]) -> R) -> R {
            // SAFETY: the slot is valid per `new`, and touched by nobody else while the caller owns it.
            f(unsafe { std::slice::from_raw_parts_mut(self.slot(i), self.size) })
        }
    }
}

#[cfg(loom)]
mod model {
    use std::sync::Arc;

    use loom::{
        cell::UnsafeCell,
        sync::atomic::{AtomicU64, Ordering},
    };

    use super::HEAD;
    use crate::SlotIndex;

    /// The same with loom's types: every access is checked for races, and every order of flags is explored.
    #[derive(Debug, Clone)]
    pub(crate) struct Lane {
        flags: Arc<[AtomicU64]>,
        slots: Arc<[UnsafeCell<Box<[u8]>>]>,
        size: usize,
        is_internal: bool,
    }

    impl Lane {
        pub(crate) fn new(slots: u32, size: usize, is_internal: bool) -> Self {
            Self {
                is_internal,
                flags: (0..slots).map(|_| AtomicU64::new(0)).collect(),
                slots: (0..slots).map(|_| UnsafeCell::new(vec![0; size].into())).collect(),
                size,
            }
        }

        pub(crate) fn slot_size(&self) -> usize {
            self.size
        }

        pub(crate) fn is_internal(&self) -> bool {
            self.is_internal
        }

        pub(crate) fn load(&self, i: SlotIndex) -> u64 {
            self.flags[i.0 as usize].load(Ordering::Acquire)
        }

        pub(crate) fn store(&self, i: SlotIndex, flag: u64) {
            self.flags[i.0 as usize].store(flag, Ordering::Release);
        }

        pub(crate) fn address(&self, i: SlotIndex) -> u64 {
            0x1000 + i.0 as u64 * self.size as u64
        }

        pub(crate) fn announces(&self, i: SlotIndex, flag: u64) -> bool {
            flag == self.address(i)
        }

        pub(crate) fn head(&self, i: SlotIndex) -> [u8; HEAD] {
            // SAFETY: loom tracks the access and fails the model on a race.
            self.slots[i.0 as usize].with(|p| unsafe { (&*p)[..HEAD].try_into().expect("a slot holds a header") })
        }

        pub(crate) fn copy_in(&self, i: SlotIndex, from: &[u8]) {
            // SAFETY: loom tracks the access and fails the model on a race.
            unsafe { self.write(i, |slot| slot[..from.len()].copy_from_slice(from)) };
        }

        pub(crate) fn put(&self, i: SlotIndex, from: &[u8]) {
            self.copy_in(i, from);
        }

        pub(crate) fn copy_out(&self, i: SlotIndex, into: &mut [u8]) {
            // SAFETY: as above.
            unsafe { self.read(i, into.len(), |slot| into.copy_from_slice(slot)) };
        }

        #[expect(clippy::unused_self, reason = "loom has no caches")]
        pub(crate) fn prefetch(&self, _: SlotIndex) {}

        pub(crate) unsafe fn read<R>(&self, i: SlotIndex, len: usize, f: impl FnOnce(&[u8]) -> R) -> R {
            // SAFETY: loom tracks the access and fails the model on a race.
            self.slots[i.0 as usize].with(|p| f(unsafe { &(&*p)[..len] }))
        }

        pub(crate) unsafe fn write<R>(&self, i: SlotIndex, f: impl FnOnce(&mut [u8]) -> R) -> R {
            // SAFETY: loom tracks the access and fails the model on a race.
            self.slots[i.0 as usize].with_mut(|p| f(unsafe { &mut *p }))
        }
    }
}
