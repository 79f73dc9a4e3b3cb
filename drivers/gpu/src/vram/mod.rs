//! Memory of a GPU that the CPU writes: a worker allocates it, and this process maps its dma-buf. The allocation lives as long as
//! the handle that is kept here, and workers that come and go import it.
//!
//! Not every driver lets a CPU map a dma-buf, or holds memory whose process has ended. So both sides look whether bytes arrive,
//! and another worker whether they are there, before anything relies on it.

mod blocks;
mod chunks;
pub(crate) mod process;

use std::{
    io::{self, ErrorKind, IoSliceMut, Write as _},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd, RawFd},
        unix::net::UnixStream,
    },
    path::Path,
    ptr::NonNull,
    time::Duration,
};

use berth_memory::{Memory, flush_stores};
use rustix::{
    io::retry_on_intr,
    net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg},
};
use serde::{Deserialize, Serialize};

pub use self::blocks::VramBlocks;
pub(crate) use self::chunks::{ChunkFds, Chunks};
use crate::{child, choice::Choice, control::line, gpu::GpuError, mapping::FileMap};

/// How long a worker may take to answer: a driver that starts takes a second or two.
const ANSWER: Duration = Duration::from_secs(30);

/// What the first worker writes to the begin and the end of the memory, and what the second one finds there.
const MARKS: [[u8; 16]; 2] = [*b"seen by the CPU?", *b"seen by the GPU?"];

/// What a worker is to do, on which device.
#[derive(Debug, Serialize, Deserialize)]
struct Asked {
    device: Choice,
    what: What,
}

/// Kernels are to see the first byte at `at`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum What {
    /// To allocate so many bytes, and send their handle and a dma-buf.
    Allocate { bytes: usize, at: u64 },
    /// To import what another one has allocated by the handle that it inherited, find what this process wrote, and zero all.
    Look { handle: RawFd, bytes: usize, at: u64 },
    /// To allocate so many bytes in chunks, or most of what is free, and send their handles.
    Chunks { bytes: Option<u64>, at: u64 },
    /// To import chunks, and send a dma-buf of all.
    DmaBuf(ChunkFds),
}

impl What {
    /// The files that the worker inherits for it.
    fn inherited(&self) -> Vec<RawFd> {
        match self {
            Self::Look { handle, .. } => vec![*handle],
            Self::DmaBuf(chunks) => chunks.fds.clone(),
            Self::Allocate { .. } | Self::Chunks { .. } => Vec::new(),
        }
    }
}

/// What it answers, behind the descriptors that it sends: bytes that it allocated, or of each chunk, and how many descriptors it sent.
type Answer = Result<(usize, usize), Refusal>;

/// Why it did not do it.
#[derive(Debug, Serialize, Deserialize)]
struct Refusal {
    why: String,
    /// The driver never does it.
    is_final: bool,
}

/// Most descriptors of a message.
const SENT_MAX: usize = 64;

/// Memory of a GPU, mapped by this process for writing. Reads of it are slow: each is a round trip to the card.
#[derive(Debug)]
pub struct Vram {
    handle: OwnedFd,
    mapped: FileMap,
    at: usize,
}

// SAFETY: as its mapping's; readable and writable, and initialised by the worker.
unsafe impl Memory for Vram {
    fn base(&self) -> NonNull<u8> {
        self.mapped.base()
    }

    fn size(&self) -> usize {
        self.mapped.size()
    }
}

impl AsFd for Vram {
    /// What workers import.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }
}

