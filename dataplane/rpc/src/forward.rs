//! The poll core's end of a ring to a worker.

use std::time::Duration;

use berth_port::{BURST, Frame, Nanos, Peer, Port, PostError, ReplyTo, Sampler};
use berth_ring::{Overrun, Producer, TxError};
use berth_wire::rpc::{HeaderForm, ResponseHeader, status};

use crate::{
    Config, Order, Stage,
    counts::{Counts, Event},
    gate::Request,
    order::{Behind, Place, Turns},
    service::write_answer,
};

/// How long a worker may take for a function without a budget, before it is answered for.
pub const RING_BUDGET: Duration = Duration::from_secs(1);

/// Requests on their way to a worker and back, and answers that must not overtake them.
///
/// Slots are answered in the order of the requests. A request whose time is up is answered here with
/// [`status::HANDLER_FAILED`]; its slot stays taken until the worker publishes it after all, and that answer is
/// discarded. An answer that finds the transmit queue full stays in its slot.
pub(crate) struct Forward {
    ring: Producer,
    form: HeaderForm,
    /// Who waits for each slot.
    callers: Vec<Caller>,
    /// The slot of the oldest request that nobody has answered.
    oldest: usize,
    /// How many slots before the oldest were answered here, because their time was up.
    given_up: usize,
    /// When the worker turned to the oldest request, at the latest.
    turn: Nanos,
    sampler: Sampler,
    /// None: answers go out as they become ready.
    turns: Option<Turns>,
}

#[derive(Debug, Clone, Copy)]
struct Caller {
    to: ReplyTo,
    request_id: u32,
    ptp_timestamp: u64,
    budget: Duration,
    pushed: Nanos,
}

impl Forward {
    pub(crate) fn new(ring: Producer, config: Config) -> Self {
        let to = Peer::Connection { number: 0, host: None }.into();
        let nobody = Caller { to, request_id: 0, ptp_timestamp: 0, budget: RING_BUDGET, pushed: Nanos(0) };
        let slots = ring.slots() as usize;
        Self {
            form: config.header,
            callers: vec![nobody; slots],
            oldest: 0,
            given_up: 0,
            turn: Nanos(0),
            sampler: Sampler::default(),
            turns: (config.order == Order::Arrival).then(|| Turns::new(slots, config.slot_size)),
            ring,
        }
    }

    /// Whether the worker learns how many bytes of a request are there.
    pub(crate) fn is_internal(&self) -> bool {
        self.ring.is_internal()
    }

    /// Where a client stands that may have to wait for its turn.
    #[inline]
    pub(crate) fn place(&self, peer: Peer) -> Option<Place> {
        self.turns.as_ref().filter(|turns| !turns.is_idle()).map(|turns| turns.place(peer))
    }

    /// Copies a request of a client, whose place is known if it is not idle, into the next slot.
    #[inline]
    pub(crate) fn push(
        &mut self,
        frame: &Frame<'_>,
        request: &Request,
        budget: Option<Duration>,
        now: Nanos,
        place: Option<Place>,
    ) -> Result<(), Overrun> {
        let message = &frame.data()[..self.form.len() + request.arg_len];
        let is_first = self.ring.outstanding() as usize == self.given_up;
        let slot = self.ring.push(|slot| {
            slot[..message.len()].copy_from_slice(message);
            message.len()
        })?;
        if is_first {
            self.turn = self.turn.max(now);
        }
        if let Some(turns) = &mut self.turns {
            let place = place.unwrap_or_else(|| turns.place(frame.peer()));
            turns.push(frame.reply_to(), place);
        }
        self.callers[slot.0 as usize] = Caller {
            to: frame.reply_to(),
            request_id: request.header.request_id,
            ptp_timestamp: request.header.ptp_timestamp,
            budget: budget.unwrap_or(RING_BUDGET),
            pushed: now,
        };
        Ok(())
    }

    /// Whether one more answer may wait there.
    pub(crate) fn has_room(&mut self, behind: Behind) -> bool {
        self.turns.as_mut().is_some_and(|turns| turns.has_room(behind))
    }

    /// Keeps an answer until those before it are sent; there is room.
    pub(crate) fn hold(&mut self, behind: Behind, answer: &[u8]) {
        if let Some(turns) = &mut self.turns {
            turns.hold(behind, answer);
        }
    }

    /// Posts the answers that are ready, and answers for a worker that is late.
    pub(crate) fn poll<P: Port>(
        &mut self,
        port: &mut P,
        now: Nanos,
        counts: &mut Counts,
        record: &mut impl FnMut(Stage, u64),
    ) -> usize {
        let mut posted = 0;
        while posted < BURST
            && (self.post_due(port, counts)
                || self.post_next(port, now, counts, record)
                || self.post_overdue(port, now, counts))
        {
            posted += 1;
        }
        posted
    }

