//! The poll core's end of a ring to a worker.

use std::time::Duration;

use berth_kernels::{Sent, Ticket};
use berth_port::{BURST, Frame, Nanos, Peer, Port, PostError, ReplyTo, Sampler, Verdict};
use berth_ring::{Overrun, Producer, ProducerStats, SlotIndex, TxError};
use berth_wire::rpc::{HeaderForm, RequestHeader, ResponseHeader, status};

use crate::{
    Handlers, Program, RingIndex, Stage,
    counts::{Counts, Event},
    gate::Request,
    order::{Pending, Place, Turns},
    service::write_answer,
};

/// Time limit of a worker for a function without a budget. After that the service answers in its place.
pub const RING_BUDGET: Duration = Duration::from_secs(1);

/// Requests on their way to a worker and back.
///
/// Slots are answered in the order of the requests. A request whose time is up is answered here with
/// [`status::HANDLER_FAILED`]; its slot stays taken until the worker publishes it after all, and that answer is
/// discarded. If the transmit queue is full, an answer stays in its slot. If an answer is early, because other answers
/// of its client come from elsewhere, it leaves the slot and waits in [`Turns`].
pub(crate) struct Forward {
    ring: Producer,
    index: RingIndex,
    /// Number of its first slot, counted over all rings.
    first: usize,
    form: HeaderForm,
    /// The requester of each slot's request.
    callers: Vec<Caller>,
    /// Slot of the oldest request that has no answer yet.
    oldest: usize,
    /// Number of slots before the oldest whose requests were answered here because their time was up.
    given_up: usize,
    /// Latest time at which the worker can have turned to the oldest request.
    turn: Nanos,
    sampler: Sampler,
}

#[derive(Debug, Clone, Copy)]
struct Caller {
    to: ReplyTo,
    request_id: u32,
    ptp_timestamp: u64,
    budget: Duration,
    pushed: Nanos,
    /// Its entry in [`Turns`], if its client has to get answers in order.
    pending: Option<Pending>,
    /// The number under which the port keeps the frame that it lies in, if it was not copied.
    kept: Option<u32>,
    /// The kernel's function and the message, if it waited in a queue.
    queued: Option<(u32, Sent)>,
}

impl Caller {
    /// Gives the port the frame in which the request lay, if it kept one.
    #[inline]
    fn give_back<P: Port>(&self, port: &mut P) {
        if let Some(number) = self.kept {
            port.release(number);
        }
    }
}

impl Forward {
    /// `first` is the number of the ring's first slot, counted over all rings.
    pub(crate) fn new(ring: Producer, index: RingIndex, first: usize, form: HeaderForm) -> Self {
        let to = Peer::Connection { number: 0, host: None }.into();
        let nobody = Caller {
            to,
            request_id: 0,
            ptp_timestamp: 0,
            budget: RING_BUDGET,
            pushed: Nanos(0),
            pending: None,
            kept: None,
            queued: None,
        };
        Self {
            index,
            first,
            form,
            callers: vec![nobody; ring.slots() as usize],
            oldest: 0,
            given_up: 0,
            turn: Nanos(0),
            sampler: Sampler::default(),
            ring,
        }
    }

    /// Whether a request of which bytes are missing can be told from a whole one.
    pub(crate) fn takes_cut(&self) -> bool {
        self.ring.is_trusted()
    }

