//! The FPGA emulator: requests, the table of those in flight, and the accounting of what came back.
//!
//! Sans-IO: time and frames are arguments, so every property of the accounting is tested with virtual time.
//!
//! Requests are numbered in the order they are sent, skipping numbers whose slot of the table is still in use. An
//! answer names its slot by the low bits of its number and must match the whole number there, so an answer to an
//! earlier use of the slot is never taken for the current one.

use std::{fmt, time::Duration};

use berth_port::{Nanos, Now, Peer};
use berth_wire::rpc::{HeaderForm, RequestHeader};

use crate::{
    load::{Limit, Load, Pacing},
    mix::{Call, Mix},
    tally::Interval,
    verify::{Identity, Mistake, Protocol, Reference, Verified, identify, verify},
};

/// What stays the same during a case.
#[derive(Debug, Clone)]
pub struct Setup {
    /// Who is asked; frames from elsewhere are counted and ignored.
    pub peer: Peer,
    /// What its port speaks.
    pub protocol: Protocol,
    /// How long an answer may take before its request is counted lost.
    pub timeout: Duration,
}

/// A request that is due.
#[derive(Debug, Clone, Copy)]
pub struct Request {
    number: u64,
    due: Nanos,
    call: Call,
}

/// The first answer of a case that was not what it had to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FirstMistake {
    /// What was wrong.
    pub mistake: Mistake,
    /// The request's number, where the frame had one.
    pub request_id: Option<u32>,
    /// The called function, where the frame answered a known request.
    pub function: Option<&'static str>,
    /// Bytes of the frame as received, fewer than were sent where it was truncated.
    pub frame_len: usize,
}

impl fmt::Display for FirstMistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (frame of {} bytes", self.mistake, self.frame_len)?;
        if let Some(request_id) = self.request_id {
            write!(f, ", request {request_id}")?;
        }
        if let Some(function) = self.function {
            write!(f, ", {function}")?;
        }
        f.write_str(")")
    }
}

/// The client of one case.
#[derive(Debug)]
pub struct Emulator {
    setup: Setup,
    load: Load,
    mix: Mix,
    slots: Box<[Slot]>,
    /// The number of the next request.
    next: u64,
    /// No request before this one is outstanding.
    oldest: u64,
    outstanding: usize,
    /// Slots of lost requests, kept for a late answer while at most half of all slots are.
    lost: usize,
    /// The latest request that was answered.
    latest: Option<u64>,
    /// Requests before this one are warm-up: verified, not counted.
    measured: u64,
    last_event: Nanos,
    first_mistake: Option<FirstMistake>,
    tally: Box<Interval>,
}

#[derive(Debug, Clone, Copy)]
struct Slot {
    number: u64,
    due: Nanos,
    sent: Nanos,
    ptp: u64,
    call: Call,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Unused,
    Outstanding,
    Closed,
    Lost,
}

/// Slots of the in-flight table at least: an answer is recognised as a duplicate or late for this many requests more.
const MIN_SLOTS: usize = 1024;

/// Slots of the in-flight table at most: a million requests in flight, 112 MB.
const MAX_SLOTS: usize = 1 << 21;

/// Numbers looked at by one [`Emulator::expire`], so that it never delays a poll noticeably.
const EXPIRE_STEPS: usize = 64;

/// How long to listen for duplicates and late answers after the last event of a case, at most.
const LINGER: Duration = Duration::from_millis(10);

impl Emulator {
    /// A client that starts its schedule at `now`; nothing is measured until [`Emulator::measure`].
    pub fn new(setup: Setup, pacing: Pacing, mix: Mix, tally: Box<Interval>, now: Nanos) -> Self {
        let in_flight = match pacing {
            Pacing::Closed { window } => window * 2,
            Pacing::Open { rate, .. } => (rate * setup.timeout.as_secs_f64() * 2.0) as usize,
        };
        let slots = in_flight.clamp(MIN_SLOTS, MAX_SLOTS).next_power_of_two();
        let call = Call { script: 0, step: 0, row: 0 };
        let unused = Slot { number: 0, due: now, sent: now, ptp: 0, call, state: State::Unused };
        Self {
            setup,
            load: Load::new(pacing, now),
            mix,
            slots: vec![unused; slots].into(),
            next: 0,
            oldest: 0,
            outstanding: 0,
            lost: 0,
            latest: None,
            measured: u64::MAX,
            last_event: now,
            first_mistake: None,
            tally,
        }
    }

    /// Ends the warm-up: requests sent from now on are measured, until `limit`.
    pub fn measure(&mut self, limit: Limit, now: Nanos) {
        self.measured = self.next;
        self.load.limit(limit, now);
    }

    /// The bytes of the longest frame that is sent or expected.
    pub fn longest_frame(&self) -> usize {
        self.mix.steps().iter().map(|step| step.longest_frame(&self.setup.protocol)).max().unwrap_or(0)
    }

