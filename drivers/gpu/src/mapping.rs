//! Files of other processes' memory: rings, mapped where their flags assume them to be, and frames.

use std::{
    fs::File,
    io,
    os::{fd::AsRawFd, unix::fs::FileExt as _},
    ptr::NonNull,
    sync::atomic::{
        AtomicU64,
        Ordering::{Acquire, Release},
    },
};

use berth_memory::Memory;
use berth_ring::abi::{SHARED_MAGIC, SHARED_VERSION, SharedRing};

/// The front of a file, mapped and shared with whoever else maps it.
#[derive(Debug)]
pub(crate) struct FileMap {
    base: NonNull<u8>,
    size: usize,
}

// SAFETY: the mapping is owned, and only ever handed out as a pointer.
unsafe impl Send for FileMap {}
// SAFETY: as above.
unsafe impl Sync for FileMap {}

impl FileMap {
    /// Maps memory of another process, which only that writes, to be read: the first `size` bytes of a file, at this
    /// address.
    pub(crate) fn frames(file: &File, size: usize, at: usize) -> io::Result<Self> {
        if file.metadata()?.len() < size as u64 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "frames beyond their file"));
        }
        Self::new(file, size, libc::PROT_READ, Some(at))
    }

    /// Maps `size` bytes: at an address where nothing lies, or wherever there is room.
    pub(crate) fn new(file: &impl AsRawFd, size: usize, rights: libc::c_int, at: Option<usize>) -> io::Result<Self> {
        let more = if at.is_some() { libc::MAP_FIXED_NOREPLACE } else { 0 };
        let wanted = std::ptr::without_provenance_mut(at.unwrap_or(0));
        // SAFETY: at a place of the kernel's choice, or one where nothing lies: no memory that exists is touched.
        let base = unsafe { libc::mmap(wanted, size, rights, libc::MAP_SHARED | more, file.as_raw_fd(), 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast());
        let base = base.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "mapped at address 0"))?;
        Ok(Self { base, size })
    }
}

// SAFETY: mapped until drop, at an address that stays; initialised by the file. What may only be read is registered so.
unsafe impl Memory for FileMap {
    fn base(&self) -> NonNull<u8> {
        self.base
    }

    fn size(&self) -> usize {
        self.size
    }
}

impl Drop for FileMap {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping made in `new`.
        let unmapped = unsafe { libc::munmap(self.base.as_ptr().cast(), self.size) };
        debug_assert_eq!(unmapped, 0, "munmap of a whole mapping");
    }
}

/// A mapped ring file. Offsets and lengths were checked against its size.
#[derive(Debug)]
pub(crate) struct Mapping {
    mapped: FileMap,
    front: SharedRing,
}

/// Where a ring file is mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum At {
    /// Where its flags assume it: what a dispatcher needs that follows them.
    Base,
    /// Wherever there is room.
    Anywhere,
}

/// `N` bytes of the file's front from `at` on.
fn word<const N: usize>(front: &[u8], at: usize) -> [u8; N] {
    front[at..at + N].try_into().expect("that many bytes")
}

impl Mapping {
    /// Maps the ring in `file`, once its offsets and lengths are checked against the file's.
    pub(crate) fn new(file: &File, at: At) -> io::Result<Self> {
        let mut bytes = [0; size_of::<SharedRing>()];
        file.read_exact_at(&mut bytes, 0)?;
        let u64_at = |at| u64::from_le_bytes(word(&bytes, at));
        let u32_at = |at| u32::from_le_bytes(word(&bytes, at));
        let front = SharedRing {
            magic: u64_at(0),
            version: u32_at(8),
            slots: u32_at(12),
            slot_size: u64_at(16),
            stride: u64_at(24),
            size: u64_at(32),
            base: u64_at(40),
            rx_flags: u64_at(48),
            tx_flags: u64_at(56),
            rx_data: u64_at(64),
            tx_data: u64_at(72),
        };
        let wrong = |what| io::Error::new(io::ErrorKind::InvalidData, what);
        if (front.magic, front.version) != (SHARED_MAGIC, SHARED_VERSION) {
            return Err(wrong("no ring, or of another version"));
        }
        let (flags, data) = (u64::from(front.slots).checked_mul(8), u64::from(front.slots).checked_mul(front.stride));
        let fits = |from: u64, len: Option<u64>| {
            from.is_multiple_of(64) && len.and_then(|len| from.checked_add(len)).is_some_and(|end| end <= front.size)
        };
        let all = [(front.rx_flags, flags), (front.tx_flags, flags), (front.rx_data, data), (front.tx_data, data)];
        let sound = front.slots > 0 && front.slot_size <= front.stride && front.stride.is_multiple_of(64);
        if !sound || file.metadata()?.len() < front.size || !all.into_iter().all(|(from, len)| fits(from, len)) {
            return Err(wrong("a ring that does not add up"));
        }
        let size = usize::try_from(front.size).map_err(|_| wrong("a ring larger than the address space"))?;
        let at = match at {
            At::Base => Some(front.base as usize),
            At::Anywhere => None,
        };
        let mapped = FileMap::new(file, size, libc::PROT_READ | libc::PROT_WRITE, at)?;
        Ok(Self { mapped, front })
    }

    /// What the file says of the ring.
    pub(crate) fn front(&self) -> &SharedRing {
        &self.front
    }

    fn flag(&self, from: u64, slot: u32) -> &AtomicU64 {
        // SAFETY: the offset was checked with all slots, and is a multiple of 8; both sides access flags atomically.
        unsafe { AtomicU64::from_ptr(self.mapped.base.as_ptr().add(from as usize + 8 * slot as usize).cast()) }
    }

    /// The flag of the request in a slot; 0 if there is none.
    pub(crate) fn request(&self, slot: u32) -> u64 {
        self.flag(self.front.rx_flags, slot).load(Acquire)
    }

    /// Publishes an answer with this flag, and frees its request.
    pub(crate) fn publish(&self, slot: u32, flag: u64) {
        self.flag(self.front.tx_flags, slot).store(flag, Release);
        self.flag(self.front.rx_flags, slot).store(0, Release);
    }

    /// Answers every request that waits with this flag, as a dispatcher. One that is answered and not freed is freed. The
    /// ring must have no other dispatcher. Returns how many there were.
    pub(crate) fn refuse_all(&self, flag: u64) -> usize {
        let mut refused = 0;
        for slot in 0..self.front.slots {
            let (rx, tx) = (self.flag(self.front.rx_flags, slot), self.flag(self.front.tx_flags, slot));
            if rx.load(Acquire) != 0 {
                if tx.load(Acquire) == 0 {
                    tx.store(flag, Release);
                    refused += 1;
                }
                rx.store(0, Release);
            }
        }
        refused
    }
}

// SAFETY: as its mapping's; readable and writable.
unsafe impl Memory for Mapping {
    fn base(&self) -> NonNull<u8> {
        self.mapped.base
    }

    fn size(&self) -> usize {
        self.mapped.size
    }
}
