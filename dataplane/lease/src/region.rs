//! Where leased bytes lie, as floors above the drivers see it: memory, or blocks behind an asynchronous engine.

use std::{fmt, sync::Arc};

use berth_memory::Memory;

use crate::{Blocks, RegionId};

/// Memory of a region, shared by all cores.
///
/// Concurrent accesses to the same bytes may mix, as those of two remote peers may, but are never undefined
/// behaviour. Every range must lie within [`Bytes::len`]; implementations panic otherwise.
#[expect(clippy::len_without_is_empty, reason = "a region is never empty")]
pub trait Bytes: Send + Sync {
    /// The region's length in bytes.
    fn len(&self) -> u64;
    /// Copies the bytes from `at` on into `into`.
    fn read(&self, at: u64, into: &mut [u8]);
    /// Copies `from` to the bytes from `at` on.
    fn write(&self, at: u64, from: &[u8]);
    /// Zeroes `len` bytes from `at` on.
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

/// Beyond all memory where it does not fit.
#[inline]
fn offset(at: u64) -> usize {
    usize::try_from(at).unwrap_or(usize::MAX)
}

/// What a region is made of.
#[derive(Clone)]
pub enum Storage {
    /// Memory, or blocks kept in memory: done when the call returns.
    Bytes(Arc<dyn Bytes>),
    /// Blocks behind an engine: done when it says so.
    Blocks(Arc<dyn Blocks>),
}

impl Storage {
    /// The region's length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub fn len(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Blocks(blocks) => blocks.len(),
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

/// One region of the configuration.
#[derive(Debug, Clone)]
pub struct Region {
    /// Its name in the configuration.
    pub name: String,
    /// Whether it is leased as memory or as blocks of 512 bytes.
    pub kind: RegionKind,
    /// The NUMA node it lies on, if it lies on one.
    pub numa: Option<u16>,
    /// Its bytes.
    pub storage: Storage,
}

/// As what a region is leased.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RegionKind {
    /// Bytes; they do not survive a restart.
    Memory,
    /// Blocks of 512 bytes.
    Block,
}

/// All regions of a node: cheap to clone into every core.
#[derive(Debug, Clone)]
pub struct Regions(Arc<[Region]>);

impl Regions {
    /// The regions, in the order of the configuration.
    pub fn new(regions: Vec<Region>) -> Self {
        Self(regions.into())
    }

    /// The region of this id.
    #[inline]
    pub fn get(&self, id: RegionId) -> Option<&Region> {
        self.0.get(usize::from(id.0))
    }

    /// Every region with its id.
    pub fn iter(&self) -> impl Iterator<Item = (RegionId, &Region)> {
        self.0.iter().enumerate().map(|(index, region)| (RegionId(index as u16), region))
    }
}
