//! The worker process of a session: does one command after the other, and ends where a kernel does not, or costs the device.

use std::{
    collections::HashMap,
    io::{self, BufRead, BufReader, ErrorKind},
    os::{
        fd::{AsFd as _, AsRawFd as _, OwnedFd},
        unix::net::UnixStream,
    },
    ptr::NonNull,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use berth_fabric::gpu_code as code;
use berth_memory::Memory;
use berth_pages::Foreign;
use berth_process::sandbox::Walls;

use super::{
    control::{Command, Open, Report, Told, Value},
    device::{SessionDevice, Shape},
};
use crate::{
    choice::Choice,
    control::{Said, line},
    cuda::Cuda,
    device::DeviceError,
    hip::Hip,
    vram::ChunkFds,
    walls::shut_in,
    worker::{all_inherited, inherited},
};

/// How often it says that it lives, and looks at the time: as often as a kernel's time limit needs, within these bounds.
const LOOK: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(100)];

/// Serves until the other end of `control` is closed, or the device is lost: whether it was the former.
pub(crate) fn serve(control: UnixStream) -> io::Result<bool> {
    let control = Arc::new(control);
    let said = Said::new(control.clone());
    let mut input = BufReader::new(&*control);
    let mut read = Vec::new();
    input.read_until(b'\n', &mut read)?;
    let Told::Open(open) = serde_json::from_slice(&read)? else { return Err(ErrorKind::InvalidData.into()) };
    let staging = Arc::new(map(&open)?);
    let chunks = open.chunks.as_ref().map_or(Ok(Vec::new()), |chunks| all_inherited(&chunks.fds))?;
    let keep: Vec<_> = chunks.iter().map(|chunk| chunk.as_fd()).collect();
    let Walls { landlock, .. } = shut_in(&open.device, open.staging as u64, &keep)?;
    said.say(&Report::Hello { landlock })?;
    match &open.device {
        Choice::Hip(_) => serve_by::<Hip>(&open, staging, &chunks, &said, input),
        _ => serve_by::<Cuda>(&open, staging, &chunks, &said, input),
    }
}

fn serve_by<G: SessionDevice>(
    open: &Open,
    staging: Arc<Foreign<()>>,
    chunks: &[OwnedFd],
    said: &Said,
    mut input: impl BufRead,
) -> io::Result<bool> {
    let opened = G::open(&open.device).and_then(|mut gpu| {
        gpu.pin(staging.clone())?;
        if let Some(ChunkFds { bytes, at, .. }) = open.chunks {
            gpu.import(chunks, bytes, at)?;
        }
        gpu.facts().map(|facts| (gpu, facts))
    });
    let (gpu, facts) = match opened {
        Ok(opened) => opened,
        Err(e) => {
            said.say(&Report::Refused(e.to_string()))?;
            return Ok(false);
        }
    };
    let began = Instant::now();
    watch(said.clone(), began, Duration::from_millis(open.limit_ms))?;
    tell_of_abort();
    said.say(&Report::Opened(Box::new(facts)))?;
    let mut served =
        Served { gpu, staging, image: Vec::new(), modules: HashMap::new(), last: 0, memory: Vec::new(), began };
    let mut read = Vec::new();
    loop {
        read.clear();
        if input.read_until(b'\n', &mut read)? == 0 {
            return Ok(true);
        }
        let Told::Do(number, command) = serde_json::from_slice(&read)? else {
            return Err(ErrorKind::InvalidData.into());
        };
        if is_bounded(&command, open.chunks.is_some()) {
            LAUNCHED.store(served.began.elapsed().as_millis() as u64 + 1, Relaxed);
        }
        let result = served.perform(command).map_err(|e| e.code);
        LAUNCHED.store(0, Relaxed);
        if served.gpu.is_lost() {
            let lost = result.as_ref().err().copied().unwrap_or(code::LAUNCH_FAILED);
            // Before the answer: whoever hears that asks how the device stands.
            said.say(&Report::Lost(lost))?;
            said.say(&Report::Done(number, result))?;
            return Ok(false);
        }
        said.say(&Report::Done(number, result))?;
    }
}

/// When the kernel was launched that runs, or the copy began that is made: milliseconds since the process began to serve, plus
/// 1; 0 while none is.
static LAUNCHED: AtomicU64 = AtomicU64::new(0);

/// Whether it may take no longer than a kernel: of a process that only copies, a copy.
fn is_bounded(command: &Command, copies: bool) -> bool {
    match command {
        Command::Launch { .. } => true,
        Command::Set { .. } | Command::Write { .. } | Command::Read { .. } => copies,
        _ => false,
    }
}

/// What is said when the driver ends the process.
static ABORTED: OnceLock<Vec<u8>> = OnceLock::new();

/// Says that the device is lost where the driver ends the process over what a kernel did, as AMD's does. It tells nobody but
/// standard error what that was.
fn tell_of_abort() {
    ABORTED.get_or_init(|| line(&Report::Lost(code::LAUNCH_FAILED)));
    let handler = aborted as extern "C" fn(libc::c_int);
    // SAFETY: the handler does what may be done in one.
    unsafe { libc::signal(libc::SIGABRT, handler as libc::sighandler_t) };
}

extern "C" fn aborted(_: libc::c_int) {
    let said = ABORTED.get().filter(|_| LAUNCHED.load(Relaxed) > 0);
    // SAFETY: calls of the system alone, with bytes that stay; the second one ends the process.
    unsafe {
        said.map(|said| libc::write(0, said.as_ptr().cast(), said.len()));
        libc::_exit(1)
    }
}

