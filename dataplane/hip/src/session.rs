//! Frames in, answers out: order, replies, deferred errors, and where data goes.

use std::{
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use berth_port::{Nanos, Next, Progress, Session as PortSession};
use berth_wire::hip::{
    Answer, BadHeader, Code, Header, LAUNCH_MAX, NAME_MAX, Op, Prefix, flags,
    request::ModuleLoadAndGet,
    response::{DeviceProperties, Status},
};
use zerocopy::{Immutable, IntoBytes};

use crate::{
    Activity, Counters, Latencies, Random,
    counters::{Class, Kind, Tally},
    device::{Device, Done, Job},
    jobs::{Captured, Then},
    lease::{Claim, Leasing},
    objects::Objects,
    rows::Rows,
    work::Work,
};

/// Room for the longest answer without data.
const ANSWER_MAX: usize = Header::LEN + DeviceProperties::LEN;

/// Bytes that are taken from a client that waits for its device: beyond, it is not read.
const AHEAD_MAX: usize = 32 << 10;

/// Room that a connection needs, for what is taken at once of a message and for the longest answer without data.
pub const MESSAGE_MAX: usize = Header::LEN + LAUNCH_MAX + NAME_MAX;

const _: () = assert!(ANSWER_MAX <= MESSAGE_MAX && AHEAD_MAX <= MESSAGE_MAX);

/// How long a client that sends nothing more is waited for, for an answer that is not there yet.
const LAST_ANSWER: Duration = Duration::from_millis(700);

/// How long a client may pause within a message.
const PATIENCE: Duration = Duration::from_secs(30);

/// What a session is limited to.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Longest payload of requests and of responses, in bytes.
    pub max_payload: u64,
    /// Streams, events, modules, functions and graphs together.
    pub handles: usize,
    /// How long it may be silent between two requests; `None` is for ever.
    pub idle: Option<Duration>,
}

/// The session of one client connection.
pub struct Session<D> {
    pub(crate) device: D,
    pub(crate) settings: Arc<Settings>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) tally: Tally,
    pub(crate) leasing: Option<Leasing>,
    pub(crate) random: Random,
    pub(crate) objects: Objects,
    /// The device that is set.
    pub(crate) current: usize,
    /// Stack, printf buffer, heap.
    pub(crate) limits: [u64; 3],
    /// Pairs of devices whose access was enabled: who, whose memory.
    pub(crate) peers: Vec<(usize, usize)>,
    /// The first error that nobody was told.
    pub(crate) deferred: Option<Code>,
    /// The first one of requests behind work that goes on, whose own error goes first.
    pub(crate) behind: Option<Code>,
    pub(crate) phase: Phase,
    /// Bytes of the present message that were not received yet, beside those that the phase wants.
    pub(crate) rest: u64,
    /// Launches that go on.
    pub(crate) work: Option<Work>,
    /// Events to be recorded when they end.
    pub(crate) pending: Vec<u64>,
    /// A job that ended and was not looked at.
    ended: Option<Done>,
    /// Nodes of all graphs, and their bytes.
    pub(crate) recorded: (usize, usize),
    /// Room to sort arguments in.
    pub(crate) sorted: Vec<(u32, u32)>,
    pub(crate) identified: bool,
    /// Whether the next request is there and waits for the device.
    blocked: bool,
    /// Whether data wait for the device.
    pub(crate) stalled: bool,
    /// Since when it does.
    waits_since: Option<Nanos>,
    /// When the phase began.
    pub(crate) since: Nanos,
    /// When the client was found to send nothing more.
    finished: Option<Nanos>,
    /// When bytes were last taken.
    pub(crate) last: Nanos,
}

/// What the session is at.
pub(crate) enum Phase {
    /// Between two messages, or before the rest of one that is thrown away.
    Head,
    /// Data of a copy to the device.
    In(Header, Rows, Option<Captured>),
    /// Data of a copy to the host, of which nothing is there yet.
    Fetch(Header, Rows),
    /// Data of a copy to the host.
    Out(Rows),
    /// A code object, of which so many bytes are to come, and the function that is wanted.
    Image {
        header: Header,
        function: Option<String>,
        image: Vec<u8>,
        left: u64,
    },
    /// A job whose end is the answer.
    Job(Header, Then),
    /// A claim on a lease that is looked at.
    Bind(Header),
    Closed,
}

