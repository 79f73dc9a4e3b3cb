//! Memory of a GPU as an engine: a process that maps all of it copies between it and a staging area, one thread here between that
//! and what carriers have. No CPU has to map the GPU's memory, and nobody waits for a copy but who asked for it.

mod engine;

use std::{
    collections::VecDeque,
    fmt, io,
    os::fd::OwnedFd,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle, Thread},
    time::{Duration, Instant},
};

use berth_lease::{BlockCounts, BlockError, BlockInfo, BlockOp, BlockRequest, Blocks, wait};
use berth_memory::{Heap, Memory as _, Part};
use berth_pages::DmaBufs;

use self::engine::Engine;
use super::{ChunkFds, Chunks, chunks::mark, refused};
use crate::{
    choice::Choice,
    gpu::GpuError,
    lease::BASE,
    session::{SessionCounts, SessionGpu, SessionSettings},
};

/// Most requests that wait for their turn, and those of one submitter that may do so beyond: whoever fills the queue takes no
/// other's place, such as a connection's, a scrubbing's or an output's.
const QUEUE: usize = 1024;
const SHARE: usize = 8;

/// How long a copy may take, on a GPU that other processes use, too.
const LIMIT: Duration = Duration::from_secs(2);

/// How long an engine that lives takes to answer at most: longer than a process that is stopped is waited for, and started again.
const SILENCE: Duration = Duration::from_mins(1);

/// How long a read that somebody waits for is tried again, and how long it rests before.
const READ: Duration = Duration::from_secs(5);
const RETRY: Duration = Duration::from_millis(5);

/// Memory of a GPU that is leased: in whole chunks, so that a process can map what one lease has, and no more.
pub struct VramBlocks {
    shared: Arc<Shared>,
    chunks: Arc<Chunks>,
    settings: Arc<SessionSettings>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    queue: Mutex<Queue>,
    counts: BlockCounts,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<BlockRequest>,
    /// What takes requests out; `None` once it is to end.
    engine: Option<Thread>,
}

impl Queue {
    /// Has a request wait for the engine, which is returned; the request itself where there is no room, or no engine.
    fn push(&mut self, request: BlockRequest) -> Result<Thread, BlockRequest> {
        let is_own = |other: &&BlockRequest| Arc::ptr_eq(&other.done, &request.done);
        let has_room = self.waiting.len() < QUEUE || self.waiting.iter().filter(is_own).count() < SHARE;
        match self.engine.clone().filter(|_| has_room) {
            Some(engine) => {
                self.waiting.push_back(request);
                Ok(engine)
            }
            None => Err(request),
        }
    }
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts how a request ended, and tells its submitter.
    fn end(&self, request: BlockRequest, result: Result<(), BlockError>) {
        self.counts.ended(request.op, request.len(), result);
        let BlockRequest { pieces, tag, done, .. } = request;
        done.done(tag, pieces, result);
    }
}

impl VramBlocks {
    /// Allocates so many bytes of a GPU's memory, or seven eighths of what is free, less a part of a chunk, by workers of the
    /// program at this path, and zeroes them. `name`: as the configuration calls the GPU.
    ///
    /// # Errors
    /// [`GpuError::Refused`]: there is no such device, or it has not so much memory; its driver shares none among processes, or
    /// has another use for the address; or the memory does not outlive the process that allocated it.
    pub fn open(name: &str, worker: &Path, device: &Choice, bytes: Option<u64>) -> Result<Self, GpuError> {
        let chunks = Arc::new(Chunks::allocate(worker, device, bytes, BASE)?);
        let settings = Arc::new(SessionSettings {
            name: name.to_owned(),
            worker: worker.to_owned(),
            device: device.clone(),
            limit: LIMIT,
            counts: SessionCounts::default(),
        });
        // Another process than the one that allocated it, as workers of leases are.
        let gpu = SessionGpu::start_over(&settings, Some(chunks.clone()))?;
        gpu.facts()?;
        let shared = Arc::new(Shared { queue: Mutex::default(), counts: BlockCounts::default() });
        let engine = Engine::new(shared.clone(), gpu, BASE);
        let thread = {
            // It looks whether it is to end.
            let mut queue = shared.queue();
            let thread = thread::Builder::new().name(format!("copy-{name}")).spawn(move || engine.run())?;
            queue.engine = Some(thread.thread().clone());
            thread
        };
        let blocks = Self { shared, chunks, settings, thread: Some(thread) };
        let failed = |e: BlockError| refused(format!("memory of the GPU cannot be used: {e}"));
        for nth in 0..blocks.chunks.count() {
            let (at, mark) = (nth as u64 * blocks.chunks.each(), mark(nth));
            if blocks.read(at, mark.len()).map_err(failed)? != mark {
                return Err(refused("memory of the GPU does not outlive the process that allocated it"));
            }
        }
        blocks.wait(BlockOp::Zero(blocks.len()), 0, Vec::new()).map_err(failed)?;
        Ok(blocks)
    }