    /// Puts a request into the next slot: where it lies, if the worker reads there, which the verdict says, or a copy. `place` is
    /// its client's, unless all clients are idle.
    #[inline]
    pub(crate) fn push(
        &mut self,
        frame: &Frame<'_>,
        request: &Request,
        budget: Option<Duration>,
        now: Nanos,
        (turns, place): (Option<&mut Turns>, Option<Place>),
    ) -> Result<Verdict, Overrun> {
        let (form, is_cut) = (self.form, request.is_cut() && !self.ring.is_internal());
        let lies = frame.place().filter(|_| !is_cut);
        let lies = lies.and_then(|lies| Some((lies.number, self.ring.address(lies.at)?)));
        let slot = if let Some((_, address)) = lies {
            self.announce(now, |ring| ring.push_at(address))?
        } else {
            let message = &frame.data()[..form.len() + request.arg_len];
            self.fill(now, |slot| {
                slot[..message.len()].copy_from_slice(message);
                if is_cut {
                    // Whatever its length, the slot has more of an earlier request.
                    let _ = RequestHeader { arg_len: u32::MAX, ..request.header }.write(form, slot);
                }
                message.len()
            })?
        };
        let peer = frame.peer();
        let pending = turns.map(|turns| {
            let place = place.unwrap_or_else(|| turns.place(peer));
            turns.push(peer, place, self.index, self.first + slot)
        });
        self.callers[slot] = Caller {
            to: frame.reply_to(),
            request_id: request.header.request_id,
            ptp_timestamp: request.header.ptp_timestamp,
            budget: budget.unwrap_or(RING_BUDGET),
            pushed: now,
            pending,
            kept: lies.map(|(number, _)| number),
            queued: None,
        };
        Ok(if lies.is_some() { Verdict::Keep } else { Verdict::Drop })
    }

    /// Writes a message that waited in a queue into the next slot, as a request of function `id`; returns the slot.
    pub(crate) fn push_message(
        &mut self,
        id: u32,
        ticket: Ticket,
        message: &[u8],
        budget: Option<Duration>,
        now: Nanos,
    ) -> Result<usize, Overrun> {
        let Ticket { to, request_id, ptp_timestamp } = ticket;
        let header = RequestHeader { function_id: id, arg_len: message.len() as u32, request_id, ptp_timestamp };
        let form = self.form;
        let slot = self.fill(now, |slot| {
            // Slots hold the messages of every function.
            let len = header.write(form, slot).unwrap_or(0);
            slot[len..][..message.len()].copy_from_slice(message);
            len + message.len()
        })?;
        let budget = budget.unwrap_or(RING_BUDGET);
        let (pushed, pending, kept, queued) = (now, None, None, None);
        self.callers[slot] = Caller { to, request_id, ptp_timestamp, budget, pushed, pending, kept, queued };
        Ok(slot)
    }

    /// The message in `slot` is this one of a queue.
    pub(crate) fn wait_for(&mut self, slot: usize, id: u32, sent: Option<Sent>) {
        self.callers[slot].queued = sent.map(|sent| (id, sent));
    }

    /// Fills the next slot.
    #[inline]
    fn fill(&mut self, now: Nanos, fill: impl FnOnce(&mut [u8]) -> usize) -> Result<usize, Overrun> {
        self.announce(now, |ring| ring.push(fill))
    }

    /// Gives the ring the next request.
    #[inline]
    fn announce(
        &mut self,
        now: Nanos,
        push: impl FnOnce(&mut Producer) -> Result<SlotIndex, Overrun>,
    ) -> Result<usize, Overrun> {
        let is_first = self.ring.outstanding() as usize == self.given_up;
        let slot = push(&mut self.ring)?;
        if is_first {
            self.turn = self.turn.max(now);
        }
        Ok(slot.0 as usize)
    }

    /// Posts the answers that are ready, and answers in place of a late worker. Returns the number of answers sent.
    pub(crate) fn poll<P: Port, H: Handlers>(
        &mut self,
        port: &mut P,
        now: Nanos,
        (turns, program): (&mut Option<Turns>, &mut Program<H>),
        counts: &mut Counts,
        record: &mut impl FnMut(Stage, u64),
    ) -> usize {
        self.ring.tell_time(now);
        let mut out = Out { port, form: self.form, turns: turns.as_mut(), program, counts, now, posted: 0 };
        let mut taken = 0;
        while taken < BURST
            && (out.post_due() || self.post_next(&mut out, now, record) || self.post_overdue(&mut out, now))
        {
            taken += 1;
        }
        out.posted
    }

