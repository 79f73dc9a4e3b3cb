//! Work on leased bytes that the node asks for: zeroing new leases, copying between leases.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use berth_fabric::{Job, WorkFailed};
use berth_lease::{BlockDone, BlockError, BlockOp, BlockRequest, Blocks, Quiescence, Regions, Span, Storage};
use tokio::{
    sync::oneshot,
    task::yield_now,
    time::{interval, sleep},
};

/// Bytes that are worked on before other tasks get their turn.
const PIECE: u64 = 1 << 20;

/// How long to wait before asking a busy block engine again.
const BUSY: Duration = Duration::from_millis(1);

/// Waits until nobody acts any more on what the table said before.
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

/// Does the jobs in order.
pub(crate) async fn work(jobs: &[Job], regions: &Regions) -> Result<(), WorkFailed> {
    for job in jobs {
        match *job {
            Job::Zero(span) => {
                for piece in pieces(span) {
                    zero(piece, regions).await?;
                    yield_now().await;
                }
            }
            Job::Copy(from, to) => {
                for (from, to) in pieces(from).zip(pieces(to)) {
                    let bytes = read(from, regions).await?;
                    write(to, bytes, regions).await?;
                    yield_now().await;
                }
            }
        }
    }
    Ok(())
}

fn pieces(span: Span) -> impl Iterator<Item = Span> {
    (0..span.len).step_by(PIECE as usize).map(move |done| Span {
        region: span.region,
        at: span.at + done,
        len: PIECE.min(span.len - done),
    })
}

fn storage(span: Span, regions: &Regions) -> Result<&Storage, WorkFailed> {
    regions.get(span.region).map(|region| &region.storage).ok_or(WorkFailed)
}

async fn zero(span: Span, regions: &Regions) -> Result<(), WorkFailed> {
    match storage(span, regions)? {
        Storage::Bytes(bytes) => bytes.zero(span.at, span.len),
        Storage::Blocks(blocks) => drop(submit(blocks, BlockOp::Zero(span.len), span.at, Box::default()).await?),
    }
    Ok(())
}

async fn read(span: Span, regions: &Regions) -> Result<Box<[u8]>, WorkFailed> {
    let mut buffer = vec![0; span.len as usize].into_boxed_slice();
    match storage(span, regions)? {
        Storage::Bytes(bytes) => {
            bytes.read(span.at, &mut buffer);
            Ok(buffer)
        }
        Storage::Blocks(blocks) => submit(blocks, BlockOp::Read, span.at, buffer).await,
    }
}

async fn write(span: Span, data: Box<[u8]>, regions: &Regions) -> Result<(), WorkFailed> {
    match storage(span, regions)? {
        Storage::Bytes(bytes) => bytes.write(span.at, &data),
        Storage::Blocks(blocks) => drop(submit(blocks, BlockOp::Write, span.at, data).await?),
    }
    Ok(())
}

/// How a block operation ended, and its buffer.
type Ended = (Box<[u8]>, Result<(), BlockError>);

/// Whoever waits for one block operation.
struct Waiting(Mutex<Option<oneshot::Sender<Ended>>>);

impl BlockDone for Waiting {
    fn done(&self, _: u64, buffer: Box<[u8]>, result: Result<(), BlockError>) {
        if let Some(waiting) = self.0.lock().unwrap_or_else(PoisonError::into_inner).take() {
            // Nobody waits where the node is stopping.
            let _ = waiting.send((buffer, result));
        }
    }
}

/// One block operation; returns its buffer. Waits as long as the engine is busy.
async fn submit(
    blocks: &Arc<dyn Blocks>,
    op: BlockOp,
    at: u64,
    mut buffer: Box<[u8]>,
) -> Result<Box<[u8]>, WorkFailed> {
    loop {
        let (sender, ended) = oneshot::channel();
        let done = Arc::new(Waiting(Mutex::new(Some(sender))));
        blocks.submit(BlockRequest { op, at, buffer, tag: 0, done });
        match ended.await.map_err(|_| WorkFailed)? {
            (buffer, Ok(())) => return Ok(buffer),
            (back, Err(BlockError::Busy)) => buffer = back,
            (_, Err(BlockError::Io(_))) => return Err(WorkFailed),
        }
        sleep(BUSY).await;
    }
}
