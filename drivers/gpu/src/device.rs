//! What a worker needs of a GPU.

use std::{
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{
            AtomicU32, AtomicU64,
            Ordering::{Acquire, Release},
        },
    },
};

use berth_fabric::gpu_code as code;
use berth_memory::Memory;

/// Host memory that the device reads and writes too, zeroed.
#[derive(Debug, Clone)]
pub struct Buffer {
    /// The bytes, as the host sees them.
    pub memory: Arc<dyn Memory>,
    /// Where the device sees the first byte, which may be another address than the host's.
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

/// A program that a device has loaded, until it is unloaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProgramId(pub(crate) u32);

/// A launch that was made ready. It goes with its program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GraphId(pub(crate) u32);

/// A kernel, and how it is run.
#[derive(Debug, Clone)]
pub struct Launch {
    /// Its name in the PTX texts.
    pub kernel: String,
    /// Blocks in x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y and z.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory of a block.
    pub shared: usize,
    /// The parameters, each where [`Parameter::offset`] says.
    pub params: Vec<u8>,
    /// No block ends before it is told to: those that do not run at once would never run.
    pub endless: bool,
}

/// Where a parameter of a kernel lies in [`Launch::params`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parameter {
    /// Offset of its first byte.
    pub offset: usize,
    /// How many bytes it takes.
    pub bytes: usize,
}

/// Why a device did not do it, or what its kernel did wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct DeviceError {
    /// Which of the loaded texts it is about, where that is known.
    pub module: Option<usize>,
    /// As CUDA numbers errors ([`berth_fabric::gpu_code`]).
    pub code: i32,
    /// What happened; of kernels in software with thread and line.
    pub message: String,
}

impl DeviceError {
    /// An error that is about no text.
    pub fn new(code: i32, message: impl Into<String>) -> Self {
        Self { module: None, code, message: message.into() }
    }

    /// One that has no number.
    pub(crate) fn other(message: impl Into<String>) -> Self {
        Self::new(code::UNKNOWN, message)
    }
}

/// A GPU that one process has. One kernel runs at a time; nothing is loaded, mapped or allocated meanwhile.
pub trait Device: Send {
    /// What it is, as the ready line says: `soft`, `cuda`.
    fn kind(&self) -> &'static str;

    /// Which it is, as the ready line says: its PCI address; `soft`.
    fn place(&self) -> &str;

    /// After how many nanoseconds without requests a dispatcher sleeps, and for how long.
    fn idling(&self) -> (u64, u32);

    /// Host memory that kernels reach as well, zeroed. It lives as long as the device.
    fn allocate(&mut self, bytes: usize) -> Result<Buffer, DeviceError>;

    /// Makes memory of whole pages reachable for kernels, at the address that it has in this process.
    fn register(&mut self, memory: Arc<dyn Memory>) -> Result<(), DeviceError>;

    /// The same for memory that this process can only read; kernels that write to it fault.
    fn register_to_read(&mut self, memory: Arc<dyn Memory>) -> Result<(), DeviceError>;

    /// Maps memory of the device's own that another process exported ([`crate::Vram`]), chunks of so many bytes each, one behind
    /// the other from this address on.
    fn attach(&mut self, chunks: &[OwnedFd], bytes: usize, at: u64) -> Result<(), DeviceError>;

    /// Links PTX texts to a program.
    fn load(&mut self, texts: &[&str]) -> Result<ProgramId, DeviceError>;

    /// Forgets a program, and the graphs of its kernels.
    fn unload(&mut self, program: ProgramId);

    /// The variables of a program are again as its texts have them.
    fn reset(&mut self, program: ProgramId) -> Result<(), DeviceError>;

    /// What a kernel takes; if there is no such kernel, the error names those that there are.
    fn parameters(&self, program: ProgramId, kernel: &str) -> Result<Vec<Parameter>, DeviceError>;

    /// Starts a kernel. It ends by itself; one that does not ends with the process alone.
    fn launch(&mut self, program: ProgramId, launch: &Launch) -> Result<(), DeviceError>;

    /// Makes a launch ready that is to be started often; runs nothing yet.
    fn prepare(&mut self, program: ProgramId, launch: &Launch) -> Result<GraphId, DeviceError>;

    /// Starts a launch that was made ready, with the parameters that it had then.
    fn start(&mut self, graph: GraphId) -> Result<(), DeviceError>;

    /// How the kernel ended, told once; `None` while it runs, and where none was started.
    fn ended(&mut self) -> Option<Result<(), DeviceError>>;

    /// Waits until the kernel has ended; how it did.
    fn wait(&mut self) -> Result<(), DeviceError>;

    /// After what a kernel did nothing works any more, until another process has the device.
    fn is_lost(&self) -> bool;
}

/// The error for a kernel that a program does not have.
pub(crate) fn no_kernel<'a>(kernel: &str, kernels: impl Iterator<Item = &'a str>) -> DeviceError {
    let kernels: Vec<_> = kernels.collect();
    DeviceError::new(code::NOT_FOUND, format!("no kernel {kernel:?}; there are {}", kernels.join(", ")))
}