/// Ends the process where a kernel does not end: nothing else ends its threads.
fn watch(said: Said, began: Instant, limit: Duration) -> io::Result<()> {
    let every = (limit / 4).clamp(LOOK[0], LOOK[1]);
    let look = move || {
        loop {
            thread::sleep(every);
            let launched = LAUNCHED.load(Relaxed);
            let since = began + Duration::from_millis(launched.saturating_sub(1));
            if launched > 0 && since.elapsed() > limit {
                let _ = said.say(&Report::Lost(code::TIMEOUT));
            } else if said.say(&Report::Beat).is_ok() {
                continue;
            }
            // SAFETY: it ends the process.
            unsafe { libc::_exit(1) }
        }
    };
    thread::Builder::new().name("watch".into()).spawn(look).map(drop)
}

/// What the session has.
struct Served<G: SessionDevice> {
    gpu: G,
    staging: Arc<Foreign<()>>,
    /// A code object, as far as it came.
    image: Vec<u8>,
    modules: HashMap<u64, G::Image>,
    last: u64,
    memory: Vec<u64>,
    began: Instant,
}

impl<G: SessionDevice> Served<G> {
    /// The staging area from this offset on.
    fn staged(&self, at: usize, len: usize) -> Result<*mut u8, DeviceError> {
        if at.checked_add(len).is_none_or(|end| end > self.staging.size()) {
            return Err(DeviceError::new(code::INVALID_VALUE, "not within the staging area"));
        }
        // SAFETY: within the memory.
        Ok(unsafe { self.staging.base().as_ptr().add(at) })
    }

    fn perform(&mut self, command: Command) -> Result<Value, DeviceError> {
        match command {
            Command::Allocate(sizes) => return self.allocate(&sizes).map(Value::Addresses),
            Command::Free(at) => {
                self.memory.retain(|one| *one != at);
                self.gpu.give_back(at)?;
            }
            Command::Set { at, len, value } => self.gpu.fill(at, len, value)?,
            Command::Copy(rows) => self.gpu.rows(&rows)?,
            Command::Write { at, from, len } => {
                let from = self.staged(from, len)?;
                // SAFETY: so many bytes of the staging area, which is mapped as long as the process lives.
                unsafe { self.gpu.put(at, from, len) }?;
            }
            Command::Read { at, to, len } => {
                let to = self.staged(to, len)?;
                // SAFETY: as above.
                unsafe { self.gpu.get(at, to, len) }?;
            }
            Command::Image { from, len } => {
                self.staged(from, len)?;
                let old = self.image.len();
                self.image.resize(old + len, 0);
                self.staging.read_at(from, &mut self.image[old..]);
            }
            Command::Load => return self.load(),
            Command::Unload(module) => {
                if let Some(image) = self.modules.remove(&module) {
                    self.gpu.drop_image(image);
                }
            }
            Command::Launch { module, kernel, grid, block, shared, from, len } => {
                self.staged(from, len)?;
                let mut arguments = vec![0; len];
                self.staging.read_at(from, &mut arguments);
                let image = self.modules.get(&module);
                let image = image.ok_or_else(|| DeviceError::new(code::NOT_FOUND, "no such module"))?;
                self.gpu.run(image, kernel, &Shape { grid, block, shared, arguments: &arguments })?;
            }
            Command::Reset => {
                for (_, image) in self.modules.drain() {
                    self.gpu.drop_image(image);
                }
                for at in std::mem::take(&mut self.memory) {
                    self.gpu.give_back(at)?;
                }
            }
        }
        Ok(Value::None)
    }

    fn allocate(&mut self, sizes: &[u64]) -> Result<Vec<u64>, DeviceError> {
        let mut made = Vec::new();
        for size in sizes {
            match self.gpu.take(*size) {
                Ok(at) => made.push(at),
                Err(e) => {
                    for at in made {
                        self.gpu.give_back(at)?;
                    }
                    return Err(e);
                }
            }
        }
        self.memory.extend(&made);
        Ok(made)
    }

    fn load(&mut self) -> Result<Value, DeviceError> {
        let image = self.gpu.load_image(std::mem::take(&mut self.image))?;
        let kernels = serde_json::to_vec(G::kernels(&image)).expect("plain data");
        if kernels.len() > self.staging.size() {
            self.gpu.drop_image(image);
            return Err(DeviceError::new(code::INVALID_PTX, "too many kernels"));
        }
        self.staging.write_at(0, &kernels);
        self.last += 1;
        self.modules.insert(self.last, image);
        Ok(Value::Loaded(self.last, kernels.len()))
    }
}

/// Maps the staging area, for as long as the process lives.
fn map(open: &Open) -> io::Result<Foreign<()>> {
    let file = inherited(open.fd)?;
    if file.metadata()?.len() < open.staging as u64 {
        return Err(ErrorKind::InvalidData.into());
    }
    let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
    // SAFETY: at a place of the kernel's choice.
    let base = unsafe { libc::mmap(std::ptr::null_mut(), open.staging, rights, flags, file.as_raw_fd(), 0) };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let base = NonNull::new(base.cast::<u8>()).ok_or(ErrorKind::InvalidData)?;
    // SAFETY: so many bytes, initialised by the file and never unmapped.
    Ok(unsafe { Foreign::new(base, open.staging, ()) })
}
