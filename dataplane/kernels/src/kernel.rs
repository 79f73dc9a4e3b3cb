//! A kernel on one core: from a message to its answer.

use std::{
    mem,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
};

use berth_port::{Nanos, Peer, Recorder, ReplyTo, Sampler};

use crate::{
    Choice, Failed, Format, QueueSettings, Runs, Scalar, Schema,
    dedup::{Dedup, Key},
    program::Program,
    queue::{Full, Place, Queue},
};

/// Status of a message that was dropped: its time was up, or there was no room for it.
pub const DROPPED: i32 = 1;
/// Status of messages for a kernel that is not active.
pub const NOT_ACTIVE: i32 = 2;
/// Status of a message whose id another message of the same sender had.
pub const DUPLICATE: i32 = 3;

/// What becomes of messages, each of one: the names by which [`Kernel::counts`] are reported.
pub const OUTCOMES: [&str; 8] =
    ["answered", "repeated", "duplicate", "not_active", "malformed", "dropped", "rejected", "failed"];

#[derive(Debug, Clone, Copy)]
enum Outcome {
    Answered,
    Repeated,
    Duplicate,
    NotActive,
    Malformed,
    Dropped,
    Rejected,
    Failed,
}

/// Why a message was not answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// It has none of the formats that are taken.
    Malformed,
    /// A status of the kernel's own: [`DROPPED`], [`NOT_ACTIVE`] or [`DUPLICATE`].
    Status(i32),
    /// The queue has no room for it, or the kernel has no queue.
    Overloaded,
    /// The kernel's code failed. The message is not remembered.
    Failed,
}

/// What it takes to answer a message that waited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket {
    /// Where the answer goes.
    pub to: ReplyTo,
    /// The request's id, which the answer has.
    pub request_id: u32,
    /// The request's time stamp, which the answer has.
    pub ptp_timestamp: u64,
}

/// What is to be done next for messages that wait.
#[derive(Debug, PartialEq, Eq)]
pub enum Next<'a> {
    /// Answer one, with its bytes or a status; then [`Kernel::told`].
    Tell(Ticket, Result<&'a [u8], i32>),
    /// Have a worker [execute](Kernel::execute) one; then [`Kernel::sent`].
    Run(Ticket, &'a [u8]),
}

/// A message that a worker has; [`Kernel::answered`] takes it back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sent {
    queue: u32,
    place: Place,
}

/// What a kernel answers, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The messages that it takes.
    pub request: Arc<Schema>,
    /// Those that it answers with.
    pub response: Arc<Schema>,
    /// What runs: on workers alone where there is a queue.
    pub runs: Runs,
    /// The formats that it takes; it answers in the format of the request.
    pub format: Choice,
    /// Messages that it remembers for when they come again; 0 is none, the most is 1024.
    pub dedup: usize,
    /// Whether it runs; if not, messages are refused with [`NOT_ACTIVE`].
    pub active: bool,
    /// How messages wait for a worker; `None`: the core that receives them runs them at once.
    pub queue: Option<QueueSettings>,
}

/// Why a kernel cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KernelError {
    /// The kernel reads a member that the request has not.
    #[error("{0} has no member \"{1} f32\", which the kernel reads")]
    NoInput(String, &'static str),
    /// The kernel writes a member that the response has not.
    #[error("{0} has no member \"{1} f32\", which the kernel writes")]
    NoOutput(String, &'static str),
    /// Messages wait by a member that they have not.
    #[error("{0} has no member \"Priority u8\", by which messages wait with priority = true")]
    NoPriority(String),
    /// The length of a request does not tell which format its answer is to have.
    #[error(
        "the formats dotcompute and memorypack of {0} have one length, and those of {1} differ; choose one by format"
    )]
    Ambiguous(String, String),
    /// The code makes no instance: its name, and why.
    #[error("{0}: {1}")]
    NoInstance(String, String),
}

/// Offsets in the raw format of a message that [begins as ring kernel messages do](Schema::has_head).
const PRIORITY: usize = 16;
const FLAG: usize = 17;
const CORRELATION: usize = 18;
const HEAD: usize = 34;

