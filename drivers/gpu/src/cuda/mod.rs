//! NVIDIA GPUs, by the driver's library alone, which is looked up at run time.
//!
//! A [`Cuda`] has one context and one stream. Everything is loaded and allocated while no kernel runs: beside one that never
//! ends, many calls of the driver wait for it (loading lazily, allocating, freeing). What a kernel does that it must not costs
//! the context, so that only another process can go on ([`Device::is_lost`]).

mod cards;
mod driver;
mod health;
mod image;
mod memory;
mod program;
mod vram;

use std::{
    collections::BTreeMap,
    ffi::{c_int, c_uint, c_void},
    mem::ManuallyDrop,
    os::fd::OwnedFd,
    ptr::{self, NonNull},
    sync::Arc,
};

use berth_fabric::gpu_code as code;
use berth_memory::Memory;
use berth_pages::Foreign;

pub use self::{
    cards::{Card, Cards},
    driver::refused_node,
    health::Health,
};
use self::{
    cards::{PROCESSORS, WATCHED},
    driver::{Driver, Handle, NOT_READY, call},
    health::Management,
    program::Program,
};
pub(crate) use self::{driver::NOT_SUPPORTED, image::Image, vram::Exported};
use crate::{
    choice::Choice,
    device::{Buffer, Device, DeviceError, GraphId, Launch, Parameter, ProgramId, no_kernel},
    session::SessionDevice as _,
};

/// `CU_CTX_MAP_HOST`, with the driver's choice of how to wait.
const CONTEXT: c_uint = 0x08;

/// `CU_LIMIT_STACK_SIZE`, and what a thread gets: how deep calls through a table go, no linker knows.
const STACK: (c_int, usize) = (0, 4096);

/// `CU_STREAM_NON_BLOCKING`
const STREAM: c_uint = 1;

/// `CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP`, and the same of memory that is registered.
const PINNED: c_uint = 3;
/// `CU_MEMHOSTREGISTER_READ_ONLY`
const TO_READ: c_uint = 8;
/// `CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED`
const READ_ONLY: c_int = 113;

/// `CU_STREAM_CAPTURE_MODE_RELAXED`: only what is enqueued is captured.
const CAPTURE: c_int = 2;

/// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`
const SHARED: c_int = 8;

/// `CU_LAUNCH_PARAM_BUFFER_POINTER`, `CU_LAUNCH_PARAM_BUFFER_SIZE`; 0 ends the list.
const PARAMS: [usize; 2] = [1, 2];

/// `CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES`: the launch did not begin, and nothing is lost.
const TOO_LARGE: i32 = 701;

/// Registered memory begins and ends at multiples of this many bytes.
pub(crate) const PAGE: usize = 4096;

/// The variable that has the driver load all of a program with the module, not at a kernel's first launch.
pub(crate) const EAGER: (&str, &str) = ("CUDA_MODULE_LOADING", "EAGER");

/// An NVIDIA GPU, with one context and one stream, which end with the process alone.
pub struct Cuda {
    driver: Driver,
    card: Card,
    device: c_int,
    context: Handle,
    stream: Handle,
    /// What kernels reach: it is freed with the process alone.
    memory: ManuallyDrop<Vec<Arc<dyn Memory>>>,
    programs: BTreeMap<u32, Program>,
    graphs: BTreeMap<u32, (ProgramId, Handle)>,
    /// The number of the latest program or graph.
    last: u32,
    is_running: bool,
    is_lost: bool,
}

// SAFETY: the driver may be called from any thread; each call makes the context the thread's first.
unsafe impl Send for Cuda {}

/// Opens NVIDIA's driver in this process, and looks at what it has.
pub(crate) fn cards() -> Result<Cards, DeviceError> {
    let driver = Driver::open()?;
    let mut all: Vec<_> = driver.cards()?.into_iter().map(|(_, card)| card).collect();
    let management = Management::open();
    if let Ok(management) = &management {
        for card in &mut all {
            card.health = management.health(&card.address);
        }
    }
    Ok(Cards { version: driver.version(), management: management.map(|found| found.driver), all })
}

