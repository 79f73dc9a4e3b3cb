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

/// Bytes of a block in hostcalls.
pub const BLOCK_LEN: usize = 512;

/// A lease as a call names it: its `cap_token`, or what an alloc of the same run gave. `None` where the call has no id: the
/// first entry of its kind with LEASE_IO.
pub type Named = Option<u128>;

/// A call, with its arguments as the guest passed them, read as unsigned.
#[derive(Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "fields are named as in the table of T7; `at` is a byte's offset or a block's number")]
pub enum Call<'a> {
    /// Whether there is such a lease.
    Hello(Kind),
    /// Its bytes or blocks.
    GetSize(Kind),
    /// From a lease into the guest's memory.
    Read { kind: Kind, lease: Named, at: u64, out: &'a mut [u8] },
    /// From the guest's memory into a lease.
    Write { kind: Kind, lease: Named, at: u64, data: &'a [u8] },
    /// A new lease.
    Alloc { kind: Kind, min: u64, secs: u32, out: &'a mut [u8; 32] },
    /// How a lease stands.
    Query { kind: Kind, lease: u128, out: &'a mut [u8; 24] },
    /// A lease for longer.
    Renew { kind: Kind, lease: u128, secs: u32, out: &'a mut [u8; 8] },
    /// The end of a lease.
    Free { kind: Kind, lease: u128 },
    /// A record for the run's log.
    Log { level: u32, message: &'a [u8] },
}

/// Answers the calls of one run.
pub trait Hostcalls {
    /// 0, what [`Call::GetSize`] counts, or a negative code. `out` is written on success only.
    fn call(&mut self, call: Call<'_>) -> i64;
}
