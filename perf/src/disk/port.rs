//! I/O queues of an NVMe/TCP host as a port: requests go in as frames, and come back as answers, in whatever order the
//! commands end.
//!
//! A request is the opcode as function, the first block, the number of blocks and, of a write that is compared, its data.
//! An answer is the command's status, without Do Not Retry, and of a read that is compared its data.

use std::{collections::VecDeque, net::SocketAddr, time::Duration};

use anyhow::{Context as _, anyhow};
use berth_host::TscClock;
use berth_nvme::host::{Command, Controller, Data, Facts, Names, Queue, User};
use berth_port::{BURST, Clock as _, Frame, Nanos, Peer, Port, PostError, Verdict};
use berth_wire::{
    nvme::{Sqe, Status, io::Access},
    rpc::{HeaderForm, RequestHeader, ResponseHeader},
};

use super::{Disk, Kind, wire::Wire};

/// Bytes of a request without its data: the first block, and how many.
pub(crate) const ASK: usize = 12;

/// The form of frames' headers.
const FORM: HeaderForm = HeaderForm::V16;

/// The one namespace.
const NSID: u32 = 1;

/// How often the admin queue and the commands' times are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// How long a controller may take until it can be used.
const READY_WITHIN: Duration = Duration::from_secs(20);

/// An admin queue.
#[derive(Debug)]
pub(super) struct Admin {
    wire: Wire,
    controller: Controller,
}

impl Admin {
    /// Connects, and waits until the controller is enabled.
    pub(super) fn connect(disk: &Disk, names: &Names, clock: &TscClock) -> anyhow::Result<(Self, Facts)> {
        let address = disk.address;
        let wire = Wire::connect(address).with_context(|| format!("cannot connect to {address}"))?;
        let now = clock.now().mono;
        let controller = Controller::new(disk.settings, names.clone(), disk.queues, now);
        let mut admin = Self { wire, controller };
        let facts = wait(clock, || {
            admin.poll(clock.now().mono)?;
            Ok(admin.controller.facts().copied())
        });
        Ok((admin, facts.with_context(|| format!("the controller at {address}"))?))
    }

    fn poll(&mut self, now: Nanos) -> anyhow::Result<()> {
        let (wire, controller) = (&mut self.wire, &mut self.controller);
        let received = wire.receive();
        let goes_on = wire.advance(|input, output| controller.advance(input, output, now))?;
        if let Some(error) = controller.error().filter(|_| !goes_on) {
            return Err(error.into());
        }
        received?;
        wire.flush()?;
        Ok(())
    }
}

/// Polls until there is something.
fn wait<T>(clock: &TscClock, mut poll: impl FnMut() -> anyhow::Result<Option<T>>) -> anyhow::Result<T> {
    let until = clock.now().mono + READY_WITHIN;
    loop {
        if let Some(found) = poll()? {
            return Ok(found);
        }
        if clock.now().mono > until {
            return Err(anyhow!("it is not ready after {} s", READY_WITHIN.as_secs()));
        }
        std::thread::yield_now();
    }
}

/// The I/O queues of one controller.
#[derive(Debug)]
pub(super) struct NvmePort {
    lines: Vec<Line>,
    admin: Admin,
    /// Bytes of a block.
    block: u32,
    clock: TscClock,
    peer: Peer,
    local: SocketAddr,
    /// Which queue the next command goes to.
    next: usize,
    /// When the admin queue is looked at again.
    look: Nanos,
    /// One request at a time, or an answer without data.
    frame: Vec<u8>,
    counters: Counters,
}

#[derive(Debug, Default)]
struct Counters {
    commands: u64,
    failed: u64,
    connections_lost: u64,
}

/// A queue and its connection.
#[derive(Debug)]
struct Line {
    wire: Wire,
    queue: Queue,
    commands: Commands,
    depth: usize,
    over: bool,
}

/// What is under way on a queue.
#[derive(Debug)]
struct Commands {
    slots: Vec<Slot>,
    done: VecDeque<(usize, Status)>,
    /// What writes write that are not compared.
    filler: Vec<u8>,
    verify: bool,
}