/// A kernel with the messages it remembers. Owned by one core; never allocates once it was made.
#[derive(Debug)]
pub struct Kernel {
    settings: Settings,
    program: Program,
    /// Where the request has its `MessageId`.
    id: Option<usize>,
    /// Whether both messages have the head that is filled in for the kernel.
    has_heads: bool,
    dedup: Option<Dedup>,
    /// Where the request has its `Priority`.
    priority: Option<usize>,
    queue: Option<Queue<Ticket>>,
    /// Tells this queue from others, of this kernel or another one.
    number: u32,
    /// How the message ends whose sender is to be told; it waits at this place, if it was not dropped.
    telling: (Outcome, Option<Place>),
    request: Box<[u8]>,
    response: Box<[u8]>,
    answer: Box<[u8]>,
    counts: [u64; OUTCOMES.len()],
    /// `None` where messages are only executed.
    timer: Option<Timer>,
}

/// Measures a few messages.
#[derive(Debug, Default)]
struct Timer {
    sampler: Sampler,
    times: Recorder,
}

impl Settings {
    /// Checks that program, formats and priority suit the messages; makes no instance.
    pub fn check(&self) -> Result<(), KernelError> {
        let Self { request, response, runs, .. } = self;
        runs.check(request, response)?;
        let differ = |schema: &Schema| schema.len(Format::DotCompute) != schema.len(Format::MemoryPack);
        if self.format == Choice::Auto && !differ(request) && differ(response) {
            return Err(KernelError::Ambiguous(request.name().to_owned(), response.name().to_owned()));
        }
        if self.queue.is_some_and(|queue| queue.priority) && request.find("Priority", Scalar::U8).is_none() {
            return Err(KernelError::NoPriority(request.name().to_owned()));
        }
        Ok(())
    }

    /// Bytes of the longest request or response, of the formats that are taken.
    pub fn longest(&self) -> usize {
        self.request.longest(self.format).max(self.response.longest(self.format))
    }
}

impl Timer {
    /// Times a message that came at `since` and is answered at `now`, if it is a sample.
    #[inline]
    fn time(&mut self, since: Nanos, now: Nanos, end: impl FnOnce() -> Nanos) {
        let is_due = self.sampler.is_due(now);
        self.sampler.seen(is_due, now);
        if is_due {
            self.times.record((end() - since).as_nanos() as u64);
        }
    }
}

/// The number of the next queue.
static NUMBER: AtomicU32 = AtomicU32::new(0);

impl Kernel {
    /// Makes a kernel, or says why it does not suit its messages.
    pub fn new(settings: Settings) -> Result<Self, KernelError> {
        settings.check()?;
        let Settings { request, response, runs, format, dedup, queue, .. } = &settings;
        let zeros = |len: usize| vec![0; len].into_boxed_slice();
        let longest = request.longest(*format);
        Ok(Self {
            program: if queue.is_some() { Program::Elsewhere } else { Program::new(runs, request, response)? },
            id: request.find("MessageId", Scalar::Guid),
            has_heads: request.has_head() && response.has_head(),
            dedup: (*dedup > 0).then(|| Dedup::new(*dedup, longest, response.longest(*format))),
            priority: request.find("Priority", Scalar::U8),
            queue: queue.map(|queue| Queue::new(queue, longest)),
            number: NUMBER.fetch_add(1, Relaxed),
            telling: (Outcome::Dropped, None),
            request: zeros(request.len(Format::Raw)),
            response: zeros(response.len(Format::Raw)),
            answer: zeros(response.longest(*format)),
            counts: [0; OUTCOMES.len()],
            timer: Some(Timer::default()),
            settings,
        })
    }

    /// Makes a kernel that only [executes](Self::execute) what waited elsewhere.
    pub fn for_worker(settings: Settings) -> Result<Self, KernelError> {
        let kernel = Self::new(Settings { dedup: 0, queue: None, ..settings })?;
        Ok(Self { timer: None, ..kernel })
    }

    /// Whether it only executes what waited elsewhere.
    pub fn is_on_worker(&self) -> bool {
        self.timer.is_none()
    }

    /// What it was made with; of one for workers without `dedup` and `queue`.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Answers a message of `peer` at once; only for kernels without a queue. A repeated one gets its earlier answer.
    #[inline]
    pub fn run(&mut self, peer: Peer, message: &[u8]) -> Result<&[u8], Refusal> {
        let format = self.accept(message)?;
        let key = self.key(peer);
        if self.is_repeated(key.as_ref(), message)? {
            return self.kept(key.as_ref()).ok_or(Refusal::Malformed);
        }
        let len = self.compute(format).inspect_err(|_| self.count(Outcome::Failed))?;
        if let Some((dedup, key)) = self.dedup.as_mut().zip(key) {
            dedup.insert(key, message, &self.answer[..len]);
        }
        self.count(Outcome::Answered);
        Ok(&self.answer[..len])
    }

