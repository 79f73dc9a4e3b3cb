//! FBMT and FBBT: bytes in, bytes out (profile, decision 21).

use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
};

use berth_lease::{Access, LeaseId, Op, Refusal, Regions, Table};
use berth_memory::Part;
use berth_port::{Nanos, Next, Progress, Session};
use berth_wire::fabric::data::{
    IoStatus,
    stream::{Header, Hello, HelloAck, Kind, Op as Message, Range, ReadResp, WriteResp},
};
use zerocopy::IntoBytes;

use crate::{
    AccessRequest, Failure, Gate, Served, Totals,
    block::Accesses,
    counts::Event,
    shim::{bytes, limits, status, unit},
};

/// The longest operation on a stream in bytes, unless its carrier buffers less.
pub const LONGEST: u32 = 1 << 20;

/// How much longer than the largest WRITE a payload may claim to be without the connection being closed.
const TOLERATED: u32 = 4096;

/// Bytes of the longest answer without data.
const SHORT: usize = Header::LEN + HelloAck::LEN;

/// Bytes of a READ's answer before its data.
const READ_HEAD: usize = Header::LEN + ReadResp::LEN;

/// Accesses to blocks that one connection has under way.
const DEPTH: usize = 64;

/// The server's side of one FBMT or FBBT connection, over TCP or QUIC.
///
/// Memory is answered at once, in the order of the requests. Accesses to blocks, and to memory behind an engine, are
/// answered in the order in which they end: as many are under way as their buffers find room in the output, so that
/// whoever lends it has accounted for them.
#[derive(Debug)]
pub struct Stream {
    kind: Kind,
    gate: Gate,
    totals: Arc<Totals>,
    lease: Option<Lease>,
    peer: Option<Peer>,
    accesses: Accesses,
    /// Those that are not answered yet.
    pending: Vec<Pending>,
    /// The most of them at once, up to [`DEPTH`].
    depth: usize,
    /// The longest operation in bytes, whatever the lease's `max_io`.
    longest: u32,
    next_tag: u64,
    /// What was read from blocks and how much of it was written.
    data: Option<(Part, usize)>,
    closed: bool,
}

/// Which leases the peer may greet, where the carrier knows who it is.
struct Peer(Box<dyn Fn(LeaseId) -> bool + Send + Sync>);

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Peer")
    }
}

/// The lease that HELLO has named, and its limits.
#[derive(Debug, Clone, Copy)]
struct Lease {
    id: LeaseId,
    /// The longest operation in bytes.
    most: u32,
}

#[derive(Debug)]
struct Pending {
    tag: u64,
    ask: AccessRequest,
    request_id: u32,
}

/// The result of one message.
enum Advance {
    /// It is consumed, and answered unless an access for it is under way.
    Done { consumed: usize, written: usize },
    /// It is not, or not answered, until this has happened.
    Stop(Next),
}

impl Stream {
    /// A new connection to the leases of `table`, whose bytes lie in `regions`, for whoever knows a lease's id.
    pub fn new(kind: Kind, table: &Table, regions: &Regions, totals: Arc<Totals>) -> Self {
        Self {
            kind,
            gate: Gate::new(table, regions),
            totals,
            lease: None,
            peer: None,
            accesses: Accesses::default(),
            pending: Vec::new(),
            depth: DEPTH,
            longest: LONGEST,
            next_tag: 0,
            data: None,
            closed: false,
        }
    }

    /// The same for a peer that has proved who it is: only the leases of which `is_of` says that they are the peer's.
    #[must_use]
    pub fn of(self, is_of: impl Fn(LeaseId) -> bool + Send + Sync + 'static) -> Self {
        Self { peer: Some(Peer(Box::new(is_of))), ..self }
    }

    /// The same for a carrier whose buffers have [`Stream::room_for`] operations of so many bytes, and never grow.
    #[must_use]
    pub fn at_most(self, longest: u32) -> Self {
        Self { longest, ..self }
    }

    /// The longest message or answer, in bytes, where an operation has at most so many.
    pub const fn room_for(longest: u32) -> usize {
        Header::LEN + Range::LEN + longest as usize + TOLERATED as usize
    }

