//! Ids of leases and regions, generations and rights.

use std::fmt;

/// A lease's id on the control plane: random, its low 64 bits unique on the node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(pub u128);

impl LeaseId {
    /// The low 64 bits, by which the dataplanes name the lease.
    #[inline]
    pub fn key(self) -> LeaseKey {
        LeaseKey(self.0 as u64)
    }

    /// Whether a lease may have this id: its key must not be 0.
    pub fn is_usable(self) -> bool {
        self.key().0 != 0
    }
}

impl fmt::Debug for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LeaseId({self})")
    }
}

/// 32 hex digits.
impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// The low 64 bits of a [`LeaseId`]: `LEASE_KEY` (TLV 0x0103) and the lease id of two-sided messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseKey(pub u64);

/// How often a restart lost the lease's contents, plus one. 56 bits, as in two-sided messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation(pub u64);

impl Generation {
    /// The generation of a new lease.
    pub const FIRST: Self = Self(1);

    /// Mask of a generation's 56 bits.
    pub const MASK: u64 = (1 << 56) - 1;

    /// The next generation; the first one follows the last.
    #[must_use]
    pub fn next(self) -> Self {
        if self.0 < Self::MASK { Self(self.0 + 1) } else { Self::FIRST }
    }
}

/// The data I/O that a lease's token allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Rights(u8);

impl Rights {
    /// No right at all.
    pub const NONE: Self = Self(0);
    /// Token permission READ; bit 0.
    pub const READ: Self = Self(1);
    /// Token permission WRITE; bit 1.
    pub const WRITE: Self = Self(2);
    /// Reading and writing.
    pub const ALL: Self = Self(3);

    /// Keeps bits 0 (read) and 1 (write) of `bits`; others are ignored.
    #[inline]
    pub fn from_bits(bits: u32) -> Self {
        Self(bits as u8 & Self::ALL.0)
    }

    /// 1 for reading, 2 for writing.
    #[inline]
    pub fn bits(self) -> u8 {
        self.0
    }

    /// Whether all rights of `other` are among these.
    #[inline]
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The rights that both have.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

/// A region's index in the configuration, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RegionId(pub u16);
