//! Accesses to blocks, which end when their engine says so.

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

use berth_lease::{BlockDone, BlockError, BlockOp, BlockRequest, Blocks, Held, Op, Refusal, Regions, Span, Storage};
use berth_memory::{Heap, Part};
use berth_port::Nanos;

use crate::{Ask, Failure, Gate, gate::decide};

/// An access to blocks that a task waits for. Dropping it does not stop the access, nor free the bytes before it ended.
#[derive(Debug)]
pub struct BlockIo(Arc<Shared>);

#[derive(Debug)]
struct Shared(Mutex<Under>);

#[derive(Debug)]
struct Under {
    /// Keeps the lease's bytes from being leased to another while the engine may still touch them.
    held: Option<Held>,
    result: Option<Result<Part, Failure>>,
    waker: Option<Waker>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Under> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BlockDone for Shared {
    fn done(&self, _: u64, mut pieces: Vec<Part>, result: Result<(), BlockError>) {
        let mut under = self.lock();
        under.held = None;
        let result = result.and_then(|()| pieces.pop().ok_or(BlockError::Io(0)));
        under.result = Some(result.map_err(Failure::from));
        if let Some(waker) = under.waker.take() {
            drop(under);
            waker.wake();
        }
    }
}

/// Resolves when the access has ended, to its buffer: what was read, or what was written.
impl Future for BlockIo {
    type Output = Result<Part, Failure>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut under = self.0.lock();
        if let Some(result) = under.result.take() {
            return Poll::Ready(result);
        }
        under.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl Gate {
    /// Decides again on an access that [`Gate::read`] or [`Gate::write`] left to the blocks, and starts it at `now`. A write
    /// takes the front of `data`; a read needs none.
    pub fn start(&self, ask: &Ask, data: &[u8], now: Nanos) -> Result<BlockIo, Refusal> {
        let held = self.table.reader().hold();
        let (blocks, span) = place(&held, ask, &self.regions, now)?;
        let shared = Shared(Mutex::new(Under { held: Some(held), result: None, waker: None }));
        let shared = Arc::new(shared);
        let len = span.len as usize;
        let memory = match ask.access.op {
            Op::Read => Heap::new(len),
            Op::Write => Heap::from(&data[..len]),
        };
        blocks.submit(request(ask.access.op, &span, vec![memory.into()], 0, shared.clone()));
        Ok(BlockIo(shared))
    }
}

/// Decides under `held`, and says on which blocks.
pub(crate) fn place<'r>(
    held: &Held,
    ask: &Ask,
    regions: &'r Regions,
    now: Nanos,
) -> Result<(&'r Arc<dyn Blocks>, Span), Refusal> {
    let (region, span) = decide(held.probe(ask.access.key), ask, regions, now)?;
    match &region.storage {
        Storage::Blocks(blocks) => Ok((blocks, span)),
        Storage::Bytes(_) => Err(Refusal::Unknown), // the key has become another lease's meanwhile
    }
}

/// What the engine is asked for.
pub(crate) fn request(op: Op, span: &Span, pieces: Vec<Part>, tag: u64, done: Arc<dyn BlockDone>) -> BlockRequest {
    let op = match op {
        Op::Read => BlockOp::Read,
        Op::Write => BlockOp::Write,
    };
    BlockRequest { op, at: span.at, pieces, tag, done }
}
