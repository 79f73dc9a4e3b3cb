//! Code objects, their kernels, launches.

use std::sync::Arc;

use berth_wire::hip::{Code, LAUNCH_MAX, NAME_MAX, Op, flags, request as q, response as r};
use zerocopy::{Immutable, IntoBytes};

use crate::{
    Buffer, Error, Result, Session,
    session::{Owned, refused},
};

/// Bytes of the shorter field of a name.
const NAME: usize = 256;

/// Blocks of a launch, threads of each, and its dynamic shared memory in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Blocks: x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block: x, y, z.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory of a block.
    pub shared: u32,
}

/// A kernel, as the worker describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FunctionInfo {
    /// Its handle, for launches; valid until the module is unloaded.
    pub handle: u64,
    /// Bytes of its argument buffer, `LAUNCH_MAX` at most.
    pub bytes: u32,
    /// Offset and size of each parameter in bytes; none reaches beyond the argument buffer.
    pub parameters: Vec<(u32, u32)>,
}

impl Session {
    /// Loads a code object, which is sent with the request; returns the module's handle.
    pub fn module_load(&self, image: &[u8]) -> Result<u64> {
        let request = q::ModuleLoad { data_size: (image.len() as u64).into() };
        let parts = [request.as_bytes(), image];
        Ok(self.ask::<r::Long>(Op::ModuleLoadData, &parts, flags::HAS_INLINE_DATA)?.value.get())
    }

    /// Ends a module and its functions. Not waited for.
    pub fn module_unload(&self, module: u64) -> Result<()> {
        self.post(Op::ModuleUnload, &[q::Handle { handle: module.into() }.as_bytes()], 0)
    }

    /// A kernel of a module. A name that is empty, or of `NAME_MAX` bytes or more, is refused with `NOT_FOUND`.
    pub fn module_function(&self, module: u64, name: &[u8]) -> Result<FunctionInfo> {
        let mut field = [0; NAME_MAX];
        if name.is_empty() || name.len() >= field.len() {
            return refused(Op::ModuleGetFunction, Code::NOT_FOUND);
        }
        field[..name.len()].copy_from_slice(name);
        let field = if name.len() < NAME { &field[..NAME] } else { &field[..] };
        let request = q::ModuleGetFunction { module: module.into() };
        let answer: r::Function = self.ask(Op::ModuleGetFunction, &[request.as_bytes(), field], 0)?;
        let parameters = answer.params.get(..answer.num_params.get() as usize);
        let parameters = parameters.ok_or(Error::Protocol("more parameters than there is room for"))?;
        let parameters: Vec<_> = parameters.iter().map(|one| (one.offset.get(), one.size.get())).collect();
        let bytes = answer.num_args.get();
        let fits = |(offset, size): &(u32, u32)| u64::from(*offset) + u64::from(*size) <= u64::from(bytes);
        if bytes as usize > LAUNCH_MAX || !parameters.iter().all(fits) {
            return Err(Error::Protocol("parameters beyond the arguments"));
        }
        Ok(FunctionInfo { handle: answer.function.get(), bytes, parameters })
    }

    /// Starts a kernel with a buffer of arguments, as its [`FunctionInfo`] lays them out.
    pub fn launch(&self, function: u64, shape: Shape, stream: u64, arguments: &[u8]) -> Result<()> {
        let request = q::Launch {
            function: function.into(),
            grid: shape.grid.map(Into::into),
            block: shape.block.map(Into::into),
            shared_mem: shape.shared.into(),
            stream: stream.into(),
            num_args: u32::from(!arguments.is_empty()).into(),
            launch_flags: 1.into(),
            ..q::Launch::zeroed()
        };
        if arguments.is_empty() {
            return self.post(Op::LaunchKernel, &[request.as_bytes()], 0);
        }
        let descriptor = r::Parameter { offset: 0.into(), size: (arguments.len() as u32).into() };
        if q::Launch::LEN + r::Parameter::LEN + arguments.len() > LAUNCH_MAX {
            return refused(Op::LaunchKernel, Code::INVALID_VALUE);
        }
        self.post(Op::LaunchKernel, &[request.as_bytes(), descriptor.as_bytes(), arguments], 0)
    }

