//! The memory that an executor shares with its node: one slot, with the flag protocol of rings.
//!
//! ```text
//! Executor                              Node
//!   data := what goes with it
//!   asked := head; flag := 1   ---->      flag == 1?  takes a copy of head; flag := 0
//!                                         data := what goes with the answer
//!   flag == 1?  takes head; := 0  <----   command := head; flag := 1
//! ```
//!
//! Each flag has one writer of 1 and one of 0, which alternate; who waits sleeps on it. The file has no length but its own and is
//! sealed, so that nobody can cut it off below the other.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    ptr::{self, NonNull},
    sync::atomic::{
        AtomicU32,
        Ordering::{Acquire, Release},
    },
    time::Duration,
};

use berth_tasklet::channel::{DATA, HEAD, Head};
use rustix::{
    fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create},
    mm::{MapFlags, ProtFlags, mmap, munmap},
};

/// Which head; the number is where its flag lies in the slot.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Line {
    /// The executor posts it.
    Asked = 0,
    /// The node does.
    Command = 256,
}

/// Where a head lies behind its flag.
const HEAD_AT: usize = 64;
const DATA_AT: usize = 4096;
pub(super) const SIZE: usize = DATA_AT + DATA;
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// A slot, mapped.
#[derive(Debug)]
pub(crate) struct Slot(NonNull<u8>);

// SAFETY: the mapping is owned; it is only copied from and to, and its flags are atomic.
unsafe impl Send for Slot {}

impl Slot {
    /// A slot, and its file for the other side.
    pub(crate) fn create() -> io::Result<(Self, OwnedFd)> {
        let file = memfd_create(c"berth-tasklet", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, SIZE as u64)?;
        fcntl_add_seals(&file, SEALS)?;
        Ok((Self::open(&file)?, file))
    }

    /// Maps the slot of a file.
    pub(crate) fn open(file: impl AsFd) -> io::Result<Self> {
        if fstat(&file)?.st_size != SIZE as i64 || !fcntl_get_seals(&file)?.contains(SEALS) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "no slot of tasklets"));
        }
        // SAFETY: at a place of the kernel's choice.
        let base =
            unsafe { mmap(ptr::null_mut(), SIZE, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, file, 0)? };
        NonNull::new(base.cast()).map(Self).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    fn flag(&self, line: Line) -> &AtomicU32 {
        // SAFETY: within the mapping, which begins at a page; both sides access flags atomically.
        unsafe { AtomicU32::from_ptr(self.0.as_ptr().add(line as usize).cast()) }
    }

    fn head(&self, line: Line) -> *mut u8 {
        // SAFETY: within the mapping.
        unsafe { self.0.as_ptr().add(line as usize + HEAD_AT) }
    }

    /// Hands a head over, and wakes who waits for it.
    pub(crate) fn post(&self, line: Line, head: &Head) {
        // SAFETY: both are that long, and `head` lies elsewhere.
        unsafe { berth_memory::copy(head.as_ptr(), self.head(line), HEAD) };
        let flag = self.flag(line);
        flag.store(1, Release);
        // SAFETY: a futex of this mapping, which is woken and not written.
        unsafe { libc::syscall(libc::SYS_futex, flag.as_ptr(), libc::FUTEX_WAKE, 1) };
    }

    /// A copy of the head that was handed over, if one was; its flag is 0 from then on.
    pub(crate) fn take(&self, line: Line) -> Option<Head> {
        let flag = self.flag(line);
        if flag.load(Acquire) == 0 {
            return None;
        }
        let mut head = [0; HEAD];
        // SAFETY: as in `post`.
        unsafe { berth_memory::copy(self.head(line), head.as_mut_ptr(), HEAD) };
        flag.store(0, Release);
        Some(head)
    }

    /// Sleeps until a head may have been handed over, or so much time has passed.
    pub(crate) fn wait(&self, line: Line, most: Option<Duration>) {
        let most = most
            .map(|most| libc::timespec { tv_sec: most.as_secs().cast_signed(), tv_nsec: most.subsec_nanos().into() });
        let most = most.as_ref().map_or(ptr::null(), ptr::from_ref);
        // SAFETY: a futex of this mapping, and a time that outlives the call. Whatever it returns, the flag is looked at again.
        unsafe { libc::syscall(libc::SYS_futex, self.flag(line).as_ptr(), libc::FUTEX_WAIT, 0, most) };
    }

    /// The data from `at` on.
    ///
    /// # Panics
    /// If it is not that long.
    fn data(&self, at: usize, len: usize) -> *mut u8 {
        assert!(at <= DATA && len <= DATA - at, "more than a slot's data");
        // SAFETY: within the mapping.
        unsafe { self.0.as_ptr().add(DATA_AT + at) }
    }

    /// Copies `from` to the begin of the data. Panics if it is longer than that.
    pub(crate) fn copy_in(&self, from: &[u8]) {
        // SAFETY: checked by `data`; `from` lies elsewhere.
        unsafe { berth_memory::copy(from.as_ptr(), self.data(0, from.len()), from.len()) };
    }

    /// Copies the data from `at` on. Panics if `into` reaches beyond it.
    pub(crate) fn copy_out(&self, at: usize, into: &mut [u8]) {
        // SAFETY: checked by `data`; `into` lies elsewhere.
        unsafe { berth_memory::copy(self.data(at, into.len()), into.as_mut_ptr(), into.len()) };
    }

    /// Lends the data to an access that copies leased bytes, so that they are not copied once more.
    ///
    /// # Safety
    /// The bytes are copied as by [`berth_memory::copy`], or their address passed on, and no decision is made on any of them: an
    /// executor that was taken over may write them at any time.
    pub(crate) unsafe fn lend(&mut self, len: usize) -> &mut [u8] {
        // SAFETY: checked by `data`; nothing else of this process refers to it, and the caller answers for the other.
        unsafe { std::slice::from_raw_parts_mut(self.data(0, len), len) }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        // SAFETY: the mapping made by `open`, to which nothing refers any more.
        let unmapped = unsafe { munmap(self.0.as_ptr().cast(), SIZE) };
        debug_assert!(unmapped.is_ok(), "munmap of a whole mapping");
    }
}
