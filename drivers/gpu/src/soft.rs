//! A GPU in software: kernels are interpreted, over memory that others use at the same time.

use std::{
    collections::BTreeMap,
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering, fence},
    },
    thread::{self, JoinHandle},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use berth_fabric::gpu_code as code;
use berth_memory::{Heap, Memory};
use berth_ptx::{FaultKind, Host, LaunchError, LoadError, Module, Order, Program, Refused, Semantics, Width};

use crate::device::{Buffer, Device, DeviceError, GraphId, Launch, Parameter, ProgramId, no_kernel};

/// A GPU in software. Its kernels have one core, and see host memory at the addresses of this process.
#[derive(Debug, Default)]
pub struct Soft {
    memory: Shared,
    /// `None` while a kernel of it runs.
    programs: BTreeMap<u32, Option<berth_ptx::Device>>,
    /// The number of the latest program or graph.
    last: u32,
    graphs: BTreeMap<u32, (ProgramId, Launch)>,
    running: Option<(ProgramId, JoinHandle<Ended>)>,
}

/// A kernel's device, for the next one, and how it ended.
type Ended = (berth_ptx::Device, Result<(), DeviceError>);

/// An error of a text that is not loaded.
fn refused<'a>(errors: impl IntoIterator<Item = &'a LoadError>) -> DeviceError {
    let mut errors = errors.into_iter().peekable();
    let module = errors.peek().map(|error| error.module);
    let message = errors.map(ToString::to_string).collect::<Vec<_>>().join("\n");
    DeviceError { module, code: code::INVALID_PTX, message }
}

/// As CUDA numbers what a kernel did.
fn numbered(error: LaunchError) -> DeviceError {
    let fault = match error {
        LaunchError::Fault(fault) => fault,
        other => return DeviceError::new(code::INVALID_VALUE, other.to_string()),
    };
    let code = match fault.kind {
        FaultKind::OutOfBounds { .. } => code::ILLEGAL_ADDRESS,
        FaultKind::Misaligned { .. } => code::MISALIGNED,
        _ => code::LAUNCH_FAILED,
    };
    DeviceError { module: Some(fault.module), code, message: fault.to_string() }
}

/// A launch as the interpreter takes it.
fn interpreted(launch: &Launch) -> berth_ptx::Launch<'_> {
    berth_ptx::Launch {
        kernel: &launch.kernel,
        grid: launch.grid,
        block: launch.block,
        shared: launch.shared,
        params: &launch.params,
        seed: 1,
        fuel: u64::MAX,
    }
}

/// Whether all blocks of a kernel that does not end by itself run at once.
fn fits(device: &berth_ptx::Device, launch: &Launch) -> Result<(), DeviceError> {
    let room = device.resident_blocks(&interpreted(launch)).map_err(numbered)?;
    let blocks = launch.grid.iter().map(|n| u64::from(*n)).product::<u64>();
    if blocks <= room as u64 {
        return Ok(());
    }
    let message =
        format!("{blocks} blocks of {} are to run at once, and the GPU in software has room for {room}", launch.kernel);
    Err(DeviceError::new(code::INVALID_VALUE, message))
}

impl Soft {
    /// Frees memory that [`Device::allocate`] made, by its address.
    pub fn release(&mut self, address: u64) {
        self.memory.all.retain(|(memory, _)| memory.base().addr().get() as u64 != address);
    }

    /// The names of a program's kernels.
    pub fn kernels(&self, program: ProgramId) -> Vec<String> {
        let program = self.programs.get(&program.0).and_then(Option::as_ref).map(berth_ptx::Device::program);
        program.map_or_else(Vec::new, |program| program.kernels().into_iter().map(str::to_owned).collect())
    }

    /// The program, if it is loaded and no kernel of it runs.
    fn program(&mut self, program: ProgramId) -> Result<&mut Option<berth_ptx::Device>, DeviceError> {
        let found = self.programs.get_mut(&program.0).filter(|device| device.is_some());
        found.ok_or_else(|| DeviceError::other("no such program is loaded, or a kernel of it runs"))
    }

    fn joined(&mut self, (program, thread): (ProgramId, JoinHandle<Ended>)) -> Result<(), DeviceError> {
        let joined = thread.join();
        let (device, ended) = joined.map_err(|_| DeviceError::new(code::LAUNCH_FAILED, "the interpreter panicked"))?;
        if let Some(place) = self.programs.get_mut(&program.0) {
            *place = Some(device);
        }
        ended
    }
}

