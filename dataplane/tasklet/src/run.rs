//! A run: its limits, and how it went; and what executes it.

use std::{fmt::Debug, sync::Arc, time::Duration};

use crate::hostcall::Hostcalls;

/// Longest time that guest code runs before [`Hostcalls::turn`] is asked (T12).
pub const SLICE: Duration = Duration::from_millis(10);

/// Limits of a run, literal: 0 means none of it (T4). Its wall time is the host's: [`Hostcalls::turn`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Units, of the table of T4.
    pub fuel: u64,
    /// Bytes of linear memory.
    pub memory: u64,
    /// Bytes of output; more ends the run with [`Status::OutOfMemory`].
    pub output: u64,
    /// Hostcalls; one more ends the run with [`Status::HostcallLimit`].
    pub hostcalls: u64,
}

/// How a run went (T2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// It returned an output.
    Ok = 0,
    /// It used its fuel.
    FuelExhausted = 3,
    /// It grew over its memory, or returned more than its output.
    OutOfMemory = 4,
    /// Any other trap, the tasklet's own failure, or it was stopped.
    ExecFailed = 5,
    /// It made one call too many.
    HostcallLimit = 6,
}

/// What a run left behind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// How it went; as a u8 the status that the wire carries (T2).
    pub status: Status,
    /// Empty unless [`Status::Ok`], or the tasklet failed by itself (T5).
    pub output: Vec<u8>,
    /// Units used.
    pub fuel: u64,
    /// Calls made.
    pub hostcalls: u64,
    /// Why the run was not OK: limit and value, trap and function.
    pub reason: Option<String>,
}

/// Why a module is refused (T1, T5), with a sentence for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rejected {
    /// Not valid, without an export, with an unknown import or a wrong signature, or too much to compile: status 1.
    Invalid(String),
    /// It imports a `fabricbios_<name>_v<N>`, N > 0: status 7.
    UnsupportedProfile(String),
}

/// Compiles modules.
pub trait Executor: Debug + Send + Sync {
    /// Takes up to 10 s (T9).
    ///
    /// # Errors
    /// Why the module never runs here.
    fn compile(&self, wasm: &[u8]) -> Result<Arc<dyn Module>, Rejected>;

    /// Its processes, if runs have some of their own; else all counts are 0.
    fn processes(&self) -> Processes {
        Processes::default()
    }
}

/// Processes that ran tasklets, since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Processes {
    /// Started.
    pub started: u64,
    /// Ended by themselves, or by somebody else.
    pub lost: u64,
    /// Killed, since a run was to stop and did not, or what they said was no message.
    pub killed: u64,
    /// Each has a cgroup of its own; else turns by time are all that shares the cores out (T12).
    pub cgroup: bool,
}

/// A compiled module; each run is a fresh instance of it.
pub trait Module: Debug + Send + Sync {
    /// Bytes that it holds, for the cache's books.
    fn size(&self) -> u64;

    /// Whether it exports `tasklet_alloc`: one that does not is refused where there is input, with status 1 (T5).
    fn takes_input(&self) -> bool;

    /// Runs a fresh instance to its end, on the caller's thread. Calls are counted, paid and their pointers checked before
    /// `host` sees them.
    fn run(&self, input: &[u8], limits: &Limits, host: &mut dyn Hostcalls) -> Outcome;
}
