//! The worker process of a session: it has a GPU of NVIDIA's or AMD's for one client, and ends with it, or with what its kernels
//! do.

mod control;
mod device;
pub(crate) mod process;

use std::{
    collections::VecDeque,
    os::fd::AsRawFd,
    path::PathBuf,
    process::Command as Program,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use berth_fabric::gpu_code as code;
use berth_memory::Memory as _;
use berth_pages::{Backing, Pages};
use berth_process::supervise::{End, Supervised, Ward};
use tracing::warn;

pub(crate) use self::control::PARAMETERS_MAX;
pub use self::control::{Command, Facts, KernelFacts, Rows, Value, is_told};
use self::control::{Open, Report, Told};
pub(crate) use self::device::{INVALID_IMAGE, NO_BINARY, SessionDevice, Shape, is_fatal};
use crate::{
    child,
    choice::Choice,
    control::line,
    gpu::{GpuError, open_files},
    vram::{ChunkFds, Chunks},
    walls::CACHE,
};

/// The staging area has so many parts of so many bytes.
pub const SLOTS: usize = 8;
/// Bytes of a part of the staging area.
pub const SLOT: usize = 512 << 10;

/// How long a worker may take to have its device.
const START: Duration = Duration::from_secs(30);

/// How much longer than a kernel's time limit it may give no sign of life.
const SILENCE: Duration = Duration::from_secs(2);

/// Commands that a worker is told before it has answered the first of them: they fit in the socket.
const TOLD_MAX: usize = 64;

/// Of a worker that somebody ended: as CUDA numbers errors, the context is gone.
const GONE: i32 = 709;
/// Of a worker that has no device any more.
const NO_DEVICE: i32 = 100;

/// Which GPU, and how sessions use it.
#[derive(Debug)]
pub struct SessionSettings {
    /// As the configuration calls the GPU.
    pub name: String,
    /// The program `berth-gpu-worker`.
    pub worker: PathBuf,
    /// The device; not the one in software.
    pub device: Choice,
    /// How long a kernel may run.
    pub limit: Duration,
    /// Counted by all workers.
    pub counts: SessionCounts,
}

/// What became of workers.
#[derive(Debug, Default)]
pub struct SessionCounts {
    /// Those whose kernel cost the device.
    pub faults: AtomicU64,
    /// Those that were ended since their kernel ran for too long.
    pub timeouts: AtomicU64,
    /// Those that ended for other reasons before their session.
    pub ended: AtomicU64,
    /// It was told that workers may open files.
    told_open: AtomicBool,
}

/// The worker of one session. Dropping it waits until it has ended.
#[derive(Debug)]
pub struct SessionGpu {
    shared: Arc<Shared>,
    staging: Arc<Pages>,
}

#[derive(Debug)]
struct Shared {
    settings: Arc<SessionSettings>,
    state: Mutex<State>,
    changed: Condvar,
    child: Mutex<Option<Supervised>>,
}

#[derive(Debug, Default)]
struct State {
    /// Counts the processes that have ended.
    life: u64,
    facts: Option<Facts>,
    refused: Option<String>,
    /// Of the process that runs; once it has said so.
    lost: Option<i32>,
    /// Of the last one that ended.
    before: i32,
    /// The number of the next command.
    next: u64,
    /// Commands that it was told and has not answered.
    told: usize,
    waiting: VecDeque<Vec<u8>>,
    results: Vec<(u64, Result<Value, i32>)>,
    waker: Option<Waker>,
}

/// How a worker stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// It has not opened the device yet.
    Starts,
    /// It takes commands.
    Serves,
    /// What it had is gone, with this error as CUDA numbers them.
    Lost(i32),
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SessionGpu {
    /// Starts a worker.
    pub fn start(settings: &Arc<SessionSettings>) -> Result<Self, GpuError> {
        Self::start_over(settings, None)
    }

    /// The same, of a worker that maps these chunks beside what it allocates.
    pub(crate) fn start_over(settings: &Arc<SessionSettings>, chunks: Option<Arc<Chunks>>) -> Result<Self, GpuError> {
        let (gpu, ward) = Self::new(settings, chunks)?;
        let patience = child::patience(START, settings.limit + SILENCE);
        let started = Supervised::start(&format!("berth-{}", settings.name), ward, patience)?;
        *locked(&gpu.shared.child) = Some(started);
        Ok(gpu)
    }

    /// One without a process, and what hears the lines of it, for tests with any lines: whether they are signs of life.
    pub fn unstarted(settings: &Arc<SessionSettings>) -> Result<(Self, impl FnMut(&[u8]) -> bool), GpuError> {
        let (gpu, mut ward) = Self::new(settings, None)?;
        Ok((gpu, move |line: &[u8]| ward.heard(line)))
    }

    fn new(settings: &Arc<SessionSettings>, chunks: Option<Arc<Chunks>>) -> Result<(Self, Worker), GpuError> {
        let staging = Pages::new((SLOTS * SLOT) as u64, &Backing::Unnamed, None);
        let staging = Arc::new(staging.map_err(|e| GpuError::Io(std::io::Error::other(e)))?);
        let shared = Arc::new(Shared {
            settings: settings.clone(),
            state: Mutex::default(),
            changed: Condvar::new(),
            child: Mutex::default(),
        });
        let ward = Worker { shared: shared.clone(), staging: staging.clone(), chunks };
        Ok((Self { shared, staging }, ward))
    }

    /// Waits until it has the device: what that is, or why it has none.
    pub fn facts(&self) -> Result<Facts, GpuError> {
        let (mut state, until) = (locked(&self.shared.state), Instant::now() + START);
        loop {
            if let Some(why) = &state.refused {
                return Err(GpuError::Refused(why.clone()));
            }
            if let Some(facts) = &state.facts {
                return Ok(facts.clone());
            }
            let left = until.saturating_duration_since(Instant::now());
            if state.life > 0 || left.is_zero() {
                let worker = self.shared.settings.worker.clone();
                return Err(GpuError::Worker { what: "ended before it had its device", worker });
            }
            let waited = self.shared.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The process that runs now.
    pub fn pid(&self) -> Option<u32> {
        locked(&self.shared.child).as_ref()?.pid()
    }

    /// Which of its lives it is in: each process is one. A life that is over is lost, with all that it had.
    pub fn life(&self) -> u64 {
        let state = locked(&self.shared.state);
        // One that is about to end is not begun with.
        state.life + u64::from(state.lost.is_some())
    }

    /// How that life stands.
    pub fn standing(&self, life: u64) -> Standing {
        locked(&self.shared.state).standing(life)
    }

    /// Has it do something in this life, after all that it was told before; the command's number.
    pub fn tell(&self, life: u64, command: Command) -> u64 {
        let mut state = locked(&self.shared.state);
        let number = state.next;
        state.next += 1;
        // Nobody waits for an answer of a life that is over.
        if state.standing(life) == Standing::Serves {
            state.waiting.push_back(line(&Told::Do(number, command)));
            self.shared.pump(&mut state);
        }
        number
    }

    /// What became of commands since this was asked last, each with its number, in order; what they left in the staging area
    /// is there. Without any, wakes the task when there is something, or when a life ends.
    pub fn results(&self, life: u64, cx: &mut Context<'_>, into: &mut Vec<(u64, Result<Value, i32>)>) -> Poll<()> {
        let mut state = locked(&self.shared.state);
        into.append(&mut state.results);
        if into.is_empty() && !matches!(state.standing(life), Standing::Lost(_)) {
            state.waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(())
    }

    /// The memory that it shares with the worker, [`SLOTS`] parts of [`SLOT`] bytes.
    pub fn staging(&self) -> &Pages {
        &self.staging
    }
}

impl Drop for SessionGpu {
    fn drop(&mut self) {
        let child = locked(&self.shared.child).take();
        drop(child);
    }
}

impl State {
    fn standing(&self, life: u64) -> Standing {
        if life < self.life {
            return Standing::Lost(self.before);
        }
        match (self.lost.filter(|_| life == self.life), &self.facts) {
            (Some(code), _) => Standing::Lost(code),
            (None, Some(_)) if life == self.life => Standing::Serves,
            _ => Standing::Starts,
        }
    }
}

impl Shared {
    /// Tells the worker as much as it may be told.
    fn pump(&self, state: &mut State) {
        while state.told < TOLD_MAX
            && let Some(line) = state.waiting.pop_front()
        {
            state.told += 1;
            if let Some(child) = &*locked(&self.child) {
                child.tell(&line);
            }
        }
    }

    fn wake(&self, mut state: MutexGuard<'_, State>) {
        let waker = state.waker.take();
        drop(state);
        self.changed.notify_all();
        waker.into_iter().for_each(Waker::wake);
    }
}

/// The process.
struct Worker {
    shared: Arc<Shared>,
    staging: Arc<Pages>,
    chunks: Option<Arc<Chunks>>,
}

impl Worker {
    fn chunks(&self) -> Option<ChunkFds> {
        self.chunks.as_ref().map(|chunks| chunks.told(0, chunks.size()))
    }
}

impl Ward for Worker {
    fn command(&mut self) -> Program {
        let settings = &self.shared.settings;
        let mut files: Vec<_> = self.staging.file().map(AsRawFd::as_raw_fd).into_iter().collect();
        files.extend(self.chunks().into_iter().flat_map(|chunks| chunks.fds));
        let mut command = child::worker(&settings.worker, &settings.device, files);
        // What one client's code became is no other's to find.
        command.arg("session").env_remove(CACHE).env("CUDA_CACHE_DISABLE", "1");
        command
    }

    fn greeting(&mut self) -> Vec<u8> {
        let settings = &self.shared.settings;
        line(&Told::Open(Open {
            device: settings.device.clone(),
            fd: self.staging.file().map_or(-1, AsRawFd::as_raw_fd),
            staging: self.staging.size(),
            limit_ms: settings.limit.as_millis() as u64,
            chunks: self.chunks(),
        }))
    }

    fn heard(&mut self, line: &[u8]) -> bool {
        let (settings, mut state) = (&self.shared.settings, locked(&self.shared.state));
        match serde_json::from_slice(line) {
            Ok(Report::Done(number, result)) => {
                // An answer to nothing is no sign of life, and is not kept.
                let Some(told) = state.told.checked_sub(1) else { return false };
                state.told = told;
                state.results.push((number, result));
                self.shared.pump(&mut state);
            }
            Ok(Report::Opened(facts)) => state.facts = Some(*facts),
            Ok(Report::Refused(why)) => {
                warn!("{}: {why}", settings.name);
                state.lost = Some(NO_DEVICE);
                state.refused = Some(why);
            }
            Ok(Report::Lost(code)) => state.lost = Some(code),
            Ok(Report::Hello { landlock }) => {
                if let Some(open) = open_files(&settings.device, landlock)
                    && !settings.counts.told_open.swap(true, Relaxed)
                {
                    warn!("{}: {open}", settings.name);
                }
                // The driver takes its time to open, and nothing is said meanwhile.
                return false;
            }
            Ok(Report::Beat) => return true,
            Err(_) => return false,
        }
        self.shared.wake(state);
        true
    }

    fn ended(&mut self, end: End) {
        let (settings, mut state) = (&self.shared.settings, locked(&self.shared.state));
        let lost = state.lost.take();
        let count = match lost {
            Some(code::TIMEOUT) => Some(&settings.counts.timeouts),
            Some(lost) if lost >= code::ILLEGAL_ADDRESS => Some(&settings.counts.faults),
            _ if end == End::Silent => Some(&settings.counts.timeouts),
            _ => Some(&settings.counts.ended).filter(|_| end != End::Unwanted),
        };
        if let Some(count) = count {
            count.fetch_add(1, Relaxed);
        }
        state.before = lost.unwrap_or(if end == End::Silent { code::TIMEOUT } else { GONE });
        state.life += 1;
        (state.facts, state.told) = (None, 0);
        state.waiting.clear();
        state.results.clear();
        self.shared.wake(state);
    }
}
