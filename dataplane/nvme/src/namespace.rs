//! A lease as a namespace: its blocks, what may be done with them, and how refusals are told.

use berth_lease::{Access, BlockInfo, Entry, Generation, LeaseId, Op, Refusal, Region, Rights, Storage};
use berth_lease_io::AccessRequest;
use berth_wire::nvme::Status;

/// Bytes of a block (LBADS 9).
pub(crate) const BLOCK: u64 = 512;

/// The namespace of a lease; its first block is the lease's first.
#[derive(Debug, Clone)]
pub(crate) struct Namespace {
    pub(crate) lease: LeaseId,
    generation: Generation,
    pub(crate) rights: Rights,
    /// NSZE: blocks of 512 bytes; a rest of the lease that fills none is out of reach.
    pub(crate) blocks: u64,
    /// Bytes of the longest transfer: a power of two, at least 4096.
    pub(crate) longest: u32,
    /// What the engine can do, where it lies behind one.
    pub(crate) engine: Option<BlockInfo>,
}

impl Namespace {
    pub(crate) fn new(entry: &Entry, region: &Region, longest: u32) -> Self {
        let engine = match &region.storage {
            Storage::Bytes(_) => None,
            Storage::Blocks(blocks) => Some(blocks.info()),
        };
        let longest = entry.max_io.min(longest);
        Self {
            lease: entry.id,
            generation: entry.generation,
            rights: entry.rights,
            blocks: entry.len / BLOCK,
            longest: 1 << longest.ilog2(),
            engine,
        }
    }

    /// An access to so many bytes of a lease.
    pub(crate) fn access(lease: LeaseId, generation: Generation, op: Op, offset: u64, len: u64) -> AccessRequest {
        let access = Access { op, key: lease.key(), generation: Some(generation), offset, len, well_formed: true };
        AccessRequest { id: Some(lease), access }
    }

    /// Whether Compare and Write can be fused: in memory, and on blocks whose engine compares.
    pub(crate) fn fuses(&self) -> bool {
        self.engine.is_none_or(|engine| engine.compare)
    }

    /// An access that says nothing of bytes.
    pub(crate) fn whole(&self) -> AccessRequest {
        Self::access(self.lease, self.generation, Op::Read, 0, 0)
    }

    /// An access to `blocks` blocks from `first` on, which the namespace must have.
    #[inline]
    pub(crate) fn ask(&self, op: Op, first: u64, blocks: u64) -> Result<AccessRequest, Status> {
        match first.checked_add(blocks) {
            Some(end) if end <= self.blocks => {
                Ok(Self::access(self.lease, self.generation, op, first * BLOCK, blocks * BLOCK))
            }
            _ => Err(Status::LBA_OUT_OF_RANGE),
        }
    }
}

/// What a host is told of an access that is refused.
#[cold]
pub(crate) fn refused(refusal: Refusal, op: Op) -> Status {
    match (refusal, op) {
        (Refusal::Expired, _) => Status::ANA_INACCESSIBLE,
        (Refusal::Denied, Op::Write) => Status::WRITE_PROTECTED,
        (Refusal::BadRequest | Refusal::TooLong, _) => Status::INVALID_FIELD,
        (Refusal::Unknown | Refusal::Revoked | Refusal::StaleGeneration | Refusal::OutOfRange, _)
        | (Refusal::Denied, Op::Read) => Status::ACCESS_DENIED,
    }
}
