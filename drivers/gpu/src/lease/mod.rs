//! A GPU whose memory is leased: a worker process for each lease that runs kernels, which has that lease's
//! memory and nothing else of the GPU's.

mod control;
pub(crate) mod process;

use std::{
    ops::Range,
    os::fd::AsRawFd,
    path::PathBuf,
    process::Command,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use berth_fabric::{GpuDone, GpuExecutor, GpuWorker, Kernel, Ran, gpu_code as code};
use berth_lease::Blocks as _;
use berth_memory::Memory as _;
use berth_pages::Pages;
use berth_process::supervise::{End, Supervised, Ward};
use berth_wire::fabric::GpuStatus;
use tracing::warn;

use self::control::{Ended, Inherited, Open, Report, Run};
use crate::{
    child,
    choice::Choice,
    control::line,
    cuda::PAGE,
    gpu::{GpuCounts, GpuError, open_files},
    once::cards,
    session::SessionCounts,
    vram::VramBlocks,
    walls::CACHE,
};

/// Where kernels see the first byte of a GPU's memory: apart from rings, and from what NVIDIA's driver takes for itself (1 << 40).
pub(crate) const BASE: u64 = 0x3800 << 32;

/// How long a worker may take to be there.
const START: Duration = Duration::from_secs(10);

/// How much longer than a kernel's time limit it may give no sign of life.
const SILENCE: Duration = Duration::from_millis(800);

/// Which GPU, and how its kernels are run.
#[derive(Debug, Clone)]
pub struct LeaseSettings {
    /// As the configuration calls it.
    pub name: String,
    /// The program `berth-gpu-worker`.
    pub worker: PathBuf,
    /// What runs kernels.
    pub device: Choice,
    /// How long a kernel may take, loading included.
    pub limit: Duration,
}

/// A GPU whose memory is leased.
#[derive(Debug, Clone)]
pub struct LeasedGpu(Arc<Inside>);

#[derive(Debug)]
struct Inside {
    settings: LeaseSettings,
    /// What kind of device it is, and which.
    device: (&'static str, String),
    memory: LeasedMemory,
    /// It was told that its workers may open files.
    told_open: AtomicBool,
    restarts: AtomicU64,
    faults: AtomicU64,
    timeouts: AtomicU64,
}

/// Where the bytes of leases lie, which kernels reach where the lease says.
#[derive(Debug, Clone)]
pub enum LeasedMemory {
    /// In memory of the host, of [`berth_pages::Backing::Unnamed`].
    Host(Arc<Pages>),
    /// In the GPU's own.
    Vram(Arc<VramBlocks>),
}

impl LeasedGpu {
    /// A GPU with this memory. One of NVIDIA's must be there now.
    pub fn open(settings: LeaseSettings, memory: LeasedMemory) -> Result<Self, GpuError> {
        let device = match &settings.device {
            Choice::Soft => ("soft", "soft".to_owned()),
            other => {
                let cards = cards(&settings.worker)?;
                let card = cards.choose(other).map_err(|e| GpuError::Refused(e.to_string()))?;
                ("cuda", card.address.clone())
            }
        };
        let [restarts, faults, timeouts] = [const { AtomicU64::new(0) }; 3];
        Ok(Self(Arc::new(Inside {
            settings,
            device,
            memory,
            told_open: AtomicBool::new(false),
            restarts,
            faults,
            timeouts,
        })))
    }

    /// As the configuration calls it.
    pub fn name(&self) -> &str {
        &self.0.settings.name
    }

    /// The device: `soft` and `soft`, or `cuda` and its PCI address.
    pub fn device(&self) -> (String, String) {
        let (kind, name) = &self.0.device;
        ((*kind).to_owned(), name.clone())
    }

    /// Where the bytes of its leases lie, as the ready line says: `vram`, `pinned`. The one in software has no other memory than
    /// the host's.
    pub fn memory(&self) -> &'static str {
        match self.0.memory {
            LeasedMemory::Host(_) if self.0.settings.device != Choice::Soft => "pinned",
            _ => "vram",
        }
    }

    /// The counters so far, of all leases and of what copies. `refused` and `beats` stay 0, and `up` stays 1.
    pub fn counts(&self) -> GpuCounts {
        let [mut restarts, faults, mut timeouts] =
            [&self.0.restarts, &self.0.faults, &self.0.timeouts].map(|count| count.load(Relaxed));
        if let LeasedMemory::Vram(blocks) = &self.0.memory {
            let SessionCounts { faults, timeouts: late, ended, .. } = blocks.counts();
            let [lost, late, ended] = [faults, late, ended].map(|count| count.load(Relaxed));
            restarts += lost + late + ended;
            timeouts += late;
        }
        // Its workers serve no rings: none has requests to give up, or beats. It takes kernels at any time.
        GpuCounts { restarts, faults, timeouts, refused: 0, beats: 0, up: 1 }
    }
}

impl GpuExecutor for LeasedGpu {
    fn base(&self) -> u64 {
        BASE
    }

    fn takes(&self, binary: &[u8]) -> bool {
        !FOREIGN.iter().any(|magic| binary.starts_with(magic))
    }

    fn open(&self, base: u64, reach: Range<u64>) -> Arc<dyn GpuWorker> {
        let gpu = self.0.clone();
        Arc::new(Lease {
            shared: Arc::new(Shared { gpu, base, reach, now: Mutex::default() }),
            child: Mutex::default(),
        })
    }
}

/// What runs the kernels of a lease.
#[derive(Debug)]
struct Lease {
    shared: Arc<Shared>,
    /// The worker; `None` before the first kernel.
    child: Mutex<Option<Supervised>>,
}

#[derive(Debug)]
struct Shared {
    gpu: Arc<Inside>,
    /// Where the lease begins in the GPU's memory, in bytes.
    base: u64,
    reach: Range<u64>,
    now: Mutex<Now>,
}

#[derive(Debug, Default)]
struct Now {
    stopped: bool,
    /// The worker has said that it ends: the next one is greeted with the job.
    leaving: bool,
    job: Option<Job>,
}

/// The kernel that runs.
struct Job {
    id: u64,
    /// As the worker is told it.
    line: Vec<u8>,
    /// Offset in the lease and length of its output, in bytes.
    output: (u64, u32),
    done: GpuDone,
    /// A worker knows of it.
    told: bool,
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Job").field("id", &self.id).finish_non_exhaustive()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn ran(status: GpuStatus, exit_code: i32) -> Ran {
    Ran { status, exit_code, output: Vec::new() }
}

/// What binaries for one GPU begin with: cubins and code objects of ROCm are ELF files, and fat binaries hold several.
const FOREIGN: [&[u8]; 3] = [b"\x7fELF", &[0x50, 0xED, 0x55, 0xBA], b"__CLANG_OFFLOAD_BUNDLE__"];

/// The text of a binary, which may end with zeros, as nvrtc counts one; else how the attempt to run it ends.
fn text(binary: &[u8]) -> Result<&str, Ran> {
    let not_text = b"the binary is no text, and PTX is".to_vec();
    let len = binary.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    std::str::from_utf8(&binary[..len])
        .map_err(|_| Ran { output: not_text, ..ran(GpuStatus::LoadFailed, code::INVALID_PTX) })
}

impl GpuWorker for Lease {
    fn launch(&self, kernel: &Kernel, done: GpuDone) {
        let text = match text(&kernel.binary) {
            Ok(text) => text.to_owned(),
            Err(refused) => return done(refused),
        };
        if !self.shared.is_reachable() {
            return done(ran(GpuStatus::LaunchFailed, code::UNKNOWN));
        }
        let (id, output) = (kernel.submit_id, kernel.output);
        let run = Run {
            id,
            text,
            kernel: kernel.name.clone(),
            grid: kernel.grid,
            block: kernel.block,
            args: kernel.args.clone(),
        };
        let line = line(&control::Command::Run(Box::new(run)));
        let mut child = locked(&self.child);
        let told = {
            let mut now = locked(&self.shared.now);
            if now.stopped {
                return;
            }
            let told = child.is_some() && !now.leaving;
            now.job = Some(Job { id, line: line.clone(), output, done, told });
            told
        };
        // A worker that starts is greeted with the kernel.
        if let Some(child) = &*child {
            if told {
                child.tell(&line);
            }
            return;
        }
        let settings = &self.shared.gpu.settings;
        let patience = child::patience(START, settings.limit + SILENCE);
        match Supervised::start(&format!("berth-{}", settings.name), Worker(self.shared.clone()), patience) {
            Ok(started) => *child = Some(started),
            Err(e) => {
                warn!("{}: no thread for a lease's worker: {e}", settings.name);
                self.shared.lost(true);
            }
        }
    }

    fn stop(&self) {
        locked(&self.shared.now).stopped = true;
        // Its supervisor kills it, and waits for it.
        drop(locked(&self.child).take());
        self.shared.lost(true);
    }
}

impl Shared {
    /// Whether a process can have what the lease's holder may reach, and no more.
    fn is_reachable(&self) -> bool {
        self.reach.start.is_multiple_of(match &self.gpu.memory {
            LeasedMemory::Vram(blocks) => blocks.info().granule,
            LeasedMemory::Host(_) if self.gpu.settings.device == Choice::Soft => 1,
            LeasedMemory::Host(_) => PAGE as u64,
        })
    }

    /// The kernel that runs, if any, is gone with its process; one that waits for the next process only with `all`.
    fn lost(&self, all: bool) {
        let job = locked(&self.now).job.take_if(|job| all || job.told);
        if let Some(job) = job {
            (job.done)(ran(GpuStatus::LaunchFailed, code::UNKNOWN));
        }
    }

    /// The worker says how a kernel ended.
    fn ran(&self, id: u64, ended: Ended, last: bool) {
        let job = {
            let mut now = locked(&self.now);
            now.leaving |= last;
            now.job.take_if(|job| job.id == id)
        };
        let Some(Job { output: (offset, len), done, .. }) = job else { return };
        let status = GpuStatus::from_code(ended.status).unwrap_or(GpuStatus::LaunchFailed);
        match (status, ended.exit_code) {
            (GpuStatus::LaunchFailed, code::TIMEOUT) => self.gpu.timeouts.fetch_add(1, Relaxed),
            (GpuStatus::LaunchFailed, _) => self.gpu.faults.fetch_add(1, Relaxed),
            _ => 0,
        };
        let ran = Ran { status, exit_code: ended.exit_code, output: ended.log.into_bytes() };
        if status != GpuStatus::Ok || len == 0 {
            return done(ran);
        }
        let (at, bytes) = (self.base + offset, len as usize);
        done(match &self.gpu.memory {
            LeasedMemory::Host(pages) => {
                let mut output = vec![0; bytes];
                pages.read_at(at as usize, &mut output);
                Ran { output, ..ran }
            }
            LeasedMemory::Vram(blocks) => match blocks.read(at, bytes) {
                Ok(output) => Ran { output, ..ran },
                Err(_) => Ran { status: GpuStatus::ReadFailed, ..ran },
            },
        });
    }
}

/// The worker process of a lease.
struct Worker(Arc<Shared>);

impl Worker {
    /// What it has of the GPU's memory.
    fn memory(&self) -> Inherited {
        let Shared { gpu, base, reach, .. } = &*self.0;
        match &gpu.memory {
            LeasedMemory::Host(pages) => Inherited::File { fd: pages.file().map_or(-1, AsRawFd::as_raw_fd), at: *base },
            LeasedMemory::Vram(blocks) => Inherited::Chunks(blocks.told(base + reach.start, reach.end - reach.start)),
        }
    }
}

impl Ward for Worker {
    fn command(&mut self) -> Command {
        let settings = &self.0.gpu.settings;
        let mut command = child::worker(&settings.worker, &settings.device, self.memory().files());
        // What one holder's texts became is no other's to find.
        command.arg("lease").env_remove(CACHE).env("CUDA_CACHE_DISABLE", "1");
        command
    }

    fn greeting(&mut self) -> Vec<u8> {
        let Shared { gpu, base, reach, now } = &*self.0;
        let open = Open {
            device: gpu.settings.device.clone(),
            memory: self.memory(),
            len: reach.end,
            first: reach.start,
            address: BASE + base,
            limit_ms: gpu.settings.limit.as_millis() as u64,
        };
        let mut greeting = line(&control::Command::Open(open));
        let mut now = locked(now);
        now.leaving = false;
        if let Some(job) = &mut now.job {
            job.told = true;
            greeting.extend(&job.line);
        }
        greeting
    }

    fn heard(&mut self, line: &[u8]) -> bool {
        match serde_json::from_slice(line) {
            Ok(Report::Ran { id, ended, last }) => self.0.ran(id, ended, last),
            Ok(Report::Hello { landlock }) => {
                let Inside { settings, told_open, .. } = &*self.0.gpu;
                if let Some(open) = open_files(&settings.device, landlock)
                    && !told_open.swap(true, Relaxed)
                {
                    warn!("{}: {open}", settings.name);
                }
                // The driver takes its time to open, and nothing is said meanwhile.
                return false;
            }
            Ok(Report::Beat) => {}
            Err(e) => {
                warn!("{}: the worker of a lease said what is no report: {e}", self.0.gpu.settings.name);
                return false;
            }
        }
        true
    }

    fn ended(&mut self, end: End) {
        if end != End::Unwanted {
            self.0.gpu.restarts.fetch_add(1, Relaxed);
        }
        // What could not be started will not be, in time.
        self.0.lost(end == End::Itself(None));
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _, process::Stdio};

    use berth_pages::Backing;

    use super::*;

    #[test]
    fn workers_are_the_first_that_the_kernel_ends_where_memory_is_short() {
        let folder = tempfile::tempdir().unwrap();
        let worker = folder.path().join("worker");
        fs::write(&worker, "#!/bin/sh\ncat /proc/self/oom_score_adj").unwrap();
        fs::set_permissions(&worker, fs::Permissions::from_mode(0o700)).unwrap();
        let settings =
            LeaseSettings { name: "gpu0".into(), worker, device: Choice::Soft, limit: Duration::from_secs(1) };
        let memory = LeasedMemory::Host(Arc::new(Pages::new(4096, &Backing::Unnamed, None).unwrap()));
        let LeasedGpu(gpu) = LeasedGpu::open(settings, memory).unwrap();
        let mut of_lease = Worker(Arc::new(Shared { gpu, base: 0, reach: 0..4096, now: Mutex::default() }));
        let told = of_lease.command().stdout(Stdio::piped()).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&told.stdout), "1000\n");
    }

    #[test]
    fn zeros_behind_a_text_are_none_of_it() {
        assert_eq!(text(b".version 6.3"), Ok(".version 6.3"));
        assert_eq!(text(b".version 6.3\0\0"), Ok(".version 6.3"));
        assert_eq!(text(b"\0a\0"), Ok("\0a"), "those before and within are");
        assert_eq!(text(b"\0"), Ok(""));
        assert_eq!(text(b"\xff\0").unwrap_err().exit_code, code::INVALID_PTX);
    }
}