impl Vram {
    /// Has the worker at this path allocate at least so many bytes of the device, zeroed, which its kernels are to see at this
    /// address, and maps them. Another worker, as those are that will serve, is tried with them.
    ///
    /// # Errors
    /// [`GpuError::Refused`]: there is no such device, its driver exports no memory or has another use for the address, or a
    /// CPU cannot map it.
    pub fn allocate(worker: &Path, device: &Choice, bytes: usize, at: usize) -> Result<Self, GpuError> {
        let (size, mut files) = ask(worker, device, What::Allocate { bytes, at: at as u64 })?;
        let (Some(dma_buf), Some(handle)) = (files.pop(), files.pop()) else {
            return Err(ended(worker, "sent no memory"));
        };
        let mapped = FileMap::new(&dma_buf, size, libc::PROT_READ | libc::PROT_WRITE, None);
        let mapped = mapped.map_err(|e| refused(format!("a CPU cannot map its dma-buf: {e}")))?;
        let vram = Self { handle, mapped, at };
        let ends = [0, size - MARKS[0].len()];
        if !ends.iter().all(|at| vram.holds(*at, &MARKS[0])) {
            return Err(refused("what the GPU writes does not reach a CPU that maps its dma-buf"));
        }
        for at in ends {
            vram.write_at(at, &MARKS[1]);
        }
        flush_stores();
        ask(worker, device, What::Look { handle: vram.handle.as_raw_fd(), bytes: size, at: at as u64 })?;
        let is_zero = ends.iter().all(|at| vram.holds(*at, &[0; MARKS[0].len()]));
        if is_zero { Ok(vram) } else { Err(refused("memory that the GPU has zeroed is not zero to a CPU")) }
    }

    /// Where kernels see the first byte.
    pub fn at(&self) -> usize {
        self.at
    }

    fn holds(&self, at: usize, wanted: &[u8]) -> bool {
        let mut found = vec![0; wanted.len()];
        self.read_at(at, &mut found);
        found == wanted
    }
}

/// Asks a new worker. It has ended, and all that it had mapped is unmapped, when this returns.
fn ask(worker: &Path, device: &Choice, what: What) -> Result<(usize, Vec<OwnedFd>), GpuError> {
    let (mut ours, theirs) = UnixStream::pair()?;
    ours.set_read_timeout(Some(ANSWER))?;
    let mut child = {
        let mut command = child::worker(worker, device, what.inherited());
        command.arg("vram").stdin(OwnedFd::from(theirs)).spawn()?
    };
    let asked = line(&Asked { device: device.clone(), what });
    let answered = ours.write_all(&asked).and_then(|()| received(&ours));
    // One that has answered ends by itself.
    let _ = child.kill();
    child.wait()?;
    let (answer, files) = answered.map_err(|e| match e.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => ended(worker, "waits for its driver"),
        _ => e.into(),
    })?;
    let answer: Answer = serde_json::from_slice(&answer).map_err(|_| ended(worker, "ended before it answered"))?;
    let refused =
        |Refusal { why, is_final }| if is_final { GpuError::Unsupported(why) } else { GpuError::Refused(why) };
    let (bytes, sent) = answer.map_err(refused)?;
    if files.len() != sent {
        return Err(ended(worker, "sent descriptors that are not all there: too few files may be open"));
    }
    Ok((bytes, files))
}

fn ended(worker: &Path, what: &'static str) -> GpuError {
    GpuError::Worker { what, worker: worker.to_owned() }
}

fn refused(why: impl Into<String>) -> GpuError {
    GpuError::Refused(why.into())
}

/// A line, and the descriptors that came before and with it.
fn received(from: &UnixStream) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let (mut said, mut files) = (Vec::new(), Vec::new());
    while said.last() != Some(&b'\n') {
        let (mut bytes, mut space) = ([0; 4096], [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SENT_MAX))]);
        let mut beside = RecvAncillaryBuffer::new(&mut space);
        let into = &mut [IoSliceMut::new(&mut bytes)];
        let got = retry_on_intr(|| recvmsg(from, into, &mut beside, RecvFlags::CMSG_CLOEXEC))?;
        for message in beside.drain() {
            if let RecvAncillaryMessage::ScmRights(more) = message {
                files.extend(more);
            }
        }
        // A worker of ours says no more than a line.
        if got.bytes == 0 || said.len() > bytes.len() {
            break;
        }
        said.extend(&bytes[..got.bytes]);
    }
    Ok((said, files))
}