    /// Another stream of the same connection, as QUIC has one for each operation, to the lease that this one greeted,
    /// with one access under way at a time; `None` before it did.
    pub fn sibling(&self) -> Option<Self> {
        let lease = self.lease.filter(|_| !self.closed)?;
        let new = Self::new(self.kind, &self.gate.table, &self.gate.regions, self.totals.clone());
        Some(Self { lease: Some(lease), depth: 1, ..new })
    }

    /// Handles what comes first: an access that has ended, or a message. `room`: the length of the whole output.
    fn turn(&mut self, input: &[u8], output: &mut [u8], room: usize, now: Nanos) -> Advance {
        if self.data.is_some() {
            return self.send(output);
        }
        if !self.pending.is_empty() {
            if output.len() < SHORT {
                return Advance::Stop(Next::Output(SHORT));
            }
            if let Some(ended) = self.accesses.next() {
                return self.finish(ended.tag, ended.into_part(), output);
            }
        }
        if self.closed {
            return Advance::Stop(if self.pending.is_empty() { Next::Close } else { Next::Completion });
        }
        let Some(header) = Header::parse(input) else { return Advance::Stop(Next::Input(Header::LEN)) };
        if !header.is_sound(self.kind) {
            return self.close();
        }
        if output.len() < SHORT {
            return Advance::Stop(Next::Output(SHORT));
        }
        let largest = self.lease.map_or(0, |lease| lease.most) + Range::LEN as u32 + TOLERATED;
        if header.payload_len() > largest {
            return self.violated(&header, IoStatus::BadLength, output);
        }
        let whole = Header::LEN + header.payload_len() as usize;
        let Some(payload) = input.get(Header::LEN..whole) else { return Advance::Stop(Next::Input(whole)) };
        match (header.op(), self.lease) {
            (Some(Message::Hello), None) => self.hello(&header, payload, output, now),
            (Some(Message::Read | Message::Write), None) => self.violated(&header, IoStatus::InvalidLease, output),
            (Some(Message::Read | Message::Write), Some(_)) if header.request_id() == 0 => {
                self.violated(&header, IoStatus::BadLength, output)
            }
            (Some(Message::Read), Some(lease)) => self.read(&header, lease, payload, (output, room), now),
            (Some(Message::Write), Some(lease)) => self.write(&header, lease, payload, (output, room), now),
            (Some(Message::Ping), Some(_)) if payload.is_empty() => {
                self.count(Event::Received);
                self.count(Event::Pinged);
                Advance::Done { consumed: whole, written: self.say(Message::Pong, header.request_id(), &[], output) }
            }
            (Some(Message::Error), _) => self.close(),
            _ => self.violated(&header, IoStatus::BadLength, output),
        }
    }

    fn hello(&mut self, header: &Header, payload: &[u8], output: &mut [u8], now: Nanos) -> Advance {
        let Some(hello) = Hello::parse(payload) else {
            return self.violated(header, IoStatus::BadLength, output);
        };
        self.count(Event::Received);
        let id = LeaseId(hello.lease_id());
        let found = self.gate.look(&Lease { id, most: 0 }.ask(Op::Read, 0, 0, true), now);
        let ack = match &found {
            Ok(_) if self.peer.as_ref().is_some_and(|peer| !peer.0(id)) => {
                self.count(Event::NotTheirs);
                self.closed = true;
                refused(self.kind, IoStatus::InvalidLease)
            }
            Ok(entry) => {
                self.count(Event::Greeted);
                self.lease = Some(Lease { id, most: entry.max_io.min(self.longest) });
                limits(self.kind, entry, self.longest)
            }
            Err(refusal) => {
                self.count(Failure::from(*refusal).into());
                self.closed = true;
                refused(self.kind, status((*refusal).into()))
            }
        };
        let written = self.say(Message::HelloAck, header.request_id(), &ack.to_bytes(), output);
        Advance::Done { consumed: Header::LEN + payload.len(), written }
    }

