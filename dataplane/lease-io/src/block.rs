//! Accesses to blocks, or to memory behind an engine, which end when the engine says so.

use std::{
    collections::VecDeque,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

use berth_lease::{BlockDone, BlockError, BlockOp, BlockRequest, Blocks, Held, Op, Reader, Refusal, Span, Storage};
use berth_memory::{Heap, Part};
use berth_port::Nanos;

use crate::{AccessRequest, Buffers, Failure, Gate, Pool};

/// How an access ended: with its buffers, which hold what was read, or what was written.
#[derive(Debug)]
pub struct Ended {
    /// The tag that it was started with.
    pub tag: u64,
    /// Those that it was started with.
    pub buffers: Buffers,
    /// Why it was not done, if it was not; what its range holds after a failed write is unknown.
    pub result: Result<(), BlockError>,
}

/// Accesses of one connection to blocks, told apart by tags. Dropping this does not stop those under way, nor free
/// their bytes before they ended.
#[derive(Debug, Default)]
pub struct Accesses(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared(Mutex<State>);

/// Lists that keep their room, so that an access allocates nothing once so many have been under way.
#[derive(Debug, Default)]
struct State {
    under_way: Vec<UnderWay>,
    /// Of accesses that have ended.
    readers: Vec<Reader>,
    ended: VecDeque<Ended>,
    waker: Option<Waker>,
}

#[derive(Debug)]
struct UnderWay {
    tag: u64,
    /// What keeps the lease's bytes from being leased to others while the engine may still touch them.
    held: Held,
    /// Where the pieces go back to.
    pool: Option<Arc<Pool>>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BlockDone for Shared {
    fn done(&self, tag: u64, pieces: Vec<Part>, result: Result<(), BlockError>) {
        let mut state = self.lock();
        let Some(at) = state.under_way.iter().position(|one| one.tag == tag) else { return };
        let UnderWay { tag, held, pool } = state.under_way.swap_remove(at);
        state.readers.push(held.end());
        state.ended.push_back(Ended { tag, buffers: Buffers { pieces, pool }, result });
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Accesses {
    /// Decides again on an access that `gate` left to the blocks, and starts `op` at `now`. Its data lies in `buffers`,
    /// which stay empty until it has ended, unless it is refused.
    pub fn start(
        &self,
        gate: &Gate,
        ask: &AccessRequest,
        op: BlockOp,
        buffers: &mut Buffers,
        tag: u64,
        now: Nanos,
    ) -> Result<(), Refusal> {
        let reader = self.0.lock().readers.pop().unwrap_or_else(|| gate.table.reader());
        let held = reader.hold();
        let (blocks, span) = match gate.place(&held, ask, now) {
            Ok(placed) => placed,
            Err(refusal) => {
                self.0.lock().readers.push(held.end());
                return Err(refusal);
            }
        };
        let (pieces, pool) = (std::mem::take(&mut buffers.pieces), buffers.pool.take());
        self.0.lock().under_way.push(UnderWay { tag, held, pool });
        blocks.submit(BlockRequest { op, at: span.at, pieces, tag, done: self.0.clone() });
        Ok(())
    }

    /// The access that ended first of those not taken yet.
    pub fn next(&self) -> Option<Ended> {
        self.0.lock().ended.pop_front()
    }

    /// Ready where there is one that has ended; the task is woken by the next one otherwise.
    pub fn poll(&self, cx: &Context<'_>) -> Poll<()> {
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
            Poll::Ready(()) => self.0.next().map_or(Poll::Pending, |ended| Poll::Ready(ended.into_part())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl Ended {
    /// The one piece of an access that was started with one.
    pub(crate) fn into_part(mut self) -> Result<Part, Failure> {
        self.result?;
        self.buffers.pieces.pop().ok_or(Failure::Storage)
    }
}

impl Gate {
    /// Decides again on an access that [`Gate::read`] or [`Gate::write`] left to the blocks, and starts it at `now`. A
    /// write takes the front of `data`; a read needs none.
    pub fn start(&self, ask: &AccessRequest, data: &[u8], now: Nanos) -> Result<BlockIo, Refusal> {
        let accesses = Accesses::default();
        self.start_copied(&accesses, ask, data, 0, now)?;
        Ok(BlockIo(accesses))
    }

    /// The same, among `accesses`. Only after one of them: no more is allocated than the lease allows.
    pub(crate) fn start_copied(
        &self,
        accesses: &Accesses,
        ask: &AccessRequest,
        data: &[u8],
        tag: u64,
        now: Nanos,
    ) -> Result<(), Refusal> {
        let len = ask.access.len as usize;
        let (op, memory) = match ask.access.op {
            Op::Read => (BlockOp::Read, Heap::new(len)),
            Op::Write => (BlockOp::Write, Heap::from(&data[..len])),
        };
        accesses.start(self, ask, op, &mut Part::from(memory).into(), tag, now)
    }

    /// Decides under `held`, and says on which blocks.
    pub(crate) fn place(
        &self,
        held: &Held,
        ask: &AccessRequest,
        now: Nanos,
    ) -> Result<(&Arc<dyn Blocks>, Span), Refusal> {
        let (region, span) = self.decide(held.probe(ask.access.key), ask, now)?;
        match &region.storage {
            Storage::Blocks(blocks) => Ok((blocks, span)),
            Storage::Bytes(_) => Err(Refusal::Unknown), // the key has become another lease's meanwhile
        }
    }
}
