//! A ring, and a worker that serves it, in a process of its own: this program once more, told over its socket what a worker of
//! `berth` is told.
#![allow(dead_code, reason = "each test file uses a part")]

use std::{
    io::{BufRead as _, BufReader, Write as _},
    os::{
        fd::{AsRawFd as _, OwnedFd},
        unix::{net::UnixStream, process::CommandExt as _},
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    ptr::NonNull,
    sync::{Arc, atomic::AtomicBool},
    thread,
    time::{Duration, Instant},
};

use berth_gpu::{Code, Function, Functions, Module};
use berth_memory::Memory as _;
use berth_pages::{Backing, Pages};
use berth_port::Nanos;
use berth_ring::{Elsewhere, Geometry, Producer, TxError, posted, shared};
use serde_json::{Value, json};

pub(crate) const HEADER: usize = 24;

/// Bytes of [`Rig::frames`].
pub(crate) const FRAMES: usize = 64 << 10;

/// Each ring of a test process has a place of its own.
pub(crate) fn base(nth: usize) -> usize {
    (0x2000 << 32) + (nth << 34)
}

/// What a test runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum On {
    Soft,
    /// The driver of NVIDIA's that `berth_cuda_soft` is.
    Cuda,
}

impl On {
    /// How it is written, and where its driver is.
    fn device(self) -> (&'static str, PathBuf) {
        match self {
            Self::Soft => ("soft", PathBuf::new()),
            Self::Cuda => ("auto", berth_cuda_soft::folder().unwrap()),
        }
    }
}

/// Where requests lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Requests {
    Pinned,
    /// And elsewhere in memory of the host.
    InPlace,
    Vram,
}

pub(crate) const BOTH: [On; 2] = [On::Soft, On::Cuda];

/// The variable that makes a process of this test program a worker.
pub(crate) const WORKER: &str = "BERTH_GPU_TEST_WORKER";

pub(crate) struct Rig {
    pub(crate) producer: Producer,
    /// Where this process has mapped the ring's file, for as long as the producer lives.
    pub(crate) front: NonNull<u8>,
    /// Memory that the worker may only read.
    pub(crate) frames: Option<Arc<Pages>>,
    control: Option<UnixStream>,
    said: BufReader<UnixStream>,
    pub(crate) worker: Child,
    /// The walls that it says it has.
    pub(crate) walls: Value,
    /// Which device it has opened: kind and name.
    pub(crate) opened: Value,
}

impl Rig {
    pub(crate) fn new(on: On, nth: usize, slots: u32, slot_size: usize, blocks: u32) -> Self {
        let (device, folder) = on.device();
        Self::start(device, &folder, &[], nth, [slots, blocks], slot_size)
    }

    /// With this device; the worker finds libraries in a folder, and has these variables.
    pub(crate) fn start(
        device: &str,
        libraries: &Path,
        variables: &[(&str, &str)],
        nth: usize,
        counts: [u32; 2],
        slot_size: usize,
    ) -> Self {
        Self::with(device, libraries, variables, nth, counts, slot_size, Requests::Pinned)
    }

    /// On a CUDA device, with requests in its memory.
    pub(crate) fn in_vram(nth: usize, slots: u32, slot_size: usize, blocks: u32) -> Self {
        let folder = berth_cuda_soft::folder().unwrap();
        Self::with("auto", &folder, &[], nth, [slots, blocks], slot_size, Requests::Vram)
    }

    /// With requests that lie in [`Rig::frames`], too.
    pub(crate) fn in_place(on: On, nth: usize, slots: u32, slot_size: usize, blocks: u32) -> Self {
        let (device, folder) = on.device();
        Self::with(device, &folder, &[], nth, [slots, blocks], slot_size, Requests::InPlace)
    }