    fn read(
        &mut self,
        header: &Header,
        lease: Lease,
        payload: &[u8],
        (output, room): (&mut [u8], usize),
        now: Nanos,
    ) -> Advance {
        let range = Range::parse(payload).unwrap_or(Range::new(0, 0));
        let ask = self.ask(Op::Read, lease, &range, payload.len() as u64);
        let len = READ_HEAD + if ask.access.well_formed { ask.access.len as usize } else { 0 };
        if output.len() < len {
            return Advance::Stop(Next::Output(len));
        }
        let served = self.gate.read(&ask, &mut output[READ_HEAD..len], now);
        self.answer(header, &ask, served, payload, (output, room), now)
    }

    fn write(
        &mut self,
        header: &Header,
        lease: Lease,
        payload: &[u8],
        (output, room): (&mut [u8], usize),
        now: Nanos,
    ) -> Advance {
        let range = Range::parse(payload).unwrap_or(Range::new(0, 0));
        let ask = self.ask(Op::Write, lease, &range, payload.len() as u64);
        let served = self.gate.write(&ask, payload.get(Range::LEN..).unwrap_or_default(), now);
        self.answer(header, &ask, served, payload, (output, room), now)
    }

    /// Answers an access, or starts it where it goes to blocks.
    fn answer(
        &mut self,
        header: &Header,
        ask: &AccessRequest,
        mut served: Result<Served, Refusal>,
        payload: &[u8],
        (output, room): (&mut [u8], usize),
        now: Nanos,
    ) -> Advance {
        let (consumed, request_id) = (Header::LEN + payload.len(), header.request_id());
        if served == Ok(Served::Blocks) {
            if let Some(next) = self.no_room_for(ask, room) {
                return Advance::Stop(next);
            }
            let tag = self.next_tag;
            match self.gate.start_copied(&self.accesses, ask, &payload[Range::LEN..], tag, now) {
                Ok(()) => {
                    self.count(Event::Received);
                    self.next_tag += 1;
                    self.pending.push(Pending { tag, ask: *ask, request_id });
                    return Advance::Done { consumed, written: 0 };
                }
                Err(refusal) => served = Err(refusal),
            }
        }
        self.count(Event::Received);
        let data = if served.is_ok() && ask.access.op == Op::Read { ask.access.len as usize } else { 0 };
        let head = self.conclude(ask, request_id, served.map(|_| ()).map_err(Failure::from), output);
        Advance::Done { consumed, written: head + data }
    }

    /// What an access to blocks has to wait for, where it does.
    fn no_room_for(&self, ask: &AccessRequest, room: usize) -> Option<Next> {
        let bytes = self.pending.iter().map(|pending| pending.ask.access.len).sum::<u64>() + ask.access.len;
        if self.pending.len() >= self.depth || bytes > LONGEST.into() {
            return Some(Next::Completion);
        }
        (bytes > room as u64).then_some(Next::Output(bytes as usize))
    }

    /// Begins the answer to an access to blocks that has ended.
    fn finish(&mut self, tag: u64, ended: Result<Part, Failure>, output: &mut [u8]) -> Advance {
        let Some(at) = self.pending.iter().position(|pending| pending.tag == tag) else {
            return Advance::Done { consumed: 0, written: 0 };
        };
        let Pending { ask, request_id, .. } = self.pending.swap_remove(at);
        let outcome = ended.as_ref().map(|_| ()).map_err(|failure| *failure);
        let written = self.conclude(&ask, request_id, outcome, output);
        if let (Ok(data), Op::Read) = (ended, ask.access.op)
            && data.size() > 0
        {
            self.data = Some((data, 0));
        }
        Advance::Done { consumed: 0, written }
    }

    /// Goes on with what was read from blocks.
    fn send(&mut self, output: &mut [u8]) -> Advance {
        let Some((data, sent)) = &mut self.data else { return Advance::Done { consumed: 0, written: 0 } };
        let written = output.len().min(data.size() - *sent);
        if written == 0 {
            return Advance::Stop(Next::Output(SHORT));
        }
        data.read_at(*sent, &mut output[..written]);
        *sent += written;
        if *sent == data.size() {
            self.data = None;
        }
        Advance::Done { consumed: 0, written }
    }