    /// Answers a message that waited, whose sender does not matter: nothing is remembered or counted.
    #[inline]
    pub fn execute(&mut self, message: &[u8]) -> Result<&[u8], Refusal> {
        let Self { settings, request, .. } = self;
        let format = settings.request.read(settings.format, message, request).ok_or(Refusal::Malformed)?;
        let len = self.compute(format)?;
        Ok(&self.answer[..len])
    }

    /// Takes a message of a queued kernel: its answer, where it was answered before; `None` where it waits.
    #[inline]
    pub fn arrive(&mut self, ticket: Ticket, message: &[u8], now: Nanos) -> Result<Option<&[u8]>, Refusal> {
        self.accept(message)?;
        let key = self.key(ticket.to.peer());
        if self.is_repeated(key.as_ref(), message)? {
            return self.kept(key.as_ref()).map(Some).ok_or(Refusal::Malformed);
        }
        let priority = self.priority.map_or(0, |at| self.request[at]);
        let Some(queue) = &mut self.queue else { return Err(Refusal::Overloaded) };
        match queue.push(ticket, key, priority, message, now) {
            Ok(()) => Ok(None),
            Err(Full::Dropped) => {
                self.count(Outcome::Dropped);
                Err(Refusal::Status(DROPPED))
            }
            Err(Full::Rejected) => {
                self.count(Outcome::Rejected);
                Err(Refusal::Overloaded)
            }
        }
    }

