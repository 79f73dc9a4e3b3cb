//! A kernel on one core: from a message to its answer.

use std::{mem, sync::Arc};

use berth_port::Peer;

use crate::{Choice, Format, Scalar, Schema, dedup::Dedup};

/// Status of messages for a kernel that is not active.
pub const NOT_ACTIVE: i32 = 2;
/// Status of a message whose id another message of the same sender had.
pub const DUPLICATE: i32 = 3;

/// What becomes of messages, each of one: the names by which [`Kernel::counts`] are reported.
pub const OUTCOMES: [&str; 5] = ["answered", "repeated", "duplicate", "not_active", "malformed"];

#[derive(Debug, Clone, Copy)]
enum Outcome {
    Answered,
    Repeated,
    Duplicate,
    NotActive,
    Malformed,
}

/// Why a message was not answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// It has none of the formats that are taken.
    Malformed,
    /// A status of the kernel's own: [`NOT_ACTIVE`] or [`DUPLICATE`].
    Status(i32),
}

/// The kernels that are built in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Builtin {
    /// `Result` = `A` + `B` in IEEE single precision, subnormal numbers kept; NaN is 0x7FC00000.
    VectorAdd,
}

impl Builtin {
    /// Every built-in kernel and its word.
    pub const WORDS: [(&str, Self); 1] = [("vector_add", Self::VectorAdd)];

    /// The word that stands for it.
    pub fn word(self) -> &'static str {
        Self::WORDS.iter().find(|(_, builtin)| *builtin == self).map_or("", |(word, _)| word)
    }
}

/// What a kernel answers, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The messages that it takes.
    pub request: Arc<Schema>,
    /// Those that it answers with.
    pub response: Arc<Schema>,
    /// What runs.
    pub builtin: Builtin,
    /// The formats that it takes; it answers in the format of the request.
    pub format: Choice,
    /// Messages that it remembers for when they come again; 0 is none, the most is 1024.
    pub dedup: usize,
    /// Whether it runs; if not, messages are refused with [`NOT_ACTIVE`].
    pub active: bool,
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
    /// The length of a request does not tell which format its answer is to have.
    #[error(
        "the formats dotcompute and memorypack of {0} have one length, and those of {1} differ; choose one by format"
    )]
    Ambiguous(String, String),
}

/// Where a built-in kernel finds its members, by offset in the raw format.
#[derive(Debug, Clone, Copy)]
enum Program {
    VectorAdd { a: usize, b: usize, result: usize },
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
    request: Box<[u8]>,
    response: Box<[u8]>,
    answer: Box<[u8]>,
    counts: [u64; OUTCOMES.len()],
}

impl Settings {
    /// Checks that the kernel suits its messages.
    pub fn check(&self) -> Result<(), KernelError> {
        self.program()?;
        let Self { request, response, .. } = self;
        let differ = |schema: &Schema| schema.len(Format::DotCompute) != schema.len(Format::MemoryPack);
        if self.format == Choice::Auto && !differ(request) && differ(response) {
            return Err(KernelError::Ambiguous(request.name().to_owned(), response.name().to_owned()));
        }
        Ok(())
    }

    /// Bytes of the longest message either way.
    pub fn longest(&self) -> usize {
        self.request.longest(self.format).max(self.response.longest(self.format))
    }

    fn program(&self) -> Result<Program, KernelError> {
        let Self { request, response, builtin: Builtin::VectorAdd, .. } = self;
        let input =
            |name| request.find(name, Scalar::F32).ok_or_else(|| KernelError::NoInput(request.name().to_owned(), name));
        let output = |name| {
            response.find(name, Scalar::F32).ok_or_else(|| KernelError::NoOutput(response.name().to_owned(), name))
        };
        Ok(Program::VectorAdd { a: input("A")?, b: input("B")?, result: output("Result")? })
    }
}

impl Kernel {
    /// Makes a kernel, or says why it does not suit its messages.
    pub fn new(settings: Settings) -> Result<Self, KernelError> {
        settings.check()?;
        let Settings { request, response, format, dedup, .. } = &settings;
        let zeros = |len: usize| vec![0; len].into_boxed_slice();
        Ok(Self {
            program: settings.program()?,
            id: request.find("MessageId", Scalar::Guid),
            has_heads: request.has_head() && response.has_head(),
            dedup: (*dedup > 0).then(|| Dedup::new(*dedup, request.longest(*format), response.longest(*format))),
            request: zeros(request.len(Format::Raw)),
            response: zeros(response.len(Format::Raw)),
            answer: zeros(response.longest(*format)),
            counts: [0; OUTCOMES.len()],
            settings,
        })
    }

    /// What it answers, and how.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Answers a message of `peer`.
    #[inline]
    pub fn run(&mut self, peer: Peer, message: &[u8]) -> Result<&[u8], Refusal> {
        let Self { settings, request, response, answer, dedup, counts, .. } = self;
        let mut count = |outcome: Outcome| counts[outcome as usize] += 1;
        let Some(format) = settings.request.read(settings.format, message, request) else {
            count(Outcome::Malformed);
            return Err(Refusal::Malformed);
        };
        if !settings.active {
            count(Outcome::NotActive);
            return Err(Refusal::Status(NOT_ACTIVE));
        }
        let id = self.id.map_or([0; 16], |at| part(request, at));
        let mut dedup = dedup.as_mut().filter(|_| id != [0; 16]);
        // Looked up twice where it is found: to return from inside the first would hold on to it.
        if let Some((known, _)) = dedup.as_ref().and_then(|dedup| dedup.find(&(peer, id))) {
            if known != message {
                count(Outcome::Duplicate);
                return Err(Refusal::Status(DUPLICATE));
            }
            count(Outcome::Repeated);
            let kept = self.dedup.as_ref().and_then(|dedup| dedup.find(&(peer, id)));
            return kept.map(|(_, answer)| answer).ok_or(Refusal::Malformed);
        }
        response.fill(0);
        self.program.run(request, response);
        if self.has_heads {
            fill_head(request, response);
        }
        // `answer` is as long as the longest format that is taken.
        let len = settings.response.write(format, response, answer).unwrap_or(0);
        let answer = &answer[..len];
        if let Some(dedup) = &mut dedup {
            dedup.insert((peer, id), message, answer);
        }
        count(Outcome::Answered);
        Ok(answer)
    }

    /// Takes over what another kernel of the same message counted; and what it remembers, if both answer alike.
    pub fn adopt(&mut self, old: &mut Self) {
        self.counts = old.counts;
        if (Settings { active: self.settings.active, ..old.settings.clone() }) == self.settings {
            mem::swap(&mut self.dedup, &mut old.dedup);
        }
    }

    /// How many messages ended as each of [`OUTCOMES`].
    pub fn counts(&self) -> &[u64; OUTCOMES.len()] {
        &self.counts
    }
}

impl Program {
    /// Runs on a raw request; the response is all zeros.
    #[inline]
    fn run(self, request: &[u8], response: &mut [u8]) {
        let Self::VectorAdd { a, b, result } = self;
        let sum = f32::from_le_bytes(part(request, a)) + f32::from_le_bytes(part(request, b));
        let sum = if sum.is_nan() { 0x7FC0_0000 } else { sum.to_bits() };
        response[result..][..4].copy_from_slice(&sum.to_le_bytes());
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
fn part<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    std::array::from_fn(|i| bytes[at + i])
}