    /// The request that is due now; `None` also while every session waits, or half of the table is in flight.
    #[inline]
    pub fn due(&mut self, now: Nanos) -> Option<Request> {
        let due = self.load.due(now, self.outstanding)?;
        let call = self.mix.upcoming()?;
        if self.outstanding == self.slots.len() / 2 {
            return None;
        }
        while self.is_kept(self.slot(self.next).state) {
            self.next += 1;
        }
        Some(Request { number: self.next, due, call })
    }

    /// Writes a request that is due, stamped `now`, to the front of `frame`, and returns its length.
    ///
    /// # Panics
    /// If `frame` is shorter than [`Emulator::longest_frame`].
    #[inline]
    pub fn write(&self, request: &Request, now: Now, frame: &mut [u8]) -> usize {
        let step = &self.mix.steps()[request.call.step as usize];
        let payload = step.payloads.row(request.call.row as usize);
        let len = match self.setup.protocol {
            Protocol::Rpc { header: form, .. } => {
                let header = RequestHeader {
                    function_id: step.function_id,
                    arg_len: payload.len() as u32,
                    request_id: request.number as u32,
                    ptp_timestamp: self.stamp(now),
                };
                header.write(form, frame).expect("frames were checked to fit the port")
            }
            Protocol::TwoSided => 0,
        };
        frame[len..len + payload.len()].copy_from_slice(payload);
        len + payload.len()
    }

    /// Takes note that `request`, which was due last, was handed to the port, stamped `now`.
    #[inline]
    pub fn sent(&mut self, request: Request, now: Now) {
        let ptp = self.stamp(now);
        self.lost -= usize::from(self.slot(request.number).state == State::Lost);
        *self.slot_mut(request.number) = Slot {
            number: request.number,
            due: request.due,
            sent: now.mono,
            ptp,
            call: request.call,
            state: State::Outstanding,
        };
        self.next = request.number + 1;
        self.outstanding += 1;
        self.mix.sent();
        self.load.sent();
        self.last_event = now.mono;
        if request.number >= self.measured {
            self.tally.counts.sent += 1;
            if self.load.is_open() {
                self.tally.lag.saturating_record(now.mono.0.saturating_sub(request.due.0));
            }
        }
    }

    /// Takes note that the port had no room for a request that was due.
    #[inline]
    pub fn refused_by_port(&mut self) {
        self.tally.counts.backpressure += 1;
    }

    /// Accounts for one received frame; `wire_len` is the length the sender sent.
    #[inline]
    pub fn answer(&mut self, frame: &[u8], wire_len: usize, from: Peer, now: Nanos) {
        if from != self.setup.peer {
            self.tally.counts.other_source += 1;
            return;
        }
        self.last_event = now;
        let next = match self.setup.protocol {
            Protocol::Rpc { .. } => 0,
            Protocol::TwoSided => match self.first_outstanding() {
                Some(number) => number as u32,
                None => return self.tally.counts.stale += 1,
            },
        };
        let Some(identity) = identify(&self.setup.protocol, next, frame) else {
            return self.malformed(Mistake::Header, None, frame.len());
        };
        let slot = *self.slot(u64::from(identity.request_id));
        if slot.state == State::Unused || slot.number as u32 != identity.request_id {
            return self.unknown(&identity, frame.len());
        }
        let step = &self.mix.steps()[slot.call.step as usize];
        let verified = if wire_len == frame.len() {
            verify(&self.setup.protocol, &identity, frame, step, slot.call.row as usize, slot.ptp)
        } else {
            Verified::Wrong(Mistake::FrameLength)
        };
        if let Verified::Wrong(mistake) = verified {
            let (request_id, function) = (Some(identity.request_id), Some(step.name));
            let first = FirstMistake { mistake, request_id, function, frame_len: frame.len() };
            self.first_mistake.get_or_insert(first);
        }
        match slot.state {
            State::Outstanding => self.first_answer(&slot, verified, now),
            State::Closed | State::Lost if matches!(verified, Verified::Wrong(_)) => self.tally.counts.malformed += 1,
            State::Lost => {
                self.slot_mut(slot.number).state = State::Closed;
                self.lost -= 1;
                self.tally.counts.late += u64::from(slot.number >= self.measured);
            }
            State::Closed | State::Unused => self.tally.counts.duplicates += u64::from(slot.number >= self.measured),
        }
    }

