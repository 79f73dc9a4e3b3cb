//! One connection: its PDUs, in and out.

mod auth;

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    task::{Context, Poll},
};

use berth_port::{Nanos, Next, Progress, Session};
use berth_wire::nvme::{
    Sqe, Status,
    command::Refused,
    opcode,
    pdu::{
        Common, DATA_DIGEST, DIGEST_LEN, DataPdu, Fatal, Framing, HEAD_MAX, HEADER_DIGEST, Header, IcReq, IcResp, Kind,
        Rules, Side, TermReq, flags,
    },
};
use zerocopy::IntoBytes;

use crate::{
    Target,
    admin::Admin,
    auth::QueueAuth,
    connect::Joined,
    counts::{Counts, Event},
    io::{Io, Turn},
    output::Output,
    queue::{Phase, Queue, Slot, Work},
};

/// MAXH2CDATA: the most bytes of an `H2CData`, and of an R2T.
const H2C_DATA_MAX: u32 = 128 << 10;

/// Bytes that the capsule of an admin or fabrics command may bring.
const CAPSULE_DATA_MAX: u32 = 8192;

/// What an answer without data takes, or the word on a violation.
const SHORT: usize = 160;

/// As little data as a `C2HData` has, unless it is the last.
const DATA_MIN: usize = 4096;

/// As much room for data as is asked for at once.
const DATA_ROOM: usize = 32 << 10;

/// The controller's side of one NVMe/TCP connection, which is one queue.
///
/// After a violation it writes `C2HTermReq` and wants to be closed. Whoever moves its bytes must then send all, shut its
/// direction down, and take what comes until the host closes, or a second is over, before it closes the socket: a host
/// whose bytes nobody takes may lose the last ones to it. Input and output need room for [`Connection::room`] bytes.
#[derive(Debug)]
pub struct Connection {
    target: Target,
    /// Where the host has reached this node: what discovery answers.
    local: SocketAddr,
    /// From where.
    peer: IpAddr,
    /// What the host's PDUs are held to.
    rules: Rules,
    /// How PDUs to it are framed.
    framing: Framing,
    /// The rest of an `H2CData`.
    incoming: Option<Incoming>,
    queue: Queue,
    role: Role,
    /// Of a host that has to prove who it is.
    proof: Option<Box<auth::Proof>>,
    /// The host has disconnected its queue: close once that is answered.
    leaving: bool,
    closing: bool,
    counts: Counts,
}

/// An `H2CData` of which the header has been taken.
#[derive(Debug, Clone, Copy)]
struct Incoming {
    slot: usize,
    /// Bytes of data that are to come.
    left: u32,
    /// Of those that have come, where a digest follows.
    digest: Option<u32>,
}

/// What the connection is, as Connect said.
#[derive(Debug)]
pub(crate) enum Role {
    /// Nothing yet, or nothing before the host has proved who it is.
    New,
    /// The admin queue of a controller.
    Admin(Box<Admin>),
    /// An I/O queue.
    Io(Box<Io>),
}

/// What comes after a step.
enum Step {
    /// So many bytes of input are done with.
    Taken(usize),
    /// Nothing, until this has happened.
    Stop(Next),
}

impl Connection {
    /// The least room for input and for output in bytes: for the longest capsule, where I/O capsules bring so much.
    pub const fn room(in_capsule: u32) -> usize {
        let data = if in_capsule > CAPSULE_DATA_MAX { in_capsule } else { CAPSULE_DATA_MAX };
        HEAD_MAX + data as usize + DIGEST_LEN
    }

    /// A new connection, which the host made to `local`.
    pub fn new(target: &Target, local: SocketAddr) -> Self {
        Self {
            target: target.clone(),
            local,
            peer: Ipv4Addr::UNSPECIFIED.into(),
            rules: Rules {
                sender: Side::Host,
                initialised: false,
                framing: Framing::default(),
                capsule_data_max: CAPSULE_DATA_MAX.max(target.limits().in_capsule),
            },
            framing: Framing::default(),
            incoming: None,
            queue: Queue::new(1, None),
            role: Role::New,
            proof: None,
            leaving: false,
            closing: false,
            counts: Counts::default(),
        }
    }

    /// Says where the host is: one of many that authenticate gets its share.
    #[must_use]
    pub fn with_peer(self, peer: IpAddr) -> Self {
        Self { peer, ..self }
    }

