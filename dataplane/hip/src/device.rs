//! What a session asks of its GPUs.

use std::{
    any::Any,
    task::{Context, Poll},
};

use berth_wire::hip::Code;

/// A device, as clients see it.
#[derive(Debug, Clone)]
pub struct Properties {
    /// Its name.
    pub name: String,
    /// What code objects are for, as `gcnArchName`.
    pub arch: String,
    /// Bytes of memory that a session may have.
    pub memory: u64,
    /// Bytes of shared memory that a launch may ask for.
    pub shared_memory: u32,
    /// Threads of a block.
    pub block_threads: u32,
    /// Threads of a block: x, y, z.
    pub block: [u32; 3],
    /// Blocks: x, y, z.
    pub grid: [u32; 3],
    /// Threads of a warp.
    pub warp: u32,
    /// Blocks that run at a time on a multiprocessor, and its threads.
    pub resident: [u32; 2],
    /// Multiprocessors.
    pub processors: u32,
    /// What its instructions are called: major, minor.
    pub version: [u32; 2],
}

/// Bytes that a session has allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allocation {
    /// Where they begin.
    pub at: u64,
    /// How many.
    pub len: u64,
    /// On which device.
    pub device: usize,
}

/// A kernel of a module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kernel {
    /// Its name.
    pub name: String,
    /// Where its parameters lie in the argument buffer: offset and size, at most 64.
    pub parameters: Vec<(u32, u32)>,
    /// Bytes of the argument buffer.
    pub argument_bytes: u32,
}

/// A module that was loaded.
#[derive(Debug, PartialEq, Eq)]
pub struct Loaded {
    /// What the device calls it.
    pub module: u64,
    /// Its kernels.
    pub kernels: Vec<Kernel>,
}

/// A kernel that is to run. Its shape is one that the device runs.
#[derive(Debug, Clone)]
pub struct Launch {
    /// The module.
    pub module: u64,
    /// Which of its kernels.
    pub kernel: usize,
    /// Blocks: x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block: x, y, z.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub shared: u32,
    /// The argument buffer.
    pub arguments: Vec<u8>,
}

/// Rows of device memory that are copied. Both ranges are the session's; they may overlap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Copy2d {
    /// Where to.
    pub dst: u64,
    /// From one row there to the next.
    pub dpitch: u64,
    /// Where from.
    pub src: u64,
    /// From one row there to the next.
    pub spitch: u64,
    /// Bytes of a row.
    pub width: u64,
    /// Rows.
    pub height: u64,
}

/// What may take time.
#[derive(Debug, Clone)]
pub enum Job {
    /// Sets bytes, which are the session's.
    Set {
        /// Where.
        dst: u64,
        /// How many.
        len: u64,
        /// To what.
        value: u8,
    },
    /// Copies within device memory.
    Copy(Copy2d),
    /// Loads a code object, behind which other bytes may stand.
    Load(Vec<u8>),
    /// Runs a kernel.
    Launch(Launch),
}

/// How a job ended.
#[derive(Debug)]
pub enum Done {
    /// Of every job that is not a load.
    Finished(Result<(), Code>),
    /// Of a load.
    Loaded(Result<Loaded, Code>),
}

/// The GPUs of one session, which share an address space. Dropped, it stops what runs and frees everything.
///
/// At most one job is under way, and until it is done nothing but [`Device::properties`], [`Device::used`] and
/// [`Device::poll`] is called.
pub trait Device {
    /// Bytes of a code object that are looked at.
    const IMAGE_MAX: usize;

    /// The devices in order; at least one.
    fn properties(&self) -> &[Properties];

    /// Bytes that can still be allocated on a device.
    fn free_bytes(&self, device: usize) -> u64;

    /// Bytes that the session has of all devices; `None` while nobody can tell.
    fn used(&self) -> Option<u64>;

    /// Allocates zeroed memory, 256-byte aligned.
    ///
    /// # Errors
    /// [`Code::OUT_OF_MEMORY`] beyond the session's quota or the device's memory.
    fn allocate(&mut self, device: usize, len: u64) -> Result<u64, Code>;

    /// Frees the allocation that begins at `at`.
    ///
    /// # Errors
    /// [`Code::INVALID_DEVICE_POINTER`] if none does.
    fn free(&mut self, at: u64) -> Result<(), Code>;

    /// The allocation in which an address lies.
    fn find(&self, at: u64) -> Option<Allocation>;

    /// Writes bytes into a range that is the session's.
    fn write(&mut self, at: u64, bytes: &[u8]);

    /// Reads a range that is the session's.
    fn read(&mut self, at: u64, into: &mut [u8]);

    /// Forgets a module.
    fn unload(&mut self, module: u64);

    /// Frees everything.
    fn reset(&mut self);

    /// Frees everything, and leaves one device, as device 0, with so many bytes that nobody else gets. `held` is dropped
    /// once nothing of that memory is left.
    ///
    /// # Errors
    /// [`Code::OUT_OF_MEMORY`] if others use the bytes.
    fn confine(&mut self, device: usize, bytes: u64, held: Box<dyn Any + Send>) -> Result<(), Code>;

    /// Sets bytes, if they are so few that no job is worth it; whether it did.
    ///
    /// # Errors
    /// As [`Device::check`].
    fn set(&mut self, dst: u64, len: u64, _value: u8) -> Result<bool, Code> {
        self.check(dst, len).map(|()| false)
    }

    /// Starts a job.
    fn start(&mut self, job: Job);

    /// Whether the job is done; otherwise wakes its task later.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Done>;

    /// Whether a range lies in one allocation.
    ///
    /// # Errors
    /// [`Code::INVALID_DEVICE_POINTER`] where it begins in none, [`Code::INVALID_VALUE`] where it overruns one.
    fn check(&self, at: u64, len: u64) -> Result<(), Code> {
        let found = self.find(at).ok_or(Code::INVALID_DEVICE_POINTER)?;
        if len <= found.len - (at - found.at) { Ok(()) } else { Err(Code::INVALID_VALUE) }
    }
}
