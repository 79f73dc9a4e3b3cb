//! The worker process of a lease: it has the lease's memory alone, at the address that the lease's kernels are told.

use std::{
    fs::File,
    io::{self, BufRead as _, BufReader, ErrorKind, Write as _},
    os::{fd::AsRawFd as _, unix::net::UnixStream},
    process::ExitCode,
    ptr::NonNull,
    sync::{Arc, Mutex, PoisonError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use berth_fabric::gpu_code as code;
use berth_memory::Memory;
use berth_ptx::{Device, FaultKind, Launch, LaunchError, Module, Program};
use berth_wire::fabric::GpuStatus;

use super::control::{Command, Ended, Open, Report, Run};
use crate::{
    control::line,
    soft::{Clock, Shared},
    worker::inherited,
};

/// How often it says that it lives, and looks at the time.
const LOOK: Duration = Duration::from_millis(50);

/// Loaded texts that are kept.
const KEPT: usize = 4;

/// Address space beside the lease's: what texts and kernels take is bounded far below.
const OTHER_MEMORY: u64 = 4 << 30;

/// Longest text about a failure, in bytes.
const LOG_MAX: usize = 4096;

/// Serves a lease until the other end of `control` is closed, or a kernel does not end. `network`: as in
/// [`Report::Hello`].
pub(crate) fn serve(control: UnixStream, network: bool) -> io::Result<ExitCode> {
    control.set_read_timeout(Some(LOOK))?;
    let mut input = BufReader::new(control.try_clone()?);
    let said = Said(Arc::new(Mutex::new(control)));
    said.say(&Report::Hello { network })?;
    let (mut read, mut opened, mut last) = (Vec::new(), None, 0);
    let mut running: Option<Running> = None;
    loop {
        match input.read_until(b'\n', &mut read) {
            Ok(0) => return Ok(ExitCode::SUCCESS),
            Ok(_) => match serde_json::from_slice(&std::mem::take(&mut read))? {
                Command::Open(open) => opened = Some((open, Arc::new(Mutex::new(Kernels::open(&open)?)))),
                Command::Run(run) if run.id <= last => {}
                Command::Run(run) => {
                    let Some((_, kernels)) = &opened else { return Err(ErrorKind::InvalidData.into()) };
                    // It has said how it ended.
                    running.take().into_iter().for_each(|running| running.end(&said));
                    last = run.id;
                    running = Some(Running::start(kernels.clone(), *run, said.clone())?);
                }
            },
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted) => {}
            Err(e) => return Err(e),
        }
        if let Some(ended) = running.take_if(|running| running.thread.is_finished()) {
            ended.end(&said);
        }
        let limit = opened.as_ref().map_or(Duration::MAX, |(open, _)| Duration::from_millis(open.limit_ms));
        if let Some(late) = running.as_ref().filter(|running| running.began.elapsed() > limit) {
            // Nothing but the end of the process ends its threads.
            let ended = Ended::new(GpuStatus::LaunchFailed, code::TIMEOUT);
            said.say(&Report::Ran { id: late.id, ended })?;
            return Ok(ExitCode::FAILURE);
        }
        said.say(&Report::Beat)?;
    }
}

/// The way to `berth`, for whole lines of all threads.
#[derive(Clone)]
struct Said(Arc<Mutex<UnixStream>>);

impl Said {
    fn say(&self, report: &Report) -> io::Result<()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write_all(&line(report))
    }
}

/// A kernel that runs on a thread of its own, which says how it ended.
struct Running {
    id: u64,
    began: Instant,
    thread: JoinHandle<()>,
}

impl Running {
    fn start(kernels: Arc<Mutex<Kernels>>, run: Run, said: Said) -> io::Result<Self> {
        let (id, began) = (run.id, Instant::now());
        let work = move || {
            let ended = kernels.lock().unwrap_or_else(PoisonError::into_inner).run(&run);
            // Where nobody listens any more, the process ends.
            let _ = said.say(&Report::Ran { id, ended });
        };
        Ok(Self { id, began, thread: thread::Builder::new().name("kernel".into()).spawn(work)? })
    }

    fn end(self, said: &Said) {
        if self.thread.join().is_err() {
            let ended = Ended::new(GpuStatus::LaunchFailed, code::LAUNCH_FAILED);
            let _ = said.say(&Report::Ran { id: self.id, ended });
        }
    }
}

/// What runs kernels, and texts that were loaded last.
struct Kernels {
    memory: Shared,
    /// The latest one last.
    loaded: Vec<(String, Device)>,
}

