//! What a session asks of its GPUs.

use std::{
    any::Any,
    task::{Context, Poll},
};

use berth_wire::hip::Code;

/// A device, as clients see it.
#[derive(Debug, Clone)]
pub struct Properties {
    /// Its name for people, such as `Berth software GPU`.
    pub name: String,
    /// What code objects are for, as `gcnArchName`.
    pub arch: String,
    /// Bytes of memory that a session may have.
    pub memory: u64,
    /// Bytes of shared memory that a launch may ask for.
    pub shared_memory: u32,
    /// Most threads of a block, over all dimensions.
    pub block_threads: u32,
    /// Most threads of a block in x, y and z.
    pub block: [u32; 3],
    /// Most blocks of a grid in x, y and z.
    pub grid: [u32; 3],
    /// Threads of a warp.
    pub warp: u32,
    /// Blocks that run at a time on a multiprocessor, and its threads.
    pub resident: [u32; 2],
    /// Number of multiprocessors.
    pub processors: u32,
    /// Compute capability: major, minor.
    pub version: [u32; 2],
}

/// Bytes that a session has allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allocation {
    /// Device address of the first byte, a multiple of 256.
    pub at: u64,
    /// Length in bytes.
    pub len: u64,
    /// Index of the device in [`Device::properties`].
    pub device: usize,
}

/// A kernel of a module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kernel {
    /// Its name in the code object.
    pub name: String,
    /// Where its parameters lie in the argument buffer: offset and size, at most 64.
    pub parameters: Vec<(u32, u32)>,
    /// Bytes of the argument buffer.
    pub argument_bytes: u32,
}

/// A module that was loaded.
#[derive(Debug, PartialEq, Eq)]
pub struct Loaded {
    /// The device's number for it, as [`Launch::module`] and [`Device::unload`] take it.
    pub module: u64,
    /// Its kernels; [`Launch::kernel`] is an index of these.
    pub kernels: Vec<Kernel>,
}

/// A kernel that is to run. Its shape is one that the device runs.
#[derive(Debug, Clone)]
pub struct Launch {
    /// Number of the module, as [`Loaded::module`] says.
    pub module: u64,
    /// Index of the kernel in [`Loaded::kernels`].
    pub kernel: usize,
    /// Blocks: x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block: x, y, z.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub shared: u32,
    /// The argument buffer, laid out as [`Kernel::parameters`] says.
    pub arguments: Vec<u8>,
}

/// Rows of device memory that are copied. Both ranges are the session's; they may overlap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Copy2d {
    /// Device address of the first row to write.
    pub dst: u64,
    /// Bytes from one row of `dst` to the next.
    pub dpitch: u64,
    /// Device address of the first row to read.
    pub src: u64,
    /// Bytes from one row of `src` to the next.
    pub spitch: u64,
    /// Bytes to copy of each row.
    pub width: u64,
    /// Number of rows.
    pub height: u64,
}

/// What may take time.
#[derive(Debug, Clone)]
pub enum Job {
    /// Allocates zeroed memory, 256-byte aligned: all of it, or none.
    Allocate {
        /// Index of the device.
        device: usize,
        /// Bytes of each allocation, at most 64 of them; the address of one of 0 bytes is 0.
        sizes: Vec<u64>,
    },
    /// Waits until all that was written lies in device memory.
    Settle,
    /// Sets bytes, which are the session's.
    Set {
        /// Device address of the first byte.
        dst: u64,
        /// Number of bytes.
        len: u64,
        /// Value of each byte.
        value: u8,
    },
    /// Copies within device memory.
    Copy(Copy2d),
    /// Loads a code object, behind which other bytes may stand.
    Load {
        /// Index of the device on which its kernels run.
        device: usize,
        /// The code object.
        image: Vec<u8>,
    },
    /// Runs a kernel.
    Launch(Launch),
}

impl Job {
    /// What to report for a job that broke off: that it failed with `code`.
    pub fn failed(&self, code: Code) -> Done {
        match self {
            Self::Load { .. } => Done::Loaded(Err(code)),
            Self::Allocate { .. } => Done::Allocated(Err(code)),
            _ => Done::Finished(Err(code)),
        }
    }
}

