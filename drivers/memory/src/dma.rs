//! Memory as other devices of this machine get to it.

use std::{fmt::Debug, io, os::fd::OwnedFd, sync::Arc};

use berth_memory::Memory;

/// Memory that no CPU maps, and that devices reach by dma-bufs: a GPU's.
pub trait DmaBufs: Debug + Send + Sync {
    /// A dma-buf with the `len` bytes from `at` on, and where in it they begin. May take seconds.
    ///
    /// # Errors
    /// Of the kind `Unsupported`: this memory has no dma-bufs.
    fn export(&self, at: u64, len: u64) -> io::Result<(OwnedFd, u64)>;
}

/// Memory that devices read and write by themselves.
#[derive(Debug, Clone)]
pub enum DmaMemory {
    /// Of this process.
    Mapped(Arc<dyn Memory>),
    /// Of another device.
    DmaBufs(Arc<dyn DmaBufs>),
}