    /// What became of the processes that copied.
    pub(crate) fn counts(&self) -> &SessionCounts {
        &self.settings.counts
    }

    /// What a worker is told which is to map these bytes.
    pub(crate) fn told(&self, at: u64, len: u64) -> ChunkFds {
        self.chunks.told(at, len)
    }

    /// Reads bytes, and waits for that: also for room in the queue, and for another process where the one that copied has
    /// ended, but not for long.
    pub(crate) fn read(&self, at: u64, len: usize) -> Result<Vec<u8>, BlockError> {
        let (began, into) = (Instant::now(), Arc::new(Heap::new(len)));
        loop {
            match self.wait(BlockOp::Read, at, vec![into.clone().into()]) {
                Ok(()) => break,
                Err(_) if began.elapsed() < READ => thread::sleep(RETRY),
                Err(e) => return Err(e),
            }
        }
        let mut bytes = vec![0; len];
        into.read_at(0, &mut bytes);
        Ok(bytes)
    }

    fn wait(&self, op: BlockOp, at: u64, pieces: Vec<Part>) -> Result<(), BlockError> {
        wait(self, op, at, pieces, SILENCE).unwrap_or(Err(BlockError::Io(libc::ETIMEDOUT)))
    }
}

impl Blocks for VramBlocks {
    fn len(&self) -> u64 {
        self.chunks.size()
    }

    fn info(&self) -> BlockInfo {
        BlockInfo { granule: self.chunks.each(), volatile: true, ..BlockInfo::default() }
    }

    fn submit(&self, request: BlockRequest) {
        if request.at.checked_add(request.len()).is_none_or(|end| end > self.len()) {
            self.shared.counts.refused.add(1);
            return request.done.done(request.tag, request.pieces, Err(BlockError::Io(libc::EINVAL)));
        }
        let pushed = self.shared.queue().push(request);
        match pushed {
            Ok(engine) => engine.unpark(),
            Err(request) => {
                self.shared.counts.busy.add(1);
                request.done.done(request.tag, request.pieces, Err(BlockError::Busy));
            }
        }
    }

    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        self.shared.counts.report(visit);
    }
}

impl DmaBufs for VramBlocks {
    fn export(&self, at: u64, len: u64) -> io::Result<(OwnedFd, u64)> {
        let SessionSettings { worker, device, .. } = &*self.settings;
        self.chunks.dma_buf(worker, device, at, len).map_err(|e| match e {
            GpuError::Io(e) => e,
            GpuError::Unsupported(why) => io::Error::new(io::ErrorKind::Unsupported, why),
            other => io::Error::other(other),
        })
    }
}

/// What is under way has failed when this is over, and the process that copied has ended.
impl Drop for VramBlocks {
    fn drop(&mut self) {
        let engine = self.shared.queue().engine.take();
        engine.iter().for_each(Thread::unpark);
        // The last owner may be a completion, on the engine's own thread: that one ends by itself.
        if let Some(thread) = self.thread.take().filter(|thread| thread.thread().id() != thread::current().id()) {
            let ended = thread.join();
            debug_assert!(ended.is_ok(), "the engine does not panic");
        }
    }
}

impl fmt::Debug for VramBlocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VramBlocks").field("chunks", &self.chunks).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use berth_lease::BlockDone;

    use super::*;

    struct Submitter;

    impl BlockDone for Submitter {
        fn done(&self, _: u64, _: Vec<Part>, _: Result<(), BlockError>) {}
    }

    fn request(done: &Arc<Submitter>) -> BlockRequest {
        BlockRequest { op: BlockOp::Flush, at: 0, pieces: Vec::new(), tag: 0, done: done.clone() }
    }

    #[test]
    fn who_fills_the_queue_takes_no_others_place() {
        let mut queue = Queue { waiting: VecDeque::new(), engine: Some(thread::current()) };
        // 17 connections of a peer, each with as many requests as it may have.
        let peer: Vec<_> = (0..17).map(|_| Arc::new(Submitter)).collect();
        let taken = peer.iter().flat_map(|one| [one; 64]).filter(|one| queue.push(request(one)).is_ok()).count();
        assert_eq!(taken, QUEUE + SHARE, "of the last one, what nobody loses");
        assert!(queue.push(request(&peer[0])).is_err());
        let other = Arc::new(Submitter);
        let taken = (0..64).filter(|_| queue.push(request(&other)).is_ok()).count();
        assert_eq!(taken, SHARE);
        queue.engine = None;
        assert!(queue.push(request(&Arc::new(Submitter))).is_err());
    }
}