impl Cuda {
    /// Opens the GPU that is meant, which `soft` is not.
    pub fn open(choice: &Choice) -> Result<Self, DeviceError> {
        let driver = Driver::open()?;
        let (device, card) = driver.choose(choice)?;
        let (mut context, mut stream) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the places outlive the calls; the context that is made becomes the thread's.
        unsafe {
            call!(driver.context_create(&raw mut context, CONTEXT, device))?;
            call!(driver.context_limit(STACK.0, STACK.1))?;
            call!(driver.stream_create(&raw mut stream, STREAM))?;
        }
        Ok(Self {
            driver,
            card,
            device,
            context,
            stream,
            memory: ManuallyDrop::default(),
            programs: BTreeMap::new(),
            graphs: BTreeMap::new(),
            last: 0,
            is_running: false,
            is_lost: false,
        })
    }

    /// What the driver told of the GPU when it was opened; without its health.
    pub fn card(&self) -> &Card {
        &self.card
    }

    /// Makes the context this thread's, for the calls that follow.
    fn enter(&self) -> Result<&Driver, DeviceError> {
        let driver = &self.driver;
        // SAFETY: the context lives as long as the process.
        unsafe { call!(driver.context_set(self.context)) }?;
        Ok(driver)
    }

    /// Registers whole pages of the host's, with these flags.
    fn register_as(&mut self, memory: Arc<dyn Memory>, flags: c_uint) -> Result<(), DeviceError> {
        let driver = self.enter_idle()?;
        let (base, size) = (memory.base(), memory.size().next_multiple_of(PAGE));
        if base.addr().get() % PAGE != 0 {
            return Err(DeviceError::new(code::INVALID_VALUE, "memory that does not begin with a page"));
        }
        let mut address = 0;
        // SAFETY: memory is mapped by whole pages, and stays: this keeps it as long as the process lives.
        unsafe {
            call!(driver.host_register(base.as_ptr().cast(), size, flags))?;
            call!(driver.host_address(&raw mut address, base.as_ptr().cast(), 0))?;
        }
        self.memory.push(memory);
        if address != base.addr().get() as u64 {
            return Err(DeviceError::other("the GPU sees this memory at another address than the host"));
        }
        Ok(())
    }

    /// The same, for what must not be called while a kernel runs.
    fn enter_idle(&self) -> Result<&Driver, DeviceError> {
        if self.is_running { Err(DeviceError::other("a kernel runs")) } else { self.enter() }
    }

    fn program(&self, program: ProgramId) -> Result<&Program, DeviceError> {
        self.programs.get(&program.0).ok_or_else(|| DeviceError::other("no such program is loaded"))
    }

    /// Memory of the device's own, zeroed. It is freed with the process.
    pub fn reserve(&mut self, bytes: usize) -> Result<u64, DeviceError> {
        self.take(bytes.max(1) as u64)
    }

