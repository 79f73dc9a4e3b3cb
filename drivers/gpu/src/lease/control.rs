//! What `berth` and the worker of a lease say to each other: a JSON object a line, over the worker's standard input.

use std::os::fd::RawFd;

use berth_wire::fabric::GpuStatus;
use serde::{Deserialize, Serialize};

use crate::{choice::Choice, vram::ChunkFds};

/// What a worker is told.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Command {
    /// What it serves, first of all.
    Open(Open),
    /// A kernel to run. One whose number is not higher than the last one's was told twice.
    Run(Box<Run>),
}

/// The memory of a lease.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Open {
    /// What runs kernels.
    pub(super) device: Choice,
    /// What it has of the GPU's memory.
    pub(super) memory: Inherited,
    /// Bytes of the lease.
    pub(super) len: u64,
    /// Bytes from the lease's begin to where kernels may begin to read and write.
    pub(super) first: u64,
    /// Where kernels see the lease's first byte.
    pub(super) address: u64,
    /// How long a kernel may take, loading included, in milliseconds.
    pub(super) limit_ms: u64,
}

/// Memory that the worker inherited.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Inherited {
    /// A file of the host's memory, and where the lease begins in it, in bytes.
    File { fd: i32, at: u64 },
    /// Chunks of the GPU's own, which no other lease has.
    Chunks(ChunkFds),
}

impl Inherited {
    /// The descriptors of it.
    pub(super) fn files(&self) -> Vec<RawFd> {
        match self {
            Self::File { fd, .. } => vec![*fd],
            Self::Chunks(chunks) => chunks.fds.clone(),
        }
    }
}

/// A kernel to run: its number, PTX text, name, blocks, threads of a block, and arguments.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Run {
    pub(super) id: u64,
    pub(super) text: String,
    pub(super) kernel: String,
    pub(super) grid: [u32; 3],
    pub(super) block: [u32; 3],
    pub(super) args: Vec<Vec<u8>>,
}

/// What a worker says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Report {
    /// It has shut itself in. `landlock`: this kernel has it.
    Hello { landlock: bool },
    /// It still is.
    Beat,
    /// A kernel has ended. `last`: so does the worker, and another one runs the next kernel.
    Ran { id: u64, ended: Ended, last: bool },
}

/// How a kernel ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ended {
    /// Code of a [`GpuStatus`].
    pub(super) status: u8,
    pub(super) exit_code: i32,
    /// Why the text is not loaded.
    pub(super) log: String,
}

impl Ended {
    pub(super) fn new(status: GpuStatus, exit_code: i32) -> Self {
        Self { status: status.code(), exit_code, log: String::new() }
    }
}