#[derive(Debug, Clone)]
struct Slot {
    request: u32,
    /// Bytes of the answer, of a read that is compared.
    answer: usize,
    /// Where commands are compared: room for the answer's header, and the data.
    bytes: Vec<u8>,
}

/// The answer to a request: of `len` bytes, which lie behind the room for its header.
pub(super) fn answer(bytes: &mut [u8], request: u32, status: Status, len: usize, peer: Peer) -> Frame<'_> {
    let (status, result_len) = (status.number().into(), len as u32);
    let header = ResponseHeader { status, result_len, request_id: request, ptp_timestamp: 0 };
    let at = header.write(FORM, bytes).expect("there is room for a header");
    Frame::new(bytes, at + len, at + len, peer)
}

impl User for Commands {
    #[inline]
    fn data(&mut self, command: usize, offset: usize, to: &mut [u8]) {
        let from = if self.verify { &self.slots[command].bytes[FORM.len()..] } else { &self.filler };
        to.copy_from_slice(&from[offset..offset + to.len()]);
    }

    #[inline]
    fn received(&mut self, command: usize, offset: usize, bytes: &[u8]) {
        if self.verify {
            let at = FORM.len() + offset;
            self.slots[command].bytes[at..at + bytes.len()].copy_from_slice(bytes);
        }
    }

    #[inline]
    fn ended(&mut self, command: usize, status: Status, _: u64) {
        self.done.push_back((command, status));
    }
}

impl NvmePort {
    /// Connects every queue, and waits until they can be used.
    pub(super) fn open(disk: &Disk, names: &Names, longest: usize, clock: &TscClock) -> anyhow::Result<Self> {
        let (mut admin, facts) = Admin::connect(disk, names, clock)?;
        let data = if disk.verify { disk.longest as usize } else { 0 };
        let slot = Slot { request: 0, answer: 0, bytes: vec![0; FORM.len() + data] };
        let mut lines = Vec::new();
        for number in 1..=disk.queues {
            let now = clock.now().mono;
            let mut line = Line {
                wire: Wire::connect(disk.address).with_context(|| format!("queue {number}"))?,
                queue: admin.controller.queue(number, disk.depth, now),
                commands: Commands {
                    slots: vec![slot.clone(); disk.depth.into()],
                    done: VecDeque::with_capacity(disk.depth.into()),
                    filler: vec![0xA5; disk.longest as usize],
                    verify: disk.verify,
                },
                depth: disk.depth.into(),
                over: false,
            };
            let joined = wait(clock, || {
                admin.poll(clock.now().mono)?;
                line.poll()?;
                Ok(line.queue.joined())
            });
            joined.with_context(|| format!("queue {number}"))?;
            lines.push(line);
        }
        let local = lines[0].wire.local_addr()?;
        let (clock, look, peer) = (clock.clone(), clock.now().mono, disk.address.into());
        let frame = vec![0; longest.max(FORM.len())];
        let block = facts.block;
        Ok(Self { lines, admin, block, clock, peer, local, next: 0, look, frame, counters: Counters::default() })
    }

    /// What is done now and then.
    fn look(&mut self, now: Nanos) {
        self.look = now + LOOK_EVERY;
        if let Err(error) = self.admin.poll(now)
            && self.lines.iter().any(|line| !line.over)
        {
            eprintln!("the admin queue: {error:#}");
            self.lines.iter_mut().for_each(|line| line.over = true);
        }
        self.lines.iter_mut().for_each(|line| line.queue.expire(now));
    }
}

impl Line {
    /// Takes what was received; whether there was something.
    #[inline]
    fn poll(&mut self) -> anyhow::Result<()> {
        let received = self.wire.receive();
        let (queue, commands) = (&mut self.queue, &mut self.commands);
        if matches!(received, Ok(false)) && queue.joined().is_some() && queue.error().is_none() {
            return Ok(());
        }
        let goes_on = self.wire.advance(|input, output| queue.advance(input, output, commands))?;
        if let Some(error) = queue.error().filter(|_| !goes_on) {
            return Err(error.into());
        }
        received?;
        if queue.joined().is_none() {
            self.wire.flush()?;
        }
        Ok(())
    }