    fn with(
        device: &str,
        libraries: &Path,
        variables: &[(&str, &str)],
        nth: usize,
        [slots, blocks]: [u32; 2],
        slot_size: usize,
        requests: Requests,
    ) -> Self {
        let geometry = Geometry::new(slots, slot_size).unwrap();
        let pages = Pages::new(geometry.shared_size() as u64, &Backing::Unnamed, None).unwrap();
        let front = pages.base();
        let file = OwnedFd::from(pages.file().unwrap().try_clone().unwrap());
        let fd = file.as_raw_fd();
        // Such a file is what that driver takes for exported memory.
        let vram =
            (requests == Requests::Vram).then(|| Arc::new(Pages::new(2 << 20, &Backing::Unnamed, None).unwrap()));
        let vram_fd = vram.as_ref().map(|vram| vram.file().unwrap().as_raw_fd());
        let vram_at = base(nth) + (0x1000 << 32);
        let frames = (requests == Requests::InPlace)
            .then(|| Arc::new(Pages::new(FRAMES as u64, &Backing::Readable(None), None).unwrap()));
        let frames_fd = frames.as_ref().map(|frames| frames.file().unwrap().as_raw_fd());
        let frames_at = base(nth) + (0x800 << 32);
        let producer = match &vram {
            None => shared(pages, geometry, base(nth)).unwrap().patient(Duration::ZERO),
            Some(vram) => posted(pages, base(nth), vram.clone(), vram_at, geometry).unwrap().0,
        };
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["worker", "--exact", "--test-threads=1"]).env(WORKER, "1").envs(variables.iter().copied());
        command.env("LD_LIBRARY_PATH", libraries).stdin(OwnedFd::from(theirs)).stdout(Stdio::null());
        // SAFETY: as below.
        let keep = |fd| match unsafe { libc::fcntl(fd, libc::F_SETFD, 0) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        };
        let keep = move || [Some(fd), vram_fd, frames_fd].into_iter().flatten().try_for_each(keep);
        // SAFETY: between fork and exec it makes system calls, with numbers of files that are open.
        unsafe { command.pre_exec(keep) };
        let worker = command.spawn().unwrap();
        drop(file);
        let said = BufReader::new(ours.try_clone().unwrap());
        let (walls, opened) = (Value::Null, Value::Null);
        let producer = if frames.is_some() {
            let is_read = Arc::new(AtomicBool::new(true));
            producer.reading(Elsewhere { base: frames_at as u64, size: FRAMES, is_read })
        } else {
            producer
        };
        let mut rig = Self { producer, front, frames, control: Some(ours), said, worker, walls, opened };
        let slots = geometry.posted_slots();
        let vram = vram_fd.map(|fd| json!({ "fd": fd, "bytes": 2 << 20, "at": vram_at, "slots": slots }));
        let frames = frames_fd.map(|fd| json!({ "fd": fd, "bytes": FRAMES, "at": frames_at }));
        let rings = json!([{ "fd": fd, "header": HEADER, "vram": vram, "frames": frames }]);
        rig.tell(&json!({ "open": { "device": device, "rings": rings, "blocks": blocks } }));
        rig
    }

    pub(crate) fn tell(&mut self, message: &Value) {
        // One that has ended takes nothing in, and has said why.
        let _ = writeln!(self.control.as_mut().unwrap(), "{message}");
    }

    /// Loads functions; what the worker says to it.
    pub(crate) fn load(&mut self, functions: &Functions) -> Value {
        self.tell(&json!({ "load": functions }));
        self.next()
    }

    /// What the worker says next, beats apart, and what it says at first.
    pub(crate) fn next(&mut self) -> Value {
        loop {
            let mut line = String::new();
            assert_ne!(self.said.read_line(&mut line).unwrap(), 0, "the worker has ended");
            let said: Value = serde_json::from_str(&line).unwrap();
            if !said["opened"].is_null() {
                self.opened = said["opened"].clone();
            } else if !said["hello"].is_null() {
                self.walls = said["hello"].clone();
            } else if said != "beat" {
                return said;
            }
        }
    }

    /// Whether the worker says within this time that its kernel lives.
    pub(crate) fn beats_within(&mut self, time: Duration) -> bool {
        self.said.get_ref().set_read_timeout(Some(time)).unwrap();
        let mut line = String::new();
        let beats = self.said.read_line(&mut line).is_ok() && line == "\"beat\"\n";
        self.said.get_ref().set_read_timeout(None).unwrap();
        beats
    }

    pub(crate) fn push(&mut self, function: u32, id: u32, args: &[u8]) {
        let message = message(function, id, args);
        self.producer
            .push(|slot| {
                slot[..message.len()].copy_from_slice(&message);
                message.len()
            })
            .unwrap();
    }

    /// The next answer: request id, status and result.
    pub(crate) fn answer(&mut self) -> Result<(u32, i32, Vec<u8>), TxError> {
        let deadline = Instant::now() + Duration::from_secs(20);
        let mut found = None;
        while found.is_none() {
            assert!(Instant::now() < deadline, "no answer");
            self.producer.tell_time(Nanos(1));
            self.producer.collect(1, |_, answer| {
                found = Some(answer.map(|slot| {
                    let word = |at: usize| u32::from_le_bytes(slot[at..at + 4].try_into().unwrap());
                    assert_eq!((word(0), word(16), word(20)), (0x4355_5153, word(12), 0));
                    (word(12), word(4) as i32, slot[HEADER..][..word(8) as usize].to_vec())
                }));
            });
            thread::yield_now();
        }
        found.unwrap()
    }

    pub(crate) fn call(&mut self, function: u32, args: &[u8]) -> (i32, Vec<u8>) {
        self.push(function, 7, args);
        let (id, status, result) = self.answer().unwrap();
        assert_eq!(id, 7);
        (status, result)
    }

    /// So many calls of `rpc_increment`, as many at a time as there are slots, with arguments of up to 232 bytes: every answer is
    /// right, and in its turn.
    pub(crate) fn increments(&mut self, function: u32, count: u32) {
        let (mut sent, mut taken) = (0, 0);
        let args = |id: u32| (0..id % 233).map(|at| (at + id) as u8).collect::<Vec<_>>();
        while taken < count {
            if sent < count && self.producer.can_push() {
                self.push(function, sent, &args(sent));
                sent += 1;
                continue;
            }
            let wanted = args(taken).iter().map(|byte| byte.wrapping_add(1)).collect();
            assert_eq!(self.answer(), Ok((taken, 0, wanted)));
            taken += 1;
        }
    }

    /// Ends the worker as the end of its `berth` would; whether that went well.
    pub(crate) fn end(mut self) -> bool {
        self.control.take().unwrap().shutdown(std::net::Shutdown::Write).unwrap();
        self.worker.wait().unwrap().success()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.worker.kill();
        let _ = self.worker.wait();
    }
}

/// A request, with its id for its time.
pub(crate) fn message(function: u32, id: u32, args: &[u8]) -> Vec<u8> {
    let header = [0x4355_5152, function, args.len() as u32, id].map(u32::to_le_bytes).concat();
    [&header[..], &u64::from(id).to_le_bytes(), args].concat()
}

pub(crate) fn increment(id: u32) -> Function {
    Function {
        id,
        code: Code::Increment,
        parallel: false,
        graph: false,
        built_in: false,
        checks_length: false,
        fixed: 0,
        unit: 1,
    }
}

pub(crate) fn symbol(id: u32, symbol: &str, parallel: bool) -> Function {
    Function {
        id,
        code: Code::Symbol { module: 0, symbol: symbol.into() },
        parallel,
        graph: false,
        built_in: false,
        checks_length: false,
        fixed: 0,
        unit: 1,
    }
}

pub(crate) fn module(text: &str) -> Module {
    Module { name: "mine.ptx".into(), text: text.into() }
}
