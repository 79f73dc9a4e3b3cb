//! FBMT and FBBT: bytes in, bytes out (profile, decision 21).

use std::{fmt, sync::Arc};

use berth_lease::{Access, LeaseId, Op, Regions, Table};
use berth_memory::Part;
use berth_port::Nanos;
use berth_wire::fabric::data::{
    IoStatus,
    stream::{Header, Hello, HelloAck, Kind, Op as Message, Range, ReadResp, WriteResp},
};
use zerocopy::IntoBytes;

use crate::{
    Ask, BlockIo, Failure, Gate, Served, Totals,
    counts::Event,
    shim::{bytes, limits, status, unit},
};

/// The longest operation on a stream in bytes, whatever the lease's `max_io`: what a connection must be able to buffer.
pub const LONGEST: u32 = 1 << 20;

/// How much longer than the largest WRITE a payload may claim to be without the connection being closed.
const TOLERATED: u32 = 4096;

/// Bytes of the longest answer without data.
const SHORT: usize = Header::LEN + HelloAck::LEN;

/// Bytes of a READ's answer before its data.
const READ_HEAD: usize = Header::LEN + ReadResp::LEN;

/// The server's side of one FBMT or FBBT connection, over TCP or QUIC.
///
/// It buffers nothing: [`Stream::advance`] reads messages where they have been received, and copies what is read from
/// the lease straight to where it will be sent from. What is returned in [`Progress`] says what to do next.
#[derive(Debug)]
pub struct Stream {
    kind: Kind,
    gate: Gate,
    regions: Regions,
    totals: Arc<Totals>,
    lease: Option<Lease>,
    peer: Option<Peer>,
    /// A block access that has been started.
    pending: Option<Pending>,
    closed: bool,
}

/// Which leases the peer may greet, where the carrier knows who it is.
struct Peer(Box<dyn Fn(LeaseId) -> bool + Send + Sync>);

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Peer")
    }
}

/// What HELLO settled.
#[derive(Debug, Clone, Copy)]
struct Lease {
    id: LeaseId,
    /// The longest operation in bytes.
    most: u32,
}

#[derive(Debug)]
struct Pending {
    ask: Ask,
    request_id: u32,
    ended: Option<Result<Part, Failure>>,
}

/// What one call of [`Stream::advance`] did.
#[derive(Debug)]
pub struct Progress {
    /// Bytes from the front of the input that are done with.
    pub consumed: usize,
    /// Bytes at the front of the output that are to be sent.
    pub written: usize,
    /// What it takes to go on.
    pub step: Step,
}

/// What a stream waits for.
#[derive(Debug)]
pub enum Step {
    /// So many bytes of input, counted from the first that was not consumed.
    Input(usize),
    /// An output of so many bytes: send what is there first.
    Output(usize),
    /// The end of this access, to be told with [`Stream::landed`]; nothing advances before.
    Blocks(BlockIo),
    /// Nothing more: send what was written and close.
    Close,
}

/// What one message led to.
enum Turn {
    /// It is consumed and answered.
    Done { consumed: usize, written: usize },
    /// It is not, or not answered, until this has happened.
    Stop(Step),
    /// It is consumed, and an access for it under way.
    Started { consumed: usize, io: BlockIo },
}

impl Stream {
    /// A new connection to the leases of `table`, whose bytes lie in `regions`, for whoever knows a lease's id.
    pub fn new(kind: Kind, table: &Table, regions: &Regions, totals: Arc<Totals>) -> Self {
        let gate = Gate::new(table, regions);
        Self { kind, gate, regions: regions.clone(), totals, lease: None, peer: None, pending: None, closed: false }
    }

    /// The same for a peer that has proved who it is: only the leases of which `is_of` says that they are the peer's.
    #[must_use]
    pub fn of(self, is_of: impl Fn(LeaseId) -> bool + Send + Sync + 'static) -> Self {
        Self { peer: Some(Peer(Box::new(is_of))), ..self }
    }

    /// Another stream of the same connection, as QUIC has one for each operation, to the lease that this one greeted;
    /// `None` before it did.
    pub fn sibling(&self) -> Option<Self> {
        let lease = self.lease.filter(|_| !self.closed)?;
        let new = Self::new(self.kind, &self.gate.table, &self.regions, self.totals.clone());
        Some(Self { lease: Some(lease), ..new })
    }

