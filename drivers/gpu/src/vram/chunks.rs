//! Memory of a GPU that its processes map in part: each a run of chunks, and nobody else's. It lives as long as the handles that
//! are kept here, whichever process maps it.

use std::{
    os::fd::{AsRawFd, OwnedFd, RawFd},
    path::Path,
};

use serde::{Deserialize, Serialize};

use super::{What, ask, ended};
use crate::{choice::Choice, gpu::GpuError};

/// Most chunks: each is a descriptor of `berth` and of the process that copies.
const MOST: u64 = 512;

/// Fewest bytes of one: what drivers allocate memory in.
const FEWEST: u64 = 2 << 20;

/// Memory of a GPU, in chunks of one size.
#[derive(Debug)]
pub(crate) struct Chunks {
    handles: Vec<OwnedFd>,
    bytes: u64,
    at: u64,
}

/// Chunks that a worker inherited.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ChunkFds {
    /// What it imports, in order.
    pub(crate) fds: Vec<RawFd>,
    /// Bytes of each.
    pub(crate) bytes: usize,
    /// Where kernels are to see the first byte.
    pub(crate) at: u64,
}

/// What the `nth` chunk begins with, once it is allocated.
pub(super) fn mark(nth: usize) -> [u8; 16] {
    let mut mark = *b"chunk no........";
    mark[8..].copy_from_slice(&(nth as u64).to_le_bytes());
    mark
}

/// Into how many chunks of how many bytes so many bytes are divided, less a part of one.
///
/// # Errors
/// That they are too few for one.
pub(super) fn divided(bytes: u64) -> Result<(usize, u64), String> {
    let each = bytes.div_ceil(MOST).next_power_of_two().max(FEWEST);
    match bytes / each {
        0 => Err(format!("a GPU's memory is leased in chunks of {} MiB, and {bytes} bytes are too few", each >> 20)),
        count => Ok((count as usize, each)),
    }
}

impl Chunks {
    /// Has the worker at this path allocate memory of the device, less a part of a chunk, which kernels are to see at this
    /// address: so many bytes, or seven eighths of what is free. Each chunk begins with its [`mark`]; other bytes are anything.
    pub(crate) fn allocate(worker: &Path, device: &Choice, bytes: Option<u64>, at: u64) -> Result<Self, GpuError> {
        let (each, handles) = ask(worker, device, What::Chunks { bytes, at })?;
        Ok(Self { handles, bytes: each as u64, at })
    }

    /// A dma-buf of those that these bytes lie in, and where in it they begin. A worker of the program at this path makes it.
    pub(crate) fn dma_buf(
        &self,
        worker: &Path,
        device: &Choice,
        at: u64,
        len: u64,
    ) -> Result<(OwnedFd, u64), GpuError> {
        let within = at % self.bytes;
        let what = What::DmaBuf(self.told(at - within, len + within));
        let (_, made) = ask(worker, device, what)?;
        let made = made.into_iter().next().ok_or_else(|| ended(worker, "sent no dma-buf"))?;
        Ok((made, within))
    }

    /// Bytes of each.
    pub(crate) fn each(&self) -> u64 {
        self.bytes
    }

    /// Bytes of all.
    pub(crate) fn size(&self) -> u64 {
        self.handles.len() as u64 * self.bytes
    }

    pub(crate) fn count(&self) -> usize {
        self.handles.len()
    }

    /// What a worker is told of those that these bytes lie in, which it inherits. They begin with a chunk.
    pub(crate) fn told(&self, at: u64, len: u64) -> ChunkFds {
        let chunks = (at / self.bytes) as usize..(at + len).div_ceil(self.bytes) as usize;
        debug_assert!(at.is_multiple_of(self.bytes), "bytes that nobody may reach would be told");
        let fds = self.handles[chunks].iter().map(AsRawFd::as_raw_fd).collect();
        ChunkFds { fds, bytes: self.bytes as usize, at: self.at + at }
    }
}
