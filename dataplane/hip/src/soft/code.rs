//! Modules and kernels of the software GPU.

use std::collections::HashMap;

use berth_ptx::{
    Device, FaultKind, Host, Launch as PtxLaunch, LaunchError, LoadError, Module, Program, Reason, Scratch,
};
use berth_wire::hip::Code;

use super::space::Space;
use crate::device::{Copy2d, Done, Job, Kernel, Launch, Loaded};

/// Parameters that a function can tell of.
const PARAMETERS_MAX: usize = 64;
/// Bytes that the registers and stacks of a kernel take without counting.
const STATE_FREE: u64 = 32 << 20;
/// Bytes that a byte of text is charged with: what it is decoded to.
const DECODED: u64 = 8;
/// What a launch takes beside its threads, in instructions.
const LAUNCH: u64 = 128;
/// Bytes of shared memory that take as long to set up as an instruction takes to run.
const SHARED: u64 = 16;
/// Beginnings of code objects of other devices.
const FOREIGN: [&[u8]; 5] =
    [b"\x7FELF", b"__CLANG_OFFLOAD_BUNDLE__", b"\x50\xED\x55\xBA", b"CCOB", b"\xBA\x55\xED\x50"];

/// A device's memory and modules.
#[derive(Debug)]
pub struct Gpu {
    pub(super) space: Space,
    modules: HashMap<u64, Loadable>,
    next: u64,
    scratch: Scratch,
    /// Why the last text was not loaded.
    complaint: Option<LoadError>,
}

#[derive(Debug)]
struct Loadable {
    device: Device,
    /// The kernels' names, and what a thread of each takes at most.
    kernels: Vec<(String, Option<u64>)>,
    /// The device whose bytes it counts in, and how many they are.
    charged: (usize, u64),
}

/// A job, with what it works on.
#[derive(Debug)]
pub struct Task {
    pub(super) gpu: Box<Gpu>,
    pub(super) job: Job,
}

impl Task {
    /// Whether it launches a kernel: the one kind of job that may need a time limit.
    pub fn is_launch(&self) -> bool {
        matches!(self.job, Job::Launch(_))
    }

    /// Does it. A kernel ends where its host stops it.
    pub fn run(&mut self, host: &mut dyn Host) -> Done {
        self.gpu.run(&self.job, host)
    }

    /// What to report for a task that broke off: that its job failed with `code`.
    pub fn failed(&self, code: Code) -> Done {
        self.job.failed(code)
    }

    /// Gives the memory and modules that it worked on back.
    pub fn into_gpu(self) -> Box<Gpu> {
        self.gpu
    }

    /// What was wrong with a text that was not loaded, once.
    pub fn complaint(&mut self) -> Option<LoadError> {
        self.gpu.complaint.take()
    }
}

impl Gpu {
    pub(super) fn new(space: Space) -> Self {
        Self { space, modules: HashMap::new(), next: 1, scratch: Scratch::default(), complaint: None }
    }

    pub(super) fn unload(&mut self, module: u64) {
        if let Some(module) = self.modules.remove(&module) {
            self.space.refund(module.charged.0, module.charged.1);
        }
    }

    pub(super) fn reset(&mut self) {
        self.modules.clear();
        self.space.clear();
    }

    pub(super) fn run(&mut self, job: &Job, host: &mut dyn Host) -> Done {
        match job {
            Job::Allocate { device, sizes } => return Done::Allocated(self.allocate(*device, sizes)),
            Job::Settle => {}
            Job::Set { dst, len, value } => self.space.bytes(*dst, *len).fill(*value),
            Job::Copy(copy) => self.copy(copy),
            Job::Load { device, image } => return Done::Loaded(self.load(*device, image)),
            Job::Launch(launch) => return Done::Finished(self.launch(launch, host)),
        }
        Done::Finished(Ok(()))
    }

    fn allocate(&mut self, device: usize, sizes: &[u64]) -> Result<Vec<u64>, Code> {
        let mut made = Vec::with_capacity(sizes.len());
        for size in sizes {
            match if *size == 0 { Ok(0) } else { self.space.allocate(device, *size) } {
                Ok(at) => made.push(at),
                Err(code) => {
                    for at in made.into_iter().filter(|at| *at != 0) {
                        // It has just been made.
                        let _ = self.space.release(at);
                    }
                    return Err(code);
                }
            }
        }
        Ok(made)
    }

    fn copy(&mut self, copy: &Copy2d) {
        let Copy2d { dst, dpitch, src, spitch, width, height } = *copy;
        for row in 0..height {
            // The last row first where the rows move up: what is still to be read is not written.
            let row = if dst > src { height - 1 - row } else { row };
            self.space.copy(dst + row * dpitch, src + row * spitch, width);
        }
    }

