//! The poll core's end of a ring to a worker.

use std::{
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

use berth_port::{BURST, Frame, Nanos, Port, PostError, ReplyTo, Sampler};
use berth_ring::{Overrun, Producer, TxError};
use berth_wire::rpc::{HeaderForm, ResponseHeader, status};

use crate::{
    Config, Outcome, Stage,
    counts::{Counts, Event},
    gate::Request,
    program::sendable,
    service::write_answer,
};

/// How long a worker may take for a function without a budget, before it is answered for.
pub const RING_BUDGET: Duration = Duration::from_secs(1);

/// Requests on their way to a worker and back.
///
/// Slots are answered in the order of the requests. A request whose time is up is answered here with
/// [`status::HANDLER_FAILED`]; its slot stays taken until the worker publishes it after all, and that answer is
/// discarded.
pub(crate) struct Forward {
    ring: Producer,
    form: HeaderForm,
    /// Who waits for each slot.
    callers: Vec<Caller>,
    /// The oldest slot whose answer was not taken.
    tail: usize,
    /// How many slots from the tail on were answered here, because their time was up.
    given_up: usize,
    /// When the worker turned to the oldest request that nobody has answered, at the latest.
    turn: Nanos,
    sampler: Sampler,
    /// An answer that found the transmit queue full; it is in `held`.
    stalled: Option<Answer>,
    held: Vec<u8>,
}

/// An answer to be posted.
#[derive(Debug, Clone, Copy)]
struct Answer {
    to: ReplyTo,
    len: usize,
    status: i32,
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
        let to = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)).into();
        let nobody = Caller { to, request_id: 0, ptp_timestamp: 0, budget: RING_BUDGET, pushed: Nanos(0) };
        Self {
            form: config.header,
            callers: vec![nobody; ring.slots() as usize],
            tail: 0,
            given_up: 0,
            turn: Nanos(0),
            sampler: Sampler::default(),
            stalled: None,
            held: vec![0; config.slot_size],
            ring,
        }
    }

    /// Copies a request into the next slot.
    pub(crate) fn push(
        &mut self,
        frame: &Frame<'_>,
        request: &Request,
        budget: Option<Duration>,
        now: Nanos,
    ) -> Result<(), i32> {
        let message = &frame.data()[..self.form.len() + request.arg_len];
        let waiting = self.ring.outstanding() as usize - self.given_up;
        let pushed = self.ring.push(|slot| slot[..message.len()].copy_from_slice(message));
        let slot = pushed.map_err(|Overrun| status::OVERLOADED)?;
        if waiting == 0 {
            self.turn = self.turn.max(now);
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

    /// Posts the answers that are ready, and answers for a worker that is late.
    pub(crate) fn poll<P: Port>(
        &mut self,
        port: &mut P,
        now: Nanos,
        counts: &mut Counts,
        record: &mut impl FnMut(Stage, u64),
    ) -> usize {
        let mut posted = 0;
        if let Some(answer) = self.stalled.take() {
            posted += self.post(port, answer, counts);
        }
        while posted < BURST && self.stalled.is_none() {
            let Some((caller, outcome)) = self.collect(now, counts, record) else { break };
            posted += self.finish(port, caller, outcome, counts);
        }
        while posted < BURST && self.stalled.is_none() && self.given_up < self.ring.outstanding() as usize {
            let late = self.callers[(self.tail + self.given_up) % self.callers.len()];
            let deadline = self.turn + late.budget;
            if now <= deadline {
                break;
            }
            self.turn = deadline;
            self.given_up += 1;
            counts.add(Event::TimedOut);
            posted += self.finish(port, late, Err(status::HANDLER_FAILED), counts);
        }
        posted
    }

    /// Takes the next answer, its results copied to `held`. Those before it that come too late are discarded.
    fn collect(
        &mut self,
        now: Nanos,
        counts: &mut Counts,
        record: &mut impl FnMut(Stage, u64),
    ) -> Option<(Caller, Outcome)> {
        let Self { ring, callers, tail, given_up, turn, sampler, held, form, .. } = self;
        loop {
            let caller = callers[*tail];
            let mut outcome = None;
            let taken = ring.collect(1, |_, answer| {
                if *given_up > 0 {
                    *given_up -= 1;
                    counts.add(Event::LateAnswers);
                } else {
                    outcome = Some(read_answer(*form, answer, caller.request_id, held, counts));
                }
            });
            if taken == 0 {
                return None;
            }
            *tail = (*tail + 1) % callers.len();
            let began = *turn;
            if *given_up == 0 {
                *turn = now;
            }
            if let Some(outcome) = outcome {
                let sampled = sampler.is_due(now);
                sampler.seen(sampled, now);
                if sampled {
                    record(Stage::RingWait, (began - caller.pushed).as_nanos() as u64);
                    record(Stage::RingTime, (now - caller.pushed).as_nanos() as u64);
                }
                return Some((caller, outcome));
            }
        }
    }

    /// Completes the answer in `held` and posts it.
    fn finish<P: Port>(&mut self, port: &mut P, caller: Caller, outcome: Outcome, counts: &mut Counts) -> usize {
        let outcome = outcome.and_then(|len| {
            if self.form.len() + len > port.max_frame() { Err(status::RESULT_TOO_LARGE) } else { Ok(len) }
        });
        let len = write_answer(self.form, &mut self.held, caller.request_id, caller.ptp_timestamp, outcome);
        self.post(port, Answer { to: caller.to, len, status: outcome.err().unwrap_or(0) }, counts)
    }

    /// Posts and counts the answer in `held`, or keeps it for the next poll.
    fn post<P: Port>(&mut self, port: &mut P, answer: Answer, counts: &mut Counts) -> usize {
        let message = &self.held[..answer.len];
        let posted = port.reply(answer.to, |buf| {
            buf[..message.len()].copy_from_slice(message);
            message.len()
        });
        match posted {
            Ok(()) => {}
            Err(PostError::Full) => {
                self.stalled = Some(answer);
                return 0;
            }
            Err(PostError::Unreachable) => counts.add(Event::Unroutable),
        }
        counts.add_status(answer.status);
        1
    }

    /// Requests that nobody has answered yet.
    pub(crate) fn outstanding(&self) -> usize {
        self.ring.outstanding() as usize - self.given_up + usize::from(self.stalled.is_some())
    }

    pub(crate) fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        self.ring.counters(visit);
    }
}

/// Checks the answer in a slot and copies its results to their place in `held`.
fn read_answer(
    form: HeaderForm,
    answer: Result<&[u8], TxError>,
    request_id: u32,
    held: &mut [u8],
    counts: &mut Counts,
) -> Outcome {
    let checked = answer.ok().and_then(|slot| {
        let header = ResponseHeader::parse(form, slot).ok().filter(|header| header.request_id == request_id)?;
        if header.status != 0 {
            return Some(Err(sendable(header.status)));
        }
        let range = form.len()..form.len().checked_add(header.result_len as usize)?;
        held.get_mut(range.clone())?.copy_from_slice(slot.get(range.clone())?);
        Some(Ok(range.len()))
    });
    checked.unwrap_or_else(|| {
        counts.add(Event::BadResult);
        Err(status::HANDLER_FAILED)
    })
}
