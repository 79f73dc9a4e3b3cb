//! What a running tasklet asks of its host (T7, T8).
//!
//! The executor has counted the call, taken its fuel and checked the guest's pointers before the host sees it; slices lie in
//! the guest's memory. The host checks the entry, the right and the range.

/// The kind of lease that an import module speaks of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `fabricbios_fbmu_v0`: offsets and lengths in bytes.
    Memory,
    /// `fabricbios_fbbu_v0`: blocks of [`BLOCK_LEN`] bytes.
    Block,
}

impl Kind {
    /// Bytes of the struct that an alloc fills: hi, lo, expires_at and the size in bytes, u64 each, little-endian; of blocks
    /// their number instead, then block_size u32 and 0 u32.
    pub const fn alloc_len(self) -> usize {
        match self {
            Self::Memory => 32,
            Self::Block => 40,
        }
    }
}

/// Bytes of a block in hostcalls.
pub const BLOCK_LEN: usize = 512;

/// A lease as a call names it: its `cap_token`, or what an alloc of the same run gave. `None` where the call has no id: the
/// first entry of its kind with LEASE_IO.
pub type Named = Option<u128>;

/// A call, with its arguments as the guest passed them, read as unsigned.
#[derive(Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "fields are named as in the table of T7; `at` is a byte's offset or a block's number")]
pub enum Call<'a> {
    /// 0 where [`Call::GetSize`] would return a size, else its code.
    Hello(Kind),
    /// Size of the first entry of this kind with LEASE_IO: bytes, or blocks of [`BLOCK_LEN`].
    GetSize(Kind),
    /// Copies from a lease into the guest's memory; `out` is [`BLOCK_LEN`] long where the kind is blocks.
    Read { kind: Kind, lease: Named, at: u64, out: &'a mut [u8] },
    /// Copies from the guest's memory into a lease; `data` is [`BLOCK_LEN`] long where the kind is blocks.
    Write { kind: Kind, lease: Named, at: u64, data: &'a [u8] },
    /// A new lease of `min` bytes or blocks for `secs`. `out` has [`Kind::alloc_len`] bytes.
    Alloc { kind: Kind, min: u64, secs: u32, out: &'a mut [u8] },
    /// How a lease stands. `out`: u32 0 active, 1 expired, 2 revoked; u32 block size or 0;
    /// u64 expiry in Unix seconds; u64 bytes or blocks; little-endian.
    Query { kind: Kind, lease: u128, out: &'a mut [u8; 24] },
    /// Renews a lease for `secs` from now. `out`: its new expiry in Unix seconds, little-endian.
    Renew { kind: Kind, lease: u128, secs: u32, out: &'a mut [u8; 8] },
    /// Ends a lease; needs REVOKE.
    Free { kind: Kind, lease: u128 },
    /// A record for the run's log. Of `level` the low byte counts.
    Log { level: u32, message: &'a [u8] },
}

impl Call<'_> {
    /// Whether it goes to the node and its journal, or to a device: many of them take longer than a slice, with little fuel.
    pub fn waits(&self) -> bool {
        match self {
            Self::Alloc { .. } | Self::Query { .. } | Self::Renew { .. } | Self::Free { .. } => true,
            Self::Read { kind, .. } | Self::Write { kind, .. } => *kind == Kind::Block,
            Self::Hello(_) | Self::GetSize(_) | Self::Log { .. } => false,
        }
    }
}

/// What a call returns when it fails: the statuses of FBMU, negated, and three of T7's own.
pub mod code {
    /// No such entry, one of the other kind, or its lease was freed.
    pub const INVALID_LEASE: i64 = -1;
    /// The lease, or the handle to it, has expired.
    pub const EXPIRED: i64 = -2;
    /// The lease was revoked or is fenced, or the run is to stop.
    pub const FENCED: i64 = -3;
    /// Outside the lease.
    pub const OUT_OF_RANGE: i64 = -4;
    /// No bytes, or more than one access may have.
    pub const BAD_LENGTH: i64 = -5;
    /// Too many accesses to blocks are under way.
    pub const BUSY: i64 = -6;
    /// The storage failed, or the node cannot journal.
    pub const INTERNAL: i64 = -7;
    /// A right is missing: of the entry, or READ or WRITE.
    pub const DENIED: i64 = -8;
    /// Nothing is free, a quota is used up, or the run has allocated [`MAX_ALLOCS`](super::MAX_ALLOCS) leases.
    pub const NO_CAPACITY: i64 = -9;
    /// A size or a time is 0.
    pub const BAD_PARAM: i64 = -10;
}

/// Most leases that one run may allocate; the next gets [`code::NO_CAPACITY`].
pub const MAX_ALLOCS: u32 = 16;

/// Answers the calls of one run, and says when it may go on.
pub trait Hostcalls {
    /// 0, what [`Call::GetSize`] counts, or a [`code`]. `out` is written on success only. It may block: for the journal, and
    /// for a device of blocks.
    fn call(&mut self, call: Call<'_>) -> i64;

    /// To be called after at most [`SLICE`](crate::run::SLICE) of guest code since the run began or this was last called. It
    /// blocks until the run's next turn. False: the run is to stop, with [`Status::ExecFailed`](crate::run::Status) and
    /// without a reason, as the host knows it: cancelled, out of wall time, or its lease or token ended.
    fn turn(&mut self) -> bool;

    /// Whose run it is. A process that ran code of one presenter never runs another's.
    fn presenter(&self) -> u128 {
        0
    }
}