    /// Does what comes first: sends, goes on with what has ended, or takes a PDU.
    fn step(&mut self, input: &[u8], output: &mut Output<'_>, now: Nanos) -> Step {
        if self.closing {
            return Step::Stop(Next::Close);
        }
        if let Some(next) = self.send(output, now) {
            return Step::Stop(next);
        }
        if let Some(step) = self.prove(now) {
            return step;
        }
        match &mut self.role {
            _ if self.leaving => {
                self.closing = true;
                return Step::Taken(0);
            }
            Role::Io(io) if io.is_over() => {
                self.closing = true;
                return Step::Taken(0);
            }
            Role::Io(io) => {
                if io.finish(&mut self.queue, &mut self.counts, now) {
                    return Step::Taken(0);
                }
                if io.is_asked() {
                    io.abort(&mut self.queue, self.incoming.map(|incoming| incoming.slot));
                }
                io.go_on(&mut self.queue, now);
                io.go_on_fused(&mut self.queue, now);
            }
            Role::Admin(admin) => admin.tell(&mut self.queue),
            Role::New => {}
        }
        if self.queue.first().is_some() {
            return Step::Taken(0);
        }
        if output.room() < SHORT {
            return Step::Stop(Next::Output(SHORT));
        }
        let taken = match self.incoming {
            Some(incoming) => self.data(incoming, input, now),
            None => self.pdu(input, output, now),
        };
        taken.unwrap_or_else(|fatal| {
            self.counts.fatal(fatal);
            self.closing = true;
            let head = input.len().min(HEAD_MAX);
            output.append(|to| TermReq::write(to, Kind::C2hTermReq, fatal, &input[..head.min(header_of(input))]));
            Step::Taken(head)
        })
    }

    /// Takes a PDU, or the header of one.
    fn pdu(&mut self, input: &[u8], output: &mut Output<'_>, now: Nanos) -> Result<Step, Fatal> {
        let Some(common) = input.first_chunk::<{ Common::LEN }>() else {
            return Ok(Step::Stop(Next::Input(Common::LEN)));
        };
        let header = Header::parse(common, &self.rules)?;
        let Some(head) = input.get(..header.data_at) else { return Ok(Step::Stop(Next::Input(header.data_at))) };
        header.check_digest(head)?;
        match header.kind {
            Kind::IcReq => self.initialise(head, output),
            Kind::CapsuleCmd => self.capsule(&header, input, now),
            Kind::H2cData => self.h2c_data(&header, head, now),
            _ => {
                self.counts.add(Event::EndedByHost);
                self.closing = true;
                Ok(Step::Taken(head.len()))
            }
        }
    }

    fn initialise(&mut self, head: &[u8], output: &mut Output<'_>) -> Result<Step, Fatal> {
        let Some(request) = IcReq::parse(head) else { return Ok(Step::Stop(Next::Input(IcReq::LEN))) };
        self.framing = request.accept()?;
        let Framing { header_digest, data_digest, .. } = self.framing;
        self.rules.framing = Framing::new(header_digest, data_digest, 0);
        self.rules.initialised = true;
        let digests = request.digests & (HEADER_DIGEST | DATA_DIGEST);
        let response = IcResp::new(0, digests, H2C_DATA_MAX);
        output.append(|to| {
            to.get_mut(..IcResp::LEN)?.copy_from_slice(response.as_bytes());
            Some(IcResp::LEN)
        });
        Ok(Step::Taken(IcReq::LEN))
    }

