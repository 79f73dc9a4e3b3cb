//! Why a text is not loaded, and why a kernel stopped.

use std::fmt;

use crate::types::Space;

/// Longest part of a statement that an error repeats.
const TEXT_MAX: usize = 120;

/// A mistake in PTX text, or something that the software GPU does not cover.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct LoadError {
    /// Which of the modules that are linked, from 0.
    pub module: usize,
    /// The line, from 1.
    pub line: u32,
    /// The statement, at most 120 bytes of it; empty where the mistake is not in one.
    pub text: String,
    /// What is wrong with it.
    pub reason: Reason,
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.reason)?;
        if self.text.is_empty() { Ok(()) } else { write!(f, ": {}", self.text) }
    }
}

impl LoadError {
    pub(crate) fn new(line: u32, text: &str, reason: Reason) -> Self {
        let end = (0..=text.len().min(TEXT_MAX)).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        let words: Vec<_> = text[..end].split_ascii_whitespace().collect();
        Self { module: 0, line, text: words.join(" "), reason }
    }
}

/// What is wrong with a statement.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// It is no PTX.
    #[error("{0}")]
    Syntax(String),
    /// It is PTX that the software GPU does not cover.
    #[error("not covered by the software GPU: {0}")]
    Unsupported(String),
    /// Operands of a wrong type, size or kind.
    #[error("{0}")]
    Operand(String),
    /// A name that nothing declares.
    #[error("{0:?} is not declared")]
    Undeclared(String),
    /// A name that is declared twice.
    #[error("{0:?} is declared twice")]
    Doubled(String),
    /// An `.extern` that no module defines.
    #[error("{0:?} is declared as extern and no module defines it")]
    Missing(String),
    /// A call, or a declaration, whose parameters are not those of the definition.
    #[error("{0:?} is not called as it is declared: {1}")]
    Prototype(String, String),
    /// A limit of the software GPU is exceeded.
    #[error("{0}")]
    TooLarge(String),
}

/// Why a kernel stopped: who, where, and what happened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "block ({}, {}, {}), thread ({}, {}, {}), {function}, line {line}: {kind}",
    block[0], block[1], block[2], thread[0], thread[1], thread[2]
)]
pub struct Fault {
    /// `%ctaid`
    pub block: [u32; 3],
    /// `%tid`
    pub thread: [u32; 3],
    /// Which of the modules that were linked, from 0.
    pub module: usize,
    /// The function that the thread was in.
    pub function: String,
    /// The line of its module's text, from 1.
    pub line: u32,
    /// What happened.
    pub kind: FaultKind,
}

/// What a thread did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FaultKind {
    /// An access to what the kernel may not touch.
    #[error("{access} of {bytes} bytes at {address:#x} ({space}), which the kernel may not touch")]
    OutOfBounds {
        /// `read`, `write` or `atomic`
        access: Access,
        /// The address as the instruction has it.
        address: u64,
        /// Bytes of the access; of a vector, those of one element.
        bytes: u8,
        /// The space that the instruction names.
        space: Space,
    },
    /// An address that is not a multiple of the size of the access.
    #[error("{access} of {bytes} bytes at {address:#x} ({space}), which is not aligned to them")]
    Misaligned {
        /// `read`, `write` or `atomic`
        access: Access,
        /// The address as the instruction has it.
        address: u64,
        /// How many bytes, of all elements of a vector.
        bytes: u8,
        /// The space that the instruction names.
        space: Space,
    },
    /// `trap`, `brkpt`
    #[error("the kernel trapped")]
    Trap,
    /// A barrier, or an instruction of a warp, that the others of its threads will never meet.
    #[error("waits at a barrier or for its warp, and the others never come")]
    Divergent,
    /// A barrier number above 15, or a number of threads that is no multiple of 32 or more than there are.
    #[error("a barrier {barrier} for {threads} threads, which there cannot be")]
    BadBarrier {
        /// Number of the barrier, as the instruction says.
        barrier: u32,
        /// Number of threads, as the instruction says.
        threads: u32,
    },
    /// `shfl.sync` and its like by a thread that its mask does not name.
    #[error("the member mask {0:#x} does not name this thread")]
    NotMember(u32),
    /// More instructions than the launch may run.
    #[error("the launch ran all instructions that it may run")]
    OutOfFuel,
    /// The caller stopped it.
    #[error("the launch was stopped")]
    Stopped,
    /// Calls too deep: over 4096, or over what the registers and stack of a thread or launch may take.
    #[error("the stack of calls is too deep")]
    StackOverflow,
    /// An indirect call of what is no function.
    #[error("a call of {0:#x}, which is no function")]
    BadCall(u64),
    /// An indirect call of a function with other parameters than the prototype's.
    #[error("an indirect call of a function that has other parameters than the prototype")]
    BadPrototype,
    /// `brx.idx` beyond its targets.
    #[error("a branch to target {0}, which the list does not have")]
    BadBranch(u32),
}

/// What an access does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Loads.
    Read,
    /// Stores.
    Write,
    /// Read-modify-write.
    Atomic,
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "a read",
            Self::Write => "a write",
            Self::Atomic => "an atomic",
        })
    }
}

/// Why a launch did not begin.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LaunchError {
    /// No such kernel.
    #[error("no kernel {0:?}")]
    NoKernel(String),
    /// A grid, a block or an amount of memory that the device does not run.
    #[error("{0}")]
    Shape(String),
    /// Arguments of another size than the kernel's parameters.
    #[error("the parameters take {expected} bytes, {given} are given")]
    Arguments {
        /// Bytes of the kernel's parameters, up to the end of the last one.
        expected: usize,
        /// Bytes that the launch gives.
        given: usize,
    },
    /// It began, and a thread did what it must not.
    #[error(transparent)]
    Fault(#[from] Fault),
}
