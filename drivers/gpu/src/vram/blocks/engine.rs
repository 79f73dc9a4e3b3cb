//! The thread that has requests done, in parts that fit in the staging area.

use std::{
    collections::HashMap,
    mem,
    sync::Arc,
    task::{Context, Wake, Waker},
    thread::{self, Thread},
    time::{Duration, Instant},
};

use berth_lease::{BlockError, BlockOp, BlockRequest};

use super::Shared;
use crate::session::{Command, SLOT, SLOTS, SessionGpu, Standing};

/// How long requests wait for a process that has ended to be there again.
const PATIENCE: Duration = Duration::from_secs(5);

/// Requests that are under way at a time, beside the one that is being cut into parts.
const UNDER_WAY: usize = 32;

pub(super) struct Engine {
    shared: Arc<Shared>,
    gpu: SessionGpu,
    /// The process's, as it counts them.
    life: u64,
    /// Where the memory begins in the process.
    base: u64,
    /// Parts of the staging area that nothing lies in.
    free: Vec<usize>,
    /// By numbers of their own.
    requests: HashMap<u64, UnderWay>,
    last: u64,
    /// The request that is being cut into parts.
    cut: Option<u64>,
    /// By numbers of commands.
    parts: HashMap<u64, CopyPart>,
    /// Since when no process copies.
    idle_since: Option<Instant>,
}

/// A request of which something is done.
struct UnderWay {
    request: BlockRequest,
    /// Bytes that were told, and how many there are.
    told: usize,
    len: usize,
    /// Commands that are not answered.
    left: usize,
    result: Result<(), BlockError>,
}

/// What a command does.
struct CopyPart {
    of: u64,
    /// The part of the staging area, offset in the request and length; `None` of one that has no bytes there.
    staged: Option<(usize, usize, usize)>,
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

impl Engine {
    pub(super) fn new(shared: Arc<Shared>, gpu: SessionGpu, base: u64) -> Self {
        let (life, free) = (gpu.life(), (0..SLOTS).collect());
        let (requests, parts) = Default::default();
        Self { shared, gpu, life, base, free, requests, last: 0, cut: None, parts, idle_since: None }
    }

    /// Runs until it is to end; then all that it has fails.
    pub(super) fn run(mut self) {
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let mut results = Vec::new();
        while self.goes_on() {
            match self.gpu.standing(self.life) {
                Standing::Serves => {
                    self.idle_since = None;
                    self.begin();
                }
                Standing::Starts => self.give_up_waiting(),
                Standing::Lost(_) => {
                    self.fail(BlockError::Io(libc::EIO));
                    self.life = self.gpu.life();
                    continue;
                }
            }
            let told = self.gpu.results(self.life, &mut Context::from_waker(&waker), &mut results);
            for (number, result) in results.drain(..) {
                self.done(number, result.is_ok());
            }
            if told.is_pending() {
                thread::park_timeout(if self.idle_since.is_some() { PATIENCE / 50 } else { PATIENCE });
            }
        }
        self.fail(BlockError::Io(libc::ECANCELED));
        self.drop_waiting(BlockError::Io(libc::ECANCELED));
    }

    fn goes_on(&self) -> bool {
        self.shared.queue().engine.is_some()
    }

    /// Has the process begin with what there is room for.
    fn begin(&mut self) {
        loop {
            let of = match self.cut {
                Some(of) => of,
                None => match self.next() {
                    Some(of) => of,
                    None => return,
                },
            };
            let under_way = self.requests.get_mut(&of).expect("it is under way");
            let (at, told) = (self.base + under_way.request.at, under_way.told);
            let len = (under_way.len - told).min(SLOT);
            let (command, staged) = match under_way.request.op {
                BlockOp::Zero(len) => (Command::Set { at, len, value: 0 }, None),
                op => {
                    let Some(slot) = self.free.pop() else { return };
                    let (at, place) = (at + told as u64, slot * SLOT);
                    let command = if op == BlockOp::Read {
                        Command::Read { at, to: place, len }
                    } else {
                        let staging = self.gpu.staging();
                        under_way.request.each_piece(told, len, |piece, here, done, len| {
                            piece.copy_to(here, staging, place + done, len);
                        });
                        Command::Write { at, from: place, len }
                    };
                    (command, Some((slot, told, len)))
                }
            };
            under_way.told += len;
            under_way.left += 1;
            if under_way.told == under_way.len {
                self.cut = None;
            }
            let number = self.gpu.tell(self.life, command);
            self.parts.insert(number, CopyPart { of, staged });
        }
    }

    /// Takes the next request that takes a command, to be cut into parts.
    fn next(&mut self) -> Option<u64> {
        while self.requests.len() < UNDER_WAY {
            let request = self.shared.queue().waiting.pop_front()?;
            let len = match request.op {
                // One command does it, with no byte in the staging area.
                BlockOp::Zero(_) => 0,
                BlockOp::Read | BlockOp::Write => request.len() as usize,
                BlockOp::Flush => {
                    self.shared.end(request, Ok(()));
                    continue;
                }
                BlockOp::Compare | BlockOp::Discard(_) => {
                    self.shared.end(request, Err(BlockError::Io(libc::EOPNOTSUPP)));
                    continue;
                }
            };
            if request.is_empty() {
                self.shared.end(request, Ok(()));
                continue;
            }
            self.last += 1;
            self.requests.insert(self.last, UnderWay { request, told: 0, len, left: 0, result: Ok(()) });
            self.cut = Some(self.last);
            return self.cut;
        }
        None
    }

    /// A command was answered.
    fn done(&mut self, number: u64, is_done: bool) {
        // Of a process that has ended it may be answered late.
        let Some(CopyPart { of, staged }) = self.parts.remove(&number) else { return };
        let under_way = self.requests.get_mut(&of).expect("it is under way");
        if let Some((slot, at, len)) = staged {
            if is_done && under_way.request.op == BlockOp::Read {
                let (staging, place) = (self.gpu.staging(), slot * SLOT);
                under_way.request.each_piece(at, len, |piece, here, done, len| {
                    piece.copy_from(here, staging, place + done, len);
                });
            }
            self.free.push(slot);
        }
        if !is_done {
            under_way.result = Err(BlockError::Io(libc::EIO));
        }
        under_way.left -= 1;
        if under_way.left == 0 && under_way.told == under_way.len {
            let UnderWay { request, result, .. } = self.requests.remove(&of).expect("it is under way");
            self.shared.end(request, result);
        }
    }

    /// The process has ended, or is about to: all that it was told has failed. It leaves the staging area alone when the next
    /// one is there.
    fn fail(&mut self, error: BlockError) {
        self.cut = None;
        self.parts.clear();
        self.free = (0..SLOTS).collect();
        for (_, UnderWay { request, .. }) in mem::take(&mut self.requests) {
            self.shared.end(request, Err(error));
        }
    }

    /// Where no process has been there for a while, nobody waits for the next one.
    fn give_up_waiting(&mut self) {
        if self.idle_since.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
            self.drop_waiting(BlockError::Io(libc::ENODEV));
        }
    }

    fn drop_waiting(&self, error: BlockError) {
        let waiting = mem::take(&mut self.shared.queue().waiting);
        for request in waiting {
            self.shared.end(request, Err(error));
        }
    }
}