    /// Counts how an access ended and writes the head of its answer, behind which a read's data goes.
    fn conclude(
        &mut self,
        ask: &AccessRequest,
        request_id: u32,
        outcome: Result<(), Failure>,
        output: &mut [u8],
    ) -> usize {
        let (op, len) = (ask.access.op, ask.access.len);
        self.gate.counts().outcome(op, len, outcome);
        let (len, outcome) = match outcome {
            Ok(()) => (len as usize, IoStatus::Ok),
            Err(failure) => (0, status(failure)),
        };
        if op == Op::Write {
            return self.say(Message::WriteResp, request_id, WriteResp::new(outcome as u8).as_bytes(), output);
        }
        let head = ReadResp::new(outcome as u8, (len as u64 / unit(self.kind)) as u32);
        let header = Header::new(self.kind, Message::ReadResp, (ReadResp::LEN + len) as u32, request_id);
        output[..Header::LEN].copy_from_slice(header.as_bytes());
        output[Header::LEN..READ_HEAD].copy_from_slice(head.as_bytes());
        READ_HEAD
    }

    /// Writes a whole message and returns its length.
    fn say(&self, op: Message, request_id: u32, payload: &[u8], output: &mut [u8]) -> usize {
        let (front, rest) = output.split_at_mut(Header::LEN);
        front.copy_from_slice(Header::new(self.kind, op, payload.len() as u32, request_id).as_bytes());
        rest[..payload.len()].copy_from_slice(payload);
        Header::LEN + payload.len()
    }

    /// Closes after saying what was wrong.
    fn violated(&mut self, header: &Header, status: IoStatus, output: &mut [u8]) -> Advance {
        self.count(Event::Received);
        self.count(Event::Malformed);
        self.closed = true;
        let written = self.say(Message::Error, header.request_id(), &[status as u8], output);
        Advance::Done { consumed: Header::LEN, written }
    }

    /// Closes without a word.
    fn close(&mut self) -> Advance {
        self.count(Event::Received);
        self.count(Event::Malformed);
        self.closed = true;
        Advance::Stop(Next::Close)
    }

    /// What a message with `carried` bytes of payload asks for.
    fn ask(&self, op: Op, lease: Lease, range: &Range, carried: u64) -> AccessRequest {
        let unit = unit(self.kind);
        let len = u64::from(range.length()) * unit;
        let data = if op == Op::Write { len } else { 0 };
        // A lease's `max_io` may be more than a stream buffers.
        let well_formed = carried == Range::LEN as u64 + data && len <= lease.most.into();
        lease.ask(op, bytes(range.offset(), unit), len, well_formed)
    }

    fn count(&mut self, event: Event) {
        self.gate.counts().add(event);
    }
}

impl Session for Stream {
    fn advance(&mut self, input: &[u8], output: &mut [u8], now: Nanos) -> Progress {
        let (mut consumed, mut written, room) = (0, 0, output.len());
        let next = loop {
            match self.turn(&input[consumed..], &mut output[written..], room, now) {
                Advance::Done { consumed: read, written: wrote } => {
                    consumed += read;
                    written += wrote;
                }
                Advance::Stop(next) => break next,
            }
        };
        self.totals.take(self.gate.counts());
        Progress { consumed, written, next }
    }

    /// The peer has named its lease.
    fn is_identified(&self) -> bool {
        self.lease.is_some() && !self.closed
    }

    /// The connection's lease takes no accesses any more.
    fn is_over(&mut self, now: Nanos) -> bool {
        self.lease.is_some_and(|lease| self.gate.look(&lease.ask(Op::Read, 0, 0, true), now).is_err())
    }

    fn outstanding(&self) -> usize {
        self.pending.len() + usize::from(self.data.is_some())
    }

    fn poll_completion(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.pending.is_empty() { Poll::Pending } else { self.accesses.poll(cx) }
    }
}

impl Lease {
    fn ask(self, op: Op, offset: u64, len: u64, well_formed: bool) -> AccessRequest {
        let key = self.id.key();
        AccessRequest { id: Some(self.id), access: Access { op, key, generation: None, offset, len, well_formed } }
    }
}

/// A refusal of the greeting: everything but the status is 0.
fn refused(kind: Kind, status: IoStatus) -> HelloAck {
    let status = status as u8;
    match kind {
        Kind::Memory => HelloAck::Memory { status, resource_len: 0, max_read_len: 0, max_write_len: 0 },
        Kind::Block => HelloAck::Block { status, block_size: 0, block_count: 0, max_blocks_per_io: 0 },
    }
}