    #[inline]
    fn first_answer(&mut self, slot: &Slot, verified: Verified, now: Nanos) {
        self.slot_mut(slot.number).state = State::Closed;
        self.outstanding -= 1;
        self.mix.ended(slot.call, matches!(verified, Verified::Exact | Verified::Prediction { .. }));
        let overtaken = self.latest.is_some_and(|latest| slot.number < latest);
        self.latest = self.latest.max(Some(slot.number));
        let counts = &mut self.tally.counts;
        if slot.number < self.measured {
            counts.malformed += u64::from(matches!(verified, Verified::Wrong(_)));
            return;
        }
        counts.reordered += u64::from(overtaken);
        match verified {
            Verified::Exact => counts.answered += 1,
            Verified::Prediction { right, reference } => {
                counts.answered += 1;
                counts.predictions += 1;
                counts.logical_errors += u64::from(!right);
                match reference {
                    Some(Reference { agrees, right }) => {
                        counts.agreements += u64::from(agrees);
                        counts.reference_logical_errors += u64::from(!right);
                    }
                    None => counts.without_reference += 1,
                }
            }
            Verified::Refused(status) => {
                counts.refused += 1;
                self.tally.refusals.add(status, 1);
                return;
            }
            Verified::Wrong(_) => {
                counts.wrong += 1;
                return;
            }
        }
        self.tally.last_answer = now;
        let latency = now.0.saturating_sub(slot.due.0);
        self.tally.latency[slot.call.step as usize].saturating_record(latency);
        if self.load.is_open() {
            self.tally.from_sent.saturating_record(now.0.saturating_sub(slot.sent.0));
        }
    }

    #[cold]
    fn unknown(&mut self, identity: &Identity, frame_len: usize) {
        let ahead = identity.request_id.wrapping_sub(self.next as u32) as i32;
        if ahead >= 0 || u64::from(ahead.unsigned_abs()) > self.next {
            self.malformed(Mistake::UnknownRequest, Some(identity.request_id), frame_len);
        } else {
            self.tally.counts.stale += 1;
        }
    }

    #[cold]
    fn malformed(&mut self, mistake: Mistake, request_id: Option<u32>, frame_len: usize) {
        self.tally.counts.malformed += 1;
        self.first_mistake.get_or_insert(FirstMistake { mistake, request_id, function: None, frame_len });
    }

    /// Counts requests as lost whose timeout has passed; looks at 64 numbers at most.
    #[inline]
    pub fn expire(&mut self, now: Nanos) {
        for _ in 0..EXPIRE_STEPS {
            if self.oldest == self.next {
                return;
            }
            let slot = *self.slot(self.oldest);
            if slot.state == State::Outstanding && slot.number == self.oldest {
                if now - slot.sent < self.setup.timeout {
                    return;
                }
                self.slot_mut(slot.number).state = State::Lost;
                self.outstanding -= 1;
                self.lost += 1;
                self.mix.ended(slot.call, false);
                self.last_event = now;
                self.tally.counts.lost += u64::from(slot.number >= self.measured);
            }
            self.oldest += 1;
        }
    }

    /// Whether the case is over: nothing more to send, nothing outstanding, and a while of silence.
    #[inline]
    pub fn finished(&mut self, now: Nanos) -> bool {
        let backlog_until = self.load.end().map(|end| end + self.setup.timeout);
        if backlog_until.is_some_and(|until| now >= until) && !self.load.exhausted(now) {
            self.stop(now);
        }
        self.load.exhausted(now) && self.outstanding == 0 && now - self.last_event >= LINGER.min(self.setup.timeout)
    }

    /// Sends no more requests; those outstanding are still awaited.
    pub fn stop(&mut self, now: Nanos) {
        self.tally.counts.unsent += self.load.give_up(now);
    }

    /// Who is asked.
    pub fn peer(&self) -> Peer {
        self.setup.peer
    }

    /// Requests that are neither answered nor counted lost.
    #[inline]
    pub fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// The first answer that was not what it had to be, those of the warm-up included.
    pub fn first_mistake(&self) -> Option<FirstMistake> {
        self.first_mistake
    }

    /// The interval under way; the caller may exchange it for an empty one.
    #[inline]
    pub fn tally(&mut self) -> &mut Box<Interval> {
        &mut self.tally
    }

    /// Ends the case and gives back the interval.
    pub fn into_tally(self) -> Box<Interval> {
        self.tally
    }

    /// The number of the oldest request without an answer.
    #[inline]
    fn first_outstanding(&mut self) -> Option<u64> {
        while self.oldest < self.next {
            let slot = self.slot(self.oldest);
            if slot.state == State::Outstanding && slot.number == self.oldest {
                return Some(self.oldest);
            }
            self.oldest += 1;
        }
        None
    }

    /// Whether a slot in this state is not for a new request.
    #[inline]
    fn is_kept(&self, state: State) -> bool {
        match state {
            State::Outstanding => true,
            State::Lost => self.lost <= self.slots.len() / 2,
            State::Unused | State::Closed => false,
        }
    }

    #[inline]
    fn stamp(&self, now: Now) -> u64 {
        match self.setup.protocol {
            Protocol::Rpc { header: HeaderForm::V24, ptp: Some(encoding), .. } => encoding.from_nanos(now.wall.0),
            _ => 0,
        }
    }

    #[inline]
    fn slot(&self, number: u64) -> &Slot {
        &self.slots[number as usize & (self.slots.len() - 1)]
    }

    #[inline]
    fn slot_mut(&mut self, number: u64) -> &mut Slot {
        &mut self.slots[number as usize & (self.slots.len() - 1)]
    }
}
