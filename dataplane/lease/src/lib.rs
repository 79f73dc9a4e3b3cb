//! Leases: the state machine, the table that every access probes, and the decision who may touch which byte.
//!
//! ```text
//! control core                                   every core that serves data
//! Leases  (alloc, renew, revoke, expiry ...)     reader.enter()           once a burst
//!   Arena (which bytes are whose)                  guard.probe(key)       one table probe
//!   TableWriter ---- publishes ----> Table ----->  check(entry, access)   the one validation
//!     quiescence() waits for guards <------------  drop(guard)
//! ```
//!
//! A revocation is published to the [`Table`], where every probe that starts later sees it. It is answered once
//! [`TableWriter::quiescence`] says that all earlier guards are gone, so no access is served after the answer. Nothing
//! here reads a clock, makes random numbers or does I/O: all three are arguments.
#![forbid(unsafe_code)]

mod access;
mod arena;
mod block_counts;
mod blocks;
mod entry;
mod id;
mod leases;
mod reader;
mod region;
mod sync;
mod table;

pub use access::{Access, Op, Refusal, Span, check};
pub use arena::{Arena, Extent};
pub use block_counts::{BLOCK_COUNTERS, BlockCounts};
pub use blocks::{BlockDone, BlockError, BlockInfo, BlockOp, BlockRequest, Blocks, wait};
pub use entry::{Entry, State};
pub use id::{Generation, LeaseId, LeaseKey, RegionId, Rights};
pub use leases::{
    Attachment, BLOCK, Config, Event, Granted, Handle, Holding, Item, Lease, LeaseError, Leases, Limits, Mode, Page,
    Quota, Quotas, REMEMBERED, RelocateError, Relocation, Request, RestoreError, Standing, Status, Unit, Wanted,
};
pub use reader::{Guard, Held, Quiescence, Reader};
pub use region::{Bytes, Region, RegionKind, Regions, Storage};
pub use table::{InsertError, Table, TableWriter};

/// Smallest unit of placement in bytes: every lease starts at a multiple of it in its region. A region behind an engine
/// may have a larger one, see [`BlockInfo::granule`].
pub const GRANULE: u64 = 4096;
