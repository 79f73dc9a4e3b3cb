//! A GPU in software: kernels are interpreted, over memory that others use at the same time.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering, fence},
    },
    thread::{self, JoinHandle},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use berth_memory::{Heap, Memory};
use berth_ptx::{Host, LaunchError, Module, Order, Program, Refused, Semantics, Width};

use crate::{
    device::{Buffer, Device, DeviceError, Launch},
    mapping::Mapping,
};

/// A GPU in software. Its kernels have one core, and see host memory at the addresses of this process.
#[derive(Debug, Default)]
pub struct Soft {
    memory: Shared,
    device: Option<berth_ptx::Device>,
    running: Option<JoinHandle<Ended>>,
}

/// A kernel's device, for the next one, and how it ended.
type Ended = (berth_ptx::Device, Result<(), DeviceError>);

impl Device for Soft {
    fn kind(&self) -> &'static str {
        "soft"
    }

    fn idling(&self) -> (u64, u32) {
        (200_000, 50_000)
    }

    fn allocate(&mut self, bytes: usize) -> Result<Buffer, DeviceError> {
        let memory: Arc<dyn Memory> = Arc::new(Heap::new(bytes));
        self.memory.add(memory.clone());
        Ok(Buffer { address: memory.base().addr().get() as u64, memory })
    }

    fn register(&mut self, mapping: Arc<Mapping>) -> Result<(), DeviceError> {
        self.memory.add(mapping);
        Ok(())
    }

    fn load(&mut self, texts: &[&str]) -> Result<(), DeviceError> {
        let mut modules = Vec::new();
        for (module, text) in texts.iter().enumerate() {
            let parsed = Module::parse(text);
            modules.push(parsed.map_err(|e| DeviceError { module: Some(module), message: e.to_string() })?);
        }
        let program = Program::link(&modules).map_err(|errors| {
            let first = errors.first();
            DeviceError {
                module: first.map(|e| e.module),
                message: first.map_or_else(String::new, ToString::to_string),
            }
        })?;
        self.device = Some(berth_ptx::Device::new(program));
        Ok(())
    }

    fn launch(&mut self, launch: &Launch) -> Result<(), DeviceError> {
        let Some(mut device) = self.device.take() else {
            return Err(DeviceError::new("nothing is loaded, or a kernel runs"));
        };
        let (launch, mut memory) = (launch.clone(), self.memory.clone());
        let run = move || {
            let launch = berth_ptx::Launch {
                kernel: &launch.kernel,
                grid: [launch.blocks, 1, 1],
                block: [launch.threads, 1, 1],
                shared: launch.shared,
                params: &launch.params,
                seed: 1,
                fuel: u64::MAX,
            };
            let ran = device.launch(&mut memory, &launch, &mut Clock);
            let ended = ran.map(drop).map_err(|e| match e {
                LaunchError::Fault(fault) => DeviceError { module: Some(fault.module), message: fault.to_string() },
                other => DeviceError::new(other.to_string()),
            });
            (device, ended)
        };
        let thread = thread::Builder::new().name("kernel".into()).spawn(run);
        self.running = Some(thread.map_err(|e| DeviceError::new(format!("cannot start a thread: {e}")))?);
        Ok(())
    }

    fn ended(&mut self) -> Option<Result<(), DeviceError>> {
        let thread = self.running.take_if(|thread| thread.is_finished())?;
        Some(match thread.join() {
            Ok((device, ended)) => {
                self.device = Some(device);
                ended
            }
            Err(_) => Err(DeviceError::new("the interpreter panicked")),
        })
    }
}

/// The host of a kernel that never ends: it has a core to itself while there is work.
pub(crate) struct Clock;

impl Host for Clock {
    fn now(&mut self) -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64
    }

    fn idle(&mut self, nanoseconds: u32) {
        thread::sleep(Duration::from_nanos(nanoseconds.into()));
    }
}

/// Memory at the addresses of this process, which hosts and devices write at any time: every access is atomic.
#[derive(Debug, Clone, Default)]
pub(crate) struct Shared {
    all: Vec<Arc<dyn Memory>>,
    /// Which was used last.
    last: usize,
}

impl Shared {
    pub(crate) fn add(&mut self, memory: Arc<dyn Memory>) {
        self.all.push(memory);
    }

    /// The pointer to `width` bytes at this address, which is a multiple of it, if the kernel may touch them.
    #[inline]
    fn find(&mut self, at: u64, width: Width) -> Result<*mut u8, Refused> {
        let inside = |memory: &Arc<dyn Memory>| {
            let offset = (at as usize).checked_sub(memory.base().addr().get())?;
            let end = offset.checked_add(usize::from(width.bytes()))?;
            // SAFETY: within the memory.
            (end <= memory.size()).then(|| unsafe { memory.base().as_ptr().add(offset) })
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
        let at = self.find(at, width)?;
        let order = match order.semantics {
            Semantics::Weak | Semantics::Relaxed | Semantics::Release => Ordering::Relaxed,
            Semantics::Acquire | Semantics::AcquireRelease => Ordering::Acquire,
            Semantics::Sequential => Ordering::SeqCst,
        };
        Ok(atomic!(at, width, atomic, Int => Int::into(atomic.load(order))))
    }

    #[inline]
    fn store(&mut self, at: u64, width: Width, value: u64, order: Order) -> Result<(), Refused> {
        let at = self.find(at, width)?;
        let order = match order.semantics {
            Semantics::Weak | Semantics::Relaxed | Semantics::Acquire => Ordering::Relaxed,
            Semantics::Release | Semantics::AcquireRelease => Ordering::Release,
            Semantics::Sequential => Ordering::SeqCst,
        };
        atomic!(at, width, atomic, Int => atomic.store(value as Int, order));
        Ok(())
    }

    fn update(&mut self, at: u64, width: Width, _: Order, f: impl Fn(u64) -> u64) -> Result<u64, Refused> {
        let at = self.find(at, width)?;
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
