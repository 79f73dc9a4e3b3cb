//! The answer of a probe, and how it is packed into one cache line.

use berth_port::Nanos;

use crate::{GRANULE, Generation, LeaseId, LeaseKey, RegionId, Rights};

/// Whether a lease may be used, regardless of its expiry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Granted and not revoked. Whether it has expired is for [`Entry::expires`] to say.
    Active,
    /// Revoked before it expired.
    Revoked,
}

/// All that a decision on an access needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// The lease, or an attachment to it.
    pub id: LeaseId,
    /// A request that names another generation is stale.
    pub generation: Generation,
    /// The data I/O that the token allowed.
    pub rights: Rights,
    /// The region that its bytes lie in.
    pub region: RegionId,
    /// Offset of its first byte in the region, a multiple of [`GRANULE`] below 2^60.
    pub base: u64,
    /// Length in bytes, counted from `base`.
    pub len: u64,
    /// First byte that may be accessed, counted from the lease's first: 0 unless a RANGE caveat says otherwise.
    pub first: u64,
    /// Longest access in bytes.
    pub max_io: u32,
    /// Monotonic time from which the lease counts as expired.
    pub expires: Nanos,
    /// Whether it was revoked.
    pub state: State,
}

/// 64-bit words of a packed entry. With the sequence word before them they fill one cache line.
pub(crate) const WORDS: usize = 7;

/// Shift of the rights within their word, above the generation.
const RIGHTS_SHIFT: u32 = 56;
/// Bit of a revoked lease, in the same word.
const REVOKED: u64 = 1 << 58;
/// Shift of the region within its word, above the base in granules.
const REGION_SHIFT: u32 = 48;

impl Entry {
    /// The key that the dataplanes name it by.
    #[inline]
    pub fn key(&self) -> LeaseKey {
        self.id.key()
    }

    /// Packs all but `max_io`, which shares the sequence's word.
    pub(crate) fn pack(&self) -> [u64; WORDS] {
        let Self { id, generation, rights, region, base, len, first, expires, state, max_io: _ } = *self;
        debug_assert!(base % GRANULE == 0 && base >> 60 == 0, "a base of {base:#x}");
        let revoked = if state == State::Revoked { REVOKED } else { 0 };
        [
            id.0 as u64,
            (id.0 >> 64) as u64,
            (generation.0 & Generation::MASK) | (u64::from(rights.bits()) << RIGHTS_SHIFT) | revoked,
            expires.0,
            (base / GRANULE) | (u64::from(region.0) << REGION_SHIFT),
            len,
            first,
        ]
    }

    #[inline]
    pub(crate) fn unpack(words: [u64; WORDS], max_io: u32) -> Self {
        let [low, high, access, expires, place, len, first] = words;
        Self {
            id: LeaseId(u128::from(high) << 64 | u128::from(low)),
            generation: Generation(access & Generation::MASK),
            rights: Rights::from_bits((access >> RIGHTS_SHIFT) as u32),
            region: RegionId((place >> REGION_SHIFT) as u16),
            base: (place & ((1 << REGION_SHIFT) - 1)) * GRANULE,
            len,
            first,
            max_io,
            expires: Nanos(expires),
            state: if access & REVOKED == 0 { State::Active } else { State::Revoked },
        }
    }
}
