//! The software GPU as the devices of a session: PTX text as code objects, exact faults.

mod code;
mod space;

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    task::{Context, Poll},
};

pub use berth_ptx::Host;
use berth_ptx::TEXT_MAX;
use berth_wire::hip::Code;

pub use self::{
    code::{Gpu, Task},
    space::{Budget, LOWEST, Reserved, Windows},
};
use crate::{
    Random,
    device::{Allocation, Device, Done, Job, Properties},
};

/// What the device calls itself as an architecture.
pub const ARCH: &str = "berth-ptx";

/// Bytes of a set or a copy that are touched at once; more is the runner's.
const AT_ONCE: u64 = 16 << 10;

/// Instructions of a launch that is run at once: some microseconds.
const LAUNCH_AT_ONCE: u64 = 1280;

/// Instructions of such launches in a row. The next one waits for a poll, and others get their turn before.
const LAUNCHES_AT_ONCE: u64 = 16 << 10;

/// Runs what takes time, elsewhere. Dropped, it stops that.
pub trait Runner {
    /// Starts a task. There is none under way.
    fn start(&mut self, task: Task);

    /// The task's end; otherwise wakes its task later.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<(Box<Gpu>, Done)>;
}

/// The software GPUs of one session.
#[derive(Debug)]
pub struct Soft<R> {
    properties: Arc<[Properties]>,
    /// `None` while the runner has it.
    gpu: Option<Box<Gpu>>,
    /// What was done at once.
    done: Option<Done>,
    /// Instructions of launches that may still be run at once.
    left: u64,
    /// A launch that is run when it is asked for again; whether it was asked for once.
    paused: Option<(Job, bool)>,
    runner: R,
}

/// A software GPU with so many bytes for sessions, each of which may have `quota`.
pub fn properties(memory: u64, quota: u64) -> Properties {
    Properties {
        name: "Berth software GPU".into(),
        arch: ARCH.into(),
        memory: memory.min(quota),
        shared_memory: 227 << 10,
        block_threads: 1024,
        block: [1024, 1024, 64],
        grid: [i32::MAX as u32, 65535, 65535],
        warp: 32,
        resident: [32, 2048],
        processors: 1,
        version: [7, 0],
    }
}

impl<R: Runner> Soft<R> {
    /// With nothing allocated; `None` if there are too many sessions. `budgets` are the bytes of each device, `quota` those of
    /// the session on all of them.
    pub fn new(
        properties: Arc<[Properties]>,
        windows: &Arc<Windows>,
        budgets: Vec<Arc<Budget>>,
        quota: Arc<Budget>,
        random: &Random,
        runner: R,
    ) -> Option<Self> {
        let gpu = Gpu::new(space::Space::new(windows, budgets, quota, random)?);
        Some(Self { properties, gpu: Some(Box::new(gpu)), done: None, left: LAUNCHES_AT_ONCE, paused: None, runner })
    }

    fn gpu(&mut self) -> &mut Gpu {
        self.gpu.as_mut().expect("no job is under way")
    }

    /// Runs a job on the calling thread.
    fn run(&mut self, job: &Job) -> Done {
        // A stranger's kernel must not end the core with the interpreter, should that panic.
        let done = catch_unwind(AssertUnwindSafe(|| self.gpu().run(job, &mut || 0)));
        done.unwrap_or(Done::Finished(Err(Code::UNKNOWN)))
    }
}

impl<R: Runner> Device for Soft<R> {
    fn image_max(&self, _: usize) -> usize {
        TEXT_MAX + 1
    }

    fn properties(&self) -> &[Properties] {
        &self.properties
    }

    fn free_bytes(&self, device: usize) -> u64 {
        self.gpu.as_ref().map_or(0, |gpu| gpu.space.free_bytes(device))
    }

    fn used(&self) -> Option<u64> {
        self.gpu.as_ref().map(|gpu| gpu.space.used())
    }

    fn free(&mut self, at: u64) -> Result<(), Code> {
        self.gpu().space.release(at)
    }

    fn find(&self, at: u64) -> Option<Allocation> {
        self.gpu.as_ref()?.space.find(at)
    }

    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<usize, Code> {
        let into = self.gpu().space.bytes(at, bytes.len() as u64);
        if into.len() == bytes.len() {
            into.copy_from_slice(bytes);
        }
        Ok(bytes.len())
    }

    fn reach(&mut self, _: u64, _: u64) -> Poll<Result<(), Code>> {
        Poll::Ready(Ok(()))
    }

    fn read(&mut self, at: u64, _: u64, into: &mut [u8]) -> Result<usize, Code> {
        let from = self.gpu().space.bytes(at, into.len() as u64);
        if from.len() == into.len() {
            into.copy_from_slice(from);
        }
        Ok(into.len())
    }

    fn poll_data(&mut self, _: &mut Context<'_>) -> Poll<()> {
        Poll::Ready(())
    }

    fn unload(&mut self, module: u64) {
        self.gpu().unload(module);
    }

    fn reset(&mut self) {
        self.gpu().reset();
    }

    fn confine(&mut self, device: usize, bytes: u64, held: Box<dyn Any + Send>) -> Result<(), Code> {
        self.gpu().space.confine(device, bytes, held)?;
        self.gpu().reset();
        let properties = &self.properties[device];
        self.properties = Arc::new([Properties { memory: bytes, ..properties.clone() }]);
        Ok(())
    }

    fn set(&mut self, dst: u64, len: u64, value: u8) -> Result<bool, Code> {
        if len > AT_ONCE {
            return self.check(dst, len).map(|()| false);
        }
        self.gpu().space.range(dst, len)?.fill(value);
        Ok(true)
    }

    fn start(&mut self, job: Job) {
        let at_once = match &job {
            Job::Allocate { .. } | Job::Settle => true,
            Job::Set { len, .. } => *len <= AT_ONCE,
            Job::Copy(copy) => copy.width * copy.height <= AT_ONCE && copy.height <= AT_ONCE / 64,
            Job::Launch(launch) => {
                let bound = self.gpu().bound(launch).filter(|bound| *bound <= LAUNCH_AT_ONCE);
                if let Some(bound) = bound {
                    let Some(left) = self.left.checked_sub(bound) else {
                        self.left = LAUNCHES_AT_ONCE;
                        self.paused = Some((job, false));
                        return;
                    };
                    self.left = left;
                }
                bound.is_some()
            }
            Job::Load { .. } => false,
        };
        if at_once {
            self.done = Some(self.run(&job));
        } else if let Some(gpu) = self.gpu.take() {
            self.runner.start(Task { gpu, job });
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Done> {
        if let Some(done) = self.done.take() {
            return Poll::Ready(done);
        }
        match self.paused.take() {
            // The session asks when it has started it, and then when it is served or polled again.
            Some((job, false)) => {
                self.paused = Some((job, true));
                return Poll::Pending;
            }
            Some((job, true)) => return Poll::Ready(self.run(&job)),
            None => {}
        }
        self.runner.poll(cx).map(|(gpu, done)| {
            self.gpu = Some(gpu);
            done
        })
    }
}