    fn load(&mut self, on: usize, image: &[u8]) -> Result<Loaded, Code> {
        if FOREIGN.iter().any(|magic| image.starts_with(magic)) {
            return Err(Code::NO_BINARY);
        }
        let end = image.iter().position(|byte| *byte == 0).unwrap_or(image.len());
        let text = std::str::from_utf8(&image[..end]).map_err(|_| Code::INVALID_IMAGE)?;
        let module = Module::parse(text).map_err(|error| match error.reason {
            Reason::Unsupported(_) => self.complain(error),
            _ => Code::INVALID_IMAGE,
        })?;
        let program = Program::link(&[module]).map_err(|errors| match errors.into_iter().next() {
            Some(error) => self.complain(error),
            None => Code::INVALID_KERNEL_FILE,
        })?;
        let kernels =
            program.kernels().into_iter().map(|name| kernel(&program, name)).collect::<Result<Vec<_>, _>>()?;
        let charged = text.len() as u64 * DECODED + program.variable_bytes() as u64;
        self.space.charge(on, charged)?;
        let bounded = |kernel: &Kernel| (kernel.name.clone(), program.thread_bound(&kernel.name));
        let names = kernels.iter().map(bounded).collect();
        let module = self.next;
        self.next += 1;
        self.modules.insert(module, Loadable { device: Device::new(program), kernels: names, charged: (on, charged) });
        Ok(Loaded { module, kernels })
    }

    fn complain(&mut self, error: LoadError) -> Code {
        self.complaint = Some(error);
        Code::INVALID_KERNEL_FILE
    }

    /// The most that a launch takes, in instructions, whatever its kernel finds in memory; `None` if that is not known.
    pub(super) fn bound(&self, launch: &Launch) -> Option<u64> {
        let module = self.modules.get(&launch.module)?;
        let (_, of_thread) = module.kernels.get(launch.kernel)?;
        let count = |of: [u32; 3]| of.into_iter().fold(1_u64, |product, one| product.saturating_mul(one.into()));
        let shared = u64::from(launch.shared) + module.device.program().shared_bytes() as u64;
        let of_block = count(launch.block).saturating_mul((*of_thread)?).saturating_add(shared / SHARED);
        Some(count(launch.grid).saturating_mul(of_block).saturating_add(LAUNCH))
    }

    fn launch(&mut self, launch: &Launch, host: &mut dyn Host) -> Result<(), Code> {
        let module = self.modules.get_mut(&launch.module).ok_or(Code::INVALID_HANDLE)?;
        let (kernel, _) = module.kernels.get(launch.kernel).ok_or(Code::INVALID_HANDLE)?;
        let what = PtxLaunch {
            kernel,
            grid: launch.grid,
            block: launch.block,
            shared: launch.shared as usize,
            params: &launch.arguments,
            seed: 1,
            fuel: u64::MAX,
        };
        let state = self.space.quota_left().saturating_add(STATE_FREE);
        module.device.limit_state(usize::try_from(state).unwrap_or(usize::MAX));
        match module.device.launch_in(&mut self.scratch, &mut self.space, &what, host) {
            Ok(_) => Ok(()),
            Err(LaunchError::NoKernel(_)) => Err(Code::INVALID_HANDLE),
            Err(LaunchError::Shape(_)) => Err(Code::OUT_OF_RESOURCES),
            Err(LaunchError::Arguments { .. }) => Err(Code::INVALID_VALUE),
            Err(LaunchError::Fault(fault)) => Err(match fault.kind {
                FaultKind::OutOfBounds { .. } => Code::ILLEGAL_ADDRESS,
                FaultKind::Misaligned { .. } => Code::MISALIGNED,
                FaultKind::Stopped | FaultKind::OutOfFuel => Code::TIMED_OUT,
                _ => Code::LAUNCH_FAILURE,
            }),
        }
    }
}

/// What a function tells of itself.
fn kernel(program: &Program, name: &str) -> Result<Kernel, Code> {
    let parameters = program.parameters(name).unwrap_or_default();
    if parameters.len() > PARAMETERS_MAX {
        return Err(Code::INVALID_KERNEL_FILE);
    }
    let parameters: Vec<_> = parameters.iter().map(|one| (one.offset as u32, one.bytes as u32)).collect();
    let argument_bytes = parameters.last().map_or(0, |(offset, size)| offset + size);
    Ok(Kernel { name: name.to_owned(), parameters, argument_bytes })
}
