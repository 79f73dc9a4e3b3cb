//! One thread: its registers, its calls, and the loop that runs it.

use super::{Block, Grid, spaces::aligned};
use crate::{
    alu::convert::narrow,
    error::{Access, FaultKind},
    layout,
    memory::Memory,
    program::{Address, Function, Half, LaneMask, Op, Site, Special},
    types::{Class, Type},
};

/// Most bytes of a thread's stack, and of its registers.
const STACK_MAX: usize = 512 << 10;
const REGISTERS_MAX: usize = 1 << 20;
/// Deepest calls.
const DEPTH_MAX: usize = 4096;

/// What a thread does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum State {
    Ready,
    /// It waits at the barrier, or with its warp, that its `pc` is at.
    Barrier,
    Warp,
    #[default]
    Done,
}

/// Who called: where to go on, with what.
#[derive(Debug, Clone, Copy)]
struct Frame {
    pc: u32,
    function: u32,
    base: usize,
    sp: usize,
    site: u16,
}

#[derive(Debug, Default)]
pub(super) struct Thread {
    /// The step that it is at, or after a fault, the one that did it.
    pub(super) pc: u32,
    pub(super) state: State,
    pub(super) tid: [u32; 3],
    pub(super) lane: u32,
    warp: u32,
    /// Its function's first slot in `registers`, and first byte in `stack`.
    base: usize,
    sp: usize,
    slots: usize,
    frame: usize,
    function: u32,
    registers: Vec<u64>,
    stack: Vec<u8>,
    frames: Vec<Frame>,
    carry: bool,
}

impl Thread {
    pub(super) fn begin(
        &mut self,
        entry: &Function,
        tid: [u32; 3],
        number: u32,
        state_left: &mut usize,
    ) -> Result<(), FaultKind> {
        (self.pc, self.state, self.tid) = (entry.start, State::Ready, tid);
        (self.lane, self.warp) = (number % 32, number / 32);
        (self.base, self.sp, self.carry) = (0, 0, false);
        self.frames.clear();
        self.enter(entry, state_left)
    }

    /// Makes a function's frame, from `base` and `sp` on.
    fn enter(&mut self, function: &Function, state_left: &mut usize) -> Result<(), FaultKind> {
        (self.slots, self.frame) = (function.slots.into(), function.frame as usize);
        let (registers, stack) = (self.base + self.slots, self.sp + self.frame);
        let more = 8 * registers.saturating_sub(self.registers.len()) + stack.saturating_sub(self.stack.len());
        if registers * 8 > REGISTERS_MAX || stack > STACK_MAX || more > *state_left {
            return Err(FaultKind::StackOverflow);
        }
        *state_left -= more;
        if registers > self.registers.len() {
            self.registers.resize(registers, 0);
        }
        if stack > self.stack.len() {
            self.stack.resize(stack, 0);
        }
        if self.frame > 0 {
            self.stack[self.sp..stack].fill(0);
        }
        let slots = &mut self.registers[self.base..registers];
        slots.fill(0);
        for (slot, value) in &function.constants {
            slots[usize::from(*slot)] = *value;
        }
        Ok(())
    }

    /// Bytes of its registers and its stack.
    pub(super) fn bytes(&self) -> usize {
        8 * self.registers.len() + self.stack.len() + size_of::<Frame>() * self.frames.capacity()
    }

    /// The value of a slot of the frame.
    #[inline]
    pub(super) fn get(&self, slot: u16) -> u64 {
        self.registers[self.base + usize::from(slot)]
    }

    #[inline]
    pub(super) fn set(&mut self, slot: u16, value: u64) {
        self.registers[self.base + usize::from(slot)] = value;
    }
}

