//! The decoded form: operations on register slots, of all functions in one row.

use std::collections::HashMap;

use crate::{
    alu::{Binary, Quaternary, Ternary, Unary, convert::Convert},
    memory::{Order, Width},
    types::{Space, Type},
};

/// A register, constant or intermediate value of a function, counted in its frame.
pub(crate) type Slot = u16;

/// Where results that nobody wants go: `_`. Each frame has it.
pub(crate) const SINK: Slot = 0;

/// An operation, and how many instructions it counts for: 0 of what only prepares another one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Step {
    pub(crate) op: Op,
    pub(crate) cost: u8,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Op {
    Move {
        d: Slot,
        a: Slot,
    },
    Unary {
        f: Unary,
        d: Slot,
        a: Slot,
    },
    Binary {
        f: Binary,
        d: Slot,
        a: Slot,
        b: Slot,
    },
    Ternary {
        f: Ternary,
        d: Slot,
        a: Slot,
        b: Slot,
        c: Slot,
    },
    Quaternary {
        f: Quaternary,
        d: Slot,
        a: Slot,
        b: Slot,
        c: Slot,
        e: Slot,
    },
    /// `p ? a : b`
    Select {
        d: Slot,
        a: Slot,
        b: Slot,
        p: Slot,
    },
    Convert {
        d: Slot,
        a: Slot,
        how: u16,
    },
    /// `a + b`, or `a - b`, with carries.
    Carry {
        d: Slot,
        a: Slot,
        b: Slot,
        bits: u8,
        subtract: bool,
        carry_in: bool,
        carry_out: bool,
    },
    Special {
        d: Slot,
        which: Special,
    },
    /// The address of what lies in this frame, in the local space.
    Frame {
        d: Slot,
        offset: u32,
    },
    /// Parts of `bits` each, the lowest first, to one, and back.
    Pack {
        d: Slot,
        a: [Slot; 4],
        parts: u8,
        bits: u8,
    },
    Unpack {
        d: [Slot; 4],
        a: Slot,
        parts: u8,
        bits: u8,
    },
    /// Goes on only if `p != negate`, else counts as the instruction that it guards and goes to `to`.
    Guard {
        p: Slot,
        negate: bool,
        to: u32,
    },
    Branch {
        to: u32,
    },
    BranchIf {
        p: Slot,
        negate: bool,
        to: u32,
    },
    BranchIndex {
        a: Slot,
        targets: u16,
    },
    Call {
        function: u32,
        site: u16,
    },
    CallIndirect {
        a: Slot,
        site: u16,
    },
    Return,
    Exit,
    Trap,
    Load {
        d: [Slot; 4],
        at: Address,
        ty: Element,
        count: u8,
        order: Order,
    },
    Store {
        a: [Slot; 4],
        at: Address,
        width: Width,
        count: u8,
        order: Order,
    },
    /// `f(old, a, b)`
    Atomic {
        f: Ternary,
        d: Slot,
        a: Slot,
        b: Slot,
        at: Atomic,
    },
    Fence {
        order: Order,
    },
    Barrier(Barrier),
    Warp(Warp),
    /// Lets others run, for `a` nanoseconds at most.
    Sleep {
        a: Slot,
    },
    Nothing,
}

/// Where an access goes: the register's address and a number.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Address {
    pub(crate) base: Slot,
    pub(crate) space: Place,
    pub(crate) offset: i32,
}

/// The index of an [`AtomicAt`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Atomic(pub(crate) u16);

/// The rest of an atomic.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct AtomicAt {
    pub(crate) base: Slot,
    pub(crate) space: Place,
    pub(crate) offset: i32,
    pub(crate) width: Width,
    pub(crate) order: Order,
}

/// A space, as the interpreter looks for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Generic,
    Global,
    Const,
    Shared,
    Local,
    /// A kernel's parameters.
    Param,
    /// This frame's part of the local space, counted from where it begins.
    Frame,
}

impl Place {
    /// What an operator calls it.
    pub(crate) fn space(self) -> Space {
        match self {
            Self::Generic => Space::Generic,
            Self::Global => Space::Global,
            Self::Const => Space::Const,
            Self::Shared => Space::Shared,
            Self::Local => Space::Local,
            Self::Param | Self::Frame => Space::Param,
        }
    }
}

/// What a load makes of the bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Element {
    pub(crate) width: Width,
    /// Whether the sign is extended to the register's bits.
    pub(crate) signed: bool,
    pub(crate) register: u8,
}

