//! How long a kernel can take at most, where its text tells.

use std::collections::HashMap;

use crate::program::{Function, Op, Program, Special};

/// Bytes of registers and stack that take as long to set up as an instruction takes to run.
const BYTES: u64 = 16;

impl Program {
    /// The most that a thread of this kernel takes, in instructions: its own, and what setting it up is worth. `None` where
    /// the text does not tell, as there are loops, calls, sleeps or looks at the time in it, or no such kernel.
    pub fn thread_bound(&self, kernel: &str) -> Option<u64> {
        let index = *self.kernels.get(kernel)? as usize;
        let function = &self.functions[index];
        let begin = function.start as usize;
        let end = self.functions.get(index + 1).map_or(self.code.len(), |next| next.start as usize);
        // Of each list of labels the first: many branches may go by the same long one.
        let mut firsts = HashMap::new();
        let mut first = |list: u16| {
            let targets = &self.targets[usize::from(list)];
            *firsts.entry(list).or_insert_with(|| targets.iter().min().copied().unwrap_or(u32::MAX))
        };
        let goes_on = (begin..end).all(|at| match self.code[at].op {
            Op::Guard { to, .. } | Op::Branch { to } | Op::BranchIf { to, .. } => to as usize > at,
            Op::BranchIndex { targets, .. } => first(targets) as usize > at,
            Op::Call { .. }
            | Op::CallIndirect { .. }
            | Op::Sleep { .. }
            | Op::Special { which: Special::GlobalTimer(_), .. } => false,
            _ => true,
        });
        goes_on.then(|| (end - begin) as u64 + 1 + set_up(function) / BYTES)
    }
}

fn set_up(function: &Function) -> u64 {
    u64::from(function.slots) * 8 + u64::from(function.frame)
}
