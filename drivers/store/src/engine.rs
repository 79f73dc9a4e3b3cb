//! The thread that moves blocks.
//!
//! Whole sectors are moved from or to the request's own pieces, where these are aligned; nobody copies them. For all else
//! every request in progress has a slot: a buffer, aligned and registered, by way of which one part after the other is read
//! or written. So a transfer may be cut short, and the caller's memory need not be aligned. A write that does not cover
//! whole sectors reads them first; a request that touches the same sectors meanwhile is parked, and it is itself while poll
//! cores write through rings of their own.

use std::{
    collections::VecDeque,
    io::{self, Read},
    os::fd::AsRawFd,
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
use berth_uring::UringError;
use io_uring::{IoUring, opcode, squeue, types::Fd};

use crate::{
    blocks::{Shared, Submitted},
    buffers::{Buffers, SLOT, SLOTS},
    task::{After, Plain, Task, is_interrupted, transfer},
};

/// Requests that wait for others at their sectors; while there are as many, no new ones are taken.
const PARKED: usize = 64;

/// The completion of the poll that wakes the engine; others carry a slot.
const WAKE: u64 = u64::MAX;

struct Engine {
    shared: Arc<Shared>,
    ring: IoUring,
    buffers: Buffers,
    tasks: [Option<(Task, Step)>; SLOTS],
    free: Vec<usize>,
    parked: VecDeque<BlockRequest>,
    /// Some of those wait for writes of poll cores.
    waits_for_cores: bool,
    zeroing: Zeroing,
}

/// What the kernel does for a task.
#[derive(Clone, Copy)]
enum Step {
    Plain(Plain),
    Read(Piece),
    /// Reads the sectors of a piece that does not fill them.
    ReadToMerge(Piece),
    Write(Piece),
    Fallocate(Zeroing),
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
pub(crate) fn spawn(shared: Arc<Shared>) -> Result<(JoinHandle<()>, bool), UringError> {
    let (ready, started) = mpsc::sync_channel(1);
    let run = move || match Engine::new(shared) {
        Ok(mut engine) => {
            let _ = ready.send(Ok(engine.buffers.are_registered()));
            engine.run();
        }
        Err(error) => drop(ready.send(Err(error))),
    };
    let failed = |source| UringError::Io { what: "starting the block engine's thread", source };
    let thread = thread::Builder::new().name("berth-blocks".into()).spawn(run).map_err(failed)?;
    let registered = started.recv().unwrap_or_else(|_| Err(failed(io::ErrorKind::BrokenPipe.into())))?;
    Ok((thread, registered))
}

impl Engine {
    fn new(shared: Arc<Shared>) -> Result<Self, UringError> {
        // The ring belongs to the thread that makes it.
        let ring = berth_uring::ring(2 * SLOTS as u32)?;
        let buffers = Buffers::new(&ring);
        Ok(Self {
            shared,
            ring,
            buffers,
            tasks: [const { None }; SLOTS],
            free: (0..SLOTS).collect(),
            parked: VecDeque::with_capacity(PARKED),
            waits_for_cores: false,
            zeroing: Zeroing::ZeroRange,
        })
    }

    fn run(&mut self) {
        self.listen();
        loop {
            let mut busy = self.take();
            self.enter(0);
            busy |= self.reap();
            if self.may_readmit() {
                self.readmit();
                busy = true;
            }
            if busy {
                continue;
            }
            if self.shared.closed.load(SeqCst) && self.free.len() == SLOTS && self.shared.queue.is_empty() {
                break;
            }
            self.shared.asleep.store(true, Relaxed);
            // Pairs with submitters, which fill the queue and then look whether the engine sleeps.
            fence(SeqCst);
            if (!self.may_take() || self.shared.queue.is_empty()) && !self.may_readmit() {
                self.enter(1);
            }
            self.shared.asleep.store(false, Relaxed);
        }
        // What waits for a poll core's write: the core may be this engine's last owner and wait for its end.
        for request in self.parked.drain(..) {
            request.done.done(request.tag, request.pieces, Err(BlockError::Io(libc::ECANCELED)));
        }
        // Whoever needs to know asks for a flush.
        let _ = self.shared.target.file.sync_data();
    }

    fn may_take(&self) -> bool {
        !self.free.is_empty() && self.parked.len() < PARKED
    }

    /// Starts the requests that wait, and returns whether there were any.
    fn take(&mut self) -> bool {
        let mut taken = false;
        while self.may_take()
            && let Some(submitted) = self.shared.queue.pop()
        {
            taken = true;
            match submitted {
                Submitted::Request(request) => {
                    if self.is_ragged(&request) {
                        self.shared.cores.hold_up();
                    }
                    self.admit(request);
                }
                Submitted::Memory(memory) => self.buffers.register(&self.ring, memory),
            }
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
            let active = self.tasks.iter().flatten().map(|(task, _)| &task.request);
            active.chain(&self.parked).any(|other| self.conflict(&request, other))
        };
        let waits_for_cores = self.is_ragged(&request) && self.shared.cores.are_writing();
        self.waits_for_cores |= waits_for_cores;
        if conflict || waits_for_cores {
            self.parked.push_back(request);
            return;
        }
        match self.free.pop() {
            Some(slot) => self.begin(slot, Task::new(request)),
            None => self.parked.push_back(request),
        }
    }

    /// Whether the last write of a poll core is over for which requests waited.
    fn may_readmit(&self) -> bool {
        self.waits_for_cores && !self.shared.cores.are_writing()
    }

    /// Starts what is parked, as far as nothing holds it up any more.
    fn readmit(&mut self) {
        self.waits_for_cores = false;
        for request in std::mem::take(&mut self.parked) {
            self.admit(request);
        }
    }

    /// Whether a request reads sectors and writes them back.
    fn is_ragged(&self, request: &BlockRequest) -> bool {
        let align = self.shared.target.align;
        written(request).is_some_and(|(from, to)| !from.is_multiple_of(align) || !to.is_multiple_of(align))
    }

    /// Whether two writes may not be under way at once: one of them reads and writes back sectors of the other.
    fn conflict(&self, one: &BlockRequest, other: &BlockRequest) -> bool {
        let align = self.shared.target.align;
        let ragged = self.is_ragged(one) || self.is_ragged(other);
        let (Some(one), Some(other)) = (written(one), written(other)) else { return false };
        ragged && one.0 / align < other.1.div_ceil(align) && other.0 / align < one.1.div_ceil(align)
    }

    /// Starts the next step of a task, or ends it.
    fn begin(&mut self, slot: usize, task: Task) {
        let (left, target) = (task.left(), &self.shared.target);
        let aligned = |n: u64| n.is_multiple_of(target.align);
        let step = match (task.plain(target), task.request.op) {
            (Some(plain), _) => Step::Plain(plain),
            _ if left == 0 => return self.end(slot, task, Ok(())),
            (_, BlockOp::Discard(_)) if target.discard.is_none() => {
                return self.end(slot, task, Err(BlockError::Io(libc::EOPNOTSUPP)));
            }
            (_, BlockOp::Discard(_)) if self.space(&task.request).1 == 0 => return self.end(slot, task, Ok(())),
            (_, BlockOp::Discard(_)) => Step::Fallocate(Zeroing::PunchHole),
            (_, BlockOp::Read | BlockOp::Compare) => Step::Read(self.piece(&task, left)),
            (_, BlockOp::Zero(len)) if self.zeroing != Zeroing::Write && aligned(task.request.at) && aligned(len) => {
                Step::Fallocate(self.zeroing)
            }
            (_, BlockOp::Write | BlockOp::Zero(_) | BlockOp::Flush) => {
                let piece = self.piece(&task, left);
                if piece.meant < piece.len {
                    self.shared.counts.merged.add(1);
                    Step::ReadToMerge(piece)
                } else {
                    self.fill(slot, &task, piece);
                    Step::Write(piece)
                }
            }
        };
        self.push(slot, task, step);
    }

    /// The sectors of the next piece of a task, of which `left` bytes are to be done.
    fn piece(&self, task: &Task, left: u64) -> Piece {
        let from = task.request.at + task.progress as u64;
        let align = self.shared.target.align;
        let skip = (from % align) as usize;
        let meant = left.min((SLOT - skip) as u64) as usize;
        Piece { at: from - skip as u64, len: (skip + meant).next_multiple_of(align as usize), skip, meant }
    }

    /// The space that a request zeroes, or gives back: whole units of it.
    fn space(&self, request: &BlockRequest) -> (u64, u64) {
        let unit = match request.op {
            BlockOp::Discard(_) => self.shared.target.discard.unwrap_or(1).into(),
            _ => 1,
        };
        let (from, to) = (request.at.next_multiple_of(unit), (request.at + request.len()) / unit * unit);
        (from, to.saturating_sub(from))
    }

    /// The bytes of a slot that the kernel does not use.
    fn bytes(&mut self, slot: usize) -> &mut [u8] {
        // SAFETY: this is called before a step of the slot's task starts and after it ended.
        unsafe { self.buffers.bytes(slot) }
    }

    /// Copies what a task writes to its slot.
    fn fill(&mut self, slot: usize, task: &Task, piece: Piece) {
        let into = &mut self.bytes(slot)[piece.skip..][..piece.meant];
        match task.request.op {
            BlockOp::Write => task.request.read_at(task.progress, into),
            _ => into.fill(0),
        }
    }

    /// Gives a task's step to the kernel.
    fn push(&mut self, slot: usize, task: Task, step: Step) {
        let target = &self.shared.target;
        let entry: squeue::Entry = match step {
            Step::Plain(step) => task.entry(step, target, |address| self.buffers.index(address)),
            Step::Read(piece) | Step::ReadToMerge(piece) | Step::Write(piece) => {
                let memory = (self.buffers.address(slot), piece.len);
                transfer(target, matches!(step, Step::Write(_)), memory, piece.at, self.buffers.slot_index())
            }
            Step::Fallocate(zeroing) => {
                let (at, len) = self.space(&task.request);
                let mode =
                    if zeroing == Zeroing::PunchHole { libc::FALLOC_FL_PUNCH_HOLE } else { libc::FALLOC_FL_ZERO_RANGE };
                let fallocate = opcode::Fallocate::new(Fd(target.file.as_raw_fd()), len).offset(at);
                fallocate.mode(mode | libc::FALLOC_FL_KEEP_SIZE).build()
            }
        };
        self.tasks[slot] = Some((task, step));
        // SAFETY: what is moved lies within the slot's buffer or a piece of the request, which the task keeps, and both are
        // left alone until the completion; `drop` waits for it.
        let pushed = unsafe { self.ring.submission().push(&entry.user_data(slot as u64)) };
        pushed.expect("the ring has room for every slot");
    }

    /// A step is over.
    fn stepped(&mut self, slot: usize, result: i32) {
        let (mut task, step) = self.tasks[slot].take().expect("a completion is of a task in progress");
        match (step, result) {
            (Step::Plain(step), result) => match task.stepped(step, result) {
                After::GoOn => self.begin(slot, task),
                After::End(result) => self.end(slot, task, result),
            },
            (_, result) if is_interrupted(result) => self.begin(slot, task),
            (Step::Fallocate(tried), result)
                if [-libc::EOPNOTSUPP, -libc::ENOSYS].contains(&result)
                    && matches!(task.request.op, BlockOp::Zero(_)) =>
            {
                if self.zeroing == tried {
                    self.zeroing = if tried == Zeroing::ZeroRange { Zeroing::PunchHole } else { Zeroing::Write };
                }
                self.begin(slot, task);
            }
            (_, ..0) => self.end(slot, task, Err(BlockError::Io(-result))),
            (Step::Fallocate(_), _) => self.end(slot, task, Ok(())),
            (Step::ReadToMerge(piece), read) => {
                if read as usize != piece.len {
                    return self.end(slot, task, Err(BlockError::Io(libc::EIO)));
                }
                self.fill(slot, &task, piece);
                self.push(slot, task, Step::Write(piece));
            }
            (Step::Read(piece) | Step::Write(piece), moved) => {
                let done = (moved as usize).saturating_sub(piece.skip).min(piece.meant);
                if done == 0 {
                    // Nothing is left of the file, or of the device.
                    return self.end(slot, task, Err(BlockError::Io(libc::EIO)));
                }
                let moved = &self.bytes(slot)[piece.skip..][..done];
                match task.request.op {
                    BlockOp::Read => task.request.write_at(task.progress, moved),
                    BlockOp::Compare if !is_equal(&task.request, task.progress, moved) => {
                        return self.end(slot, task, Err(BlockError::Miscompare));
                    }
                    _ => {}
                }
                task.progress += done;
                self.begin(slot, task);
            }
        }
    }

    /// Ends a task, and starts what it held up.
    fn end(&mut self, slot: usize, task: Task, result: Result<(), BlockError>) {
        self.free.push(slot);
        if self.is_ragged(&task.request) {
            self.shared.cores.let_go();
        }
        self.shared.end(task.request, result);
        self.readmit();
    }
}

/// Which bytes of the region a request writes.
fn written(request: &BlockRequest) -> Option<(u64, u64)> {
    match request.op {
        BlockOp::Write | BlockOp::Zero(_) | BlockOp::Discard(_) => Some((request.at, request.at + request.len())),
        BlockOp::Read | BlockOp::Compare | BlockOp::Flush => None,
    }
}

/// Whether the data of a request from `at` on is `found`.
fn is_equal(request: &BlockRequest, at: usize, found: &[u8]) -> bool {
    let mut wanted = [0; 512];
    found.chunks(wanted.len()).enumerate().all(|(index, found)| {
        let wanted = &mut wanted[..found.len()];
        request.read_at(at + index * 512, wanted);
        wanted == found
    })
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
