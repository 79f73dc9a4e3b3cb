//! What a worker needs of a GPU.

use std::sync::{
    Arc,
    atomic::{
        AtomicU32, AtomicU64,
        Ordering::{Acquire, Release},
    },
};

use berth_memory::Memory;

use crate::mapping::Mapping;

/// Host memory that the device reads and writes too, zeroed.
#[derive(Debug, Clone)]
pub struct Buffer {
    /// The bytes, as the host sees them.
    pub memory: Arc<dyn Memory>,
    /// Where the device sees them.
    pub address: u64,
}

impl Buffer {
    /// The words at these offsets, which hosts and kernels share: one of 32 bits, or of 64.
    pub(crate) fn store_u32(&self, at: usize, value: u32) {
        assert!(at.is_multiple_of(4) && at + 4 <= self.memory.size());
        // SAFETY: within the memory, which begins at a multiple of more; kernels access it atomically.
        unsafe { AtomicU32::from_ptr(self.memory.base().as_ptr().add(at).cast()).store(value, Release) };
    }

    pub(crate) fn load_u32(&self, at: usize) -> u32 {
        assert!(at.is_multiple_of(4) && at + 4 <= self.memory.size());
        // SAFETY: as above.
        unsafe { AtomicU32::from_ptr(self.memory.base().as_ptr().add(at).cast()).load(Acquire) }
    }

    pub(crate) fn store_u64(&self, at: usize, value: u64) {
        assert!(at.is_multiple_of(8) && at + 8 <= self.memory.size());
        // SAFETY: as above.
        unsafe { AtomicU64::from_ptr(self.memory.base().as_ptr().add(at).cast()).store(value, Release) };
    }

    pub(crate) fn load_u64(&self, at: usize) -> u64 {
        assert!(at.is_multiple_of(8) && at + 8 <= self.memory.size());
        // SAFETY: as above.
        unsafe { AtomicU64::from_ptr(self.memory.base().as_ptr().add(at).cast()).load(Acquire) }
    }
}

/// A kernel, and how it is run.
#[derive(Debug, Clone)]
pub struct Launch {
    /// Its name.
    pub kernel: String,
    /// Blocks.
    pub blocks: u32,
    /// Threads of a block.
    pub threads: u32,
    /// Bytes of dynamic shared memory of a block.
    pub shared: usize,
    /// The parameters, each aligned to its size.
    pub params: Vec<u8>,
}

/// Why a device did not do it, or what its kernel did wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct DeviceError {
    /// Which of the loaded texts it is about, where that is known.
    pub module: Option<usize>,
    /// What happened; of kernels in software with thread and line.
    pub message: String,
}

impl DeviceError {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { module: None, message: message.into() }
    }
}

/// A GPU that one process has. One kernel runs at a time; nothing is loaded, mapped or allocated meanwhile.
pub trait Device: Send {
    /// What it is, as the ready line says: `soft`.
    fn kind(&self) -> &'static str;

    /// After how many nanoseconds without requests a dispatcher sleeps, and for how long.
    fn idling(&self) -> (u64, u32);

    /// Pinned host memory.
    fn allocate(&mut self, bytes: usize) -> Result<Buffer, DeviceError>;

    /// Makes memory that was mapped for it reachable for kernels, at the address that it has in this process.
    fn register(&mut self, mapping: Arc<Mapping>) -> Result<(), DeviceError>;

    /// Links PTX texts to the program that kernels are launched from; it replaces the one before.
    fn load(&mut self, texts: &[&str]) -> Result<(), DeviceError>;

    /// Starts a kernel. It ends by itself; one that does not ends with the process alone.
    fn launch(&mut self, launch: &Launch) -> Result<(), DeviceError>;

    /// How the kernel ended; `None` while it runs.
    fn ended(&mut self) -> Option<Result<(), DeviceError>>;
}
