//! What `berth` and its worker say to each other: a JSON object a line, over the worker's standard input, which is a socket.

use std::{
    io::{self, Write as _},
    os::unix::net::UnixStream,
    sync::{Arc, Mutex, PoisonError},
};

use serde::{Deserialize, Serialize};

use crate::choice::Choice;

/// The functions that a GPU is to run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Functions {
    /// The functions, in the order of the dispatcher's table.
    pub all: Vec<Function>,
    /// PTX files that they are in.
    pub modules: Vec<Module>,
    /// What functions kept from request to request is lost: somebody else ran them before.
    pub lost: bool,
}

/// A function of the table.
#[expect(clippy::struct_excessive_bools, reason = "bits of the table that the dispatcher reads")]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Function {
    /// Its id on the wire.
    pub id: u32,
    /// What runs.
    pub code: Code,
    /// All threads of the block call it, not one.
    pub parallel: bool,
    /// It is a kernel, which is launched for each request; all functions of a GPU are, or none.
    pub graph: bool,
    /// Its negative statuses are told as they are; of others as -6.
    pub built_in: bool,
    /// It is called with an `arg_len` beyond the slot too, and refuses it by itself.
    pub checks_length: bool,
    /// Bytes of arguments that it takes at least.
    pub fixed: u32,
    /// It takes any number of these more, in bytes; 0 is none.
    pub unit: u32,
}

/// What a function runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// `rpc_increment`
    Increment,
    /// `mock_decode`
    MockDecode {
        /// Bytes of a request.
        measurements: u32,
        /// Bytes of an answer.
        observables: u32,
        /// Measurements and answer of each shot, in hex digits.
        rows: String,
    },
    /// A device function of a module.
    Symbol {
        /// Which, of [`Functions::modules`].
        module: usize,
        /// Its name in the PTX text.
        symbol: String,
    },
}

/// A PTX text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Module {
    /// What errors call it: its path.
    pub name: String,
    /// The PTX text.
    pub text: String,
}

/// What a worker is told.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Command {
    /// Which rings it serves, first of all.
    Open {
        device: Choice,
        rings: Vec<RingFd>,
        /// Blocks of each.
        blocks: u32,
    },
    /// What it runs from now on; requests that it has are answered first.
    Load(Functions),
}

/// A ring file that the worker inherited.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct RingFd {
    pub(crate) fd: i32,
    /// Bytes of its messages' header.
    pub(crate) header: u32,
    /// Where its requests are, if not in the file.
    pub(crate) vram: Option<VramFd>,
    /// Where they may be besides.
    pub(crate) frames: Option<FramesFd>,
}

/// Memory that only `berth` writes, in which requests may lie.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct FramesFd {
    /// What the worker maps; it inherited it.
    pub(crate) fd: i32,
    /// Its length in bytes.
    pub(crate) bytes: usize,
    /// Where flags assume its first byte.
    pub(crate) at: usize,
}

/// Memory of the device with a ring's requests, as [`berth_ring::posted`] lays it out.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct VramFd {
    /// What the worker imports; it inherited it.
    pub(crate) fd: i32,
    /// Its length, by which it is mapped.
    pub(crate) bytes: usize,
    /// Where kernels are to see its first byte.
    pub(crate) at: u64,
    /// Bytes from there to the first slot.
    pub(crate) slots: usize,
}

/// What a worker says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Report {
    /// It has shut itself in, with these walls beside the filter of system calls.
    Hello { namespaces: bool, landlock: bool },
    /// It has the device: what kind, and which; and why it cannot read requests where they were received, if it cannot.
    Opened { kind: String, device: String, unread: Option<String> },
    /// Its functions run.
    Loaded,
    /// It has no device, or they could not be loaded.
    Refused(String),
    /// Every block of its kernel goes round its loop.
    Beat,
    /// Its kernel ended with this, and so does the worker.
    Fault(String),
}

/// A message as it is sent.
pub(crate) fn line(message: &impl Serialize) -> Vec<u8> {
    let mut line = serde_json::to_vec(message).expect("plain data");
    line.push(b'\n');
    line
}

/// The worker's way to `berth`, for whole lines of all threads.
#[derive(Clone)]
pub(crate) struct Said {
    control: Arc<UnixStream>,
    one: Arc<Mutex<()>>,
}

impl Said {
    pub(crate) fn new(control: Arc<UnixStream>) -> Self {
        Self { control, one: Arc::default() }
    }

    pub(crate) fn say(&self, report: &impl Serialize) -> io::Result<()> {
        let _one = self.one.lock().unwrap_or_else(PoisonError::into_inner);
        (&*self.control).write_all(&line(report))
    }
}
