//! Instructions that the threads of a warp run together: each waits until all that its mask names are there.

use super::{Block, Grid, thread::State};
use crate::{
    error::FaultKind,
    memory::Memory,
    program::{Op, Warp, WarpKind},
};

/// Lanes of a warp.
const LANES: usize = 32;

impl<M: Memory> Grid<'_, M> {
    /// A thread has come to an instruction of its warp.
    pub(super) fn meet(&mut self, block: &mut Block, at: usize) -> Result<(), FaultKind> {
        let thread = &block.threads[at];
        if let Op::Warp(op) = self.program.code[thread.pc as usize].op {
            let mask = thread.get(op.mask) as u32;
            if mask >> thread.lane & 1 == 0 {
                return Err(FaultKind::NotMember(mask));
            }
            Self::resolve(block, at, op, mask);
        }
        Ok(())
    }

    /// A thread of this warp has ended: nobody waits for it.
    pub(super) fn left_warp(&mut self, block: &mut Block, at: usize) {
        let first = at / LANES * LANES;
        for at in first..block.threads.len().min(first + LANES) {
            let thread = &block.threads[at];
            if let (State::Warp, Op::Warp(op)) = (thread.state, self.program.code[thread.pc as usize].op) {
                let mask = thread.get(op.mask) as u32;
                Self::resolve(block, at, op, mask);
            }
        }
    }

    /// Runs the instruction that thread `at` waits at, if all have come.
    fn resolve(block: &mut Block, at: usize, op: Warp, mask: u32) {
        let first = at / LANES * LANES;
        let end = block.threads.len().min(first + LANES);
        let warp = &mut block.threads[first..end];
        let pc = warp[at - first].pc;
        let mut members = 0_u32;
        for (lane, thread) in warp.iter().enumerate().filter(|(lane, _)| mask >> lane & 1 == 1) {
            match thread.state {
                State::Done => {}
                State::Warp if thread.pc == pc && thread.get(op.mask) as u32 == mask => members |= 1 << lane,
                _ => return,
            }
        }
        let lanes = (0..warp.len()).filter(|lane| members >> lane & 1 == 1);
        let mut values = [0; LANES];
        for lane in lanes.clone() {
            values[lane] = warp[lane].get(op.a);
        }
        for lane in lanes.clone() {
            let thread = &mut warp[lane];
            let (d, p) = result(op.kind, lane as u32, members, &values, thread.get(op.b), thread.get(op.c));
            thread.set(op.d, d);
            thread.set(op.p, p.into());
        }
        for lane in lanes {
            (warp[lane].pc, warp[lane].state) = (pc + 1, State::Ready);
        }
    }
}

/// What a lane gets (PTX ISA: shfl.sync, vote.sync, match.sync, redux.sync).
fn result(kind: WarpKind, lane: u32, members: u32, values: &[u64; LANES], b: u64, c: u64) -> (u64, bool) {
    let of = |lane: u32| values[lane as usize];
    let lanes = || (0..LANES as u32).filter(|lane| members >> lane & 1 == 1);
    let mask = |wanted: &dyn Fn(u64) -> bool| {
        lanes().filter(|lane| wanted(of(*lane))).fold(0_u64, |all, lane| all | 1 << lane)
    };
    let bool = |value: bool| (u64::from(value), value);
    match kind {
        WarpKind::VoteAll => bool(lanes().all(|lane| of(lane) != 0)),
        WarpKind::VoteAny => bool(lanes().any(|lane| of(lane) != 0)),
        WarpKind::VoteUniform => bool(lanes().all(|other| of(other) == of(lane))),
        WarpKind::Ballot => (mask(&|value| value != 0), false),
        WarpKind::MatchAny => (mask(&|value| value == of(lane)), false),
        WarpKind::MatchAll if lanes().all(|other| of(other) == of(lane)) => (members.into(), true),
        WarpKind::MatchAll | WarpKind::Sync => (0, false),
        WarpKind::Reduce(f) => (lanes().map(of).reduce(f).unwrap_or(0), false),
        WarpKind::ShuffleUp | WarpKind::ShuffleDown | WarpKind::ShuffleButterfly | WarpKind::ShuffleIndex => {
            let (by, clamp, segment) = (b as u32 & 31, c as u32 & 31, c as u32 >> 8 & 31);
            let most = lane & segment | clamp & !segment;
            let from = match kind {
                WarpKind::ShuffleUp => lane.wrapping_sub(by),
                WarpKind::ShuffleDown => lane + by,
                WarpKind::ShuffleButterfly => lane ^ by,
                _ => lane & segment | by & !segment,
            };
            let inside = match kind {
                WarpKind::ShuffleUp => from as i32 >= most as i32,
                _ => from <= most,
            };
            // Of a lane that takes no part there is nothing: the own value, as outside of the segment.
            let from = if inside && members >> (from & 31) & 1 == 1 { from } else { lane };
            (of(from), inside)
        }
    }
}
