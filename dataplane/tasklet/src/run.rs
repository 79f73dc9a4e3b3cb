//! A run: its limits, and how it went.

use std::time::Duration;

/// Limits of a run, literal: 0 means none of it (T4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Units, of the table of T4.
    pub fuel: u64,
    /// Bytes of linear memory.
    pub memory: u64,
    /// Bytes.
    pub output: u64,
    /// Calls.
    pub hostcalls: u64,
    /// From the start of the run.
    pub wall: Duration,
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
    /// How it went.
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