/// How a job ended.
#[derive(Debug)]
pub enum Done {
    /// Of every job that returns nothing else.
    Finished(Result<(), Code>),
    /// Of an allocation: the addresses, in order. [`Code::OUT_OF_MEMORY`] beyond the session's quota or the device's memory.
    Allocated(Result<Vec<u64>, Code>),
    /// Of a load.
    Loaded(Result<Loaded, Code>),
}

/// The GPUs of one session, which share an address space. Dropped, it stops what runs and frees everything.
///
/// At most one job is under way, and until it is done nothing but [`Device::properties`], [`Device::used`] and
/// [`Device::poll`] is called.
pub trait Device {
    /// Most bytes of a code object for a device that are kept; what follows is received and thrown away.
    fn image_max(&self, device: usize) -> usize;

    /// The devices in order; at least one.
    fn properties(&self) -> &[Properties];

    /// Bytes that can still be allocated on a device.
    fn free_bytes(&self, device: usize) -> u64;

    /// Bytes that the session has of all devices; `None` while nobody can tell.
    fn used(&self) -> Option<u64>;

    /// What every operation on this device is answered until [`Device::reset`], after a fault that nothing else repairs.
    fn lost(&self, _device: usize) -> Option<Code> {
        None
    }

    /// Whether kernels of a device reach the memory of another one, its peer.
    fn reaches(&self, device: usize, peer: usize) -> bool {
        device != peer
    }

    /// Frees the allocation that begins at `at`.
    ///
    /// # Errors
    /// [`Code::INVALID_DEVICE_POINTER`] if none does; of a lost device its own.
    fn free(&mut self, at: u64) -> Result<(), Code>;

    /// The allocation in which an address lies.
    fn find(&self, at: u64) -> Option<Allocation>;

    /// Takes bytes for a range that is the session's; how many. 0: none before [`Device::poll_data`] says so.
    ///
    /// # Errors
    /// The device is lost.
    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<usize, Code>;

    /// Whether the first of `len` bytes from `at` on, which are the session's, can be read; otherwise sees to it, and
    /// [`Device::poll_data`] tells when to ask again.
    fn reach(&mut self, at: u64, len: u64) -> Poll<Result<(), Code>>;

    /// Reads the front of `len` bytes that are the session's, as far as they are there and `into` has room; how many. 0: none
    /// before [`Device::poll_data`] says so. What follows is read next.
    ///
    /// # Errors
    /// The device is lost.
    fn read(&mut self, at: u64, len: u64, into: &mut [u8]) -> Result<usize, Code>;

    /// Ready if a write or a read that took or gave nothing can go on; otherwise wakes its task later.
    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<()>;

    /// Forgets a module.
    fn unload(&mut self, module: u64);

    /// Frees all allocations and modules.
    fn reset(&mut self);

    /// Frees everything, and leaves one device, as device 0, with so many bytes that nobody else gets. `held` is dropped
    /// once nothing of that memory is left.
    ///
    /// # Errors
    /// [`Code::OUT_OF_MEMORY`] if others use the bytes; nothing is freed.
    fn confine(&mut self, device: usize, bytes: u64, held: Box<dyn Any + Send>) -> Result<(), Code>;

    /// Sets bytes, if they are so few that no job is worth it; whether it did.
    ///
    /// # Errors
    /// As [`Device::check`].
    fn set(&mut self, dst: u64, len: u64, _value: u8) -> Result<bool, Code> {
        self.check(dst, len).map(|()| false)
    }

    /// Starts a job; none is under way, and the caller has checked its ranges.
    fn start(&mut self, job: Job);

    /// Whether the job is done; otherwise wakes its task later.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Done>;

    /// Whether a range lies in one allocation.
    ///
    /// # Errors
    /// [`Code::INVALID_DEVICE_POINTER`] where it begins in none, [`Code::INVALID_VALUE`] where it overruns one; of a lost
    /// device its own.
    fn check(&self, at: u64, len: u64) -> Result<(), Code> {
        let found = self.find(at).ok_or(Code::INVALID_DEVICE_POINTER)?;
        self.lost(found.device).map_or(Ok(()), Err)?;
        if len <= found.len - (at - found.at) { Ok(()) } else { Err(Code::INVALID_VALUE) }
    }
}
