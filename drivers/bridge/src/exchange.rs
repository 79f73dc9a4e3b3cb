//! Requests from frames to slots, and answers back: what both shapes do.

use std::{collections::VecDeque, fmt};

use berth_port::{BURST, Frame, Port, PostError, ReplyTo, Verdict};
use berth_wire::rpc::{HeaderForm, RequestHeader, ResponseHeader, status};

/// How messages look on the wire and in slots.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules {
    pub(crate) form: HeaderForm,
    pub(crate) slot_size: usize,
    /// Whether answers are as long as a slot, as upstream's datagrams are, whatever their results.
    pub(crate) pads: bool,
}

/// Who asked, and what its answer repeats.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Caller {
    to: ReplyTo,
    request_id: u32,
    ptp_timestamp: u64,
}

/// What a frame is.
pub(crate) enum Taken {
    /// A request of so many bytes, with its header.
    Request(Caller, usize),
    /// Done with: it is no request, or was answered.
    Done(Verdict),
}

/// What happened to requests.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counts {
    /// Taken in.
    pub(crate) requests: u64,
    /// Answered by the dispatcher.
    pub(crate) answers: u64,
    /// Frames that are no requests, and were dropped.
    pub(crate) strangers: u64,
    /// Requests whose arguments are not all there, or that are longer than a slot: answered so.
    pub(crate) refused: u64,
    /// Requests whose slot came back without a proper answer: answered so.
    pub(crate) failed: u64,
    /// Answers to peers that cannot be reached any more.
    pub(crate) unroutable: u64,
}

impl Counts {
    /// Whether something is to be told.
    pub(crate) fn are_odd(&self) -> bool {
        self.strangers + self.refused + self.failed + self.unroutable > 0 || self.requests > self.answers
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { requests, answers, strangers, refused, failed, unroutable } = self;
        write!(f, "{requests} requests, {answers} answered by the dispatcher, {failed} without a proper answer, ")?;
        write!(
            f,
            "{refused} refused for their length, {strangers} frames that are no requests, {unroutable} unroutable"
        )
    }
}

impl Rules {
    /// Looks at a frame. What is no request never takes a slot.
    #[inline]
    pub(crate) fn take(&self, frame: &mut Frame<'_>, counts: &mut Counts) -> Taken {
        let Ok(header) = RequestHeader::parse(self.form, frame.data()) else {
            counts.strangers += 1;
            return Taken::Done(Verdict::Drop);
        };
        let RequestHeader { arg_len, request_id, ptp_timestamp, .. } = header;
        let caller = Caller { to: frame.reply_to(), request_id, ptp_timestamp };
        let len = self.form.len() + arg_len as usize;
        if len > frame.len() || frame.wire_len() > self.slot_size {
            counts.refused += 1;
            let written = self.write(frame.buf_mut(), &caller, status::BAD_LENGTH, &[]);
            frame.set_len(written);
            return Taken::Done(Verdict::Reply);
        }
        counts.requests += 1;
        Taken::Request(caller, len)
    }

    /// Sends what is in a caller's slot, or that there is no answer. False if the port has no room now.
    #[inline]
    pub(crate) fn answer<P: Port>(
        &self,
        port: &mut P,
        caller: &Caller,
        slot: Option<&[u8]>,
        counts: &mut Counts,
    ) -> bool {
        let found = slot.and_then(|slot| {
            let header = ResponseHeader::parse(self.form, slot).ok()?;
            let results = slot[self.form.len()..].get(..header.result_len as usize)?;
            Some((header.status, results))
        });
        let (status, results) = found.unwrap_or((status::HANDLER_FAILED, &[]));
        match port.reply(caller.to, |buf| self.write(buf, caller, status, results)) {
            Ok(()) => {}
            Err(PostError::Full) => return false,
            Err(PostError::Unreachable) => counts.unroutable += 1,
        }
        if found.is_some() {
            counts.answers += 1;
        } else {
            counts.failed += 1;
        }
        true
    }

    /// Writes an answer. Id and time are the request's, whatever the slot has: older dispatchers write neither. Behind
    /// the results are zeros, not what an earlier answer left.
    #[inline]
    fn write(&self, buf: &mut [u8], caller: &Caller, status: i32, results: &[u8]) -> usize {
        let &Caller { request_id, ptp_timestamp, .. } = caller;
        let header = ResponseHeader { status, result_len: results.len() as u32, request_id, ptp_timestamp };
        // A frame has room for a slot, which has room for a header.
        let start = header.write(self.form, buf).unwrap_or(0);
        let end = start + results.len();
        buf[start..end].copy_from_slice(results);
        if !self.pads {
            return end;
        }
        let whole = self.slot_size.min(buf.len());
        buf[end..whole].fill(0);
        whole
    }
}

/// Requests of a burst for which no slot was free.
pub(crate) struct Stash {
    bytes: Box<[u8]>,
    slot_size: usize,
    held: VecDeque<(Caller, usize)>,
    /// Place of the first one that is held.
    first: usize,
}

impl Stash {
    pub(crate) fn new(slot_size: usize) -> Self {
        Self { bytes: vec![0; BURST * slot_size].into(), slot_size, held: VecDeque::with_capacity(BURST), first: 0 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Keeps a request of the burst; it was empty before the burst.
    pub(crate) fn keep(&mut self, caller: Caller, message: &[u8]) {
        let at = (self.first + self.held.len()) * self.slot_size;
        self.bytes[at..][..message.len()].copy_from_slice(message);
        self.held.push_back((caller, message.len()));
    }

    /// The oldest request; [`Stash::pop`] lets it go.
    pub(crate) fn front(&self) -> Option<(Caller, &[u8])> {
        let (caller, len) = *self.held.front()?;
        Some((caller, &self.bytes[self.first * self.slot_size..][..len]))
    }

    pub(crate) fn pop(&mut self) {
        self.held.pop_front();
        self.first = if self.held.is_empty() { 0 } else { self.first + 1 };
    }
}