    /// Posts the next answer of the ring from its slot. Answers to requests given up before it are discarded.
    #[inline]
    fn post_next<P: Port, H: Handlers>(
        &mut self,
        out: &mut Out<'_, P, H>,
        now: Nanos,
        record: &mut impl FnMut(Stage, u64),
    ) -> bool {
        while self.given_up > 0 {
            let (callers, port) = (&self.callers, &mut *out.port);
            if !self.ring.collect_if(|slot, _| {
                callers[slot.0 as usize].give_back(port);
                true
            }) {
                return false;
            }
            self.given_up -= 1;
            out.counts.add(Event::LateAnswers);
            if self.given_up == 0 {
                self.turn = now;
            }
        }
        if out.is_blocked() {
            return false;
        }
        let Self { ring, form, callers, oldest, .. } = self;
        let (caller, is_trusted) = (callers[*oldest], ring.is_trusted());
        let taken = ring.collect_if(|_, answer| {
            let outcome = read_answer(*form, answer, caller.request_id, is_trusted);
            let taken = out.answer(&caller, outcome.unwrap_or(Err(status::HANDLER_FAILED)));
            if taken && outcome.is_none() {
                out.counts.add(Event::BadResult);
            }
            if taken {
                caller.give_back(out.port);
            }
            taken
        });
        if !taken {
            return false;
        }
        let began = std::mem::replace(&mut self.turn, now);
        self.answered();
        let sampled = self.sampler.is_due(now);
        self.sampler.seen(sampled, now);
        if sampled {
            record(Stage::RingWait, (began - caller.pushed).as_nanos() as u64);
            record(Stage::RingTime, (now - caller.pushed).as_nanos() as u64);
        }
        true
    }

    /// Answers the oldest request if the worker's time is up.
    #[inline]
    fn post_overdue<P: Port, H: Handlers>(&mut self, out: &mut Out<'_, P, H>, now: Nanos) -> bool {
        if out.is_blocked() || self.given_up == self.ring.outstanding() as usize {
            return false;
        }
        let late = self.callers[self.oldest];
        let deadline = self.turn + late.budget;
        if now <= deadline || !out.answer(&late, Err(status::HANDLER_FAILED)) {
            return false;
        }
        self.turn = deadline;
        self.given_up += 1;
        self.answered();
        out.counts.add(Event::TimedOut);
        true
    }

    /// Counts the oldest request as answered.
    #[inline]
    fn answered(&mut self) {
        self.oldest = if self.oldest + 1 == self.callers.len() { 0 } else { self.oldest + 1 };
    }

    /// Number of requests without an answer.
    pub(crate) fn outstanding(&self) -> usize {
        self.ring.outstanding() as usize - self.given_up
    }

    pub(crate) fn stats(&self) -> ProducerStats {
        self.ring.stats()
    }
}

/// The way out for answers.
struct Out<'a, P, H> {
    port: &'a mut P,
    form: HeaderForm,
    /// `None` if answers go out as they become ready.
    turns: Option<&'a mut Turns>,
    /// Has the kernels that remember the answers to what waited.
    program: &'a mut Program<H>,
    counts: &'a mut Counts,
    now: Nanos,
    /// Number of answers sent.
    posted: usize,
}