    /// Sends what commands have to send.
    fn flush(&mut self) -> anyhow::Result<()> {
        let (queue, commands) = (&mut self.queue, &mut self.commands);
        self.wire.advance(|_, output| queue.advance(&[], output, commands))?;
        self.wire.flush()?;
        Ok(())
    }

    /// Takes a request, for which there is room.
    #[inline]
    fn submit(&mut self, block: u32, frame: &[u8], now: Nanos) -> Option<()> {
        let RequestHeader { function_id, request_id, .. } = RequestHeader::parse(FORM, frame).ok()?;
        let (ask, data) = frame[FORM.len()..].split_first_chunk::<ASK>()?;
        let (slba, blocks) = ask.split_first_chunk::<8>()?;
        let (slba, blocks) = (u64::from_le_bytes(*slba), u32::from_le_bytes(*blocks.first_chunk()?));
        let mut sqe = Sqe::new(function_id as u8, 0, NSID);
        Access { slba, blocks, fua: false, deallocate: false }.put(&mut sqe);
        let (len, reads) = (blocks * block, function_id == Kind::Read as u32);
        let command = Command { sqe, data: if reads { Data::In(len) } else { Data::Out(len) } };
        let slot = &mut self.commands.slots[self.queue.submit(command, now)?];
        slot.request = request_id;
        slot.answer = if reads && self.commands.verify { len as usize } else { 0 };
        slot.bytes[FORM.len()..][..data.len()].copy_from_slice(data);
        Some(())
    }

    fn lost(&mut self, error: &anyhow::Error, counters: &mut Counters) {
        eprintln!("an I/O queue: {error:#}");
        self.over = true;
        counters.connections_lost += 1;
    }
}

impl Port for NvmePort {
    fn rx<H: FnMut(&mut Frame<'_>) -> Verdict>(&mut self, mut handle: H) -> usize {
        let now = self.clock.now().mono;
        if now >= self.look {
            self.look(now);
        }
        let mut lent = 0;
        for line in &mut self.lines {
            if line.commands.done.is_empty()
                && !line.over
                && let Err(error) = line.poll()
            {
                line.lost(&error, &mut self.counters);
            }
            while lent < BURST
                && let Some((index, status)) = line.commands.done.pop_front()
            {
                let slot = &mut line.commands.slots[index];
                let result_len = if status.is_success() { slot.answer } else { 0 };
                self.counters.failed += u64::from(!status.is_success());
                let bytes = if result_len > 0 { &mut slot.bytes } else { &mut self.frame };
                lent += 1;
                // There is nobody to answer: a completion is the end of it.
                let _ = handle(&mut answer(bytes, slot.request, status, result_len, self.peer));
            }
        }
        lent
    }

    fn post<F: FnOnce(&mut [u8]) -> usize>(&mut self, _: Peer, fill: F) -> Result<(), PostError> {
        let (count, from) = (self.lines.len(), self.next);
        let has_room = |line: &Line| !line.over && line.queue.outstanding() < line.depth;
        let free = (from..from + count).map(|at| at % count).find(|at| has_room(&self.lines[*at]));
        let Some(at) = free else {
            let all_over = self.lines.iter().all(|line| line.over);
            return Err(if all_over { PostError::Unreachable } else { PostError::Full });
        };
        self.next = (at + 1) % count;
        let len = fill(&mut self.frame);
        let taken = self.lines[at].submit(self.block, &self.frame[..len], self.clock.now().mono);
        self.counters.commands += u64::from(taken.is_some());
        taken.ok_or(PostError::Full)
    }

    fn tx(&mut self) {
        for line in self.lines.iter_mut().filter(|line| !line.over) {
            if let Err(error) = line.flush() {
                line.lost(&error, &mut self.counters);
            }
        }
    }

    fn max_frame(&self) -> usize {
        self.frame.len()
    }

    fn local_addr(&self) -> SocketAddr {
        self.local
    }

    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        let Counters { commands, failed, connections_lost } = self.counters;
        visit("commands", commands);
        visit("failed", failed);
        visit("connections_lost", connections_lost);
    }
}
