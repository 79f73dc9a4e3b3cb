//! What is asked of blocks, and of whoever keeps them.

use std::{fmt, sync::Arc};

use berth_memory::{Memory, Part};

/// Blocks of a region, behind an engine that works on its own core.
#[expect(clippy::len_without_is_empty, reason = "a region is never empty")]
pub trait Blocks: Send + Sync {
    /// The region's length in bytes, a multiple of 512.
    fn len(&self) -> u64;
    /// What the engine can do.
    fn info(&self) -> BlockInfo {
        BlockInfo::default()
    }
    /// Tells that requests will have pieces of this memory, which the engine keeps: they may take less time for it.
    fn register(&self, _memory: &Arc<dyn Memory>) {}
    /// Starts an operation; never blocks. Where the engine cannot take it, it is completed at once with
    /// [`BlockError::Busy`], on the caller's own thread.
    fn submit(&self, request: BlockRequest);
    /// Reports what the engine counts.
    fn counters(&self, _visit: &mut dyn FnMut(&'static str, u64)) {}
}

/// What an engine can do beside reading and writing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockInfo {
    /// Accesses of whole blocks of so many bytes are done as they are; others have to read what they do not write.
    pub block_size: u32,
    /// In units of how many bytes space is given back, if it can be.
    pub discard: Option<u32>,
    /// Whether it does [`BlockOp::Compare`].
    pub compare: bool,
    /// Whether [`BlockOp::Flush`] does anything: without, what is done is durable, or nothing is.
    pub flush: bool,
}

impl Default for BlockInfo {
    /// Any reads and writes, and nothing else.
    fn default() -> Self {
        Self { block_size: 1, discard: None, compare: false, flush: false }
    }
}

/// One operation on blocks.
pub struct BlockRequest {
    /// What to do.
    pub op: BlockOp,
    /// The first byte in the region, a multiple of 512.
    pub at: u64,
    /// Where the data lies, in order: filled by a read, written by a write, compared by a comparison; together a multiple
    /// of 512 long. Nobody else writes it until the request is over. Otherwise empty.
    pub pieces: Vec<Part>,
    /// The submitter's name for the operation.
    pub tag: u64,
    /// Told when it is over.
    pub done: Arc<dyn BlockDone>,
}

impl BlockRequest {
    /// How many bytes of the region it covers.
    pub fn len(&self) -> u64 {
        match self.op {
            BlockOp::Read | BlockOp::Write | BlockOp::Compare => self.pieces.iter().map(|one| one.size() as u64).sum(),
            BlockOp::Zero(len) | BlockOp::Discard(len) => len,
            BlockOp::Flush => 0,
        }
    }

    /// Whether it covers no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The piece with byte `at` of the data, and the place of that in it.
    pub fn piece(&self, mut at: usize) -> Option<(&Part, usize)> {
        self.pieces.iter().find_map(|piece| {
            let here = at;
            at = at.wrapping_sub(piece.size());
            (here < piece.size()).then_some((piece, here))
        })
    }

    /// Copies the data from `at` on, as much as `into` has room for.
    ///
    /// # Panics
    /// If there is less.
    pub fn read_at(&self, mut at: usize, mut into: &mut [u8]) {
        while !into.is_empty() {
            let (piece, here) = self.piece(at).expect("data for all that is read");
            let (front, rest) = into.split_at_mut((piece.size() - here).min(into.len()));
            piece.read_at(here, front);
            (at, into) = (at + front.len(), rest);
        }
    }

    /// Copies `from` to the data from `at` on.
    ///
    /// # Panics
    /// If it is longer.
    pub fn write_at(&self, mut at: usize, mut from: &[u8]) {
        while !from.is_empty() {
            let (piece, here) = self.piece(at).expect("room for all that is written");
            let (front, rest) = from.split_at((piece.size() - here).min(from.len()));
            piece.write_at(here, front);
            (at, from) = (at + front.len(), rest);
        }
    }
}

impl fmt::Debug for BlockRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { op, at, pieces, tag, done: _ } = self;
        write!(f, "BlockRequest({op:?} at {at}, {pieces:?}, tag {tag})")
    }
}

/// What a [`BlockRequest`] does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockOp {
    /// Reads into the pieces.
    Read,
    /// Writes the pieces.
    Write,
    /// Fails with [`BlockError::Miscompare`] unless the blocks hold what the pieces do.
    Compare,
    /// Zeroes this many bytes, a multiple of 512.
    Zero(u64),
    /// Gives the space of this many bytes back, where it lies in whole units; they may read as zeros from then on.
    Discard(u64),
    /// Makes all that was written and zeroed before survive a loss of power.
    Flush,
}

/// Who is told of completions.
pub trait BlockDone: Send + Sync {
    /// The operation `tag` is over; its pieces come back. Called once for each, mostly on the engine's thread: it must not
    /// block.
    fn done(&self, tag: u64, pieces: Vec<Part>, result: Result<(), BlockError>);
}

/// Why a block operation failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BlockError {
    /// The engine has as many operations in flight as it can; try again.
    #[error("the block engine is busy")]
    Busy,
    /// The blocks hold something else.
    #[error("the blocks hold something else")]
    Miscompare,
    /// The device or file failed, with this errno.
    #[error("block I/O failed with errno {0}")]
    Io(i32),
}
