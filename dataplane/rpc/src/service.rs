//! The service, which turns frames into answers.

use std::sync::Arc;

use berth_admission::Admission;
use berth_port::{Clock, Frame, Nanos, Now, Port, Recorder, Sampler, Service, Verdict};
use berth_ring::{Producer, ProducerStats};
use berth_wire::rpc::{HeaderForm, PtpEncoding, RequestHeader, ResponseHeader, status};

use crate::{
    Dispatch, FunctionTable, Handlers, Order, Program, RingIndex, Updates,
    counts::{Counts, Event},
    forward::Forward,
    gate,
    order::{Behind, Turns},
};

/// What happens to requests that are not dispatched: unknown functions, bad lengths, schema mismatches, and those over
/// a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Undispatchable {
    /// Answer with their status.
    #[default]
    Reply,
    /// Send no answer, as the reference's own UDP test expects.
    Drop,
}

/// Protocol settings of a service.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// Header form of its senders.
    pub header: HeaderForm,
    /// Limit on messages in both directions, header included, in bytes.
    pub slot_size: usize,
    /// What happens to requests that are not dispatched.
    pub on_undispatchable: Undispatchable,
    /// PTP encoding of its senders.
    pub ptp: PtpEncoding,
    /// Order in which each sender gets its answers.
    pub order: Order,
}

/// A part of a request's way that a service measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// From the sender's stamp to the poll that received the request. Measured for one stamped request in
    /// [`SAMPLE_EVERY`](berth_port::SAMPLE_EVERY).
    Wire,
    /// From the copy into the ring until the worker turned to the request, as seen by the poll core: exact to one poll.
    /// Measured for one request in [`SAMPLE_EVERY`](berth_port::SAMPLE_EVERY).
    RingWait,
    /// From the copy into the ring until the poll core found the answer; for the same requests.
    RingTime,
}

/// Why a service or worker cannot be set up.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SetupError {
    /// Slots are shorter than a header.
    #[error("slots of {slot_size} bytes do not hold the header of {header} bytes")]
    ShortSlots {
        /// Configured slot size in bytes.
        slot_size: usize,
        /// Size of a header in bytes.
        header: usize,
    },
    /// The slots cannot hold a function's messages, so no call of it could succeed.
    #[error("function {name:?} needs slots of {needed} bytes, they have {slot_size}")]
    TooLarge {
        /// Name of the function.
        name: String,
        /// Size of its longest message in bytes: header, and arguments or results.
        needed: usize,
        /// Configured slot size in bytes.
        slot_size: usize,
    },
    /// The slots of a ring are shorter than the service's.
    #[error("a ring's slots have {ring} bytes, the service's {slot_size}")]
    ShortRing {
        /// Slot size of the ring in bytes.
        ring: usize,
        /// Configured slot size in bytes.
        slot_size: usize,
    },
    /// This function is for workers, and no ring leads to them.
    #[error("function {0:?} is dispatched through a ring that the service does not have")]
    NoRing(String),
}

/// Answers the RPC requests of one port. Owned by the port's core.
///
/// `record` is called with the duration of a stage in nanoseconds.
pub struct RpcService<H, C, R> {
    config: Config,
    program: Program<H>,
    /// What it ran before, while senders of messages that wait there are told that they were dropped.
    retired: Option<Program<H>>,
    updates: Option<Updates<H>>,
    clock: C,
    rings: Vec<Forward>,
    /// Index of the ring whose answers go out first at the next poll.
    first: usize,
    /// `None` if answers go out as they become ready.
    turns: Option<Turns>,
    record: R,
    stamps: Sampler,
    counts: Counts,
}

impl<H: Handlers, C: Clock, R: FnMut(Stage, u64)> RpcService<H, C, R> {
    /// Each of `rings` must lead to a [`Worker`](crate::Worker) that runs the functions dispatched through it.
    /// it.
    pub fn new(
        config: Config,
        table: Arc<FunctionTable>,
        handlers: H,
        rings: impl IntoIterator<Item = Producer>,
        clock: C,
        record: R,
    ) -> Result<Self, SetupError> {
        let Config { header, slot_size, order, .. } = config;
        let (mut forwards, mut slots) = (Vec::new(), 0);
        for ring in rings {
            if ring.slot_size() < slot_size {
                return Err(SetupError::ShortRing { ring: ring.slot_size(), slot_size });
            }
            let first = slots;
            slots += ring.slots() as usize;
            forwards.push(Forward::new(ring, RingIndex(forwards.len()), first, header));
        }
        let program = Program::new(table, handlers);
        program.check(header, slot_size, forwards.len())?;
        let turns = (order == Order::Arrival && slots > 0).then(|| Turns::new(slots, slot_size));
        let (stamps, counts) = (Sampler::default(), Counts::default());
        Ok(Self {
            config,
            program,
            retired: None,
            updates: None,
            clock,
            rings: forwards,
            first: 0,
            turns,
            record,
            stamps,
            counts,
        })
    }