    /// Whether the connection's lease takes no accesses any more: close it. Ask at least once a second.
    pub fn is_over(&mut self, now: Nanos) -> bool {
        self.lease.is_some_and(|lease| self.gate.look(&lease.ask(Op::Read, 0, 0, true), now).is_err())
    }

    /// Serves the messages that `input` holds, as far as `output` has room for their answers.
    pub fn advance(&mut self, input: &[u8], output: &mut [u8], now: Nanos) -> Progress {
        let (mut consumed, mut written) = (0, 0);
        let step = loop {
            match self.turn(&input[consumed..], &mut output[written..], now) {
                Turn::Done { consumed: read, written: wrote } => {
                    consumed += read;
                    written += wrote;
                }
                Turn::Started { consumed: read, io } => {
                    consumed += read;
                    break Step::Blocks(io);
                }
                Turn::Stop(step) => break step,
            }
        };
        self.totals.take(self.gate.counts());
        Progress { consumed, written, step }
    }

    /// Takes the result of the access that [`Step::Blocks`] named; its answer is written by the next [`Stream::advance`].
    pub fn landed(&mut self, ended: Result<Part, Failure>) {
        if let Some(pending) = &mut self.pending {
            pending.ended = Some(ended);
        }
    }

    fn turn(&mut self, input: &[u8], output: &mut [u8], now: Nanos) -> Turn {
        if let Some(pending) = self.pending.take() {
            return self.finish(pending, output);
        }
        if self.closed {
            return Turn::Stop(Step::Close);
        }
        let Some(header) = Header::parse(input) else { return Turn::Stop(Step::Input(Header::LEN)) };
        if !header.is_sound(self.kind) {
            return self.close();
        }
        if output.len() < SHORT {
            return Turn::Stop(Step::Output(SHORT));
        }
        let largest = self.lease.map_or(0, |lease| lease.most) + Range::LEN as u32 + TOLERATED;
        if header.payload_len() > largest {
            return self.violated(&header, IoStatus::BadLength, output);
        }
        let whole = Header::LEN + header.payload_len() as usize;
        let Some(payload) = input.get(Header::LEN..whole) else { return Turn::Stop(Step::Input(whole)) };
        match (header.op(), self.lease) {
            (Some(Message::Hello), None) => self.hello(&header, payload, output, now),
            (Some(Message::Read | Message::Write), None) => self.violated(&header, IoStatus::InvalidLease, output),
            (Some(Message::Read | Message::Write), Some(_)) if header.request_id() == 0 => {
                self.violated(&header, IoStatus::BadLength, output)
            }
            (Some(Message::Read), Some(lease)) => self.read(&header, lease, payload, output, now),
            (Some(Message::Write), Some(lease)) => self.write(&header, lease, payload, output, now),
            (Some(Message::Ping), Some(_)) if payload.is_empty() => {
                self.count(Event::Received);
                self.count(Event::Pinged);
                Turn::Done { consumed: whole, written: self.say(Message::Pong, header.request_id(), &[], output) }
            }
            (Some(Message::Error), _) => self.close(),
            _ => self.violated(&header, IoStatus::BadLength, output),
        }
    }

