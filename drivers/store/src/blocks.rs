//! The face of the block engine: submissions from any thread, counters, shutdown.

use std::{
    fmt,
    fs::File,
    io::{self, Write},
    os::fd::FromRawFd,
    path::Path,
    sync::{
        Arc,
        atomic::{
            AtomicBool,
            Ordering::{Relaxed, SeqCst},
            fence,
        },
    },
    thread::{self, JoinHandle},
};

use berth_lease::{BlockCounts, BlockError, BlockInfo, BlockRequest, Blocks};
use berth_memory::Memory;
use crossbeam_queue::ArrayQueue;

use crate::{
    BlockOpenError,
    cores::{self, Cores},
    engine,
    target::Target,
};

/// The most requests that wait for the engine; more are refused as busy.
const QUEUE: usize = 1024;

/// A region of blocks in a file or on a block device, worked through `io_uring`: whole sectors in the ring of the poll core
/// that asks for them, all else, and what other threads ask for, by a thread of its own.
///
/// Submitting takes no lock, and a system call only to wake an engine that sleeps. Any range within the region is
/// allowed; multiples of the device's sectors are faster, for others have to read what they do not write. Such a write
/// waits for others at its sectors; else requests are done in any order. The thread runs on the processors that its
/// starter may use: start it from one of the housekeeping threads.
#[derive(Debug)]
pub struct BlockEngine {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    len: u64,
    info: BlockInfo,
}

/// Between submitters and the engine.
pub(crate) struct Shared {
    pub(crate) queue: ArrayQueue<Submitted>,
    /// Ends the engine's sleep.
    pub(crate) wake: File,
    /// The engine looks at nothing until it is woken.
    pub(crate) asleep: AtomicBool,
    pub(crate) closed: AtomicBool,
    pub(crate) cores: Cores,
    pub(crate) target: Target,
    pub(crate) counts: BlockCounts,
}

/// A message to the engine.
pub(crate) enum Submitted {
    Request(BlockRequest),
    /// To be registered.
    Memory(Arc<dyn Memory>),
}

impl BlockEngine {
    /// Opens `path`, a block device or a file (made if there is none), for a region of `len` bytes, a multiple of 4096,
    /// and starts the engine. What the file or device holds already stays there.
    pub fn open(path: &Path, len: u64) -> Result<Self, BlockOpenError> {
        let target = Target::open(path, len)?;
        let align = target.align;
        let info = BlockInfo {
            block_size: align as u32,
            discard: target.discard,
            compare: true,
            flush: true,
            ..BlockInfo::default()
        };
        let failed = |source| BlockOpenError::Io { what: "cannot make an eventfd for", path: path.to_owned(), source };
        let shared = Arc::new(Shared {
            queue: ArrayQueue::new(QUEUE),
            wake: eventfd().map_err(failed)?,
            asleep: false.into(),
            closed: false.into(),
            cores: Cores::default(),
            target,
            counts: BlockCounts::default(),
        });
        let (thread, registered) = engine::spawn(Arc::clone(&shared))?;
        if align == 1 {
            tracing::warn!("{}: no direct I/O on this file system; blocks go through the page cache", path.display());
        }
        if !registered {
            tracing::warn!("{}: buffers are not registered: raise RLIMIT_MEMLOCK by 4 MiB", path.display());
        }
        Ok(Self { shared, thread: Some(thread), len, info })
    }
}

impl Shared {
    /// Counts how a request ended, and tells its submitter.
    pub(crate) fn end(&self, request: BlockRequest, result: Result<(), BlockError>) {
        self.counts.ended(request.op, request.len(), result);
        let BlockRequest { pieces, tag, done, .. } = request;
        done.done(tag, pieces, result);
    }

    /// Wakes the engine if it sleeps.
    pub(crate) fn nudge(&self) {
        // Pairs with the engine, which says that it sleeps and then looks at the queue once more.
        fence(SeqCst);
        if self.asleep.load(Relaxed) && self.asleep.swap(false, Relaxed) {
            self.wake();
        }
    }

    fn wake(&self) {
        // It fails only when 2^64 calls are pending, and then the engine is awake.
        let _ = (&self.wake).write(&1u64.to_ne_bytes());
    }
}

fn eventfd() -> io::Result<File> {
    // SAFETY: no pointers.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and nobody else's.
    Ok(unsafe { File::from_raw_fd(fd) })
}

impl Blocks for BlockEngine {
    fn len(&self) -> u64 {
        self.len
    }

    fn info(&self) -> BlockInfo {
        self.info
    }

    fn register(&self, memory: &Arc<dyn Memory>) {
        // Where the queue is full, it goes without.
        if self.shared.queue.push(Submitted::Memory(memory.clone())).is_ok() {
            self.shared.nudge();
        }
    }

    fn submit(&self, request: BlockRequest) {
        let counts = &self.shared.counts;
        if request.at.checked_add(request.len()).is_none_or(|end| end > self.len) {
            counts.refused.add(1);
            return request.done.done(request.tag, request.pieces, Err(BlockError::Io(libc::EINVAL)));
        }
        let Err(request) = cores::submit(&self.shared, request) else { return };
        if let Err(Submitted::Request(request)) = self.shared.queue.push(Submitted::Request(request)) {
            counts.busy.add(1);
            return request.done.done(request.tag, request.pieces, Err(BlockError::Busy));
        }
        self.shared.nudge();
    }

    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        self.shared.counts.report(visit);
    }
}

/// Waits for everything that its thread has, then makes it survive a loss of power. What poll cores have under way ends by
/// itself; until their rings are closed the file stays open.
impl Drop for BlockEngine {
    fn drop(&mut self) {
        self.shared.closed.store(true, SeqCst);
        self.shared.wake();
        // The last owner may be a completion, on the engine's own thread: that one ends by itself.
        if let Some(thread) = self.thread.take().filter(|thread| thread.thread().id() != thread::current().id()) {
            let ended = thread.join();
            debug_assert!(ended.is_ok(), "the engine does not panic");
        }
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("waiting", &self.queue.len()).finish_non_exhaustive()
    }
}