impl Device for Soft {
    fn kind(&self) -> &'static str {
        "soft"
    }

    fn place(&self) -> &'static str {
        "soft"
    }

    fn idling(&self) -> (u64, u32) {
        (200_000, 50_000)
    }

    fn allocate(&mut self, bytes: usize) -> Result<Buffer, DeviceError> {
        let memory: Arc<dyn Memory> = Arc::new(Heap::new(bytes));
        self.memory.add(memory.clone(), May::Write);
        Ok(Buffer { address: memory.base().addr().get() as u64, memory })
    }

    fn register(&mut self, memory: Arc<dyn Memory>) -> Result<(), DeviceError> {
        self.memory.add(memory, May::Write);
        Ok(())
    }

    fn register_to_read(&mut self, memory: Arc<dyn Memory>) -> Result<(), DeviceError> {
        self.memory.add(memory, May::Read);
        Ok(())
    }

    fn attach(&mut self, _: &[OwnedFd], _: usize, _: u64) -> Result<(), DeviceError> {
        Err(DeviceError::other("the GPU in software has no memory but the host's"))
    }

    fn load(&mut self, texts: &[&str]) -> Result<ProgramId, DeviceError> {
        let mut modules = Vec::new();
        for (module, text) in texts.iter().enumerate() {
            let parsed = Module::parse(text);
            modules.push(parsed.map_err(|e| refused(&[LoadError { module, ..e }]))?);
        }
        let program = Program::link(&modules).map_err(|errors| refused(&errors))?;
        self.last += 1;
        self.programs.insert(self.last, Some(berth_ptx::Device::new(program)));
        Ok(ProgramId(self.last))
    }

    fn unload(&mut self, program: ProgramId) {
        self.programs.remove(&program.0);
        self.graphs.retain(|_, (of, _)| *of != program);
    }

    fn reset(&mut self, program: ProgramId) -> Result<(), DeviceError> {
        self.program(program)?.as_mut().into_iter().for_each(berth_ptx::Device::reset);
        Ok(())
    }

    fn parameters(&self, program: ProgramId, kernel: &str) -> Result<Vec<Parameter>, DeviceError> {
        let program = self.programs.get(&program.0).and_then(Option::as_ref).map(berth_ptx::Device::program);
        let program = program.ok_or_else(|| DeviceError::other("no such program is loaded"))?;
        let parameters = program.parameters(kernel).ok_or_else(|| no_kernel(kernel, program.kernels().into_iter()))?;
        Ok(parameters.iter().map(|one| Parameter { offset: one.offset, bytes: one.bytes }).collect())
    }

    fn launch(&mut self, program: ProgramId, launch: &Launch) -> Result<(), DeviceError> {
        if self.running.is_some() {
            return Err(DeviceError::other("a kernel runs"));
        }
        let place = self.program(program)?;
        if launch.endless
            && let Some(device) = &place
        {
            fits(device, launch)?;
        }
        let Some(mut device) = place.take() else { return Err(DeviceError::other("a kernel of it runs")) };
        let (launch, mut memory) = (launch.clone(), self.memory.clone());
        let run = move || {
            let ended = device.launch(&mut memory, &interpreted(&launch), &mut Clock).map(drop).map_err(numbered);
            (device, ended)
        };
        let thread = thread::Builder::new().name("kernel".into()).spawn(run);
        let thread = thread.map_err(|e| DeviceError::other(format!("cannot start a thread: {e}")))?;
        self.running = Some((program, thread));
        Ok(())
    }

    fn prepare(&mut self, program: ProgramId, launch: &Launch) -> Result<GraphId, DeviceError> {
        self.parameters(program, &launch.kernel)?;
        self.last += 1;
        self.graphs.insert(self.last, (program, launch.clone()));
        Ok(GraphId(self.last))
    }

    fn start(&mut self, graph: GraphId) -> Result<(), DeviceError> {
        let found = self.graphs.get(&graph.0).cloned();
        let (program, launch) = found.ok_or_else(|| DeviceError::other("no such graph"))?;
        self.launch(program, &launch)
    }

    fn ended(&mut self) -> Option<Result<(), DeviceError>> {
        let running = self.running.take_if(|(_, thread)| thread.is_finished())?;
        Some(self.joined(running))
    }

    fn wait(&mut self) -> Result<(), DeviceError> {
        let running = self.running.take();
        running.map_or(Ok(()), |running| self.joined(running))
    }

    fn is_lost(&self) -> bool {
        false
    }
}

/// The host of a kernel that never ends: it has a core to itself while there is work.
struct Clock;