    fn capsule(&mut self, header: &Header, input: &[u8], now: Nanos) -> Result<Step, Fatal> {
        let Some(sqe) = Sqe::parse(&input[Common::LEN..]) else { return Ok(Step::Stop(Next::Input(header.len))) };
        let is_io = matches!(self.role, Role::Io(_)) && sqe.opcode != opcode::FABRICS;
        let pointer =
            sqe.pointer(header.data_len, if is_io { self.target.limits().in_capsule } else { CAPSULE_DATA_MAX });
        if let Err(Refused::Fatal(fatal)) = pointer {
            return Err(fatal);
        }
        let len = header.data_len as usize;
        let whole = header.data_at + len + if header.data_digest { DIGEST_LEN } else { 0 };
        let Some(data) = input.get(header.data_at..whole) else { return Ok(Step::Stop(Next::Input(whole))) };
        let (data, digest) = data.split_at(len);
        match &mut self.role {
            Role::Io(io) => {
                if !io.prepare(len, &mut self.counts) {
                    return Ok(Step::Stop(Next::Completion));
                }
                self.closing = !io.hear(now);
            }
            Role::Admin(admin) => self.closing = !admin.hear(now),
            Role::New => {}
        }
        if self.closing {
            self.counts.add(Event::KeepAliveExpired);
            return Ok(Step::Taken(whole));
        }
        // More commands than the queue has entries.
        let (index, unused) = self.queue.open(sqe.cid.get()).map_err(|_| Fatal::SEQUENCE)?;
        let refused = if !digest.is_empty() && digest != crc32c::crc32c(data).to_le_bytes() {
            self.counts.add(Event::DataDigests);
            Some(Status::TRANSIENT_TRANSPORT_ERROR)
        } else if !unused {
            Some(Status::CID_CONFLICT)
        } else {
            None
        };
        let turn = match (refused.map_or(pointer, |status| Err(Refused::Status(status))), &mut self.role) {
            (Ok(pointer), _) => self.command(index, sqe, (pointer, data), now),
            (Err(refused), Role::Io(io)) => {
                io.interrupt(&mut self.queue);
                Err(refused)
            }
            (Err(refused), _) => Err(refused),
        };
        if let Role::Io(io) = &mut self.role {
            io.settle();
        }
        match turn {
            Ok(Turn::Later) => {}
            Ok(Turn::Done) => self.queue.respond(index, Status::SUCCESS),
            Err(Refused::Status(status)) => self.queue.respond(index, status),
            Err(Refused::Fatal(fatal)) => return Err(fatal),
        }
        Ok(Step::Taken(whole))
    }

    fn command(
        &mut self,
        index: usize,
        sqe: &Sqe,
        (pointer, data): (berth_wire::nvme::command::Pointer, &[u8]),
        now: Nanos,
    ) -> Result<Turn, Refused> {
        if let Some(proof) = &mut self.proof
            && let Some(turn) = proof.queue.command(index, sqe, (pointer, data), now)
        {
            return turn;
        }
        match &mut self.role {
            Role::New => {
                let (joined, queue) = crate::connect::connect(
                    &self.target,
                    self.local,
                    (&mut self.queue, index),
                    sqe,
                    (pointer, data),
                    self.framing.data_digest,
                    now,
                )
                .inspect_err(|_| self.counts.add(Event::ConnectsRefused))?;
                self.counts.add(Event::Connected);
                self.queue = queue;
                match joined {
                    Joined::Queue(role) => self.role = role,
                    Joined::Unproven(joining, chap) => {
                        let queue = QueueAuth::new(chap, self.peer, now);
                        self.proof = Some(Box::new(auth::Proof { queue, joining: Some(joining) }));
                    }
                }
                Ok(Turn::Later)
            }
            Role::Admin(admin) => {
                self.counts.add(Event::Admin);
                admin.command(&mut self.queue, index, sqe, (pointer, data), now)
            }
            Role::Io(_) if sqe.opcode == opcode::FABRICS => match sqe.fctype() {
                opcode::fabrics::CONNECT => Err(Refused::Status(Status::SEQUENCE_ERROR)),
                opcode::fabrics::DISCONNECT => {
                    self.leaving = true;
                    Ok(Turn::Done)
                }
                _ => Err(Refused::Status(Status::INVALID_FIELD)),
            },
            Role::Io(io) => io.command(&mut self.queue, index, sqe, (pointer, data), &mut self.counts, now),
        }
    }

    /// Takes the header of an `H2CData`.
    fn h2c_data(&mut self, header: &Header, head: &[u8], now: Nanos) -> Result<Step, Fatal> {
        let pdu = DataPdu::checked(head, header, H2C_DATA_MAX)?;
        let index = self.queue.by_ttag(pdu.ttag.get()).ok_or(Fatal::field(10))?;
        let slot = self.queue.slot(index);
        if slot.cid != pdu.cccid.get() {
            return Err(Fatal::field(8));
        }
        let left = slot.until - slot.moved;
        if pdu.offset.get() != slot.moved || header.data_len > left {
            return Err(Fatal::OUT_OF_RANGE);
        }
        if header.has(flags::LAST) && header.data_len < left {
            return Err(Fatal::field(1));
        }
        slot.since = now;
        let digest = header.data_digest.then_some(0);
        self.incoming = Some(Incoming { slot: index, left: header.data_len, digest });
        Ok(Step::Taken(head.len()))
    }

