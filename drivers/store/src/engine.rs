//! The thread that moves blocks.
//!
//! Every request in progress has a slot: a buffer, aligned and registered, of which one piece after the other is read
//! or written. So a request may be longer than a slot, a transfer may be cut short, and the caller's memory need not
//! be aligned. A write that does not cover whole sectors reads them first; a request that touches the same sectors
//! meanwhile is parked.

use std::{
    collections::VecDeque,
    io::{self, Read},
    os::fd::AsRawFd,
    slice,
    sync::{
        Arc,
        atomic::{
            Ordering::{Relaxed, SeqCst},
            fence,
        },
        mpsc,
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use berth_lease::{BlockError, BlockOp, BlockRequest};
use berth_memory::{Heap, Memory as _};
use berth_uring::UringError;
use io_uring::{
    IoUring, opcode, squeue,
    types::{Fd, FsyncFlags},
};

use crate::{
    blocks::{Shared, add},
    target::Target,
};

/// Requests in progress at a time.
const SLOTS: usize = 64;

/// Bytes of a slot's buffer.
const SLOT: usize = 64 << 10;

/// Requests that wait for others at their sectors; while there are as many, no new ones are taken.
const PARKED: usize = 64;

/// The completion of the poll that wakes the engine; others carry a slot.
const WAKE: u64 = u64::MAX;

struct Engine {
    target: Target,
    shared: Arc<Shared>,
    ring: IoUring,
    buffers: Heap,
    registered: bool,
    tasks: [Option<Task>; SLOTS],
    free: Vec<usize>,
    parked: VecDeque<BlockRequest>,
    zeroing: Zeroing,
}

/// A request in progress.
struct Task {
    request: BlockRequest,
    /// Bytes of it that are done.
    progress: usize,
    step: Step,
}

/// What the kernel does for a task.
#[derive(Clone, Copy)]
enum Step {
    Read(Piece),
    /// Reads the sectors of a piece that does not fill them.
    ReadToMerge(Piece),
    Write(Piece),
    Fallocate(Zeroing),
    Flush,
}

/// Whole sectors in the region, and the bytes among them that are meant.
#[derive(Clone, Copy)]
struct Piece {
    /// The first sector's first byte in the region.
    at: u64,
    /// Bytes of all sectors.
    len: usize,
    /// Bytes before those meant.
    skip: usize,
    /// Bytes meant.
    meant: usize,
}

/// The best way to zero that the target has.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Zeroing {
    /// Keeps the space reserved.
    ZeroRange,
    /// Gives the space back.
    PunchHole,
    /// Writes zeros.
    Write,
}

/// Starts the engine. Tells whether its buffers are registered.
pub(crate) fn spawn(target: Target, shared: Arc<Shared>) -> Result<(JoinHandle<()>, bool), UringError> {
    let (ready, started) = mpsc::sync_channel(1);
    let run = move || match Engine::new(target, shared) {
        Ok(mut engine) => {
            let _ = ready.send(Ok(engine.registered));
            engine.run();
        }
        Err(error) => drop(ready.send(Err(error))),
    };
    let failed = |source| UringError::Io { what: "starting the block engine's thread", source };
    let thread = thread::Builder::new().name("berth-blocks".into()).spawn(run).map_err(failed)?;
    let registered = started.recv().unwrap_or_else(|_| Err(failed(io::ErrorKind::BrokenPipe.into())))?;
    Ok((thread, registered))
}

/// Bytes that a request covers.
pub(crate) fn total(request: &BlockRequest) -> u64 {
    match request.op {
        BlockOp::Read | BlockOp::Write => request.buffer.len() as u64,
        BlockOp::Zero(len) => len,
        BlockOp::Flush => 0,
    }
}

impl Engine {
    fn new(target: Target, shared: Arc<Shared>) -> Result<Self, UringError> {
        // The ring belongs to the thread that makes it.
        let ring = berth_uring::ring(2 * SLOTS as u32)?;
        let buffers = Heap::new(SLOTS * SLOT);
        let all = libc::iovec { iov_base: buffers.base().as_ptr().cast(), iov_len: buffers.size() };
        // SAFETY: the kernel keeps these pages, and uses them for steps only, which `drop` waits for.
        let registered = unsafe { ring.submitter().register_buffers(&[all]) }.is_ok();
        Ok(Self {
            target,
            shared,
            ring,
            buffers,
            registered,
            tasks: [const { None }; SLOTS],
            free: (0..SLOTS).collect(),
            parked: VecDeque::with_capacity(PARKED),
            zeroing: Zeroing::ZeroRange,
        })
    }

    fn run(&mut self) {
        self.listen();
        loop {
            let mut busy = self.take();
            self.enter(0);
            busy |= self.reap();
            if busy {
                continue;
            }
            if self.shared.closed.load(SeqCst) && self.free.len() == SLOTS && self.shared.queue.is_empty() {
                break;
            }
            self.shared.asleep.store(true, Relaxed);
            // Pairs with submitters, which fill the queue and then look whether the engine sleeps.
            fence(SeqCst);
            if !self.may_take() || self.shared.queue.is_empty() {
                self.enter(1);
            }
            self.shared.asleep.store(false, Relaxed);
        }
        // Whoever needs to know asks for a flush.
        let _ = self.target.file.sync_data();
    }

    fn may_take(&self) -> bool {
        !self.free.is_empty() && self.parked.len() < PARKED
    }

    /// Starts the requests that wait, and returns whether there were any.
    fn take(&mut self) -> bool {
        let mut taken = false;
        while self.may_take()
            && let Some(request) = self.shared.queue.pop()
        {
            taken = true;
            self.admit(request);
        }
        taken
    }

    /// Asks for a completion when somebody wakes the engine. Waiting in the ring itself, and not with poll on it, is
    /// what never misses a completion: of a ring that runs its work in its own thread, poll does.
    fn listen(&mut self) {
        let poll = opcode::PollAdd::new(Fd(self.shared.wake.as_raw_fd()), libc::POLLIN as u32).build();
        // SAFETY: no pointers; the descriptor is open as long as the engine.
        let pushed = unsafe { self.ring.submission().push(&poll.user_data(WAKE)) };
        pushed.expect("the ring has room for every slot and this");
    }

    /// Submits what is queued, lets the kernel complete what is due, and waits for `wanted` completions: a system call,
    /// if there is anything to do.
    fn enter(&mut self, wanted: usize) {
        let queue = self.ring.submission();
        let idle = wanted == 0 && queue.is_empty() && !queue.taskrun() && !queue.cq_overflow();
        drop(queue);
        if !idle && self.ring.submit_and_wait(wanted).is_err_and(|error| error.kind() != io::ErrorKind::Interrupted) {
            // A lack of memory passes; what was not submitted stays queued.
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn reap(&mut self) -> bool {
        let mut reaped = false;
        loop {
            let Some(completion) = self.ring.completion().next() else { return reaped };
            reaped = true;
            match completion.user_data() {
                WAKE => {
                    // Nothing to read: an earlier poll took it.
                    let _ = (&self.shared.wake).read(&mut [0; 8]);
                    self.listen();
                }
                slot => self.stepped(slot as usize, completion.result()),
            }
        }
    }

    /// Starts a request, or parks it.
    fn admit(&mut self, request: BlockRequest) {
        let conflict = {
            let active = self.tasks.iter().flatten().map(|task| &task.request);
            active.chain(&self.parked).any(|other| self.conflict(&request, other))
        };
        if conflict {
            self.parked.push_back(request);
            return;
        }
        match self.free.pop() {
            Some(slot) => self.begin(slot, Task { request, progress: 0, step: Step::Flush }),
            None => self.parked.push_back(request),
        }
    }

    /// Whether two writes may not be under way at once: one of them reads and writes back sectors of the other.
    fn conflict(&self, one: &BlockRequest, other: &BlockRequest) -> bool {
        let align = self.target.align;
        let range = |request: &BlockRequest| match request.op {
            BlockOp::Write | BlockOp::Zero(_) => Some((request.at, request.at + total(request))),
            BlockOp::Read | BlockOp::Flush => None,
        };
        let (Some(one), Some(other)) = (range(one), range(other)) else { return false };
        let ragged = [one.0, one.1, other.0, other.1].into_iter().any(|edge| !edge.is_multiple_of(align));
        ragged && one.0 / align < other.1.div_ceil(align) && other.0 / align < one.1.div_ceil(align)
    }

    /// Starts the next step of a task, or ends it.
    fn begin(&mut self, slot: usize, mut task: Task) {
        let left = total(&task.request) - task.progress as u64;
        let aligned = |n: u64| n.is_multiple_of(self.target.align);
        task.step = match task.request.op {
            BlockOp::Flush => Step::Flush,
            _ if left == 0 => return self.end(slot, task, Ok(())),
            BlockOp::Read => Step::Read(self.piece(&task, left)),
            BlockOp::Zero(len) if self.zeroing != Zeroing::Write && aligned(task.request.at) && aligned(len) => {
                Step::Fallocate(self.zeroing)
            }
            BlockOp::Write | BlockOp::Zero(_) => {
                let piece = self.piece(&task, left);
                if piece.meant < piece.len {
                    add(&self.shared.counts.merged, 1);
                    Step::ReadToMerge(piece)
                } else {
                    self.fill(slot, &task, piece);
                    Step::Write(piece)
                }
            }
        };
        self.push(slot, task);
    }

    /// The sectors of the next piece of a task, of which `left` bytes are to be done.
    fn piece(&self, task: &Task, left: u64) -> Piece {
        let from = task.request.at + task.progress as u64;
        let skip = (from % self.target.align) as usize;
        let meant = left.min((SLOT - skip) as u64) as usize;
        Piece { at: from - skip as u64, len: (skip + meant).next_multiple_of(self.target.align as usize), skip, meant }
    }

    fn address(&self, slot: usize) -> *mut u8 {
        assert!(slot < SLOTS);
        // SAFETY: the buffers are that long.
        unsafe { self.buffers.base().as_ptr().add(slot * SLOT) }
    }

    /// The bytes of a slot that the kernel does not use.
    fn bytes(&mut self, slot: usize) -> &mut [u8] {
        // SAFETY: the slot's buffer is that long and initialised. The kernel uses it only while its task's step is under
        // way, and this is called before it starts and after it ended; the borrow of self keeps others away.
        unsafe { slice::from_raw_parts_mut(self.address(slot), SLOT) }
    }

    /// Copies what a task writes to its slot.
    fn fill(&mut self, slot: usize, task: &Task, piece: Piece) {
        let into = &mut self.bytes(slot)[piece.skip..][..piece.meant];
        match task.request.op {
            BlockOp::Write => into.copy_from_slice(&task.request.buffer[task.progress..][..piece.meant]),
            _ => into.fill(0),
        }
    }

    /// Gives a task's step to the kernel.
    fn push(&mut self, slot: usize, task: Task) {
        let fd = Fd(self.target.file.as_raw_fd());
        let at = self.address(slot);
        let entry: squeue::Entry = match (task.step, self.registered) {
            (Step::Read(piece) | Step::ReadToMerge(piece), true) => {
                opcode::ReadFixed::new(fd, at, piece.len as u32, 0).offset(piece.at).build()
            }
            (Step::Read(piece) | Step::ReadToMerge(piece), false) => {
                opcode::Read::new(fd, at, piece.len as u32).offset(piece.at).build()
            }
            (Step::Write(piece), true) => opcode::WriteFixed::new(fd, at, piece.len as u32, 0).offset(piece.at).build(),
            (Step::Write(piece), false) => opcode::Write::new(fd, at, piece.len as u32).offset(piece.at).build(),
            (Step::Fallocate(zeroing), _) => {
                let mode =
                    if zeroing == Zeroing::PunchHole { libc::FALLOC_FL_PUNCH_HOLE } else { libc::FALLOC_FL_ZERO_RANGE };
                let fallocate = opcode::Fallocate::new(fd, total(&task.request)).offset(task.request.at);
                fallocate.mode(mode | libc::FALLOC_FL_KEEP_SIZE).build()
            }
            (Step::Flush, _) => opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC).build(),
        };
        self.tasks[slot] = Some(task);
        // SAFETY: a piece lies within its slot's buffer, which is left alone until the completion; `drop` waits for it.
        let pushed = unsafe { self.ring.submission().push(&entry.user_data(slot as u64)) };
        pushed.expect("the ring has room for every slot");
    }

    /// A step is over.
    fn stepped(&mut self, slot: usize, result: i32) {
        let mut task = self.tasks[slot].take().expect("a completion is of a task in progress");
        match (task.step, result) {
            (_, result) if [-libc::EINTR, -libc::EAGAIN].contains(&result) => self.begin(slot, task),
            (Step::Fallocate(tried), result) if [-libc::EOPNOTSUPP, -libc::ENOSYS].contains(&result) => {
                if self.zeroing == tried {
                    self.zeroing = if tried == Zeroing::ZeroRange { Zeroing::PunchHole } else { Zeroing::Write };
                }
                self.begin(slot, task);
            }
            (_, ..0) => self.end(slot, task, Err(-result)),
            (Step::Fallocate(_) | Step::Flush, _) => self.end(slot, task, Ok(())),
            (Step::ReadToMerge(piece), read) => {
                if read as usize != piece.len {
                    return self.end(slot, task, Err(libc::EIO));
                }
                self.fill(slot, &task, piece);
                task.step = Step::Write(piece);
                self.push(slot, task);
            }
            (Step::Read(piece) | Step::Write(piece), moved) => {
                let done = (moved as usize).saturating_sub(piece.skip).min(piece.meant);
                if done == 0 {
                    // Nothing is left of the file, or of the device.
                    return self.end(slot, task, Err(libc::EIO));
                }
                if matches!(task.step, Step::Read(_)) {
                    let read = &self.bytes(slot)[piece.skip..][..done];
                    task.request.buffer[task.progress..][..done].copy_from_slice(read);
                }
                task.progress += done;
                self.begin(slot, task);
            }
        }
    }

    /// Ends a task, and starts what it held up.
    fn end(&mut self, slot: usize, task: Task, result: Result<(), i32>) {
        self.free.push(slot);
        let BlockRequest { op, at: _, buffer, tag, done } = task.request;
        let counts = &self.shared.counts;
        match (result, op) {
            (Err(libc::ENOSPC), _) => add(&counts.no_space, 1),
            (Err(_), _) => add(&counts.failed, 1),
            (Ok(()), BlockOp::Read) => {
                add(&counts.reads, 1);
                add(&counts.bytes_read, buffer.len() as u64);
            }
            (Ok(()), BlockOp::Write) => {
                add(&counts.writes, 1);
                add(&counts.bytes_written, buffer.len() as u64);
            }
            (Ok(()), BlockOp::Zero(_)) => add(&counts.zeroes, 1),
            (Ok(()), BlockOp::Flush) => add(&counts.flushes, 1),
        }
        done.done(tag, buffer, result.map_err(BlockError::Io));
        for request in std::mem::take(&mut self.parked) {
            self.admit(request);
        }
    }
}

/// Waits for what the kernel still does with the buffers: nothing, unless a completion's receiver panicked.
impl Drop for Engine {
    fn drop(&mut self) {
        let mut under_way = self.tasks.iter().flatten().count();
        while under_way > 0 {
            if self.ring.submit_and_wait(1).is_err() {
                thread::sleep(Duration::from_millis(1));
            }
            under_way -= self.ring.completion().filter(|completion| completion.user_data() != WAKE).count();
        }
    }
}