impl Kernels {
    fn open(open: &Open) -> io::Result<Self> {
        let limit = open.len.saturating_add(OTHER_MEMORY);
        // SAFETY: the limit outlives the call.
        unsafe { libc::setrlimit(libc::RLIMIT_AS, &libc::rlimit { rlim_cur: limit, rlim_max: limit }) };
        let mut memory = Shared::default();
        memory.add(Arc::new(Vram::map(&inherited(open.fd)?, open)?));
        Ok(Self { memory, loaded: Vec::new() })
    }

    fn run(&mut self, run: &Run) -> Ended {
        let known = self.loaded.iter().position(|(text, _)| *text == run.text);
        let (text, mut device) = match known.map(|known| self.loaded.remove(known)) {
            Some((text, mut device)) => {
                device.reset();
                (text, device)
            }
            None => match load(&run.text) {
                Ok(device) => (run.text.clone(), device),
                Err(log) => return not_loaded(code::INVALID_PTX, log),
            },
        };
        let ended = launch(&mut device, &mut self.memory, run);
        if self.loaded.len() >= KEPT {
            self.loaded.remove(0);
        }
        self.loaded.push((text, device));
        ended
    }
}

fn load(text: &str) -> Result<Device, String> {
    let module = Module::parse(text).map_err(|e| e.to_string())?;
    let program = Program::link(&[module]).map_err(|errors| {
        let lines: Vec<_> = errors.iter().map(ToString::to_string).collect();
        lines.join("\n")
    })?;
    Ok(Device::new(program))
}

fn not_loaded(exit_code: i32, mut log: String) -> Ended {
    log.truncate(log.floor_char_boundary(LOG_MAX));
    Ended { log, ..Ended::new(GpuStatus::LoadFailed, exit_code) }
}

fn launch(device: &mut Device, memory: &mut Shared, run: &Run) -> Ended {
    let Some(parameters) = device.program().parameters(&run.kernel) else {
        let kernels = device.program().kernels().join(", ");
        return not_loaded(code::NOT_FOUND, format!("no kernel {:?}; there are {kernels}", run.kernel));
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
    let launch = Launch {
        kernel: &run.kernel,
        grid: run.grid,
        block: run.block,
        shared: 0,
        params: &params,
        seed: 1,
        fuel: u64::MAX,
    };
    match device.launch(memory, &launch, &mut Clock) {
        Ok(_) => Ended::new(GpuStatus::Ok, 0),
        Err(LaunchError::Fault(fault)) => Ended::new(
            GpuStatus::LaunchFailed,
            match fault.kind {
                FaultKind::OutOfBounds { .. } => code::ILLEGAL_ADDRESS,
                FaultKind::Misaligned { .. } => code::MISALIGNED,
                _ => code::LAUNCH_FAILED,
            },
        ),
        Err(LaunchError::Shape(_) | LaunchError::Arguments { .. } | LaunchError::NoKernel(_)) => {
            Ended::new(GpuStatus::Invalid, code::INVALID_VALUE)
        }
    }
}

/// A lease's memory, as far as its kernels may reach.
#[derive(Debug)]
struct Vram {
    base: NonNull<u8>,
    size: usize,
}

// SAFETY: the mapping is owned, and only ever handed out as a pointer.
unsafe impl Send for Vram {}
// SAFETY: as above.
unsafe impl Sync for Vram {}

impl Vram {
    /// Maps the lease's part of the GPU's memory where its kernels are told that it is.
    fn map(file: &File, open: &Open) -> io::Result<Self> {
        let wrong = |what| io::Error::new(ErrorKind::InvalidData, what);
        let end = open.at.checked_add(open.len).filter(|_| open.len > 0 && open.first < open.len);
        if end.is_none_or(|end| file.metadata().is_ok_and(|file| end > file.len())) {
            return Err(wrong("a lease that does not add up"));
        }
        let wanted = std::ptr::without_provenance_mut(open.address as usize);
        let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_FIXED_NOREPLACE);
        let (len, at) = (open.len as usize, open.at as libc::off_t);
        // SAFETY: at a place where nothing lies: no memory that exists is touched.
        let base = unsafe { libc::mmap(wanted, len, rights, flags, file.as_raw_fd(), at) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let first = open.first as usize;
        // SAFETY: within the mapping.
        let base = NonNull::new(unsafe { base.cast::<u8>().add(first) }).ok_or_else(|| wrong("mapped at address 0"))?;
        Ok(Self { base, size: len - first })
    }
}

// SAFETY: mapped, readable and writable until the process ends, at an address that stays; initialised by the file.
unsafe impl Memory for Vram {
    fn base(&self) -> NonNull<u8> {
        self.base
    }

    fn size(&self) -> usize {
        self.size
    }
}