    /// Posts an answer that has waited for its turn.
    #[inline]
    fn post_due<P: Port>(&mut self, port: &mut P, counts: &mut Counts) -> bool {
        let Self { form, turns, .. } = self;
        let Some(turns) = turns else { return false };
        let Some((to, answer)) = turns.due() else { return false };
        let Ok(ResponseHeader { status, request_id, ptp_timestamp, .. }) = ResponseHeader::parse(*form, answer) else {
            unreachable!("an answer of our own")
        };
        let caller = Caller { to, request_id, ptp_timestamp, budget: RING_BUDGET, pushed: Nanos(0) };
        let outcome = if status == 0 { Ok(&answer[form.len()..]) } else { Err(status) };
        let sent = post(port, *form, &caller, outcome, counts);
        if sent {
            turns.sent();
        }
        sent
    }

    /// Posts the next answer from the ring, straight from its slot. Those of requests given up before it are discarded.
    #[inline]
    fn post_next<P: Port>(
        &mut self,
        port: &mut P,
        now: Nanos,
        counts: &mut Counts,
        record: &mut impl FnMut(Stage, u64),
    ) -> bool {
        while self.given_up > 0 {
            if !self.ring.collect_if(|_, _| true) {
                return false;
            }
            self.given_up -= 1;
            counts.add(Event::LateAnswers);
            if self.given_up == 0 {
                self.turn = now;
            }
        }
        if self.is_blocked() {
            return false;
        }
        let Self { ring, form, callers, oldest, .. } = self;
        let (caller, is_internal) = (callers[*oldest], ring.is_internal());
        let taken = ring.collect_if(|_, answer| {
            let outcome = read_answer(*form, answer, caller.request_id, is_internal);
            let sent = post(port, *form, &caller, outcome.unwrap_or(Err(status::HANDLER_FAILED)), counts);
            if sent && outcome.is_none() {
                counts.add(Event::BadResult);
            }
            sent
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

    /// Answers the oldest request if the worker has had its time.
    #[inline]
    fn post_overdue<P: Port>(&mut self, port: &mut P, now: Nanos, counts: &mut Counts) -> bool {
        if self.is_blocked() || self.given_up == self.ring.outstanding() as usize {
            return false;
        }
        let late = self.callers[self.oldest];
        let deadline = self.turn + late.budget;
        if now <= deadline || !post(port, self.form, &late, Err(status::HANDLER_FAILED), counts) {
            return false;
        }
        self.turn = deadline;
        self.given_up += 1;
        self.answered();
        counts.add(Event::TimedOut);
        true
    }

    /// Whether an answer that is due found the transmit queue full: no other goes before it.
    #[inline]
    fn is_blocked(&self) -> bool {
        self.turns.as_ref().is_some_and(|turns| turns.due().is_some())
    }

    /// The oldest request has its answer.
    #[inline]
    fn answered(&mut self) {
        self.oldest = if self.oldest + 1 == self.callers.len() { 0 } else { self.oldest + 1 };
        if let Some(turns) = &mut self.turns {
            turns.answered();
        }
    }

    /// Requests that nobody has answered yet, and answers that wait for their turn.
    pub(crate) fn outstanding(&self) -> usize {
        self.ring.outstanding() as usize - self.given_up + self.turns.as_ref().map_or(0, Turns::len)
    }

    pub(crate) fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        self.ring.counters(visit);
    }
}

/// Posts and counts an answer; false where the transmit queue is full.
#[inline]
fn post<P: Port>(
    port: &mut P,
    form: HeaderForm,
    caller: &Caller,
    outcome: Result<&[u8], i32>,
    counts: &mut Counts,
) -> bool {
    let outcome = outcome.and_then(|results| {
        if form.len() + results.len() > port.max_frame() { Err(status::RESULT_TOO_LARGE) } else { Ok(results) }
    });
    let posted = port.reply(caller.to, |buf| {
        let results = outcome.unwrap_or(&[]);
        buf[form.len()..][..results.len()].copy_from_slice(results);
        write_answer(form, buf, caller.request_id, caller.ptp_timestamp, outcome.map(<[u8]>::len))
    });
    match posted {
        Ok(()) => {}
        Err(PostError::Full) => return false,
        Err(PostError::Unreachable) => counts.add(Event::Unroutable),
    }
    counts.add_status(outcome.err().unwrap_or(0));
    true
}

/// The results, or the status, in a slot; nothing where it holds no proper answer of this request.
#[inline]
fn read_answer(
    form: HeaderForm,
    answer: Result<&[u8], TxError>,
    request_id: u32,
    is_internal: bool,
) -> Option<Result<&[u8], i32>> {
    let slot = answer.ok()?;
    let header = ResponseHeader::parse(form, slot).ok().filter(|header| header.request_id == request_id)?;
    match header.status {
        0 => slot[form.len()..].get(..header.result_len as usize).map(Ok),
        // A worker of ours tells what it found. Behind a foreign dispatcher a handler may have said it, who has no say in
        // the protocol: what reaches a ring was checked.
        own if own > 0 || is_internal => Some(Err(own)),
        _ => Some(Err(status::HANDLER_FAILED)),
    }
}