/// What executing a request came to.
pub(crate) enum Flow {
    /// The answer has so many bytes, which stand in the room for it.
    Answer(usize),
    /// The answer comes with the end of this job, or later.
    Job(Job, Then),
    /// Inline data follow.
    In(Rows),
    /// A code object of so many bytes follows.
    Image(u64, Option<String>),
    /// The answer is data.
    Out(Rows),
    /// A claim on a lease.
    Bind(Box<Claim>),
    /// The answer is the last one.
    Close,
}

/// Room for the answers of one call.
pub(crate) struct Output<'a> {
    pub(crate) room: &'a mut [u8],
    pub(crate) written: usize,
}

impl Output<'_> {
    #[inline]
    pub(crate) fn left(&mut self) -> &mut [u8] {
        &mut self.room[self.written..]
    }
}

/// Writes an answer's structure to where it is sent from.
#[inline]
pub(crate) fn put<T: IntoBytes + Immutable>(room: &mut [u8], answer: &T) -> Flow {
    let bytes = answer.as_bytes();
    room[..bytes.len()].copy_from_slice(bytes);
    Flow::Answer(bytes.len())
}

/// Success, and nothing else.
#[inline]
pub(crate) fn done(room: &mut [u8]) -> Flow {
    put(room, &Status::zeroed())
}

impl<D: Device> Session<D> {
    /// For a connection that has just been made.
    pub fn new(device: D, settings: Arc<Settings>, counters: Arc<Counters>, random: Random, now: Nanos) -> Self {
        Self {
            device,
            objects: Objects::new(settings.handles, random.clone()),
            settings,
            counters,
            tally: Tally::new(),
            leasing: None,
            random,
            current: 0,
            limits: crate::ops::LIMITS,
            peers: Vec::new(),
            deferred: None,
            behind: None,
            phase: Phase::Head,
            rest: 0,
            work: None,
            pending: Vec::new(),
            ended: None,
            recorded: (0, 0),
            sorted: Vec::new(),
            identified: false,
            blocked: false,
            stalled: false,
            waits_since: None,
            since: now,
            finished: None,
            last: now,
        }
    }

    /// Has it add its requests, errors, memory and lease to `activity`.
    #[must_use]
    pub fn watched_by(mut self, activity: Arc<Activity>) -> Self {
        self.tally.activity = Some(activity);
        self
    }

    /// Has it time its stages. The histograms belong to the core that serves it from now on.
    pub fn time(&mut self, latencies: Latencies) {
        self.tally.latencies = Some(latencies);
    }

    /// Whether a job is under way.
    fn is_busy(&self) -> bool {
        self.work.is_some() || matches!(self.phase, Phase::Job(..) | Phase::Bind(_))
    }

    /// Looks whether the job under way, of which there is one, has ended, and what follows from it.
    fn look(&mut self, out: &mut Output<'_>, now: Nanos) {
        if let Phase::Bind(header) = self.phase {
            return self.bound(&header, out, now);
        }
        let ended =
            self.ended.take().map_or_else(|| self.device.poll(&mut Context::from_waker(Waker::noop())), Poll::Ready);
        let Poll::Ready(ended) = ended else { return };
        if self.work.is_some() {
            if let Done::Finished(Err(code)) = ended {
                self.end_work(Err(code), now);
            } else {
                self.next_node();
                self.go_on(now);
            }
        } else if let Phase::Job(header, then) = std::mem::replace(&mut self.phase, Phase::Head) {
            self.tally.took(class_of(&header), Kind::DeviceNs, self.since, now);
            self.job_done(&header, then, ended, out, now);
        }
    }

    /// Ends a request: answers it, or keeps its error.
    pub(crate) fn finish(&mut self, header: &Header, result: Result<usize, Code>, out: &mut Output<'_>) {
        self.identified = true;
        let class = class_of(header);
        if header.has(flags::NO_REPLY) {
            match result {
                Ok(_) => self.tally.add(class, Kind::Done, 1),
                Err(code) => {
                    self.tally.add(class, Kind::Deferred, 1);
                    self.defer(code);
                }
            }
            return;
        }
        let room = out.left();
        let (len, flags) = match result {
            Ok(len) => {
                self.tally.add(class, Kind::Answered, 1);
                (len, 0)
            }
            Err(code) => {
                self.tally.add(class, Kind::Failed, 1);
                room[Header::LEN..][..Status::LEN].copy_from_slice(&code.0.to_le_bytes());
                (Status::LEN, flags::ERROR)
            }
        };
        room[..Header::LEN].copy_from_slice(header.response(len as u64, flags).as_bytes());
        self.tally.add(class, Kind::BytesOut, len as u64);
        out.written += Header::LEN + len;
    }