    /// Writes to memory of the device's own; an error while a kernel runs.
    pub fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        // SAFETY: the slice is so long.
        unsafe { self.put(at, bytes.as_ptr(), bytes.len()) }
    }

    /// Reads memory of the device's own; an error while a kernel runs.
    pub fn read(&mut self, at: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        // SAFETY: as above.
        unsafe { self.get(at, into.as_mut_ptr(), into.len()) }
    }

    /// Whether a kernel that does not end by itself may run on, and all of its blocks at once.
    fn fits(&self, driver: &Driver, function: Handle, launch: &Launch) -> Result<(), DeviceError> {
        if driver.attribute(self.device, WATCHED)? != 0 {
            let message = "the driver ends kernels of this GPU after some seconds, since it has a display";
            return Err(DeviceError::new(code::INVALID_VALUE, message));
        }
        let threads = launch.block.iter().product::<u32>() as c_int;
        let (mut each, processors) = (0, driver.attribute(self.device, PROCESSORS)?);
        // SAFETY: the place outlives the call.
        unsafe { call!(driver.occupancy(&raw mut each, function, threads, launch.shared)) }?;
        let blocks = launch.grid.iter().map(|n| u64::from(*n)).product::<u64>();
        let room = each as u64 * processors as u64;
        if blocks <= room {
            return Ok(());
        }
        let message =
            format!("{blocks} blocks of {} are to run at once, and this GPU has room for {room}", launch.kernel);
        Err(DeviceError::new(code::INVALID_VALUE, message))
    }

    /// Starts a kernel, or adds it to the graph that is being captured.
    fn enqueue(&self, program: ProgramId, launch: &Launch) -> Result<(), DeviceError> {
        let driver = self.enter_idle()?;
        let function = self.program(program)?.function(driver, &launch.kernel)?;
        let shared = launch.shared as c_uint;
        // SAFETY: the function's program is loaded.
        unsafe { call!(driver.function_set(function, SHARED, shared.cast_signed())) }?;
        if launch.endless {
            self.fits(driver, function, launch)?;
        }
        let ([gx, gy, gz], [bx, by, bz]) = (launch.grid, launch.block);
        let (mut size, params) = (launch.params.len(), launch.params.as_ptr().cast_mut().cast());
        let [pointer, bytes] = PARAMS.map(ptr::without_provenance_mut);
        let mut extra = [pointer, params, bytes, (&raw mut size).cast::<c_void>(), ptr::null_mut()];
        let (stream, extra) = (self.stream, extra.as_mut_ptr());
        // SAFETY: the driver copies the parameters, as long as it is told, before the call ends.
        unsafe { call!(driver.launch(function, gx, gy, gz, bx, by, bz, shared, stream, ptr::null_mut(), extra)) }
    }

    /// What a query of the stream, or the wait for it, says of the kernel.
    fn outcome(&mut self, code: c_int) -> Option<Result<(), DeviceError>> {
        if code == NOT_READY {
            return None;
        }
        self.is_running = false;
        if code == 0 {
            return Some(Ok(()));
        }
        self.is_lost = true;
        Some(Err(DeviceError::new(code, self.driver.told(code))))
    }
}

