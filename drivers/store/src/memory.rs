//! Memory of a region: mapped once, resident from the start, shared by all cores.

use std::{io, path::Path, ptr, ptr::NonNull};

use berth_host::{HugePage, HugeRegion, HugeRegionError, numa_nodes};
use berth_lease::Bytes;
use berth_ring::Region;

use crate::{copy, numa::on_node};

/// What memory is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backing {
    /// Ordinary pages, in transparent huge ones where the kernel finds them.
    Ordinary,
    /// Reserved huge pages.
    Huge(HugePage),
}

/// Zeroed memory whose bytes all cores, and peers through them, read and write at will.
///
/// Its pages are resident when [`Memory::new`] returns, so that no access waits for one, and are given back when it
/// is dropped.
#[derive(Debug)]
pub struct Memory {
    pages: Pages,
    len: usize,
}

#[derive(Debug)]
enum Pages {
    Ordinary(Mapping),
    Huge(HugeRegion),
}

/// Why there is no memory for a region.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// A region of no bytes, or of more than the address space.
    #[error("a memory region of {0} bytes cannot be: give it a size from 1 byte to {max} bytes", max = isize::MAX)]
    Size(u64),
    /// Too few huge pages.
    #[error(transparent)]
    Huge(#[from] HugeRegionError),
    /// The machine has no such memory node.
    #[error("there is no memory node {node}: the nodes are {nodes:?}")]
    NoSuchNode {
        /// The node asked for.
        node: u32,
        /// The nodes that are online.
        nodes: Vec<u32>,
    },
    /// The memory is taken.
    #[error("{need} bytes of memory are needed and {available} are available: make the region smaller")]
    Short {
        /// Bytes needed.
        need: u64,
        /// Bytes that are free, or cache that yields.
        available: u64,
    },
    /// The kernel refused for another reason.
    #[error("cannot map {len} bytes: {error}")]
    Map {
        /// Bytes wanted.
        len: u64,
        /// What it said.
        error: io::Error,
    },
}

impl Memory {
    /// Maps `len` bytes, on memory node `numa` if one is given. A machine with a single node has node 0 only.
    pub fn new(len: u64, backing: Backing, numa: Option<u32>) -> Result<Self, MemoryError> {
        let size = usize::try_from(len).ok().filter(|len| (1..=isize::MAX as usize).contains(len));
        let Some(size) = size else { return Err(MemoryError::Size(len)) };
        let nodes = numa_nodes(Path::new("/sys"));
        let node = numa.and_then(|id| nodes.iter().find(|node| node.id == id));
        if let (Some(id), None) = (numa, node)
            // Where sysfs tells of no nodes there is one.
            && (id, nodes.len()) != (0, 0)
        {
            return Err(MemoryError::NoSuchNode { node: id, nodes: nodes.iter().map(|node| node.id).collect() });
        }
        let node = node.filter(|_| nodes.len() > 1);
        let map = || match backing {
            Backing::Ordinary => {
                // Beyond this, the kernel would kill processes to find pages, this one perhaps.
                let available = node.map_or_else(available, |node| Some(node.available));
                match available.filter(|&available| len > available) {
                    Some(available) => Err(MemoryError::Short { need: len, available }),
                    None => Mapping::new(size).map(Pages::Ordinary),
                }
            }
            Backing::Huge(page) => Ok(Pages::Huge(HugeRegion::new(size, page)?)),
        };
        let pages = match node {
            Some(node) => on_node(node.id, map).map_err(|error| MemoryError::Map { len, error })??,
            None => map()?,
        };
        Ok(Self { pages, len: size })
    }

    /// The first byte, for devices that access the memory themselves. The program itself must not make references of it.
    #[inline]
    pub fn as_ptr(&self) -> NonNull<u8> {
        match &self.pages {
            Pages::Ordinary(mapping) => mapping.ptr,
            Pages::Huge(region) => region.as_ptr(),
        }
    }

    /// The address of `len` bytes from `at` on.
    #[inline]
    fn range(&self, at: u64, len: usize) -> *mut u8 {
        let within = at.checked_add(len as u64).is_some_and(|end| end <= self.len as u64);
        assert!(within, "{len} bytes at {at} are not within a region of {}", self.len);
        // SAFETY: the offset is within the mapping.
        unsafe { self.as_ptr().as_ptr().add(at as usize) }
    }
}

impl Bytes for Memory {
    fn len(&self) -> u64 {
        self.len as u64
    }

    #[inline]
    fn read(&self, at: u64, into: &mut [u8]) {
        let from = self.range(at, into.len());
        // SAFETY: both ranges are that long; the mapping is never lent as a slice, so `into` lies elsewhere.
        unsafe { copy::copy(from, into.as_mut_ptr(), into.len()) };
    }

    #[inline]
    fn write(&self, at: u64, from: &[u8]) {
        let to = self.range(at, from.len());
        // SAFETY: as in `read`.
        unsafe { copy::copy(from.as_ptr(), to, from.len()) };
    }

    fn zero(&self, at: u64, len: u64) {
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        let to = self.range(at, len);
        // SAFETY: the range is that long.
        unsafe { copy::zero(to, len) };
    }
}

/// Ordinary pages.
#[derive(Debug)]
struct Mapping {
    ptr: NonNull<u8>,
    len: usize,
}

impl Mapping {
    fn new(len: usize) -> Result<Self, MemoryError> {
        let failed = || MemoryError::Map { len: len as u64, error: io::Error::last_os_error() };
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: an anonymous mapping at an address of the kernel's choice touches no existing memory.
        let at = unsafe { libc::mmap(ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        if at == libc::MAP_FAILED {
            return Err(failed());
        }
        let ptr = NonNull::new(at.cast()).expect("a mapping of the kernel's choice is not at address 0");
        let mapping = Self { ptr, len };
        // SAFETY: advice about the mapping just made. The first is a wish, which a kernel without such pages refuses.
        let populated = unsafe {
            libc::madvise(at, len, libc::MADV_HUGEPAGE);
            libc::madvise(at, len, libc::MADV_POPULATE_WRITE)
        };
        if populated != 0 && io::Error::last_os_error().raw_os_error() != Some(libc::EINVAL) {
            return Err(failed());
        }
        if populated != 0 {
            // SAFETY: the mapping is that long. Before Linux 5.14 writing is how pages become resident.
            unsafe { copy::zero(mapping.ptr.as_ptr(), len) };
        }
        Ok(mapping)
    }
}

/// The memory that the kernel can give without swapping, in bytes.
fn available() -> Option<u64> {
    let info = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = info.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib << 10)
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping made in `new`, unmapped once.
        let unmapped = unsafe { libc::munmap(self.ptr.as_ptr().cast(), self.len) };
        debug_assert_eq!(unmapped, 0, "munmap of a whole mapping");
    }
}

// SAFETY: the mapping is owned, is only ever handed out as a raw pointer, and has no thread affinity.
unsafe impl Send for Mapping {}
// SAFETY: as above; `&Mapping` gives out the pointer only.
unsafe impl Sync for Mapping {}
