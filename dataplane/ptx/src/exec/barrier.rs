//! Barriers of a block (PTX ISA: bar). Threads that have ended count as arrived.

use super::{Block, Grid, thread};
use crate::{
    error::FaultKind,
    memory::Memory,
    program::{BarrierKind, Op, SINK},
};

/// Who has come to one of the 16 barriers.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct State {
    arrived: usize,
    /// For how many threads it is; 0 for all.
    expected: usize,
    /// Of reductions: how many took part, and of how many the predicate was true.
    predicates: usize,
    set: usize,
}

type Blamed = (usize, FaultKind);

impl<M: Memory> Grid<'_, M> {
    /// A thread has come to a barrier.
    pub(super) fn arrive(&mut self, block: &mut Block, at: usize) -> Result<(), Blamed> {
        let thread = &mut block.threads[at];
        let Op::Barrier(op) = self.program.code[thread.pc as usize].op else { return Ok(()) };
        let id = thread.get(op.id) as u32;
        let threads = if op.threads == SINK { 0 } else { thread.get(op.threads) as u32 };
        let most = self.launch.block.iter().product::<u32>().next_multiple_of(32);
        if id > 15 || threads % 32 != 0 || threads > most || op.threads != SINK && threads == 0 {
            return Err((at, FaultKind::BadBarrier { barrier: id, threads }));
        }
        let barrier = &mut block.barriers[id as usize];
        barrier.arrived += 1;
        barrier.expected = threads as usize;
        if !matches!(op.kind, BarrierKind::Sync | BarrierKind::Arrive) {
            barrier.predicates += 1;
            barrier.set += usize::from(thread.get(op.a) != 0);
        }
        if op.kind == BarrierKind::Arrive {
            thread.state = thread::State::Ready;
            thread.pc += 1;
        }
        self.open(block, id)
    }

    /// A thread has ended: whom it kept waiting may go on.
    pub(super) fn left(&mut self, block: &mut Block, at: usize) -> Result<(), Blamed> {
        self.left_warp(block, at);
        (0..16).try_for_each(|id| self.open(block, id))
    }

    /// Lets the threads at a barrier go if all have come.
    fn open(&mut self, block: &mut Block, id: u32) -> Result<(), Blamed> {
        let barrier = block.barriers[id as usize];
        if barrier.arrived == 0 {
            return Ok(());
        }
        // A warp that is not full counts as a whole one.
        let expected = if barrier.expected == 0 { block.live } else { barrier.expected.min(block.live) };
        if barrier.arrived < expected {
            return Ok(());
        }
        block.barriers[id as usize] = State::default();
        // The step at which the first thread of the warp that is looked at waits.
        let mut first = None;
        for (at, thread) in block.threads.iter_mut().enumerate() {
            if at % 32 == 0 {
                first = None;
            }
            let Op::Barrier(op) = self.program.code[thread.pc as usize].op else { continue };
            if thread.state != thread::State::Barrier || thread.get(op.id) as u32 != id {
                continue;
            }
            if op.aligned && *first.get_or_insert(thread.pc) != thread.pc {
                return Err((at, FaultKind::Divergent));
            }
            let result = match op.kind {
                BarrierKind::Count => barrier.set as u64,
                BarrierKind::All => u64::from(barrier.set == barrier.predicates),
                BarrierKind::Any => u64::from(barrier.set > 0),
                BarrierKind::Sync | BarrierKind::Arrive => 0,
            };
            thread.set(op.d, result);
            (thread.pc, thread.state) = (thread.pc + 1, thread::State::Ready);
        }
        Ok(())
    }
}
