//! Accesses to blocks, which end when their engine says so.

use std::{
    collections::VecDeque,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

use berth_lease::{BlockDone, BlockError, BlockOp, BlockRequest, Blocks, Held, Op, Refusal, Regions, Span, Storage};
use berth_memory::{Heap, Part};
use berth_port::Nanos;

use crate::{AccessRequest, Failure, Gate, gate::decide};

/// How an access ended: with its buffer, which holds what was read, or what was written.
pub(crate) type Ended = Result<Part, Failure>;

/// Accesses of one connection to blocks, told apart by tags. Dropping this does not stop those under way, nor free
/// their bytes before they ended.
#[derive(Debug, Default)]
pub(crate) struct Accesses(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// By tag, what keeps the leases' bytes from being leased to others while the engine may still touch them.
    held: Vec<(u64, Held)>,
    ended: VecDeque<(u64, Ended)>,
    waker: Option<Waker>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BlockDone for Shared {
    fn done(&self, tag: u64, mut pieces: Vec<Part>, result: Result<(), BlockError>) {
        let mut state = self.lock();
        let held = state.held.iter().position(|(held, _)| *held == tag).map(|at| state.held.swap_remove(at));
        let result = result.and_then(|()| pieces.pop().ok_or(BlockError::Io(0)));
        state.ended.push_back((tag, result.map_err(Failure::from)));
        let waker = state.waker.take();
        drop(state);
        drop(held);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Accesses {
    /// Decides again on an access that [`Gate::read`] or [`Gate::write`] left to the blocks, and starts it at `now`. A
    /// write takes the front of `data`; a read needs none.
    pub(crate) fn start(
        &self,
        gate: &Gate,
        ask: &AccessRequest,
        data: &[u8],
        tag: u64,
        now: Nanos,
    ) -> Result<(), Refusal> {
        let held = gate.table.reader().hold();
        let (blocks, span) = place(&held, ask, &gate.regions, now)?;
        self.0.lock().held.push((tag, held));
        let len = span.len as usize;
        let memory = match ask.access.op {
            Op::Read => Heap::new(len),
            Op::Write => Heap::from(&data[..len]),
        };
        blocks.submit(request(ask.access.op, &span, vec![memory.into()], tag, self.0.clone()));
        Ok(())
    }

    /// One that has ended, if there is any.
    pub(crate) fn next(&self) -> Option<(u64, Ended)> {
        self.0.lock().ended.pop_front()
    }

    /// Ready where there is one that has ended; the task is woken by the next one otherwise.
    pub(crate) fn poll(&self, cx: &Context<'_>) -> Poll<()> {
        let mut state = self.0.lock();
        if !state.ended.is_empty() {
            return Poll::Ready(());
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

/// An access to blocks that a task waits for. Dropping it does not stop the access, nor free the bytes before it ended.
#[derive(Debug)]
pub struct BlockIo(Accesses);

/// Resolves when the access has ended, to its buffer: what was read, or what was written.
impl Future for BlockIo {
    type Output = Result<Part, Failure>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.0.poll(cx) {
            Poll::Ready(()) => self.0.next().map_or(Poll::Pending, |(_, ended)| Poll::Ready(ended)),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl Gate {
    /// Decides again on an access that [`Gate::read`] or [`Gate::write`] left to the blocks, and starts it at `now`. A
    /// write takes the front of `data`; a read needs none.
    pub fn start(&self, ask: &AccessRequest, data: &[u8], now: Nanos) -> Result<BlockIo, Refusal> {
        let accesses = Accesses::default();
        accesses.start(self, ask, data, 0, now)?;
        Ok(BlockIo(accesses))
    }
}

/// Decides under `held`, and says on which blocks.
pub(crate) fn place<'r>(
    held: &Held,
    ask: &AccessRequest,
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