    /// Takes what comes next of an `H2CData`.
    fn data(&mut self, mut incoming: Incoming, input: &[u8], now: Nanos) -> Result<Step, Fatal> {
        let Role::Io(io) = &mut self.role else { return Err(Fatal::SEQUENCE) };
        let index = incoming.slot;
        let mut taken = 0;
        if incoming.left > 0 {
            taken = input.len().min(incoming.left as usize);
            if taken == 0 {
                return Ok(Step::Stop(Next::Input(1)));
            }
            let piece = &input[..taken];
            incoming.digest = incoming.digest.map(|digest| crc32c::crc32c_append(digest, piece));
            incoming.left -= taken as u32;
            io.piece(&mut self.queue, index, piece, now);
        }
        self.incoming = Some(incoming);
        if incoming.left > 0 {
            return Ok(Step::Taken(taken));
        }
        if let Some(digest) = incoming.digest {
            let Some(sent) = input[taken..].first_chunk::<DIGEST_LEN>() else {
                return Ok(if taken > 0 { Step::Taken(taken) } else { Step::Stop(Next::Input(DIGEST_LEN)) });
            };
            if *sent != digest.to_le_bytes() {
                self.counts.add(Event::DataDigests);
                self.queue.slot(index).fault.get_or_insert(Status::TRANSIENT_TRANSPORT_ERROR);
            }
            taken += DIGEST_LEN;
        }
        self.incoming = None;
        let slot = self.queue.slot(index);
        if slot.moved == slot.until {
            io.received(&mut self.queue, index, &mut self.counts, now);
        }
        Ok(Step::Taken(taken))
    }

    /// Sends what commands have to send; what it takes to go on, where there is more.
    fn send(&mut self, output: &mut Output<'_>, now: Nanos) -> Option<Next> {
        while let Some(index) = self.queue.first() {
            match self.queue.slot(index).phase {
                Phase::Asking => {
                    if output.room() < SHORT {
                        return Some(Next::Output(SHORT));
                    }
                    let ttag = self.queue.ttag(index);
                    let slot = self.queue.slot(index);
                    let len = (slot.len - slot.moved).min(H2C_DATA_MAX);
                    (slot.from, slot.until) = (slot.moved, slot.moved + len);
                    (slot.phase, slot.since) = (Phase::Receiving, now);
                    let (cid, offset) = (slot.cid, slot.moved);
                    output.append(|to| self.framing.r2t(to, cid, ttag, offset, len));
                    self.queue.sent();
                }
                Phase::Sending => {
                    if let Some(next) = self.send_data(index, output, now) {
                        return Some(next);
                    }
                }
                Phase::Responding(status) => {
                    if output.room() < SHORT {
                        return Some(Next::Output(SHORT));
                    }
                    self.count(index, status);
                    let cqe = self.queue.completion(index, status);
                    output.append(|to| self.framing.response(to, &cqe));
                    self.queue.sent();
                    self.queue.close(index);
                }
                Phase::Free | Phase::Waiting | Phase::Receiving | Phase::Accessing | Phase::Parked => {
                    self.queue.sent();
                }
            }
        }
        None
    }

    /// Sends one `C2HData`; what it takes to go on, where there is no room for it.
    fn send_data(&mut self, index: usize, output: &mut Output<'_>, now: Nanos) -> Option<Next> {
        let at = self.framing.data_at(Kind::C2hData);
        let around = at + if self.framing.data_digest { DIGEST_LEN } else { 0 };
        let omits = self.queue.omits_responses();
        let slot = self.queue.slot(index);
        let left = (slot.len - slot.moved) as usize;
        if output.room() < around + left.min(DATA_MIN) {
            return Some(Next::Output(around + left.min(DATA_ROOM) + SHORT));
        }
        let mut len = left.min(output.room() - around);
        if len < left {
            len -= len % 512;
        }
        let is_last = len == left;
        let (cid, offset) = (slot.cid, slot.moved);
        let into = &mut output.rest()[at..at + len];
        let copied = match &mut self.role {
            Role::New | Role::Admin(_) => {
                copy_page(slot, into);
                Ok(())
            }
            Role::Io(_) if slot.work == Work::Control => {
                copy_page(slot, into);
                Ok(())
            }
            Role::Io(_) if slot.buffers.size() > 0 => {
                slot.buffers.read_at(offset as usize, into);
                Ok(())
            }
            Role::Io(io) => io.copy(&mut self.queue, index, into, now),
        };
        if let Err(status) = copied {
            self.queue.slot(index).phase = Phase::Responding(status);
            return None;
        }
        let slot = self.queue.slot(index);
        slot.moved += len as u32;
        let omits = omits && slot.result == 0;
        let flags = match (is_last, omits) {
            (true, true) => flags::LAST | flags::SUCCESS,
            (true, false) => flags::LAST,
            (false, _) => 0,
        };
        if self.framing.data_digest {
            let digest = crc32c::crc32c(&output.rest()[at..at + len]);
            output.rest()[at + len..at + len + DIGEST_LEN].copy_from_slice(&digest.to_le_bytes());
        }
        output.append(|to| {
            self.framing.c2h_data(to, cid, offset, len as u32, flags)?;
            Some(around + len)
        });
        if is_last && omits {
            self.count(index, Status::SUCCESS);
            self.queue.sent();
            self.queue.close(index);
        } else if is_last {
            self.queue.slot(index).phase = Phase::Responding(Status::SUCCESS);
        }
        None
    }

