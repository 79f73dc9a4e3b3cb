//! What `berth` and the worker of a session say to each other: a JSON object a line, over the worker's standard input. Bulk
//! data lie in the staging area, a file that both map.

use berth_wire::hip::LAUNCH_MAX;
use serde::{Deserialize, Serialize};

use crate::{choice::Choice, vram::ChunkFds};

/// Most parameters that a kernel may have.
pub(crate) const PARAMETERS_MAX: usize = 64;

/// What a worker is told.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Told {
    /// What it serves, first of all.
    Open(Open),
    /// Something to do, with its number. All is done in order.
    Do(u64, Command),
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Open {
    pub(super) device: Choice,
    /// The file of the staging area, a descriptor that the worker inherited.
    pub(super) fd: i32,
    /// Bytes of the staging area.
    pub(super) staging: usize,
    /// How long a kernel may run, in milliseconds.
    pub(super) limit_ms: u64,
    /// Memory of the GPU that others map too.
    pub(super) chunks: Option<ChunkFds>,
}

/// Something to do. Offsets are those in the staging area.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// Allocates zeroed memory: all of these sizes, or none.
    Allocate(Vec<u64>),
    /// Frees the allocation that begins there.
    Free(u64),
    /// Sets bytes.
    Set {
        /// Device address of the first one.
        at: u64,
        /// How many.
        len: u64,
        /// The value of each.
        value: u8,
    },
    /// Copies rows within device memory, which may overlap.
    Copy(Rows),
    /// Copies from the staging area to device memory.
    Write {
        /// Device address.
        at: u64,
        /// Offset.
        from: usize,
        /// Bytes.
        len: usize,
    },
    /// Copies from device memory to the staging area.
    Read {
        /// Device address.
        at: u64,
        /// Offset.
        to: usize,
        /// Bytes.
        len: usize,
    },
    /// The next bytes of a code object.
    Image {
        /// Offset.
        from: usize,
        /// Bytes.
        len: usize,
    },
    /// Loads the code object whose bytes came before. What it has is put at the beginning of the staging area.
    Load,
    /// Forgets a module.
    Unload(u64),
    /// Runs a kernel to its end.
    Launch {
        /// Number of the module.
        module: u64,
        /// Index of the kernel among the module's.
        kernel: usize,
        /// Blocks in x, y and z.
        grid: [u32; 3],
        /// Threads of a block in x, y and z.
        block: [u32; 3],
        /// Bytes of dynamic shared memory.
        shared: u32,
        /// Offset of the argument buffer.
        from: usize,
        /// Bytes of it.
        len: usize,
    },
    /// Frees all memory and modules.
    Reset,
}

/// Rows of a copy within device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rows {
    /// Device address of the first row to write, and bytes from one to the next.
    pub dst: (u64, u64),
    /// Device address of the first row to read, and bytes from one to the next.
    pub src: (u64, u64),
    /// Bytes of a row.
    pub width: u64,
    /// Number of rows.
    pub height: u64,
}

/// What a worker says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Report {
    /// It has shut itself in. `landlock`: this kernel has it.
    Hello { landlock: bool },
    /// It has the device.
    Opened(Box<Facts>),
    /// It has no device, for this reason, and ends.
    Refused(String),
    /// It still is.
    Beat,
    /// What became of a command: a value, or an error as CUDA numbers them.
    Done(u64, Result<Value, i32>),
    /// The device is lost with this error, and the worker ends.
    Lost(i32),
}

/// What a command returned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Value {
    /// Nothing.
    None,
    /// Addresses of what was allocated.
    Addresses(Vec<u64>),
    /// A module, and the length of the list of its kernels in the staging area.
    Loaded(u64, usize),
}

/// A kernel of a module.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelFacts {
    /// Its name.
    pub name: String,
    /// Offset and size of each parameter in the argument buffer.
    pub parameters: Vec<(u32, u32)>,
}

impl KernelFacts {
    /// The kernels of a list as a worker leaves it in the staging area; `None` if it is none.
    pub fn list(bytes: &[u8]) -> Option<Vec<Self>> {
        serde_json::from_slice(bytes).ok()
    }

    /// Bytes of the argument buffer; `None` if the parameters are more than a launch can bring.
    pub fn argument_bytes(&self) -> Option<u32> {
        let ends = self.parameters.iter().map(|(at, size)| at.checked_add(*size));
        let bytes = ends.collect::<Option<Vec<_>>>()?.into_iter().max().unwrap_or(0);
        (bytes as usize <= LAUNCH_MAX && self.parameters.len() <= PARAMETERS_MAX).then_some(bytes)
    }
}

/// Whether a worker takes a line for something that it is told.
pub fn is_told(line: &[u8]) -> bool {
    serde_json::from_slice::<Told>(line).is_ok()
}

/// What the driver says of a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// PCI address.
    pub address: String,
    /// The model.
    pub name: String,
    /// Bytes of its memory.
    pub memory: u64,
    /// Bytes of dynamic shared memory that a block may ask for.
    pub shared: u32,
    /// Most threads of a block.
    pub block_threads: u32,
    /// Most threads of a block in x, y and z.
    pub block: [u32; 3],
    /// Most blocks of a grid in x, y and z.
    pub grid: [u32; 3],
    /// Threads of a warp.
    pub warp: u32,
    /// Blocks and threads that a multiprocessor has room for.
    pub resident: [u32; 2],
    /// Multiprocessors.
    pub processors: u32,
    /// Compute capability.
    pub version: [u32; 2],
    /// What code objects are for: `sm_90`, `gfx90a:sramecc+:xnack-`.
    pub arch: String,
}
