//! What an engine of blocks counts.

use berth_port::{Family, Tables};

use crate::{BlockError, BlockOp};

const OPS: Family = Family::counter("region_ops", "requests to the blocks of a region");
const BYTES: Family = Family::counter("region_bytes", "bytes of blocks read and written");
const MERGED: Family = Family::counter("region_merged", "writes that had to read a block first");
const REFUSED: Family =
    Family::counter("region_refused", "requests to the blocks of a region that were refused or failed");

/// `ENOSPC`
const NO_SPACE: i32 = 28;

berth_port::counters! {
    /// What happened to the requests of an engine: those that were done, where they were not refused. A comparison is a read,
    /// a discard a zero.
    pub struct BlockCounts of Count {
        /// Reads and comparisons.
        reads = block_reads: OPS { region: *, op: "read" },
        /// Writes.
        writes = block_writes: OPS { region: *, op: "write" },
        /// Zeroes and discards.
        zeroes = block_zeroes: OPS { region: *, op: "zero" },
        /// Flushes.
        flushes = block_flushes: OPS { region: *, op: "flush" },
        /// Of reads and comparisons.
        bytes_read = block_bytes_read: BYTES { region: *, op: "read" },
        /// Of writes.
        bytes_written = block_bytes_written: BYTES { region: *, op: "write" },
        /// Writes that had to read a block first.
        merged = block_merged: MERGED { region: * },
        /// The queue was full.
        busy = block_busy: REFUSED { region: *, reason: "busy" },
        /// It was not within the region.
        refused = block_refused: REFUSED { region: *, reason: "out_of_range" },
        /// The device or file system was full.
        no_space = block_no_space: REFUSED { region: *, reason: "no_space" },
        /// With any other error.
        failed = block_failed: REFUSED { region: *, reason: "failed" },
    }
}

/// What a region of blocks counts. They are reported behind a prefix, `region_NAME_`, for which the `*` of their labels
/// stands.
pub const BLOCK_COUNTERS: Tables = &[BlockCounts::TABLE];

impl BlockCounts {
    /// Counts a request of `len` bytes that the engine took, and how it ended.
    pub fn ended(&self, op: BlockOp, len: u64, result: Result<(), BlockError>) {
        match (result, op) {
            (Err(BlockError::Io(NO_SPACE)), _) => self.no_space.add(1),
            (Err(BlockError::Io(_) | BlockError::Busy), _) => self.failed.add(1),
            (Err(BlockError::Miscompare), _) | (Ok(()), BlockOp::Read | BlockOp::Compare) => {
                self.reads.add(1);
                self.bytes_read.add(len);
            }
            (Ok(()), BlockOp::Write) => {
                self.writes.add(1);
                self.bytes_written.add(len);
            }
            (Ok(()), BlockOp::Zero(_) | BlockOp::Discard(_)) => self.zeroes.add(1),
            (Ok(()), BlockOp::Flush) => self.flushes.add(1),
        }
    }
}
