//! The worker process of a lease: it has the lease's memory alone, at the address that the lease's kernels are told.

use std::{
    fs::File,
    io::{self, BufRead as _, BufReader, ErrorKind},
    os::{
        fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    ptr::NonNull,
    sync::{Arc, Mutex, PoisonError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use berth_fabric::gpu_code as code;
use berth_pages::Foreign;
use berth_process::sandbox::Walls;
use berth_wire::fabric::GpuStatus;

use super::control::{Command, Ended, Inherited, Open, Report, Run};
use crate::{
    control::Said,
    device::{Device, DeviceError, Launch, ProgramId},
    vram::ChunkFds,
    walls::shut_in,
    worker::{all_inherited, inherited},
};

/// How often it says that it lives, and looks at the time.
const LOOK: Duration = Duration::from_millis(50);

/// Loaded texts that are kept.
const KEPT: usize = 4;

/// Longest text about a failure, in bytes.
const LOG_MAX: usize = 4096;

/// The exit code of a launch that the device has not enough for, and did not begin.
const TOO_LARGE: i32 = 701;

/// Serves a lease until the other end of `control` is closed, or a kernel does not end, or costs the device: whether it was
/// the first of these.
pub(crate) fn serve(control: UnixStream) -> io::Result<bool> {
    control.set_read_timeout(Some(LOOK))?;
    let control = Arc::new(control);
    let mut input = BufReader::new(&*control);
    let said = Said::new(control.clone());
    let (mut read, mut opened, mut last) = (Vec::new(), None, 0);
    let mut running: Option<Running> = None;
    loop {
        match input.read_until(b'\n', &mut read) {
            Ok(0) => return Ok(true),
            Ok(_) => match serde_json::from_slice(&std::mem::take(&mut read))? {
                Command::Open(open) => {
                    let memory = Taken::over(&open)?;
                    let Walls { landlock, .. } = shut_in(&open.device, open.len, &memory.keep())?;
                    said.say(&Report::Hello { landlock })?;
                    let kernels = Kernels::open(&open, memory)?;
                    opened = Some((open, Arc::new(Mutex::new(kernels))));
                }
                Command::Run(run) if run.id <= last => {}
                Command::Run(run) => {
                    let Some((_, kernels)) = &opened else { return Err(ErrorKind::InvalidData.into()) };
                    // It has said how it ended.
                    if running.take().is_some_and(|running| running.end(&said)) {
                        return Ok(false);
                    }
                    last = run.id;
                    running = Some(Running::start(kernels.clone(), *run, said.clone())?);
                }
            },
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted) => {}
            Err(e) => return Err(e),
        }
        let ended = running.take_if(|running| running.thread.is_finished());
        if ended.is_some_and(|ended| ended.end(&said)) {
            return Ok(false);
        }
        let limit = opened.as_ref().map_or(Duration::MAX, |(open, _)| Duration::from_millis(open.limit_ms));
        if let Some(late) = running.as_ref().filter(|running| running.began.elapsed() > limit) {
            // Nothing but the end of the process ends its threads.
            let ended = Ended::new(GpuStatus::LaunchFailed, code::TIMEOUT);
            said.say(&Report::Ran { id: late.id, ended, last: true })?;
            return Ok(false);
        }
        said.say(&Report::Beat)?;
    }
}

/// A kernel that runs on a thread of its own, which says how it ended.
struct Running {
    id: u64,
    began: Instant,
    /// Returns whether the device is lost.
    thread: JoinHandle<bool>,
}

impl Running {
    fn start(kernels: Arc<Mutex<Kernels>>, run: Run, said: Said) -> io::Result<Self> {
        let (id, began) = (run.id, Instant::now());
        let work = move || {
            let mut kernels = kernels.lock().unwrap_or_else(PoisonError::into_inner);
            let ended = kernels.run(&run);
            let last = kernels.device.is_lost();
            // Where nobody listens any more, the process ends.
            let _ = said.say(&Report::Ran { id, ended, last });
            last
        };
        Ok(Self { id, began, thread: thread::Builder::new().name("kernel".into()).spawn(work)? })
    }

    /// Waits for it; whether the worker is to end.
    fn end(self, said: &Said) -> bool {
        self.thread.join().unwrap_or_else(|_| {
            let ended = Ended::new(GpuStatus::LaunchFailed, code::LAUNCH_FAILED);
            let _ = said.say(&Report::Ran { id: self.id, ended, last: true });
            true
        })
    }
}

/// What runs kernels, and texts that were loaded last.
struct Kernels {
    device: Box<dyn Device>,
    /// The latest one last.
    loaded: Vec<(String, ProgramId)>,
}

impl Kernels {
    fn open(open: &Open, memory: Taken) -> io::Result<Self> {
        let mut device = open.device.open().map_err(io::Error::other)?;
        let reached = match memory {
            Taken::Host(memory) => device.register(Arc::new(memory)),
            Taken::Chunks(chunks, told) => device.attach(&chunks, told.bytes, told.at),
        };
        reached.map_err(io::Error::other)?;
        Ok(Self { device, loaded: Vec::new() })
    }

    /// The program of a text, as if it had never run.
    fn program(&mut self, text: &str) -> Result<ProgramId, DeviceError> {
        let known = self.loaded.iter().position(|(known, _)| known == text);
        let (text, program) = match known.map(|known| self.loaded.remove(known)) {
            Some((text, program)) => {
                self.device.reset(program)?;
                (text, program)
            }
            None => (text.to_owned(), self.device.load(&[text])?),
        };
        if self.loaded.len() >= KEPT {
            self.device.unload(self.loaded.remove(0).1);
        }
        self.loaded.push((text, program));
        Ok(program)
    }

    fn run(&mut self, run: &Run) -> Ended {
        let loaded = self.program(&run.text).and_then(|program| {
            let parameters = self.device.parameters(program, &run.kernel)?;
            Ok((program, parameters))
        });
        let (program, parameters) = match loaded {
            Ok(loaded) => loaded,
            Err(e) => return not_loaded(e.code, e.message),
        };
        let mut params = Vec::new();
        let fit = parameters.len() == run.args.len()
            && parameters.iter().zip(&run.args).all(|(parameter, arg)| {
                params.resize(parameter.offset, 0);
                params.extend_from_slice(arg);
                arg.len() == parameter.bytes
            });
        if !fit {
            return Ended::new(GpuStatus::Invalid, code::INVALID_VALUE);
        }
        let (kernel, grid, block) = (run.kernel.clone(), run.grid, run.block);
        let launch = Launch { kernel, grid, block, shared: 0, params, endless: false };
        match self.device.launch(program, &launch).and_then(|()| self.device.wait()) {
            Ok(()) => Ended::new(GpuStatus::Ok, 0),
            Err(e) if [code::INVALID_VALUE, TOO_LARGE].contains(&e.code) => {
                Ended::new(GpuStatus::Invalid, code::INVALID_VALUE)
            }
            Err(e) => Ended::new(GpuStatus::LaunchFailed, e.code),
        }
    }
}

fn not_loaded(exit_code: i32, mut log: String) -> Ended {
    log.truncate(log.floor_char_boundary(LOG_MAX));
    Ended { log, ..Ended::new(GpuStatus::LoadFailed, exit_code) }
}

fn wrong(what: &'static str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what)
}

/// Memory that was inherited.
enum Taken {
    Host(Foreign<()>),
    /// Chunks of the GPU's.
    Chunks(Vec<OwnedFd>, ChunkFds),
}

impl Taken {
    fn over(open: &Open) -> io::Result<Self> {
        match &open.memory {
            Inherited::File { fd, at } => map(&inherited(*fd)?, *at, open).map(Self::Host),
            Inherited::Chunks(told) => Ok(Self::Chunks(all_inherited(&told.fds)?, told.clone())),
        }
    }

    fn keep(&self) -> Vec<BorrowedFd<'_>> {
        match self {
            Self::Host(_) => Vec::new(),
            Self::Chunks(chunks, _) => chunks.iter().map(|chunk| chunk.as_fd()).collect(),
        }
    }
}

/// Maps the lease's part of the GPU's memory where its kernels are told that it is, for as long as the process lives. What is
/// returned is as much as they may reach.
fn map(file: &File, at: u64, open: &Open) -> io::Result<Foreign<()>> {
    let end = at.checked_add(open.len).filter(|_| open.len > 0 && open.first < open.len);
    if end.is_none_or(|end| file.metadata().is_ok_and(|file| end > file.len())) {
        return Err(wrong("a lease that does not add up"));
    }
    let wanted = std::ptr::without_provenance_mut(open.address as usize);
    let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_FIXED_NOREPLACE);
    let (len, at, first) = (open.len as usize, at as libc::off_t, open.first as usize);
    // SAFETY: at a place where nothing lies: no memory that exists is touched.
    let base = unsafe { libc::mmap(wanted, len, rights, flags, file.as_raw_fd(), at) };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: within the mapping, which is initialised by the file and never unmapped.
    unsafe {
        let base = NonNull::new(base.cast::<u8>().add(first)).ok_or_else(|| wrong("mapped at address 0"))?;
        Ok(Foreign::new(base, len - first, ()))
    }
}