    fn hello(&mut self, header: &Header, payload: &[u8], output: &mut [u8], now: Nanos) -> Turn {
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
                self.lease = Some(Lease { id, most: entry.max_io.min(LONGEST) });
                limits(self.kind, entry, LONGEST)
            }
            Err(refusal) => {
                self.count(Failure::from(*refusal).into());
                self.closed = true;
                refused(self.kind, status((*refusal).into()))
            }
        };
        let written = self.say(Message::HelloAck, header.request_id(), &ack.to_bytes(), output);
        Turn::Done { consumed: Header::LEN + payload.len(), written }
    }

    fn read(&mut self, header: &Header, lease: Lease, payload: &[u8], output: &mut [u8], now: Nanos) -> Turn {
        let range = Range::parse(payload).unwrap_or(Range::new(0, 0));
        let ask = self.ask(Op::Read, lease, &range, payload.len() as u64);
        let room = READ_HEAD + if ask.access.well_formed { ask.access.len as usize } else { 0 };
        if output.len() < room {
            return Turn::Stop(Step::Output(room));
        }
        let served = self.gate.read(&ask, &mut output[READ_HEAD..room], now);
        self.answer(header, &ask, served.map_err(Failure::from), payload, output, now)
    }

    fn write(&mut self, header: &Header, lease: Lease, payload: &[u8], output: &mut [u8], now: Nanos) -> Turn {
        let range = Range::parse(payload).unwrap_or(Range::new(0, 0));
        let ask = self.ask(Op::Write, lease, &range, payload.len() as u64);
        let served = self.gate.write(&ask, payload.get(Range::LEN..).unwrap_or_default(), now);
        self.answer(header, &ask, served.map_err(Failure::from), payload, output, now)
    }

    /// Answers an access, or starts it where it goes to blocks.
    fn answer(
        &mut self,
        header: &Header,
        ask: &Ask,
        served: Result<Served, Failure>,
        payload: &[u8],
        output: &mut [u8],
        now: Nanos,
    ) -> Turn {
        self.count(Event::Received);
        let (consumed, request_id) = (Header::LEN + payload.len(), header.request_id());
        let outcome = match served {
            Ok(Served::Done) => Ok(()),
            Ok(Served::Blocks) => match self.gate.start(ask, &payload[Range::LEN..], now) {
                Ok(io) => {
                    self.pending = Some(Pending { ask: *ask, request_id, ended: None });
                    return Turn::Started { consumed, io };
                }
                Err(refusal) => Err(refusal.into()),
            },
            Err(failure) => Err(failure),
        };
        Turn::Done { consumed, written: self.conclude(ask, request_id, outcome, output) }
    }

    /// Writes the answer to a block access, once it has ended.
    fn finish(&mut self, pending: Pending, output: &mut [u8]) -> Turn {
        let Some(ended) = &pending.ended else {
            self.pending = Some(pending);
            return Turn::Stop(Step::Input(usize::MAX));
        };
        let data = ended.as_ref().ok().filter(|_| pending.ask.access.op == Op::Read);
        let room = READ_HEAD + data.map_or(0, Part::size);
        if output.len() < room {
            self.pending = Some(pending);
            return Turn::Stop(Step::Output(room));
        }
        if let Some(data) = data {
            data.read_at(0, &mut output[READ_HEAD..room]);
        }
        let outcome = ended.as_ref().map(|_| ()).map_err(|failure| *failure);
        Turn::Done { consumed: 0, written: self.conclude(&pending.ask, pending.request_id, outcome, output) }
    }

    /// Counts how an access ended and writes its answer; a read's data is in place.
    fn conclude(&mut self, ask: &Ask, request_id: u32, outcome: Result<(), Failure>, output: &mut [u8]) -> usize {
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
        READ_HEAD + len
    }

    /// Writes a whole message and returns its length.
    fn say(&self, op: Message, request_id: u32, payload: &[u8], output: &mut [u8]) -> usize {
        let (front, rest) = output.split_at_mut(Header::LEN);
        front.copy_from_slice(Header::new(self.kind, op, payload.len() as u32, request_id).as_bytes());
        rest[..payload.len()].copy_from_slice(payload);
        Header::LEN + payload.len()
    }

    /// Closes after saying what was wrong.
    fn violated(&mut self, header: &Header, status: IoStatus, output: &mut [u8]) -> Turn {
        self.count(Event::Received);
        self.count(Event::Malformed);
        self.closed = true;
        let written = self.say(Message::Error, header.request_id(), &[status as u8], output);
        Turn::Done { consumed: Header::LEN, written }
    }

    /// Closes without a word.
    fn close(&mut self) -> Turn {
        self.count(Event::Received);
        self.count(Event::Malformed);
        self.closed = true;
        Turn::Stop(Step::Close)
    }

    /// What a message with `carried` bytes of payload asks for.
    fn ask(&self, op: Op, lease: Lease, range: &Range, carried: u64) -> Ask {
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

impl Lease {
    fn ask(self, op: Op, offset: u64, len: u64, well_formed: bool) -> Ask {
        let key = self.id.key();
        Ask { id: Some(self.id), access: Access { op, key, generation: None, offset, len, well_formed } }
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