impl Host for Clock {
    fn now(&mut self) -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64
    }

    fn idle(&mut self, nanoseconds: u32) {
        thread::sleep(Duration::from_nanos(nanoseconds.into()));
    }
}

/// What kernels may do with memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum May {
    Read,
    /// And read.
    Write,
}

/// Memory at the addresses of this process, which hosts and devices write at any time: every access is atomic.
#[derive(Debug, Clone, Default)]
struct Shared {
    all: Vec<(Arc<dyn Memory>, May)>,
    /// Which was used last.
    last: usize,
}

impl Shared {
    fn add(&mut self, memory: Arc<dyn Memory>, may: May) {
        self.all.push((memory, may));
    }

    /// The pointer to `width` bytes at this address, which is a multiple of it, if the kernel may do that there.
    #[inline]
    fn find(&mut self, at: u64, width: Width, wanted: May) -> Result<*mut u8, Refused> {
        let inside = |(memory, may): &(Arc<dyn Memory>, May)| {
            let offset = (at as usize).checked_sub(memory.base().addr().get())?;
            let end = offset.checked_add(usize::from(width.bytes()))?;
            // SAFETY: within the memory.
            (end <= memory.size() && wanted <= *may).then(|| unsafe { memory.base().as_ptr().add(offset) })
        };
        if let Some(found) = self.all.get(self.last).and_then(inside) {
            return Ok(found);
        }
        let found = self.all.iter().enumerate().find_map(|(index, memory)| Some((index, inside(memory)?)));
        let (index, found) = found.ok_or(Refused)?;
        self.last = index;
        Ok(found)
    }
}

/// Runs `$do` with the atomic at `$at` of the width.
macro_rules! atomic {
    ($at:expr, $width:expr, $atomic:ident, $int:ident => $do:expr) => {{
        // SAFETY: `find` checked the bytes, which live as long as the kernel; the interpreter passes multiples of the width;
        // whoever else has them uses atomics or copies that allow for changes.
        unsafe {
            match $width {
                Width::B1 => {
                    type $int = u8;
                    let $atomic = AtomicU8::from_ptr($at.cast());
                    $do
                }
                Width::B2 => {
                    type $int = u16;
                    let $atomic = AtomicU16::from_ptr($at.cast());
                    $do
                }
                Width::B4 => {
                    type $int = u32;
                    let $atomic = AtomicU32::from_ptr($at.cast());
                    $do
                }
                Width::B8 => {
                    type $int = u64;
                    let $atomic = AtomicU64::from_ptr($at.cast());
                    $do
                }
            }
        }
    }};
}

impl berth_ptx::Memory for Shared {
    #[inline]
    fn load(&mut self, at: u64, width: Width, order: Order) -> Result<u64, Refused> {
        let at = self.find(at, width, May::Read)?;
        let order = match order.semantics {
            Semantics::Weak | Semantics::Relaxed | Semantics::Release => Ordering::Relaxed,
            Semantics::Acquire | Semantics::AcquireRelease => Ordering::Acquire,
            Semantics::Sequential => Ordering::SeqCst,
        };
        Ok(atomic!(at, width, atomic, Int => Int::into(atomic.load(order))))
    }

    #[inline]
    fn store(&mut self, at: u64, width: Width, value: u64, order: Order) -> Result<(), Refused> {
        let at = self.find(at, width, May::Write)?;
        let order = match order.semantics {
            Semantics::Weak | Semantics::Relaxed | Semantics::Acquire => Ordering::Relaxed,
            Semantics::Release | Semantics::AcquireRelease => Ordering::Release,
            Semantics::Sequential => Ordering::SeqCst,
        };
        atomic!(at, width, atomic, Int => atomic.store(value as Int, order));
        Ok(())
    }

    fn update(&mut self, at: u64, width: Width, _: Order, f: impl Fn(u64) -> u64) -> Result<u64, Refused> {
        let at = self.find(at, width, May::Write)?;
        let (seq, f) = (Ordering::SeqCst, |old: u64| f(old));
        Ok(atomic!(at, width, atomic, Int => {
            let changed = atomic.fetch_update(seq, seq, |old| Some(f(Int::into(old)) as Int));
            changed.map_or_else(Int::into, Int::into)
        }))
    }

    fn fence(&mut self, order: Order) {
        match order.semantics {
            Semantics::Weak | Semantics::Relaxed => {}
            Semantics::Sequential => fence(Ordering::SeqCst),
            Semantics::Acquire => fence(Ordering::Acquire),
            Semantics::Release => fence(Ordering::Release),
            Semantics::AcquireRelease => fence(Ordering::AcqRel),
        }
    }
}