    /// Lets its program be replaced. Send only programs that [`Program::check`] accepts for this service.
    #[must_use]
    pub fn updated_by(self, updates: Updates<H>) -> Self {
        Self { updates: Some(updates), ..self }
    }

    /// Limits what is admitted; see [`Program::limited`].
    #[must_use]
    pub fn limited(self, admission: Option<Admission>) -> Self {
        Self { program: self.program.limited(admission), ..self }
    }

    /// Records how long ago the request was stamped.
    #[inline]
    fn stamped(&mut self, stamp: u64, now: Now) {
        if stamp == 0 {
            return;
        }
        let Some(sent) = self.config.ptp.to_nanos(stamp) else {
            return self.counts.add(Event::BadStamps);
        };
        if sent > now.wall.0 {
            self.counts.add(Event::FutureStamps);
        }
        let sampled = self.stamps.is_due(now.mono);
        self.stamps.seen(sampled, now.mono);
        if sampled {
            (self.record)(Stage::Wire, now.wall.0.saturating_sub(sent));
        }
    }

    #[cold]
    fn refuse(
        &mut self,
        frame: &mut Frame<'_>,
        header: &RequestHeader,
        status: i32,
        behind: Option<Behind>,
    ) -> Verdict {
        if self.config.on_undispatchable == Undispatchable::Reply {
            return self.answer(frame, header, Err(status), behind);
        }
        self.counts.add_status(status);
        self.counts.add(Event::DroppedUndispatchable);
        Verdict::Drop
    }

    /// Answers with the results in the frame, or a status: at once, or after the client's earlier answers.
    #[inline]
    fn answer(
        &mut self,
        frame: &mut Frame<'_>,
        request: &RequestHeader,
        outcome: Result<usize, i32>,
        behind: Option<Behind>,
    ) -> Verdict {
        let (id, stamp) = (request.request_id, request.ptp_timestamp);
        let len = write_answer(self.config.header, frame.buf_mut(), id, stamp, outcome);
        frame.set_len(len);
        match behind {
            None => {
                self.counts.add_status(outcome.err().unwrap_or(0));
                Verdict::Reply
            }
            Some(behind) => self.hold(frame, behind),
        }
    }

    /// Keeps the answer in the frame until its turn. It is counted when it is sent.
    #[cold]
    fn hold(&mut self, frame: &Frame<'_>, behind: Behind) -> Verdict {
        let Some(turns) = self.turns.as_mut().filter(|turns| turns.has_room(behind)) else { return self.leave_out() };
        turns.hold(behind, frame.reply_to(), frame.data());
        Verdict::Drop
    }

    #[inline]
    fn has_room(&self, behind: Option<Behind>) -> bool {
        behind.is_none_or(|behind| self.turns.as_ref().is_some_and(|turns| turns.has_room(behind)))
    }

    /// Leaves an answer out: too many of the client's wait already, and it must not overtake them.
    #[cold]
    fn leave_out(&mut self) -> Verdict {
        self.counts.add(Event::OrderFull);
        self.counts.add_status(status::OVERLOADED);
        self.counts.add(Event::DroppedUndispatchable);
        Verdict::Drop
    }
}

/// Writes the header of an answer to the front of `slot`, whose results follow. Returns the answer's length.
#[inline]
pub(crate) fn write_answer(
    form: HeaderForm,
    slot: &mut [u8],
    request_id: u32,
    ptp_timestamp: u64,
    outcome: Result<usize, i32>,
) -> usize {
    let (status, result_len) = match outcome {
        Ok(len) => (0, len),
        Err(status) => (status, 0),
    };
    let header = ResponseHeader { status, result_len: result_len as u32, request_id, ptp_timestamp };
    header.write(form, slot).map_or(0, |len| len + result_len)
}

/// Checks that slots hold the shortest messages of every function.
pub(crate) fn check_fit(table: &FunctionTable, form: HeaderForm, slot_size: usize) -> Result<(), SetupError> {
    if slot_size < form.len() {
        return Err(SetupError::ShortSlots { slot_size, header: form.len() });
    }
    for function in table.functions() {
        let shortest =
            |descs: &[berth_wire::rpc::TypeDesc]| descs.iter().map(|d| d.size_bytes() as usize).sum::<usize>();
        let needed = form.len() + shortest(function.schema.args()).max(shortest(function.schema.results()));
        if needed > slot_size {
            return Err(SetupError::TooLarge { name: function.name.clone(), needed, slot_size });
        }
    }
    Ok(())
}