    /// Decides a request of which the prefix is there.
    fn decide(&mut self, header: Header, op: Option<Op>, payload: &[u8], out: &mut Output<'_>, now: Nanos) {
        if self.lacks_lease(op) {
            return self.finish(&header, Err(Code::NOT_INITIALIZED), out);
        }
        let Some(op) = op else {
            return self.finish(&header, Err(Code::NOT_SUPPORTED), out);
        };
        let least = match op.prefix() {
            Prefix::Struct(len) | Prefix::Rest(len, _) | Prefix::Named(len) => len,
            Prefix::Optional(_) => 0,
        };
        let is_lost = header.has(flags::NO_REPLY) && matches!(op.answer(), Answer::Value(_));
        let flow = if payload.len() < least || is_lost {
            Err(Code::INVALID_VALUE)
        } else {
            let room = &mut out.left()[Header::LEN..];
            self.execute(op, &header, payload, room, now)
        };
        // By far most are, and are not sought among the others.
        if let Ok(Flow::Answer(len)) = flow {
            return self.finish(&header, Ok(len), out);
        }
        match flow {
            Ok(Flow::Answer(len)) => self.finish(&header, Ok(len), out),
            Ok(Flow::Close) => {
                self.finish(&header, Ok(Status::LEN), out);
                self.phase = Phase::Closed;
            }
            Ok(Flow::Job(job, then)) => self.start(header, job, then, out, now),
            Ok(Flow::In(rows)) => self.take(header, rows, None, now),
            Ok(Flow::Image(left, function)) => {
                self.rest -= left;
                self.since = now;
                self.phase = Phase::Image { header, function, image: Vec::new(), left };
            }
            Ok(Flow::Bind(claim)) => self.bind(header, *claim),
            Ok(Flow::Out(rows)) => self.fetch(header, rows, out, now),
            Err(code) => self.finish(&header, Err(code), out),
        }
    }

    /// Serves as much as there is room, input and a device for. Returns the bytes taken, and what is missing.
    fn serve(&mut self, input: &[u8], out: &mut Output<'_>, now: Nanos) -> (usize, Next) {
        let mut taken = 0;
        self.stalled = false;
        if self.is_busy() && out.left().len() >= ANSWER_MAX {
            self.look(out, now);
        }
        loop {
            if out.left().len() < ANSWER_MAX {
                return (taken, Next::Output(ANSWER_MAX));
            }
            let input = &input[taken..];
            // Nearly always: it is not sought among the others.
            if matches!(self.phase, Phase::Head) && self.rest == 0 {
                match self.head(input, out, now) {
                    Ok(more) => taken += more,
                    Err(next) => return (taken, next),
                }
                continue;
            }
            taken += match &mut self.phase {
                Phase::Closed => return (taken, Next::Close),
                Phase::Job(..) | Phase::Bind(_) => return (taken, wait(input)),
                Phase::Fetch(header, rows) => {
                    let (header, rows) = (*header, *rows);
                    self.phase = Phase::Head;
                    self.fetch(header, rows, out, now);
                    if self.stalled {
                        return (taken, wait(input));
                    }
                    0
                }
                Phase::Out(_) => {
                    if !self.write_data(out, now) {
                        let wanted = Next::Output(out.room.len().max(ANSWER_MAX));
                        return (taken, if self.stalled { Next::Completion } else { wanted });
                    }
                    0
                }
                Phase::In(_, rows, _) if input.is_empty() && rows.at < rows.len => {
                    return (taken, Next::Input((rows.len - rows.at) as usize));
                }
                Phase::In(..) => {
                    let received = self.receive(input, out, now);
                    if self.stalled {
                        return (taken + received, Next::Completion);
                    }
                    received
                }
                Phase::Image { left, .. } if input.is_empty() && *left > 0 => {
                    return (taken, Next::Input(*left as usize));
                }
                Phase::Image { .. } => self.take_image(input, out, now),
                Phase::Head if input.is_empty() => return (taken, Next::Input(self.rest.min(1 << 30) as usize)),
                Phase::Head => {
                    let skipped = self.rest.min(input.len() as u64);
                    self.rest -= skipped;
                    skipped as usize
                }
            };
        }
    }