impl<M: Memory> Grid<'_, M> {
    /// Runs a thread for up to `turn` instructions, or until it waits or ends.
    pub(super) fn run_thread(&mut self, block: &mut Block, at: usize, turn: u64) -> Result<(), FaultKind> {
        let Block { threads, shared, index, .. } = block;
        let thread = &mut threads[at];
        let program = self.program;
        let code = &program.code[..];
        let (mut pc, mut spent) = (thread.pc, 0);
        macro_rules! read {
            ($slot:expr) => {
                thread.registers[thread.base + usize::from($slot)]
            };
        }
        let result = loop {
            if spent >= turn {
                break Ok(State::Ready);
            }
            let step = &code[pc as usize];
            spent += u64::from(step.cost);
            let mut next = pc + 1;
            match step.op {
                Op::Move { d, a } => read!(d) = read!(a),
                Op::Unary { f, d, a } => read!(d) = f(read!(a)),
                Op::Binary { f, d, a, b } => read!(d) = f(read!(a), read!(b)),
                Op::Ternary { f, d, a, b, c } => read!(d) = f(read!(a), read!(b), read!(c)),
                Op::Quaternary { f, d, a, b, c, e } => read!(d) = f(read!(a), read!(b), read!(c), read!(e)),
                Op::Select { d, a, b, p } => read!(d) = if read!(p) == 0 { read!(b) } else { read!(a) },
                Op::Convert { d, a, how } => read!(d) = program.converts[usize::from(how)].apply(read!(a)),
                Op::BranchIf { p, negate, to } => {
                    if (read!(p) != 0) != negate {
                        next = to;
                    }
                }
                Op::Branch { to } => next = to,
                Op::Guard { p, negate, to } => {
                    if (read!(p) != 0) == negate {
                        spent += 1;
                        next = to;
                    }
                }
                Op::Load { d, at: Address { base, space, offset }, ty, count, order } => {
                    let address = read!(base).wrapping_add(offset as u64);
                    let bytes = ty.width.bytes();
                    if let Err(fault) = aligned(space, address, bytes * count, Access::Read) {
                        break Err(fault);
                    }
                    let mut spaces = self.spaces(shared, &mut thread.stack, thread.sp);
                    let mut failed = None;
                    for (lane, d) in d[..usize::from(count)].iter().enumerate() {
                        let address = address + lane as u64 * u64::from(bytes);
                        match spaces.load(space, address, ty.width, order) {
                            Ok(value) if ty.signed => {
                                let from = Type { class: Class::Signed, bits: 8 * bytes };
                                read!(*d) = narrow(value.into(), from, ty.register);
                            }
                            Ok(value) => read!(*d) = value,
                            Err(fault) => failed = failed.or(Some(fault)),
                        }
                    }
                    if let Some(fault) = failed {
                        break Err(fault);
                    }
                }
                Op::Store { a, at: Address { base, space, offset }, width, count, order } => {
                    let address = read!(base).wrapping_add(offset as u64);
                    let bytes = width.bytes();
                    if let Err(fault) = aligned(space, address, bytes * count, Access::Write) {
                        break Err(fault);
                    }
                    let mut spaces = self.spaces(shared, &mut thread.stack, thread.sp);
                    let mut failed = None;
                    for (lane, a) in a[..usize::from(count)].iter().enumerate() {
                        let address = address + lane as u64 * u64::from(bytes);
                        failed = failed.or(spaces.store(space, address, width, read!(*a), order).err());
                    }
                    if let Some(fault) = failed {
                        break Err(fault);
                    }
                }
                Op::Atomic { f, d, a, b, at } => {
                    let at = program.atomics[usize::from(at.0)];
                    let address = read!(at.base).wrapping_add(at.offset as u64);
                    if let Err(fault) = aligned(at.space, address, at.width.bytes(), Access::Atomic) {
                        break Err(fault);
                    }
                    let (a, b) = (read!(a), read!(b));
                    let mut spaces = self.spaces(shared, &mut thread.stack, thread.sp);
                    match spaces.update(at.space, address, at.width, at.order, |old| f(old, a, b)) {
                        Ok(old) => read!(d) = old,
                        Err(fault) => break Err(fault),
                    }
                }
                Op::Special { d, which } => {
                    let value = match which {
                        Special::Thread(axis) => thread.tid[usize::from(axis)].into(),
                        Special::Block(axis) => index[usize::from(axis)].into(),
                        Special::Lane => thread.lane.into(),
                        Special::Warp => thread.warp.into(),
                        Special::LaneMask(which) => lane_mask(which, thread.lane).into(),
                        // Nobody else is known to be at this instruction: that is always true of oneself.
                        Special::ActiveMask => 1 << thread.lane,
                        Special::Clock(half) => of_half(self.executed + spent, half),
                        other => self.common(other),
                    };
                    read!(d) = value;
                }
                Op::Frame { d, offset } => read!(d) = thread.sp as u64 + u64::from(offset),
                Op::Carry { d, a, b, bits, subtract, carry_in, carry_out } => {
                    let b = if subtract { !read!(b) & u64::MAX >> (64 - bits) } else { read!(b) };
                    // As on hardware, the carry of a difference is that of the sum with the complement: no borrow.
                    let carried = if carry_in { thread.carry } else { subtract };
                    let sum = u128::from(read!(a)) + u128::from(b) + u128::from(carried);
                    if carry_out {
                        thread.carry = sum >> bits != 0;
                    }
                    read!(d) = sum as u64 & u64::MAX >> (64 - bits);
                }
                Op::Pack { d, a, parts, bits } => {
                    let all = a[..usize::from(parts)].iter().rev();
                    read!(d) = all.fold(0, |all, part| all << bits | read!(*part));
                }
                Op::Unpack { d, a, parts, bits } => {
                    let all = read!(a);
                    for (part, d) in d[..usize::from(parts)].iter().enumerate() {
                        read!(*d) = all >> (part * usize::from(bits)) & u64::MAX >> (64 - bits);
                    }
                }
                Op::BranchIndex { a, targets } => match program.targets[usize::from(targets)].get(read!(a) as usize) {
                    Some(to) => next = *to,
                    None => break Err(FaultKind::BadBranch(read!(a) as u32)),
                },
                Op::Call { function, site } => match self.call(thread, pc, function, site) {
                    Ok(start) => next = start,
                    Err(fault) => break Err(fault),
                },
                Op::CallIndirect { a, site } => {
                    let address = read!(a);
                    match self.called(address, site).and_then(|function| self.call(thread, pc, function, site)) {
                        Ok(start) => next = start,
                        Err(fault) => break Err(fault),
                    }
                }
                Op::Return => match thread.frames.pop() {
                    None => break Ok(State::Done),
                    Some(frame) => {
                        self.give_back(thread, frame);
                        next = frame.pc + 1;
                    }
                },
                Op::Exit => break Ok(State::Done),
                Op::Trap => break Err(FaultKind::Trap),
                Op::Fence { order } => self.memory.fence(order),
                Op::Barrier(_) => break Ok(State::Barrier),
                Op::Warp(_) => break Ok(State::Warp),
                Op::Sleep { a } => {
                    self.slept = Some(read!(a) as u32);
                    pc = next;
                    break Ok(State::Ready);
                }
                Op::Nothing => {}
            }
            pc = next;
        };
        thread.pc = pc;
        self.executed += spent;
        thread.state = result?;
        Ok(())
    }

    /// What is the same for all threads.
    fn common(&mut self, which: Special) -> u64 {
        let warps = self.launch.block.iter().product::<u32>().div_ceil(32);
        let dynamic = self.launch.shared;
        match which {
            Special::Threads(axis) => self.launch.block[usize::from(axis)].into(),
            Special::Blocks(axis) => self.launch.grid[usize::from(axis)].into(),
            Special::Warps => warps.into(),
            Special::GlobalTimer(half) => of_half(self.host.now(), half),
            Special::DynamicShared => dynamic as u64,
            Special::TotalShared => (self.program.shared + dynamic) as u64,
            Special::One => 1,
            _ => 0,
        }
    }

    /// The function that an indirect call leads to.
    fn called(&self, address: u64, site: u16) -> Result<u32, FaultKind> {
        let index = layout::function_of(address).ok_or(FaultKind::BadCall(address))?;
        let function = self.program.functions.get(index as usize).filter(|function| !function.entry);
        let function = function.ok_or(FaultKind::BadCall(address))?;
        let bytes = |site: &Site| {
            let of = |passed: &[crate::program::Passed]| passed.iter().map(|one| one.bytes).collect::<Vec<_>>();
            (of(&site.params), of(&site.returns))
        };
        // Sizes alone: the same callee may be declared with other types of the same size.
        let (own, other) = (&function.passed, &self.program.sites[usize::from(site)]);
        let same = own.params.len() == other.params.len() && own.returns.len() == other.returns.len();
        if same && bytes(own) == bytes(other) { Ok(index) } else { Err(FaultKind::BadPrototype) }
    }

    /// Enters a function; returns its first step.
    fn call(&mut self, thread: &mut Thread, pc: u32, function: u32, site: u16) -> Result<u32, FaultKind> {
        if thread.frames.len() == DEPTH_MAX {
            return Err(FaultKind::StackOverflow);
        }
        let callee = &self.program.functions[function as usize];
        let (base, sp) = (thread.base, thread.sp);
        thread.frames.push(Frame { pc, function: thread.function, base, sp, site });
        (thread.base, thread.sp, thread.function) = (base + thread.slots, sp + thread.frame, function);
        thread.enter(callee, &mut self.state_left)?;
        for (from, to) in self.program.sites[usize::from(site)].params.iter().zip(&callee.passed.params) {
            let start = sp + from.offset as usize;
            thread.stack.copy_within(start..start + from.bytes as usize, thread.sp + to.offset as usize);
        }
        Ok(callee.start)
    }

    /// Returns to the caller, with what the function returns.
    fn give_back(&self, thread: &mut Thread, frame: Frame) {
        let callee = &self.program.functions[thread.function as usize];
        for (from, to) in callee.passed.returns.iter().zip(&self.program.sites[usize::from(frame.site)].returns) {
            let start = thread.sp + from.offset as usize;
            thread.stack.copy_within(start..start + from.bytes as usize, frame.sp + to.offset as usize);
        }
        (thread.slots, thread.frame) = (thread.base - frame.base, thread.sp - frame.sp);
        (thread.base, thread.sp, thread.function) = (frame.base, frame.sp, frame.function);
    }
}

fn lane_mask(which: LaneMask, lane: u32) -> u32 {
    let own = 1_u32 << lane;
    match which {
        LaneMask::Equal => own,
        LaneMask::Below => own - 1,
        LaneMask::UpTo => own | (own - 1),
        LaneMask::From => !(own - 1),
        LaneMask::Above => !(own | (own - 1)),
    }
}

fn of_half(value: u64, half: Half) -> u64 {
    match half {
        Half::All => value,
        Half::Low => value & 0xFFFF_FFFF,
        Half::High => value >> 32,
    }
}
