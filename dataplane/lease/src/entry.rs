//! What a probe of the table answers, and how it is packed into one cache line.

use berth_port::Nanos;

use crate::{GRANULE, Generation, LeaseId, LeaseKey, RegionId, Rights};

/// Whether a lease may be used, apart from its expiry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Granted; whether it has expired is for [`Entry::expires`] to say.
    Active,
    /// Taken back before it expired.
    Revoked,
}

/// All that deciding on an access takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// The lease, or an attachment of it.
    pub id: LeaseId,
    /// Its generation.
    pub generation: Generation,
    /// What data I/O is allowed.
    pub rights: Rights,
    /// Where its bytes lie.
    pub region: RegionId,
    /// Its first byte in the region, a multiple of [`GRANULE`] below 2^60.
    pub base: u64,
    /// Its length in bytes; accesses end there.
    pub len: u64,
    /// The first byte, from the lease's first, that may be accessed: 0 but for a RANGE caveat.
    pub first: u64,
    /// The longest access in bytes.
    pub max_io: u32,
    /// The monotonic time from which it has expired.
    pub expires: Nanos,
    /// Whether it was taken back.
    pub state: State,
}

/// 64-bit words of a packed entry: with the sequence word before them, one cache line.
pub(crate) const WORDS: usize = 7;

/// Where the rights start in their word, above the generation.
const RIGHTS_SHIFT: u32 = 56;
/// The bit of a revoked lease, in the same word.
const REVOKED: u64 = 1 << 58;
/// Where the region starts in its word, above the base in granules.
const REGION_SHIFT: u32 = 48;

impl Entry {
    /// By what the dataplanes name it.
    #[inline]
    pub fn key(&self) -> LeaseKey {
        self.id.key()
    }

    /// The words after the sequence word; `max_io` travels with the sequence.
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