    /// Takes a header and the prefix of its payload, and decides the request.
    fn head(&mut self, input: &[u8], out: &mut Output<'_>, now: Nanos) -> Result<usize, Next> {
        let header = *Header::parse(input).ok_or(Next::Input(Header::LEN))?;
        if let Err(bad) = header.check(self.settings.max_payload) {
            match bad {
                BadHeader::Magic => &self.counters.events.bad_magic,
                BadHeader::Version => &self.counters.events.bad_version,
                BadHeader::Length => &self.counters.events.bad_length,
            }
            .add(1);
            return Err(Next::Close);
        }
        let (payload, there) = (header.payload_length.get(), &input[Header::LEN..]);
        let op = Op::of(header.op_code.get());
        let prefix = match op.map(Op::prefix) {
            Some(Prefix::Struct(len) | Prefix::Optional(len)) => len,
            None => 0,
            Some(Prefix::Rest(_, most)) => most,
            Some(Prefix::Named(len)) => match ModuleLoadAndGet::parse(there).filter(|_| payload >= len as u64) {
                Some(request) => len + (request.name_length.get() as usize).min(NAME_MAX),
                None => len,
            },
        };
        let prefix = payload.min(prefix as u64) as usize;
        if there.len() < prefix {
            return Err(Next::Input(Header::LEN + prefix));
        }
        self.blocked = self.work.is_some() && op.is_some_and(crate::ops::waits);
        if self.blocked {
            self.waits_since.get_or_insert(now);
            return Err(wait(input));
        }
        let class = class_of(&header);
        if let Some(since) = self.waits_since.take() {
            self.tally.took(class, Kind::WaitNs, since, now);
        }
        self.tally.add(class, Kind::BytesIn, payload);
        self.rest = payload - prefix as u64;
        self.decide(header, op, &there[..prefix], out, now);
        Ok(Header::LEN + prefix)
    }
}

#[inline]
pub(crate) fn class_of(header: &Header) -> Class {
    Class::of(header.op_code.get())
}

/// What a session asks for while its device is busy: more input, so that the end of the connection is seen, but not more
/// than is kept for it.
fn wait(input: &[u8]) -> Next {
    if input.len() < AHEAD_MAX { Next::Input(input.len() + 1) } else { Next::Completion }
}

impl<D: Device> PortSession for Session<D> {
    fn advance(&mut self, input: &[u8], output: &mut [u8], now: Nanos) -> Progress {
        if self.is_out(now) {
            self.phase = Phase::Closed;
            return Progress { consumed: 0, written: 0, next: Next::Close };
        }
        let mut out = Output { room: output, written: 0 };
        let (consumed, next) = self.serve(input, &mut out, now);
        if consumed > 0 || out.written > 0 {
            self.last = now;
        }
        self.tally.tell(&self.counters, self.device.used());
        Progress { consumed, written: out.written, next }
    }

    fn is_identified(&self) -> bool {
        self.identified
    }

    fn is_over(&mut self, now: Nanos) -> bool {
        let silent = now - self.last;
        let is_between = matches!(self.phase, Phase::Head) && self.rest == 0;
        let patience = if is_between { self.settings.idle } else { Some(PATIENCE) };
        patience.is_some_and(|patience| silent > patience) || self.is_out(now) || self.has_lost(now)
    }

    fn outstanding(&self) -> usize {
        usize::from((self.is_busy() || self.stalled) && !self.is_stopped())
    }

    fn ends_with_input(&mut self, now: Nanos) -> bool {
        let since = *self.finished.get_or_insert(now);
        let is_awaited = match &self.phase {
            Phase::Job(header, _) => !header.has(flags::NO_REPLY),
            Phase::Bind(_) | Phase::Fetch(..) => true,
            _ => self.blocked,
        };
        !is_awaited || now - since > LAST_ANSWER
    }

    fn poll_completion(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.ended.is_some() || self.is_stopped() {
            return Poll::Ready(());
        }
        if matches!(self.phase, Phase::Bind(_)) {
            return if self.is_decided(cx) { Poll::Ready(()) } else { Poll::Pending };
        }
        if self.stalled {
            return self.device.poll_data(cx);
        }
        if !self.is_busy() {
            return Poll::Pending;
        }
        self.device.poll(cx).map(|ended| self.ended = Some(ended))
    }
}