impl Device for Cuda {
    fn kind(&self) -> &'static str {
        "cuda"
    }

    fn place(&self) -> &str {
        &self.card.address
    }

    fn idling(&self) -> (u64, u32) {
        (1_000_000, 200)
    }

    fn allocate(&mut self, bytes: usize) -> Result<Buffer, DeviceError> {
        let driver = self.enter_idle()?;
        let (mut base, mut address) = (ptr::null_mut(), 0);
        // SAFETY: the places outlive the calls.
        unsafe {
            call!(driver.host_alloc(&raw mut base, bytes.max(1), PINNED))?;
            call!(driver.host_address(&raw mut address, base, 0))?;
        }
        let base = NonNull::new(base.cast::<u8>()).ok_or_else(|| DeviceError::other("memory at address 0"))?;
        // SAFETY: so many bytes, which nobody else knows yet, and nobody frees.
        let memory: Arc<dyn Memory> = unsafe {
            base.write_bytes(0, bytes);
            Arc::new(Foreign::new(base, bytes, ()))
        };
        self.memory.push(memory.clone());
        Ok(Buffer { memory, address })
    }

    fn register(&mut self, memory: Arc<dyn Memory>) -> Result<(), DeviceError> {
        self.register_as(memory, PINNED)
    }

    fn register_to_read(&mut self, memory: Arc<dyn Memory>) -> Result<(), DeviceError> {
        if self.driver.attribute(self.device, READ_ONLY)? == 0 {
            return Err(DeviceError::other("the GPU does not read memory that its process cannot write"));
        }
        self.register_as(memory, PINNED | TO_READ)
    }

    fn attach(&mut self, chunks: &[OwnedFd], bytes: usize, at: u64) -> Result<(), DeviceError> {
        self.import(chunks, bytes, at)
    }

    fn load(&mut self, texts: &[&str]) -> Result<ProgramId, DeviceError> {
        let program = Program::load(self.enter_idle()?, texts)?;
        self.last += 1;
        self.programs.insert(self.last, program);
        Ok(ProgramId(self.last))
    }

    fn unload(&mut self, program: ProgramId) {
        if self.enter_idle().is_err() {
            return;
        }
        let Some(found) = self.programs.remove(&program.0) else { return };
        let driver = &self.driver;
        self.graphs.retain(|_, (of, graph)| {
            if *of == program {
                // SAFETY: it does not run, and is forgotten. Where even this fails the next call tells.
                let _ = unsafe { call!(driver.graph_exec_destroy(*graph)) };
            }
            *of != program
        });
        found.unload(driver);
    }

    fn reset(&mut self, program: ProgramId) -> Result<(), DeviceError> {
        self.enter_idle()?;
        let found = self.programs.get_mut(&program.0);
        found.ok_or_else(|| DeviceError::other("no such program is loaded"))?.reset(&self.driver)
    }

    fn parameters(&self, program: ProgramId, kernel: &str) -> Result<Vec<Parameter>, DeviceError> {
        let kernels = &self.program(program)?.kernels;
        let found = kernels.iter().find(|(name, _)| name == kernel);
        let names = kernels.iter().map(|(name, _)| name.as_str());
        found.map(|(_, parameters)| parameters.clone()).ok_or_else(|| no_kernel(kernel, names))
    }

    fn launch(&mut self, program: ProgramId, launch: &Launch) -> Result<(), DeviceError> {
        let launched = self.enqueue(program, launch);
        self.is_running |= launched.is_ok();
        // Errors of an earlier kernel are told by whatever is called next.
        let is_fatal = |e: &DeviceError| e.code >= code::ILLEGAL_ADDRESS && e.code != TOO_LARGE;
        self.is_lost |= launched.as_ref().is_err_and(is_fatal);
        launched
    }

    fn prepare(&mut self, program: ProgramId, launch: &Launch) -> Result<GraphId, DeviceError> {
        let driver = self.enter_idle()?;
        let (mut graph, mut ready) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the stream is this context's, and idle.
        unsafe { call!(driver.stream_capture(self.stream, CAPTURE)) }?;
        let captured = self.enqueue(program, launch);
        // SAFETY: as above; the place outlives the call.
        let ended = unsafe { call!(driver.stream_captured(self.stream, &raw mut graph)) };
        captured.and(ended)?;
        // SAFETY: the graph was captured above, and is no more used after it is destroyed; the place outlives the calls.
        let made = unsafe { call!(driver.graph_instantiate(&raw mut ready, graph, 0)) };
        // SAFETY: as above.
        unsafe { call!(driver.graph_destroy(graph)) }?;
        made?;
        self.last += 1;
        self.graphs.insert(self.last, (program, ready));
        Ok(GraphId(self.last))
    }

    fn start(&mut self, graph: GraphId) -> Result<(), DeviceError> {
        let driver = self.enter_idle()?;
        let (_, graph) = self.graphs.get(&graph.0).ok_or_else(|| DeviceError::other("no such graph"))?;
        // SAFETY: it is loaded, and does not run.
        unsafe { call!(driver.graph_launch(*graph, self.stream)) }?;
        self.is_running = true;
        Ok(())
    }

    fn ended(&mut self) -> Option<Result<(), DeviceError>> {
        if !self.is_running {
            return None;
        }
        if let Err(e) = self.enter() {
            return Some(Err(e));
        }
        // SAFETY: the stream is this context's.
        let code = unsafe { (self.driver.functions.stream_query.call)(self.stream) };
        self.outcome(code)
    }

    fn wait(&mut self) -> Result<(), DeviceError> {
        self.enter()?;
        // SAFETY: as above.
        let code = unsafe { (self.driver.functions.stream_wait.call)(self.stream) };
        self.outcome(code).unwrap_or(Ok(()))
    }

    fn is_lost(&self) -> bool {
        self.is_lost
    }
}
