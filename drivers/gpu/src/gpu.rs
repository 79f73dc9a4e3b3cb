//! A GPU as `berth` has it: a worker process that is kept running, and what it is to run.

use std::{
    fs::File,
    os::fd::{AsFd as _, AsRawFd as _},
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use berth_memory::Memory as _;
use berth_port::{Family, Tables};
use berth_process::supervise::{End, Patience, Supervised, Ward};
use berth_ring::{Elsewhere, ErrorCode, Outstanding};
use tracing::{error, info, warn};

use crate::{
    child,
    choice::Choice,
    control::{self, FramesFd, Functions, Report, RingFd, VramFd, line},
    dispatch::POSTED,
    functions::are_graphs,
    mapping::{At, Mapping},
    vram::Vram,
};

/// How long a worker may take to load what it runs.
const START: Duration = Duration::from_secs(30);

/// Rests of a worker that ends.
const REST: Duration = Duration::from_millis(50);
const REST_MAX: Duration = Duration::from_secs(2);

/// Which worker, and how it is run.
#[derive(Debug, Clone)]
pub struct Settings {
    /// As the configuration calls it.
    pub name: String,
    /// The program `berth-gpu-worker`.
    pub worker: PathBuf,
    /// The device that it is to have.
    pub device: Choice,
    /// Thread blocks that serve each ring, whose number of slots must be a multiple of this.
    pub blocks: u32,
    /// How long its kernel may give no sign of life.
    pub limit: Duration,
}

/// A ring that a GPU serves.
#[derive(Debug)]
pub struct RingFile {
    /// The file, in the layout of [`berth_ring::shared`].
    pub file: File,
    /// Bytes of its messages' header.
    pub header: u32,
    /// Where its requests are, if not in the file.
    pub vram: Option<RingVram>,
    /// Where they may be besides.
    pub frames: Option<RingFrames>,
}

/// Memory that only `berth` writes, in which requests of a ring may lie.
#[derive(Debug)]
pub struct RingFrames {
    /// The file, of which the worker gets a descriptor.
    pub file: File,
    /// What the ring's producer knows of it: where the worker maps it, how long it is, and whether it is read.
    pub elsewhere: Elsewhere,
}

/// Memory of the GPU with a ring's requests, in the layout of [`berth_ring::posted`].
#[derive(Debug)]
pub struct RingVram {
    /// The memory.
    pub memory: Arc<Vram>,
    /// Bytes from its first one to the first slot.
    pub slots: usize,
    /// Requests that want an answer when a worker has ended.
    pub out: Outstanding,
}

/// Why a GPU does not run these functions.
#[derive(Debug, thiserror::Error)]
pub enum GpuError {
    /// A ring file that cannot be mapped, or a thread or process that cannot be started.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// The worker has no device, or cannot load the functions: in its own words.
    #[error("{0}")]
    Refused(String),
    /// The device's driver does not do it at all: in the worker's words.
    #[error("{0}")]
    Unsupported(String),
    /// It ended, or said nothing.
    #[error("{} {what}; see what it wrote to standard error", worker.display())]
    Worker {
        /// What it did, as it follows the program's path in the message.
        what: &'static str,
        /// Path of the worker's program.
        worker: PathBuf,
    },
}

const RESTARTS: Family = Family::counter("restarts", "worker processes of a GPU that were started again");
const FAULTS: Family = Family::counter("faults", "kernels of a GPU that trapped or strayed");
const TIMEOUTS: Family = Family::counter("timeouts", "workers of a GPU that were killed, since their kernel hung");
const REFUSED: Family = Family::counter("refused", "requests of a GPU that were answered -6, since its worker ended");
const BEATS: Family = Family::counter("beats", "signs of life of a GPU: every block of its kernel went round its loop");
const UP: Family = Family::gauge("up", "1 while a worker of the GPU runs its functions");

berth_port::counters! {
    /// Counters of a GPU.
    #[derive(Clone, Copy, PartialEq, Eq)]
    pub struct GpuCounts {
        /// Worker processes beside the first.
        restarts = gpu_restarts: RESTARTS,
        /// Kernels that did what they must not.
        faults = gpu_faults: FAULTS,
        /// Workers that were killed, since their kernel gave no sign of life.
        timeouts = gpu_timeouts: TIMEOUTS,
        /// Requests that a worker had when it ended.
        refused = gpu_refused: REFUSED,
        /// Signs of life: every block of the kernel went round its loop.
        beats = gpu_beats: BEATS,
        /// 1 while a worker runs the functions, else 0.
        up = gpu_up: UP,
    }
}

/// Declarations of the counters.
pub const COUNTERS: Tables = &[GpuCounts::TABLE];

/// A worker process that is kept running. It ends on drop.
#[derive(Debug)]
pub struct Gpu {
    settings: Settings,
    /// Requests of some ring lie in its memory.
    has_posted: bool,
    state: Arc<State>,
    child: Supervised,
}

#[derive(Debug)]
struct State {
    /// What a worker runs that is started next, and how the one that was told last came by it.
    functions: Mutex<(Functions, Loading)>,
    told: Condvar,
    /// Kind and name of the device, as the worker that was started last told them.
    device: Mutex<(String, String)>,
    faults: AtomicU64,
    refused: AtomicU64,
    beats: AtomicU64,
    is_up: AtomicBool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Loading {
    Waiting,
    Done,
    Refused(String),
    Ended,
}

impl State {
    fn lock(&self) -> MutexGuard<'_, (Functions, Loading)> {
        self.functions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says how the loading that is waited for went.
    fn tell(&self, how: Loading) {
        let mut functions = self.lock();
        if functions.1 == Loading::Waiting {
            functions.1 = how;
            self.told.notify_all();
        }
    }

    /// Waits for that.
    fn wait(&self, worker: &Path) -> Result<(), GpuError> {
        let deadline = Instant::now() + START;
        let mut functions = self.lock();
        loop {
            let ended = |what| Err(GpuError::Worker { what, worker: worker.to_owned() });
            match &functions.1 {
                Loading::Done => return Ok(()),
                Loading::Refused(why) => return Err(GpuError::Refused(why.clone())),
                Loading::Ended => return ended("ended before it loaded anything"),
                Loading::Waiting => {}
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return ended("does not load what it should");
            }
            functions = self.told.wait_timeout(functions, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Gpu {
    /// Starts a worker, and waits until it serves these rings, 30 s at most.
    pub fn start(settings: Settings, functions: Functions, rings: Vec<RingFile>) -> Result<Self, GpuError> {
        let state = Arc::new(State {
            functions: Mutex::new((functions, Loading::Waiting)),
            told: Condvar::new(),
            device: Mutex::default(),
            faults: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            beats: AtomicU64::new(0),
            is_up: AtomicBool::new(false),
        });
        let has_posted = rings.iter().any(|ring| ring.vram.is_some());
        let mapped = |ring: RingFile| Ok((Mapping::new(&ring.file, At::Anywhere)?, ring));
        let rings = rings.into_iter().map(mapped).collect::<std::io::Result<_>>()?;
        let ward = Worker { settings: settings.clone(), state: state.clone(), rings, has_served: false };
        let patience = Patience { start: START, silence: settings.limit, rest: REST, rest_max: REST_MAX };
        let child = Supervised::start(&format!("berth-{}", settings.name), ward, patience)?;
        state.wait(&settings.worker)?;
        Ok(Self { settings, has_posted, state, child })
    }

    /// As the configuration calls it.
    pub fn name(&self) -> &str {
        &self.settings.name
    }

    /// Where requests of its rings lie: `vram` if some do so in its own memory, else `pinned`.
    pub fn memory(&self) -> &'static str {
        if self.has_posted { "vram" } else { "pinned" }
    }

    /// The device that its worker has, or had last: what kind it is, and which.
    pub fn device(&self) -> (String, String) {
        self.state.device.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The worker's process; `None` while it rests.
    pub fn pid(&self) -> Option<u32> {
        self.child.pid()
    }

    /// Has the worker run these functions from now on, and waits until it does. What it was asked before is answered by those
    /// that it had.
    pub fn reload(&self, functions: Functions) -> Result<(), GpuError> {
        if self.has_posted && are_graphs(&functions) {
            return Err(GpuError::Refused(format!("{POSTED}, and restart")));
        }
        let line = line(&control::Command::Load(functions.clone()));
        let before = std::mem::replace(&mut *self.state.lock(), (functions, Loading::Waiting));
        self.child.tell(&line);
        self.state.wait(&self.settings.worker).inspect_err(|_| *self.state.lock() = before)
    }

    /// The counters so far.
    pub fn counts(&self) -> GpuCounts {
        GpuCounts {
            restarts: self.child.restarts(),
            faults: self.state.faults.load(Relaxed),
            timeouts: self.child.timeouts(),
            refused: self.state.refused.load(Relaxed),
            beats: self.state.beats.load(Relaxed),
            up: self.state.is_up.load(Relaxed).into(),
        }
    }
}

/// What is to be told of a worker that strangers' kernels may break out of: without Landlock one with a driver may open files.
pub(crate) fn open_files(device: &Choice, landlock: bool) -> Option<&'static str> {
    let is_open = *device != Choice::Soft && !landlock;
    is_open.then_some(
        "its workers may open the files that berth may: this kernel has no Landlock (5.13 or later, lsm=landlock)",
    )
}

/// The worker of a GPU.
struct Worker {
    settings: Settings,
    state: Arc<State>,
    rings: Vec<(Mapping, RingFile)>,
    /// One has run functions, and what they kept.
    has_served: bool,
}

impl Ward for Worker {
    fn command(&mut self) -> Command {
        let vram = |ring: &RingFile| ring.vram.as_ref().map(|vram| vram.memory.as_fd().as_raw_fd());
        let frames = |ring: &RingFile| ring.frames.as_ref().map(|frames| frames.file.as_raw_fd());
        let files = self.rings.iter().flat_map(|(_, ring)| [Some(ring.file.as_raw_fd()), vram(ring), frames(ring)]);
        let files = files.flatten().collect();
        child::worker(&self.settings.worker, &self.settings.device, files)
    }

    fn greeting(&mut self) -> Vec<u8> {
        let vram = |RingVram { memory, slots, .. }: &RingVram| VramFd {
            fd: memory.as_fd().as_raw_fd(),
            bytes: memory.size(),
            at: memory.at() as u64,
            slots: *slots,
        };
        let frames = |RingFrames { file, elsewhere }: &RingFrames| FramesFd {
            fd: file.as_raw_fd(),
            bytes: elsewhere.size,
            at: elsewhere.base as usize,
        };
        let ring = |(_, ring): &(_, RingFile)| RingFd {
            fd: ring.file.as_raw_fd(),
            header: ring.header,
            vram: ring.vram.as_ref().map(vram),
            frames: ring.frames.as_ref().map(frames),
        };
        let Settings { device, blocks, .. } = &self.settings;
        let rings = self.rings.iter().map(ring).collect();
        let open = control::Command::Open { device: device.clone(), rings, blocks: *blocks };
        let mut functions = self.state.lock().0.clone();
        functions.lost |= self.has_served;
        let load = control::Command::Load(functions);
        [line(&open), line(&load)].concat()
    }

    fn heard(&mut self, line: &[u8]) -> bool {
        let name = &self.settings.name;
        match serde_json::from_slice(line) {
            Ok(Report::Beat) => {
                self.state.beats.fetch_add(1, Relaxed);
                return true;
            }
            Ok(Report::Hello { namespaces, landlock }) => {
                info!("{name}: its worker is shut in; namespaces of its own: {namespaces}, Landlock: {landlock}");
                if let Some(open) = open_files(&self.settings.device, landlock) {
                    warn!("{name}: {open}");
                }
            }
            Ok(Report::Opened { kind, device, unread }) => {
                if let Some(why) = &unread {
                    info!("{name}: requests are copied into their slots: {why}");
                }
                for frames in self.rings.iter().filter_map(|(_, ring)| ring.frames.as_ref()) {
                    frames.elsewhere.is_read.store(unread.is_none(), Relaxed);
                }
                *self.state.device.lock().unwrap_or_else(PoisonError::into_inner) = (kind, device);
            }
            Ok(Report::Loaded) => {
                info!("{name}: its kernel runs");
                self.has_served = true;
                self.state.is_up.store(true, Relaxed);
                self.state.tell(Loading::Done);
                // From here on a silence is the kernel's, which had no more to load.
                return true;
            }
            Ok(Report::Refused(why)) => {
                error!("{name}: {why}");
                self.state.tell(Loading::Refused(why));
            }
            Ok(Report::Fault(fault)) => {
                error!("{name}: its kernel stopped: {fault}");
                self.state.faults.fetch_add(1, Relaxed);
            }
            Err(e) => warn!("{name}: its worker said what is no report: {e}"),
        }
        false
    }

    fn ended(&mut self, end: End) {
        self.state.is_up.store(false, Relaxed);
        // Those may be what it died of. What comes from now on waits for the next one.
        let code = ErrorCode::UNWOUND;
        let refuse = |(mapping, ring): &(Mapping, RingFile)| match &ring.vram {
            None => mapping.refuse_all(code.to_flag()),
            Some(vram) => vram.out.refuse(code),
        };
        let refused: usize = self.rings.iter().map(refuse).sum();
        self.state.refused.fetch_add(refused as u64, Relaxed);
        let name = &self.settings.name;
        match end {
            End::Unwanted => {}
            End::Silent => warn!("{name}: its worker gave no sign of life and was killed, {refused} requests with it"),
            End::Itself(status) => {
                let status = status.map_or_else(|| "it could not be started".into(), |status| status.to_string());
                warn!("{name}: its worker ended ({status}), {refused} requests with it");
            }
        }
        self.state.tell(Loading::Ended);
    }
}