    /// Counts how a command ended.
    #[inline]
    fn count(&mut self, index: usize, status: Status) {
        let slot = self.queue.get(index);
        if !status.is_success() {
            match &self.role {
                Role::New => {}
                Role::Admin(admin) => admin.controller.record.failed(0, slot.cid, status, 0, 0),
                Role::Io(io) => io.failed(slot, status),
            }
            return self.counts.failed(status);
        }
        let bytes = slot.ask.access.len;
        match slot.work {
            Work::Read => self.counts.bytes(Event::BytesRead, bytes),
            Work::Write { .. } => self.counts.bytes(Event::BytesWritten, bytes),
            _ => {}
        }
    }
}

/// Copies what comes next of a page, of which the rest is zero.
fn copy_page(slot: &Slot, into: &mut [u8]) {
    let page = slot.page.get(slot.moved as usize..).unwrap_or_default();
    let (front, rest) = into.split_at_mut(page.len().min(into.len()));
    front.copy_from_slice(&page[..front.len()]);
    rest.fill(0);
}

/// Bytes of the header that `input` begins with, as far as it says so: at most what a `TermReq` has room for.
fn header_of(input: &[u8]) -> usize {
    input.get(2).map_or(0, |hlen| usize::from(*hlen)).clamp(Common::LEN, TermReq::DATA_MAX as usize)
}

impl Session for Connection {
    fn advance(&mut self, input: &[u8], output: &mut [u8], now: Nanos) -> Progress {
        let mut output = Output::new(output);
        let mut consumed = 0;
        let next = loop {
            match self.step(&input[consumed..], &mut output, now) {
                Step::Taken(bytes) => consumed += bytes,
                Step::Stop(next) => break next,
            }
        };
        if let Role::Io(io) = &self.role {
            io.record(&self.counts);
        }
        self.target.totals().take(&mut self.counts);
        Progress { consumed, written: output.written(), next }
    }

    /// Connect has succeeded.
    fn is_identified(&self) -> bool {
        !matches!(self.role, Role::New) && !self.closing
    }

    fn is_over(&mut self, now: Nanos) -> bool {
        let unproven = self.is_unproven(now);
        let over = match &mut self.role {
            _ if unproven => true,
            Role::New => false,
            Role::Admin(admin) => admin.is_over(now, &mut self.counts),
            Role::Io(io) => {
                let late = self.queue.is_late(now);
                if late {
                    self.counts.add(Event::DataLate);
                }
                late || io.is_over() || io.is_silent(now) || io.ended_long_ago(now)
            }
        };
        self.target.totals().take(&mut self.counts);
        over
    }

    /// Accesses to blocks, commands that wait for buffers, and what waits for room to be sent.
    fn outstanding(&self) -> usize {
        let io = if let Role::Io(io) = &self.role { io.outstanding(&self.queue) } else { 0 };
        let proof = self.proof.as_ref().map_or(0, |proof| proof.queue.outstanding());
        io + proof + usize::from(self.queue.first().is_some())
    }

    fn poll_completion(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(proof) = &self.proof
            && proof.queue.poll(cx).is_ready()
        {
            return Poll::Ready(());
        }
        match &self.role {
            Role::New => Poll::Pending,
            Role::Admin(admin) => admin.poll(cx),
            Role::Io(io) => io.poll(&self.queue, cx),
        }
    }
}