/// Special registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Special {
    Thread(u8),
    Threads(u8),
    Block(u8),
    Blocks(u8),
    Lane,
    Warp,
    Warps,
    LaneMask(LaneMask),
    ActiveMask,
    /// Of the clock: all bits, the low 32, the high 32.
    Clock(Half),
    GlobalTimer(Half),
    DynamicShared,
    TotalShared,
    Zero,
    One,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Half {
    All,
    Low,
    High,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LaneMask {
    Equal,
    Below,
    UpTo,
    From,
    Above,
}

/// A barrier of the block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Barrier {
    pub(crate) id: Slot,
    /// For how many threads; [`SINK`] if for all.
    pub(crate) threads: Slot,
    pub(crate) kind: BarrierKind,
    /// Whether all threads of a warp have to wait at the same instruction.
    pub(crate) aligned: bool,
    /// Result and predicate of a reduction.
    pub(crate) d: Slot,
    pub(crate) a: Slot,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BarrierKind {
    Sync,
    Arrive,
    Count,
    All,
    Any,
}

/// What threads of a warp do together.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Warp {
    pub(crate) kind: WarpKind,
    pub(crate) mask: Slot,
    pub(crate) d: Slot,
    /// The predicate of `shfl` and `match.all`.
    pub(crate) p: Slot,
    pub(crate) a: Slot,
    pub(crate) b: Slot,
    pub(crate) c: Slot,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum WarpKind {
    Sync,
    ShuffleUp,
    ShuffleDown,
    ShuffleButterfly,
    ShuffleIndex,
    VoteAll,
    VoteAny,
    VoteUniform,
    Ballot,
    MatchAny,
    MatchAll,
    /// `redux`
    Reduce(Binary),
}

/// Where a value that is passed lies in a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Passed {
    pub(crate) offset: u32,
    pub(crate) bytes: u32,
}

/// A call: what of the caller's frame is copied, both ways.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Site {
    pub(crate) params: Vec<Passed>,
    pub(crate) returns: Vec<Passed>,
}

/// A parameter of a kernel or a function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameter {
    /// Its name.
    pub name: String,
    /// The type, or that of the elements of an array.
    pub ty: Type,
    /// Whether it is an array, as structures are.
    pub array: bool,
    /// Where it begins in the block of parameters, of a kernel.
    pub offset: usize,
    /// How many bytes it takes.
    pub bytes: usize,
}

/// A kernel or a function that is defined.
#[derive(Debug, Clone, Default)]
pub(crate) struct Function {
    pub(crate) name: String,
    /// Which of the modules that were linked it is from.
    pub(crate) module: usize,
    pub(crate) entry: bool,
    pub(crate) start: u32,
    /// How many slots a frame has.
    pub(crate) slots: u16,
    pub(crate) constants: Vec<(Slot, u64)>,
    /// How many bytes of the local space a frame has.
    pub(crate) frame: u32,
    /// Of a function: what it takes and returns, in its frame.
    pub(crate) passed: Site,
    /// Of a kernel.
    pub(crate) parameters: Vec<Parameter>,
}

/// Modules that are linked, and decoded.
#[derive(Debug, Default)]
pub struct Program {
    pub(crate) code: Vec<Step>,
    /// The line of each step.
    pub(crate) lines: Vec<u32>,
    pub(crate) functions: Vec<Function>,
    pub(crate) sites: Vec<Site>,
    pub(crate) targets: Vec<Vec<u32>>,
    pub(crate) converts: Vec<Convert>,
    pub(crate) atomics: Vec<AtomicAt>,
    pub(crate) kernels: HashMap<String, u32>,
    /// Variables outside of functions: their first bytes, and from where on they are constant.
    pub(crate) image: Vec<u8>,
    pub(crate) constant: usize,
    /// How many bytes of shared memory a block has, not counting what the launch adds.
    pub(crate) shared: usize,
}

impl Program {
    /// The names of all kernels, sorted.
    pub fn kernels(&self) -> Vec<&str> {
        let mut names: Vec<_> = self.kernels.keys().map(String::as_str).collect();
        names.sort_unstable();
        names
    }

    /// The parameters of a kernel in their order; `None` if there is no such kernel.
    pub fn parameters(&self, kernel: &str) -> Option<&[Parameter]> {
        self.kernels.get(kernel).map(|index| self.functions[*index as usize].parameters.as_slice())
    }

    /// How many bytes of static shared memory a block has.
    pub fn shared_bytes(&self) -> usize {
        self.shared
    }

    /// Bytes of the variables outside of functions, shared ones not included.
    pub fn variable_bytes(&self) -> usize {
        self.image.len()
    }

    /// The function that a step belongs to.
    pub(crate) fn function_at(&self, pc: u32) -> Option<&Function> {
        let after = self.functions.partition_point(|function| function.start <= pc);
        self.functions[..after].last()
    }
}