impl<H: Handlers, C: Clock, R: FnMut(Stage, u64)> Service for RpcService<H, C, R> {
    #[inline]
    fn handle(&mut self, frame: &mut Frame<'_>, now: Now) -> Verdict {
        let Config { header: form, slot_size, .. } = self.config;
        self.counts.add(Event::Received);
        let header = match RequestHeader::parse(form, frame.data()) {
            Ok(header) => header,
            Err(error) => {
                self.counts.add(error.into());
                return Verdict::Drop;
            }
        };
        let turns = self.turns.as_ref().filter(|turns| !turns.is_idle());
        let place = turns.map(|turns| turns.place(frame.peer()));
        let behind = place.and_then(|place| place.behind);
        if let Some(admission) = &mut self.program.admission
            && let Err(limit) = admission.admit(frame.peer(), now.mono)
        {
            self.counts.add(limit.into());
            return self.refuse(frame, &header, status::OVERLOADED, behind);
        }
        let request = match gate::check(&self.program.table, form, slot_size, header, frame.data(), frame.wire_len()) {
            Ok(request) => request,
            Err(status) => return self.refuse(frame, &header, status, behind),
        };
        self.stamped(request.header.ptp_timestamp, now);
        let rule = self.program.table.rule(request.function);
        let outcome = if let Dispatch::Queue(_) = rule.mode {
            match self.program.arrive(&request, frame, form, now.mono) {
                Some(outcome) => outcome,
                None => return Verdict::Drop,
            }
        } else if let Dispatch::Ring(index) = rule.mode
            && let Some(ring) = self.rings.get_mut(index.0)
        {
            // A foreign dispatcher would take an earlier request's bytes for those that are not there.
            if request.is_cut() && !ring.takes_cut() {
                return self.refuse(frame, &header, status::BAD_LENGTH, behind);
            }
            if behind.is_some_and(|behind| !self.turns.as_ref().is_some_and(|turns| turns.admits(behind, index))) {
                return self.leave_out();
            }
            if let Ok(verdict) = ring.push(frame, &request, rule.budget, now.mono, (self.turns.as_mut(), place)) {
                return verdict;
            }
            self.counts.add(Event::RingFull);
            Err(status::OVERLOADED)
        } else if self.has_room(behind) {
            let room = slot_size.min(frame.capacity());
            let peer = frame.peer();
            let slot = &mut frame.buf_mut()[..room];
            self.program.run(&self.clock, &request, form, (slot, Some(peer)), now.mono, &mut self.counts)
        } else {
            return self.leave_out();
        };
        self.answer(frame, &header, outcome, behind)
    }

    fn poll<P: Port>(&mut self, port: &mut P, now: Now) -> usize {
        let Self { config, program, retired, updates, rings, first, turns, counts, record, .. } = self;
        let form = config.header;
        if let Some(updates) = updates {
            if let Some(old) = retired {
                // What waited for kernels that are gone, or answer another way, is dropped.
                old.serve_queues(rings, port, form, counts, Nanos(u64::MAX));
                if old.handlers.waiting() == 0
                    && let Some(old) = retired.take()
                {
                    updates.give_back(old);
                }
            } else {
                *retired = program.update(updates);
            }
        }
        let (later, sooner) = rings.split_at_mut(*first);
        let mut posted = 0;
        for ring in sooner.iter_mut().chain(later) {
            posted += ring.poll(port, now.mono, (turns, program), counts, record);
        }
        // Each in turn comes first to a transmit queue that has not room for all.
        *first = if *first + 1 < rings.len() { *first + 1 } else { 0 };
        posted + program.serve_queues(rings, port, form, counts, now.mono)
    }

    fn outstanding(&self) -> usize {
        [Some(&self.program), self.retired.as_ref()]
            .into_iter()
            .flatten()
            .map(|program| program.handlers.waiting())
            .sum::<usize>()
            + self.rings.iter().map(Forward::outstanding).sum::<usize>()
            + self.turns.as_ref().map_or(0, Turns::len)
    }

    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        self.counts.report(visit);
        self.program.report(visit);
        if !self.rings.is_empty() {
            self.rings.iter().map(Forward::stats).sum::<ProducerStats>().report(visit);
        }
    }

    fn histograms(&self, visit: &mut dyn FnMut(&'static str, &Recorder)) {
        self.program.handlers.histograms(visit);
    }
}
