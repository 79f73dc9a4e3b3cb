//! Protocols of one datagram each way: what two-sided messages, FBMU and FBBU have in common.

use std::ops::Range;

use berth_lease::{Entry, Op, Refusal};
use berth_memory::Part;
use berth_port::Nanos;

use crate::{AccessRequest, BlockIo, Failure, Gate, Served, counts::Event};

/// How a protocol reads a request and writes its answer, each in one datagram.
pub trait Protocol {
    /// The fields of a request that its answer repeats.
    type Echo: Copy + Send + 'static;

    /// Bytes of an answer before a read's data.
    const HEAD: usize;

    /// Reads a request. `whole`: all that was sent has arrived. `room`: the longest answer in bytes.
    fn parse(message: &[u8], whole: bool, room: usize) -> Request<Self::Echo>;

    /// Whether the protocol has an answer for this failure; without one the client times out.
    fn answers(failure: Failure) -> bool;

    /// Completes the answer to an access in `buf`, where a read's data begins at [`Protocol::HEAD`], and returns its
    /// length.
    fn finish(echo: &Self::Echo, data: Result<usize, Failure>, buf: &mut [u8]) -> usize;

    /// Writes the answer to a greeting or a ping into `buf` and returns its length.
    fn greet(echo: &Self::Echo, lease: Option<Result<Entry, Refusal>>, buf: &mut [u8]) -> usize;
}

/// What a datagram asks for.
#[derive(Debug, Clone)]
pub enum Request<E> {
    /// An access; the data of a write lies in `data` of the message, that of a read shall be put there.
    Access {
        /// The access, to be checked by a [`Gate`].
        ask: AccessRequest,
        /// Where the data is; empty unless the request is well formed.
        data: Range<usize>,
        /// What the answer repeats of the request.
        echo: E,
    },
    /// HELLO: asks for the lease's limits.
    Greeting(AccessRequest, E),
    /// PING: answered without a look at any lease.
    Ping(E),
    /// Nothing that could be answered; it is counted and dropped.
    Malformed,
}

/// How a datagram is answered.
#[derive(Debug)]
pub enum Answer<E> {
    /// The answer, of this length, has replaced it.
    Now(usize),
    /// It will be answered when blocks have been read or written.
    Later(Later<E>),
    /// It gets no answer: it is malformed, or the protocol has none for its failure.
    Never,
}

/// An access that goes to blocks: [`Later::start`] it, then [`Later::finish`] it.
#[derive(Debug, Clone)]
pub struct Later<E> {
    pub(crate) ask: AccessRequest,
    pub(crate) data: Range<usize>,
    pub(crate) echo: E,
}

/// Answers the datagram in the first `len` bytes of `buf`, in place.
#[inline]
pub fn answer<P: Protocol>(gate: &mut Gate, buf: &mut [u8], len: usize, whole: bool, now: Nanos) -> Answer<P::Echo> {
    gate.counts.add(Event::Received);
    match P::parse(&buf[..len], whole, buf.len()) {
        Request::Access { ask, data, echo } => {
            let served = match ask.access.op {
                Op::Read => gate.read(&ask, &mut buf[data.clone()], now),
                Op::Write => gate.write(&ask, &buf[data.clone()], now),
            };
            let outcome = match served {
                Ok(Served::Done) => Ok(()),
                Ok(Served::Blocks) => return Answer::Later(Later { ask, data, echo }),
                Err(refusal) => Err(refusal.into()),
            };
            finish::<P>(gate, &ask, &echo, outcome, buf).map_or(Answer::Never, Answer::Now)
        }
        Request::Greeting(ask, echo) => {
            let lease = gate.look(&ask, now);
            gate.counts.add(lease.as_ref().map_or_else(|refusal| Failure::from(*refusal).into(), |_| Event::Greeted));
            Answer::Now(P::greet(&echo, Some(lease), buf))
        }
        Request::Ping(echo) => {
            gate.counts.add(Event::Pinged);
            Answer::Now(P::greet(&echo, None, buf))
        }
        Request::Malformed => {
            gate.counts.add(Event::Malformed);
            Answer::Never
        }
    }
}

/// Counts how an access ended, and completes its answer.
#[inline]
pub(crate) fn finish<P: Protocol>(
    gate: &mut Gate,
    ask: &AccessRequest,
    echo: &P::Echo,
    outcome: Result<(), Failure>,
    buf: &mut [u8],
) -> Option<usize> {
    let (op, len) = (ask.access.op, ask.access.len);
    gate.counts.outcome(op, len, outcome);
    let data = if op == Op::Read { len as usize } else { 0 };
    is_answered::<P>(outcome).then(|| P::finish(echo, outcome.map(|()| data), buf))
}

pub(crate) fn is_answered<P: Protocol>(outcome: Result<(), Failure>) -> bool {
    outcome.err().is_none_or(P::answers)
}

impl<E: Copy> Later<E> {
    /// Starts the access; `buf` is the one that [`answer`] left it in.
    pub fn start(&self, gate: &Gate, buf: &[u8], now: Nanos) -> Result<BlockIo, Failure> {
        Ok(gate.start(&self.ask, &buf[self.data.clone()], now)?)
    }

    /// Completes the answer in `buf` when the access has ended: its length, or `None` where it gets no answer.
    pub fn finish<P: Protocol<Echo = E>>(
        &self,
        gate: &mut Gate,
        ended: Result<Part, Failure>,
        buf: &mut [u8],
    ) -> Option<usize> {
        if let (Ok(data), Op::Read) = (&ended, self.ask.access.op) {
            data.read_at(0, &mut buf[P::HEAD..][..data.size()]);
        }
        finish::<P>(gate, &self.ask, &self.echo, ended.map(|_| ()), buf)
    }
}