    /// The threads of a block that fill the device best, and the least blocks for that: blocks, threads. A limit of 0 is
    /// none.
    pub fn occupancy_block_size(&self, function: u64, shared: u64, limit: i32) -> Result<(i32, i32)> {
        let request = q::PotentialBlockSize {
            function: function.into(),
            dyn_shared_mem: shared.into(),
            block_size_limit: limit.into(),
            flags: 0.into(),
        };
        let answer: r::BlockSize = self.ask(Op::OccupancyBlockSize, &[request.as_bytes()], 0)?;
        Ok((answer.min_grid_size.get(), answer.block_size.get()))
    }

    /// Blocks of `threads` threads and `shared` bytes of dynamic shared memory that a multiprocessor runs at once.
    pub fn occupancy_blocks(&self, function: u64, threads: i32, shared: u64) -> Result<i32> {
        let request =
            q::ActiveBlocks { function: function.into(), block_size: threads.into(), dyn_shared_mem: shared.into() };
        self.int(Op::OccupancyBlocks, request.as_bytes())
    }
}

/// A loaded code object. Unloaded when this and its functions are dropped.
#[derive(Debug, Clone)]
pub struct Module(pub(crate) Arc<Owned>);

impl Module {
    /// A kernel by its name. It keeps the module loaded.
    pub fn function(&self, name: &str) -> Result<Function> {
        let info = self.0.session.module_function(self.0.handle, name.as_bytes())?;
        Ok(Function { _module: self.0.clone(), info })
    }
}

/// A kernel, which keeps its module loaded.
#[derive(Debug, Clone)]
pub struct Function {
    _module: Arc<Owned>,
    info: FunctionInfo,
}

impl Function {
    /// Handle and argument layout, as the worker told them when the kernel was looked up.
    pub fn info(&self) -> &FunctionInfo {
        &self.info
    }
}

/// The arguments of a launch, in order.
#[derive(Debug, Clone, Default)]
pub struct Arguments {
    /// The end of each in `bytes`.
    ends: Vec<usize>,
    bytes: Vec<u8>,
}

impl Arguments {
    /// No arguments, as for a kernel without parameters.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the device address of a buffer: 8 bytes, little-endian.
    #[must_use]
    pub fn buffer_at(self, buffer: &Buffer) -> Self {
        self.bytes(&buffer.address().to_le_bytes())
    }

    /// Adds a number, or a structure, as it lies in memory.
    #[must_use]
    pub fn value(self, value: &(impl IntoBytes + Immutable)) -> Self {
        self.bytes(value.as_bytes())
    }

    /// Adds an argument of these bytes. A launch takes as many of the first as the parameter has, and refuses fewer.
    #[must_use]
    pub fn bytes(mut self, bytes: &[u8]) -> Self {
        self.bytes.extend_from_slice(bytes);
        self.ends.push(self.bytes.len());
        self
    }

    /// The argument buffer of a kernel. There have to be as many arguments as parameters, each at least as long.
    pub(crate) fn buffer(&self, function: &FunctionInfo) -> Result<Vec<u8>> {
        if self.ends.len() != function.parameters.len() {
            return refused(Op::LaunchKernel, Code::INVALID_VALUE);
        }
        let mut buffer = vec![0; function.bytes as usize];
        let mut begin = 0;
        for (end, (offset, size)) in self.ends.iter().zip(&function.parameters) {
            let (offset, size) = (*offset as usize, *size as usize);
            let Some(argument) = self.bytes[begin..*end].get(..size) else {
                return refused(Op::LaunchKernel, Code::INVALID_VALUE);
            };
            buffer[offset..offset + size].copy_from_slice(argument);
            begin = *end;
        }
        Ok(buffer)
    }
}
