//! Work on leased bytes that the node asks for: zeroing new leases, copying between leases.

use std::{
    future::poll_fn,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use berth_fabric::{Deadline, Ending, Job, WorkFailed};
use berth_lease::{
    BlockDone, BlockError, BlockOp, BlockRequest, Blocks, Quiescence, RegionId, Regions, Span, Storage, Table,
};
use berth_memory::{Heap, Memory as _, Part};
use berth_stream::Shares;
use tokio::{
    sync::oneshot,
    task::yield_now,
    time::{interval, sleep},
};

use crate::clock::Clock;

/// Bytes of memory worked on before other tasks get their turn: some tens of microseconds.
const PIECE: u64 = 256 << 10;

/// Bytes of blocks zeroed by one operation, and those of a GPU's memory, which is zeroed in no time.
const BLOCK_PIECE: u64 = 1 << 20;
const VRAM_PIECE: u64 = 64 << 20;

/// Time to wait before trying a busy block engine again.
const BUSY: Duration = Duration::from_millis(1);

/// Waits until nobody acts on earlier answers of the table.
pub(crate) async fn quiet(mut quiescence: Quiescence) {
    // Guards of memory accesses are gone within microseconds, those of block accesses within a device's time.
    for _ in 0..64 {
        if quiescence.is_over() {
            return;
        }
        yield_now().await;
    }
    let mut ticks = interval(Duration::from_millis(1));
    while !quiescence.is_over() {
        ticks.tick().await;
    }
}

/// Waits until an ending is over.
pub(crate) async fn ended(ending: &Ending) {
    poll_fn(|context| ending.poll_over(context)).await;
}

/// Does the work on leased bytes, in small pieces. A presenter has one piece under way at a time, however many works it
/// has; and there is one piece in memory at a time, whoever asks. Operations of others therefore wait for one piece at
/// most, and works for one piece of each other presenter.
#[derive(Debug)]
pub(crate) struct Worker {
    regions: Regions,
    table: Table,
    clock: Clock,
    /// Turns for pieces, by presenter.
    turns: Arc<Shares<u128>>,
    /// Turns for pieces of memory.
    memory: Arc<Shares<u128>>,
    /// For each region.
    flushes: Vec<Flushes>,
}

impl Worker {
    pub(crate) fn new(regions: Regions, table: Table, clock: Clock) -> Self {
        let flushes = regions.iter().map(|_| Flushes::default()).collect();
        let (turns, memory) = (Shares::new(usize::MAX, 1), Shares::new(1, 1));
        Self { regions, table, clock, turns, memory, flushes }
    }

    /// Does the jobs of a presenter in order, until the deadline.
    pub(crate) async fn work(&self, jobs: &[Job], deadline: &Deadline, presenter: u128) -> Result<(), WorkFailed> {
        for job in jobs {
            match *job {
                Job::Zero(span) => self.zero_all(span, deadline, presenter).await?,
                Job::Copy(from, to) => self.copy_all(from, to, deadline, presenter).await?,
                Job::Flush(region) => self.flush(region).await?,
            }
        }
        Ok(())
    }

    async fn zero_all(&self, span: Span, deadline: &Deadline, presenter: u128) -> Result<(), WorkFailed> {
        let storage = self.storage(span.region);
        let len = match storage {
            Storage::Bytes(_) => PIECE,
            Storage::Blocks(_) if storage.is_volatile() => VRAM_PIECE,
            Storage::Blocks(_) => BLOCK_PIECE,
        };
        for piece in pieces(span, len) {
            let turn = self.turns.enter(presenter).await;
            // Nobody else has these bytes before the work is over, whatever becomes of the lease.
            self.in_time(deadline)?;
            match storage {
                Storage::Bytes(bytes) => {
                    let _alone = self.memory.enter(presenter).await;
                    bytes.zero(piece.at, piece.len);
                }
                Storage::Blocks(blocks) => patiently(blocks, BlockOp::Zero(piece.len), piece.at).await?,
            }
            drop(turn);
            yield_now().await;
        }
        Ok(())
    }

    async fn copy_all(&self, from: Span, to: Span, deadline: &Deadline, presenter: u128) -> Result<(), WorkFailed> {
        let mut reader = self.table.reader();
        let mut buffer = Arc::new(Heap::new(0));
        for (from, to) in pieces(from, PIECE).zip(pieces(to, PIECE)) {
            let turn = self.turns.enter(presenter).await;
            loop {
                // The end of either lease waits for this guard, and the deadline tells of an end from before it.
                let held = reader.hold();
                self.in_time(deadline)?;
                let copied = self.copy(from, to, buffer, presenter).await;
                reader = held.end();
                match copied {
                    Ok(back) => {
                        buffer = back;
                        break;
                    }
                    Err(BlockError::Busy) => buffer = Arc::new(Heap::new(0)),
                    Err(BlockError::Io(_) | BlockError::Miscompare) => return Err(WorkFailed),
                }
                sleep(BUSY).await;
            }
            drop(turn);
            yield_now().await;
        }
        Ok(())
    }

    fn in_time(&self, deadline: &Deadline) -> Result<(), WorkFailed> {
        if deadline.is_over(self.clock.mono()) { Err(WorkFailed) } else { Ok(()) }
    }

    fn storage(&self, region: RegionId) -> &Storage {
        &self.regions.get(region).expect("the node has the same regions").storage
    }

    /// Copies a piece through `buffer`, or through a new one if that has another length.
    async fn copy(
        &self,
        from: Span,
        to: Span,
        mut buffer: Arc<Heap>,
        presenter: u128,
    ) -> Result<Arc<Heap>, BlockError> {
        if buffer.size() as u64 != from.len {
            buffer = Arc::new(Heap::new(from.len as usize));
        }
        match self.storage(from.region) {
            Storage::Bytes(bytes) => {
                let _alone = self.memory.enter(presenter).await;
                bytes.read(from.at, alone(&mut buffer)?);
            }
            Storage::Blocks(blocks) => submit(blocks, BlockOp::Read, from.at, Some(buffer.clone())).await?,
        }
        match self.storage(to.region) {
            Storage::Bytes(bytes) => {
                let _alone = self.memory.enter(presenter).await;
                bytes.write(to.at, alone(&mut buffer)?);
            }
            Storage::Blocks(blocks) => submit(blocks, BlockOp::Write, to.at, Some(buffer.clone())).await?,
        }
        Ok(buffer)
    }

    async fn flush(&self, region: RegionId) -> Result<(), WorkFailed> {
        let Storage::Blocks(blocks) = self.storage(region) else { return Ok(()) };
        self.flushes[usize::from(region.0)].flush(blocks).await
    }
}

/// The bytes of a buffer that no engine holds.
fn alone(buffer: &mut Arc<Heap>) -> Result<&mut [u8], BlockError> {
    Arc::get_mut(buffer).map(Heap::as_mut).ok_or(BlockError::Busy)
}

fn pieces(span: Span, len: u64) -> impl Iterator<Item = Span> {
    (0..span.len).step_by(len as usize).map(move |done| Span {
        region: span.region,
        at: span.at + done,
        len: len.min(span.len - done),
    })
}

/// Flushes of a region: one serves all who ask before it begins.
#[derive(Debug, Default)]
struct Flushes {
    asked: AtomicU64,
    ended: tokio::sync::Mutex<Flushed>,
}

/// Numbers of requests served.
#[derive(Debug, Default)]
struct Flushed {
    to: u64,
    /// A failed flush may have lost what the requests up to here wrote, and the next flush would not report it.
    failed_to: u64,
}

impl Flushes {
    async fn flush(&self, blocks: &Arc<dyn Blocks>) -> Result<(), WorkFailed> {
        let number = self.asked.fetch_add(1, SeqCst) + 1;
        let mut ended = self.ended.lock().await;
        if number > ended.to {
            let to = self.asked.load(SeqCst);
            let done = patiently(blocks, BlockOp::Flush, 0).await;
            ended.to = to;
            if done.is_err() {
                ended.failed_to = to;
            }
        }
        if number > ended.failed_to { Ok(()) } else { Err(WorkFailed) }
    }
}

/// Waits for one block operation.
struct Waiting(Mutex<Option<oneshot::Sender<Result<(), BlockError>>>>);

impl BlockDone for Waiting {
    fn done(&self, _: u64, pieces: Vec<Part>, result: Result<(), BlockError>) {
        // Whoever waits has the buffer alone again.
        drop(pieces);
        if let Some(waiting) = self.0.lock().unwrap_or_else(PoisonError::into_inner).take() {
            // Nobody waits where the node is stopping.
            let _ = waiting.send(result);
        }
    }
}

/// Runs one block operation, on all of a buffer if it needs one.
async fn submit(blocks: &Arc<dyn Blocks>, op: BlockOp, at: u64, buffer: Option<Arc<Heap>>) -> Result<(), BlockError> {
    let (sender, ended) = oneshot::channel();
    let done = Arc::new(Waiting(Mutex::new(Some(sender))));
    blocks.submit(BlockRequest { op, at, pieces: buffer.into_iter().map(Part::from).collect(), tag: 0, done });
    // An engine that drops a request has stopped.
    ended.await.unwrap_or(Err(BlockError::Io(0)))
}

/// Runs one block operation without a buffer; retries as long as the engine is busy.
async fn patiently(blocks: &Arc<dyn Blocks>, op: BlockOp, at: u64) -> Result<(), WorkFailed> {
    loop {
        match submit(blocks, op, at, None).await {
            Ok(()) => return Ok(()),
            Err(BlockError::Busy) => sleep(BUSY).await,
            Err(BlockError::Io(_) | BlockError::Miscompare) => return Err(WorkFailed),
        }
    }
}
