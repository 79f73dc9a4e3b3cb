//! Block requests, and the trait of the engines that carry them out.

use std::{
    fmt,
    sync::{
        Arc,
        mpsc::{self, RecvTimeoutError},
    },
    time::Duration,
};

use berth_memory::{Memory, Part};

use crate::GRANULE;

/// Blocks of a region, behind an engine: it works on a core of its own, or in the ring of the poll core that submits.
#[expect(clippy::len_without_is_empty, reason = "a region is never empty")]
pub trait Blocks: Send + Sync {
    /// Length of the region in bytes, a multiple of 512.
    fn len(&self) -> u64;
    /// What the engine supports. The same at every call.
    fn info(&self) -> BlockInfo {
        BlockInfo::default()
    }
    /// Says that requests will use pieces of this memory, so that the engine can prepare it. The engine keeps a
    /// reference.
    fn register(&self, _memory: &Arc<dyn Memory>) {}
    /// Starts an operation; never blocks. If the engine cannot take it, `done` is called at once with
    /// [`BlockError::Busy`], on the caller's thread.
    fn submit(&self, request: BlockRequest);
    /// Reports the engine's counters as pairs of name and value.
    fn counters(&self, _visit: &mut dyn FnMut(&'static str, u64)) {}
}

/// What an engine supports besides reads and writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockInfo {
    /// Native block size in bytes. Accesses of whole blocks are carried out as they are; others must read first what
    /// they do not write.
    pub block_size: u32,
    /// Granularity of [`BlockOp::Discard`] in bytes; `None` if the engine cannot give back space.
    pub discard: Option<u32>,
    /// Whether it supports [`BlockOp::Compare`].
    pub compare: bool,
    /// Whether [`BlockOp::Flush`] has an effect. If not, either all completed writes are durable or none is.
    pub flush: bool,
    /// Leases take whole multiples of this many bytes: a power of two, at least [`GRANULE`].
    pub granule: u64,
    /// Whether a restart loses the contents. The region then begins with zeros.
    pub volatile: bool,
}

impl Default for BlockInfo {
    /// Reads and writes of any size are carried out as they are; none of the optional features; contents stay.
    fn default() -> Self {
        Self { block_size: 1, discard: None, compare: false, flush: false, granule: GRANULE, volatile: false }
    }
}

/// One operation on blocks.
///
/// Offsets and lengths are multiples of 512 in a region of [`RegionKind::Block`](crate::RegionKind::Block). In a region of
/// [`RegionKind::Vram`](crate::RegionKind::Vram) they may be any.
pub struct BlockRequest {
    /// The operation.
    pub op: BlockOp,
    /// First byte in the region.
    pub at: u64,
    /// Buffers in order: filled by a read, written by a write, compared by a comparison, empty for the other operations.
    /// Nobody else writes them until the request has completed.
    pub pieces: Vec<Part>,
    /// Chosen by the submitter, handed to `done`.
    pub tag: u64,
    /// Called once, on completion.
    pub done: Arc<dyn BlockDone>,
}

impl BlockRequest {
    /// Number of bytes of the region that the request covers.
    pub fn len(&self) -> u64 {
        match self.op {
            BlockOp::Read | BlockOp::Write | BlockOp::Compare => self.pieces.iter().map(|one| one.size() as u64).sum(),
            BlockOp::Zero(len) | BlockOp::Discard(len) => len,
            BlockOp::Flush => 0,
        }
    }

    /// Whether the request covers no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Finds byte `at` of the data: its piece, and its offset in that.
    pub fn piece(&self, mut at: usize) -> Option<(&Part, usize)> {
        self.pieces.iter().find_map(|piece| {
            let here = at;
            at = at.wrapping_sub(piece.size());
            (here < piece.size()).then_some((piece, here))
        })
    }

    /// Visits `len` bytes of the data from offset `at` on, piece by piece: the piece, where in it they lie, how many came
    /// before, and how many these are.
    ///
    /// # Panics
    /// If the data ends before.
    pub fn each_piece(&self, at: usize, len: usize, mut visit: impl FnMut(&Part, usize, usize, usize)) {
        let mut done = 0;
        while done < len {
            let (piece, here) = self.piece(at + done).expect("pieces for all of the data");
            let some = (piece.size() - here).min(len - done);
            visit(piece, here, done, some);
            done += some;
        }
    }

    /// Copies data from offset `at` on, until `into` is full.
    ///
    /// # Panics
    /// If the data ends before.
    pub fn read_at(&self, at: usize, into: &mut [u8]) {
        self.each_piece(at, into.len(), |piece, here, done, len| piece.read_at(here, &mut into[done..done + len]));
    }

    /// Copies `from` into the data from offset `at` on.
    ///
    /// # Panics
    /// If the data ends before.
    pub fn write_at(&self, at: usize, from: &[u8]) {
        self.each_piece(at, from.len(), |piece, here, done, len| piece.write_at(here, &from[done..done + len]));
    }
}

impl fmt::Debug for BlockRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { op, at, pieces, tag, done: _ } = self;
        write!(f, "BlockRequest({op:?} at {at}, {pieces:?}, tag {tag})")
    }
}

/// The operation of a [`BlockRequest`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockOp {
    /// Fills the pieces from the region.
    Read,
    /// Writes the pieces to the region.
    Write,
    /// Fails with [`BlockError::Miscompare`] unless the region holds the same bytes as the pieces.
    Compare,
    /// Zeroes this many bytes of the region.
    Zero(u64),
    /// Gives back the space of this many bytes, as far as they form whole units; they may read as zeros from then on.
    Discard(u64),
    /// Makes all that was written and zeroed before survive a power loss.
    Flush,
}

/// Receives completions.
pub trait BlockDone: Send + Sync {
    /// The operation `tag` is over; its pieces come back. Called once for each, on the engine's thread
    /// or on the poll core that submitted: it must not block.
    fn done(&self, tag: u64, pieces: Vec<Part>, result: Result<(), BlockError>);
}

/// Why a block operation failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BlockError {
    /// The engine has as many operations in flight as it can hold; try again.
    #[error("the block engine is busy")]
    Busy,
    /// The blocks differ from the pieces of a [`BlockOp::Compare`].
    #[error("the blocks hold something else")]
    Miscompare,
    /// The device or file failed, with this errno.
    #[error("block I/O failed with errno {0}")]
    Io(i32),
}

/// Has an engine do something, and waits for it on a thread that may block: an engine that drops the request fails with ECANCELED.
/// `None` if it does not answer for so long; it may still do it.
pub fn wait(
    blocks: &(impl Blocks + ?Sized),
    op: BlockOp,
    at: u64,
    pieces: Vec<Part>,
    most: Duration,
) -> Option<Result<(), BlockError>> {
    let (ended, result) = mpsc::sync_channel(1);
    blocks.submit(BlockRequest { op, at, pieces, tag: 0, done: Arc::new(Waiting(ended)) });
    match result.recv_timeout(most) {
        Ok(result) => Some(result),
        Err(RecvTimeoutError::Disconnected) => Some(Err(BlockError::Io(ECANCELED))),
        Err(RecvTimeoutError::Timeout) => None,
    }
}

const ECANCELED: i32 = 125;

/// Somebody waits for the request.
struct Waiting(mpsc::SyncSender<Result<(), BlockError>>);

impl BlockDone for Waiting {
    fn done(&self, _: u64, pieces: Vec<Part>, result: Result<(), BlockError>) {
        // Before it is told: whoever waits has them alone then.
        drop(pieces);
        // Nobody waits for one that was given up.
        let _ = self.0.send(result);
    }
}