    /// What to do next for messages that wait: nothing, if they wait for others that a worker has.
    #[inline]
    pub fn next(&mut self, now: Nanos) -> Option<Next<'_>> {
        let Self { queue, dedup, telling, .. } = self;
        let queue = queue.as_mut()?;
        if let Some(ticket) = queue.dropped(now) {
            *telling = (Outcome::Dropped, None);
            return Some(Next::Tell(ticket, Err(DROPPED)));
        }
        let place = queue.next()?;
        let (Some(ticket), key, message) = queue.get(place) else { return None };
        // The message that came before this one with its id may have been answered since this one arrived.
        if let Some((known, answer)) = dedup.as_ref().zip(key).and_then(|(dedup, key)| dedup.find(key)) {
            let is_same = known == message;
            *telling = (if is_same { Outcome::Repeated } else { Outcome::Duplicate }, Some(place));
            return Some(Next::Tell(ticket, if is_same { Ok(answer) } else { Err(DUPLICATE) }));
        }
        queue.may_start(place).then_some(Next::Run(ticket, message))
    }

    /// The sender of [`Next::Tell`] was told: counts the message and frees its place.
    pub fn told(&mut self) {
        let (outcome, place) = self.telling;
        if let Some(queue) = &mut self.queue {
            match place {
                Some(place) => queue.end(place),
                None => queue.told(),
            }
            self.count(outcome);
        }
    }

    /// The message of [`Next::Run`] went to a worker. `None` where none waits.
    pub fn sent(&mut self) -> Option<Sent> {
        let queue = self.queue.as_mut()?;
        let place = queue.next()?;
        queue.start(place);
        Some(Sent { queue: self.number, place })
    }

    /// A worker has answered a message, or its time is up.
    #[inline]
    pub fn answered(&mut self, Sent { queue: number, place }: Sent, answer: Option<&[u8]>, now: Nanos) {
        self.count(if answer.is_some() { Outcome::Answered } else { Outcome::Failed });
        let Self { queue, dedup, timer, .. } = self;
        // After a reload it may be another queue than the message waited in.
        let Some(queue) = queue.as_mut().filter(|queue| number == self.number && queue.is_under_way(place)) else {
            return;
        };
        if let (Some(dedup), Some(answer), (_, Some(key), message)) = (dedup, answer, queue.get(place)) {
            dedup.insert(*key, message, answer);
        }
        if let (Some(timer), Some(_)) = (timer, answer) {
            timer.time(queue.arrival(place), now, || now);
        }
        queue.end(place);
    }

    /// A message that came at `now` was answered [at once](Self::run); `end` reads the clock, if it is a sample.
    #[inline]
    pub fn ran(&mut self, now: Nanos, end: impl FnOnce() -> Nanos) {
        if let Some(timer) = &mut self.timer {
            timer.time(now, now, end);
        }
    }

    /// From the poll that received a message until its answer was ready, in nanoseconds; of one message in
    /// [`SAMPLE_EVERY`](berth_port::SAMPLE_EVERY). `None` where messages are only executed.
    pub fn times(&self) -> Option<&Recorder> {
        self.timer.as_ref().map(|timer| &timer.times)
    }

    /// Messages that wait, or whose senders are to be told that they were dropped.
    pub fn waiting(&self) -> usize {
        self.queue.as_ref().map_or(0, Queue::len)
    }

    /// Takes over what another kernel of the same message counted and timed; the state of its code, if both run the same on the same messages;
    /// and what it remembers and what waits, if both answer alike.
    /// Messages that wait in `old` after this are dropped, and are counted here.
    pub fn adopt(&mut self, old: &mut Self) {
        self.counts = old.counts;
        if let (Some(new), Some(old)) = (&mut self.timer, &mut old.timer) {
            mem::swap(new, old);
        }
        let messages = |settings: &Settings| (settings.request.clone(), settings.response.clone());
        let alike = self.settings.runs == old.settings.runs && messages(&self.settings) == messages(&old.settings);
        if let (true, Program::Code(new), Program::Code(state)) = (alike, &mut self.program, &mut old.program) {
            mem::swap(new, state);
        }
        if (Settings { active: self.settings.active, ..old.settings.clone() }) == self.settings {
            mem::swap(&mut self.dedup, &mut old.dedup);
            mem::swap(&mut self.queue, &mut old.queue);
            mem::swap(&mut self.number, &mut old.number);
        } else {
            self.counts[Outcome::Dropped as usize] += old.waiting() as u64;
        }
    }

    /// Reads a message into `request`.
    #[inline]
    fn accept(&mut self, message: &[u8]) -> Result<Format, Refusal> {
        let Self { settings, request, .. } = self;
        let Some(format) = settings.request.read(settings.format, message, request) else {
            self.count(Outcome::Malformed);
            return Err(Refusal::Malformed);
        };
        if !settings.active {
            self.count(Outcome::NotActive);
            return Err(Refusal::Status(NOT_ACTIVE));
        }
        Ok(format)
    }

    /// What the message in `request` is remembered by, if it is.
    #[inline]
    fn key(&self, peer: Peer) -> Option<Key> {
        let id = self.id.map_or([0; 16], |at| part(&self.request, at));
        (self.dedup.is_some() && id != [0; 16]).then_some((peer, id))
    }

    /// Whether the same message was answered before.
    #[inline]
    fn is_repeated(&mut self, key: Option<&Key>, message: &[u8]) -> Result<bool, Refusal> {
        let Some((known, _)) = self.dedup.as_ref().zip(key).and_then(|(dedup, key)| dedup.find(key)) else {
            return Ok(false);
        };
        if known != message {
            self.count(Outcome::Duplicate);
            return Err(Refusal::Status(DUPLICATE));
        }
        self.count(Outcome::Repeated);
        Ok(true)
    }

    /// The answer that is remembered.
    fn kept(&self, key: Option<&Key>) -> Option<&[u8]> {
        Some(self.dedup.as_ref()?.find(key?)?.1)
    }

    /// Runs on what is in `request`; returns the length of what is then in `answer`.
    #[inline]
    fn compute(&mut self, format: Format) -> Result<usize, Refusal> {
        let Self { settings, request, response, answer, .. } = self;
        response.fill(0);
        self.program.run(request, response).map_err(|Failed| Refusal::Failed)?;
        if self.has_heads {
            fill_head(request, response);
        }
        // `answer` is as long as the longest format that is taken.
        Ok(settings.response.write(format, response, answer).unwrap_or(0))
    }

    #[inline]
    fn count(&mut self, outcome: Outcome) {
        self.counts[outcome as usize] += 1;
    }

    /// How many messages ended as each of [`OUTCOMES`].
    pub fn counts(&self) -> &[u64; OUTCOMES.len()] {
        &self.counts
    }
}

/// Copies `MessageId` and `Priority`; `CorrelationId` is the request's, unless that is absent or zero: then it is the
/// `MessageId`, unless that is zero.
#[inline]
fn fill_head(request: &[u8], response: &mut [u8]) {
    let (id, correlation): ([u8; 16], [u8; 16]) = (part(request, 0), part(request, CORRELATION));
    response[..FLAG].copy_from_slice(&request[..=PRIORITY]);
    // An absent one is zeros in the raw format.
    let correlation = if correlation == [0; 16] { id } else { correlation };
    response[FLAG] = (correlation != [0; 16]).into();
    response[CORRELATION..HEAD].copy_from_slice(&correlation);
}

#[inline]
pub(crate) fn part<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut part = [0; N];
    part.copy_from_slice(&bytes[at..at + N]);
    part
}