impl<P: Port, H: Handlers> Out<'_, P, H> {
    /// Whether an answer that is due found the transmit queue full, so that no other may go before it.
    #[inline]
    fn is_blocked(&self) -> bool {
        self.turns.as_ref().is_some_and(|turns| turns.due().is_some())
    }

    /// Posts an answer whose turn has come.
    #[inline]
    fn post_due(&mut self) -> bool {
        let Self { port, form, turns, counts, posted, .. } = self;
        let Some(turns) = turns else { return false };
        let Some((to, answer)) = turns.due() else { return false };
        let Ok(ResponseHeader { status, request_id, ptp_timestamp, .. }) = ResponseHeader::parse(*form, answer) else {
            unreachable!("an answer of our own")
        };
        let outcome = if status == 0 { Ok(&answer[form.len()..]) } else { Err(status) };
        let sent = post(*port, *form, to, (request_id, ptp_timestamp), outcome, counts);
        if sent {
            turns.sent();
            *posted += 1;
        }
        sent
    }

    /// Posts the answer to a request, or keeps it until its turn; false if the transmit queue is full.
    #[inline]
    fn answer(&mut self, caller: &Caller, outcome: Result<&[u8], i32>) -> bool {
        let Self { port, form, turns, program, counts, now, posted } = self;
        let (form, echoed) = (*form, (caller.request_id, caller.ptp_timestamp));
        let mut waiting = turns.as_mut().zip(caller.pending);
        if let Some((turns, pending)) = waiting.as_mut().filter(|(turns, pending)| turns.is_early(*pending)) {
            turns.keep(*pending, caller.to, |buf| write(form, buf, echoed, fitting(form, outcome, buf.len())));
            return true;
        }
        if !post(*port, form, caller.to, echoed, outcome, counts) {
            return false;
        }
        *posted += 1;
        if let Some((turns, pending)) = waiting {
            turns.answered(pending);
        }
        if let Some((id, sent)) = caller.queued
            && let Some(kernel) = program.queued_kernel(id)
        {
            kernel.answered(sent, outcome.ok(), *now);
        }
        true
    }
}

/// Id and time stamp of a request, which its answer echoes.
type Echoed = (u32, u64);

/// Posts and counts an answer; false if the transmit queue is full.
#[inline]
pub(crate) fn post<P: Port>(
    port: &mut P,
    form: HeaderForm,
    to: ReplyTo,
    echoed: Echoed,
    outcome: Result<&[u8], i32>,
    counts: &mut Counts,
) -> bool {
    let outcome = fitting(form, outcome, port.max_frame());
    match port.reply(to, |buf| write(form, buf, echoed, outcome)) {
        Ok(()) => {}
        Err(PostError::Full) => return false,
        Err(PostError::Unreachable) => counts.add(Event::Unroutable),
    }
    counts.add_status(outcome.err().unwrap_or(0));
    true
}

/// Builds the answer, of at most `room` bytes.
#[inline]
fn fitting(form: HeaderForm, outcome: Result<&[u8], i32>, room: usize) -> Result<&[u8], i32> {
    outcome
        .and_then(|results| if form.len() + results.len() > room { Err(status::RESULT_TOO_LARGE) } else { Ok(results) })
}

/// Writes an answer and returns its length.
#[inline]
fn write(form: HeaderForm, buf: &mut [u8], (request_id, ptp_timestamp): Echoed, outcome: Result<&[u8], i32>) -> usize {
    let results = outcome.unwrap_or(&[]);
    buf[form.len()..][..results.len()].copy_from_slice(results);
    write_answer(form, buf, request_id, ptp_timestamp, outcome.map(<[u8]>::len))
}

/// The results or the status in a slot; `None` if it holds no proper answer to this request.
#[inline]
fn read_answer(
    form: HeaderForm,
    answer: Result<&[u8], TxError>,
    request_id: u32,
    is_trusted: bool,
) -> Option<Result<&[u8], i32>> {
    let slot = answer.ok()?;
    let header = ResponseHeader::parse(form, slot).ok().filter(|header| header.request_id == request_id)?;
    match header.status {
        0 => slot[form.len()..].get(..header.result_len as usize).map(Ok),
        // A worker or dispatcher of ours tells what it found. Behind a foreign dispatcher a handler may have said it, who has no say in
        // the protocol: what reaches a ring was checked.
        // That results do not fit is for whoever writes them to say.
        own if own > 0 || is_trusted || own == status::RESULT_TOO_LARGE => Some(Err(own)),
        _ => Some(Err(status::HANDLER_FAILED)),
    }
}
