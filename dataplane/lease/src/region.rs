//! Where leased bytes lie, as the layers above the drivers see it: memory, or bytes behind an asynchronous engine.

use std::{fmt, sync::Arc};

use berth_memory::Memory;

use crate::{Blocks, GRANULE, RegionId};

/// Memory of a region, shared by all cores.
///
/// Concurrent accesses to the same bytes may mix, as those of two remote peers may, but are never undefined behaviour.
/// Every range must lie within [`Bytes::len`]; implementations panic otherwise.
#[expect(clippy::len_without_is_empty, reason = "a region is never empty")]
pub trait Bytes: Send + Sync {
    /// Length of the region in bytes.
    fn len(&self) -> u64;
    /// Fills `into` with the bytes from offset `at` on.
    fn read(&self, at: u64, into: &mut [u8]);
    /// Copies `from` to the bytes from offset `at` on.
    fn write(&self, at: u64, from: &[u8]);
    /// Zeroes `len` bytes from offset `at` on.
    fn zero(&self, at: u64, len: u64);
}

impl<M: Memory> Bytes for M {
    fn len(&self) -> u64 {
        self.size() as u64
    }

    #[inline]
    fn read(&self, at: u64, into: &mut [u8]) {
        self.read_at(offset(at), into);
    }

    #[inline]
    fn write(&self, at: u64, from: &[u8]) {
        self.write_at(offset(at), from);
    }

    fn zero(&self, at: u64, len: u64) {
        self.zero_at(offset(at), offset(len));
    }
}

/// An offset that does not fit lies beyond all memory.
#[inline]
fn offset(at: u64) -> usize {
    usize::try_from(at).unwrap_or(usize::MAX)
}

/// The backing of a region.
#[derive(Clone)]
pub enum Storage {
    /// Memory, or blocks kept in memory: an access is complete when the call returns.
    Bytes(Arc<dyn Bytes>),
    /// Blocks, or a GPU's own memory, behind an engine: an access is complete when the engine says so.
    Blocks(Arc<dyn Blocks>),
}

impl Storage {
    /// Length of the region in bytes.
    #[expect(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub fn len(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Blocks(blocks) => blocks.len(),
        }
    }

    /// Leases take whole multiples of this many bytes.
    pub fn granule(&self) -> u64 {
        match self {
            Self::Bytes(_) => GRANULE,
            Self::Blocks(blocks) => blocks.info().granule,
        }
    }

    /// Whether a restart loses the contents. The region then begins with zeros.
    pub fn is_volatile(&self) -> bool {
        match self {
            Self::Bytes(_) => true,
            Self::Blocks(blocks) => blocks.info().volatile,
        }
    }
}

impl fmt::Debug for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => write!(f, "Bytes({})", bytes.len()),
            Self::Blocks(blocks) => write!(f, "Blocks({})", blocks.len()),
        }
    }
}

/// One region of the configuration, and what backs it.
#[derive(Debug, Clone)]
pub struct Region {
    /// Its name in the configuration.
    pub name: String,
    /// Whether it is leased as memory or as blocks.
    pub kind: RegionKind,
    /// NUMA node of its memory or device; `None` if unknown.
    pub numa: Option<u16>,
    /// Holds the leased bytes.
    pub storage: Storage,
}

/// The form in which a region is leased.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RegionKind {
    /// Bytes, which a restart loses.
    Memory,
    /// Blocks of 512 bytes.
    Block,
    /// Bytes of a GPU's memory, which a restart loses.
    Vram,
}

impl RegionKind {
    /// Whether it is leased in bytes, of any memory.
    pub fn is_memory(self) -> bool {
        self != Self::Block
    }
}

/// All regions of a node. Cheap to clone, so every core has it.
#[derive(Debug, Clone)]
pub struct Regions(Arc<[Region]>);

impl Regions {
    /// Takes the regions in the order of the configuration, which gives them their ids.
    pub fn new(regions: Vec<Region>) -> Self {
        Self(regions.into())
    }

    /// `None` if there is no such region.
    #[inline]
    pub fn get(&self, id: RegionId) -> Option<&Region> {
        self.0.get(usize::from(id.0))
    }

    /// Iterates in the order of the configuration.
    pub fn iter(&self) -> impl Iterator<Item = (RegionId, &Region)> {
        self.0.iter().enumerate().map(|(index, region)| (RegionId(index as u16), region))
    }
}
