//! The hot loop of a stream: rounds out on their schedule, answers in, and how far these are behind.

use std::time::Duration;

use anyhow::{bail, ensure};
use berth_host::TscClock;
use berth_port::{Clock, Nanos, Peer, Port, PostError, Verdict};
use berth_wire::rpc::{
    Bits, HeaderForm, RequestHeader, ResponseHeader,
    decoding::{EnqueueSyndromes, GetCorrections, ResetDecoder, status},
    fnv1a,
};
use hdrhistogram::Histogram;

use super::story::Story;
use crate::{
    load::{Limit, Load, Pacing},
    report::stream::Part,
    tally,
};

/// Parts of a stream that are told of one by one.
pub(super) const PARTS: u64 = 20;
/// Rounds under way at most on a schedule: as many as no ring on the way drops.
const MOST_UNDER_WAY: u64 = 512;
/// Requests other than rounds have ids from here on: `get_corrections`, and the last of all, `reset_decoder`.
const CORRECTIONS: u32 = 1 << 31;
const RESET: u32 = u32::MAX;
const FORM: HeaderForm = HeaderForm::V24;

/// How a stream went.
#[derive(Debug)]
pub(super) struct Streamed {
    pub(super) parts: Vec<Part>,
    /// From when a round was due to its answer, in nanoseconds.
    pub(super) latency: Histogram<u64>,
    /// Between two polls, in nanoseconds.
    pub(super) hiccups: Histogram<u64>,
    /// `get_corrections` that were answered as they must.
    pub(super) right: u64,
    /// The first that was not: after so many rounds, what was answered and what should be.
    pub(super) wrong: Option<(u64, Option<u64>, Option<u64>)>,
    /// Answers to no request under way: doubled ones, for instance.
    pub(super) stray: u64,
}

pub(super) struct Client<'a> {
    pub(super) story: &'a Story,
    pub(super) decoder_id: u64,
    pub(super) pacing: Pacing,
    pub(super) timeout: Duration,
    pub(super) clock: TscClock,
}

/// What is written next, and what was answered.
struct State {
    load: Load,
    start: Nanos,
    sent: u64,
    answered: u64,
    /// Rounds before each `get_corrections` sent, until it is answered, and how many were.
    asked: Vec<Option<u64>>,
    heard: usize,
    /// Each round under way and when it was due, by its number modulo theirs.
    under_way: Vec<Option<(u64, Nanos)>>,
    last_heard: Nanos,
    most: u64,
    streamed: Streamed,
    /// The first answer that ends all.
    refused: Option<(u32, i32)>,
}

impl Client<'_> {
    /// Streams the whole experiment.
    pub(super) fn stream<P: Port>(&self, port: &mut P, peer: Peer) -> anyhow::Result<Streamed> {
        self.begin(port, peer)?;
        let rounds = self.story.rounds();
        let start = self.clock.now().mono;
        let mut load = Load::new(self.pacing, start);
        load.limit(Limit::Count(rounds), start);
        let [latency, hiccups] = [(); 2].map(|()| tally::histogram());
        let streamed = Streamed { parts: Vec::new(), latency, hiccups, right: 0, wrong: None, stray: 0 };
        let mut polled = start;
        let mut state = State {
            load,
            start,
            sent: 0,
            answered: 0,
            asked: Vec::with_capacity(PARTS as usize + 1),
            heard: 0,
            under_way: vec![None; (MOST_UNDER_WAY as usize).max(self.window()).next_power_of_two()],
            last_heard: start,
            most: 0,
            streamed,
            refused: None,
        };
        loop {
            let clock = &self.clock;
            port.rx(|frame| {
                self.answer(&mut state, frame.data(), clock.now().mono);
                Verdict::Drop
            });
            if let Some((id, status)) = state.refused {
                bail!("{} was answered with status {status}", name(id));
            }
            let now = self.clock.now().mono;
            state.streamed.hiccups.saturating_record(now.0.saturating_sub(polled.0));
            polled = now;
            self.send(&mut state, port, peer, now)?;
            port.tx();
            if state.answered == rounds && state.heard as u64 == PARTS.min(rounds) {
                return Ok(state.streamed);
            }
            let is_waiting = state.answered < state.sent || state.heard < state.asked.len();
            ensure!(
                !is_waiting || now - state.last_heard < self.timeout,
                "no answer for {:?}; {} of {rounds} rounds were sent and {} answered",
                self.timeout,
                state.sent,
                state.answered
            );
        }
    }

    fn window(&self) -> usize {
        match self.pacing {
            Pacing::Closed { window } => window,
            Pacing::Open { .. } => MOST_UNDER_WAY as usize,
        }
    }

    /// Finds the server, and resets the decoder.
    fn begin<P: Port>(&self, port: &mut P, peer: Peer) -> anyhow::Result<()> {
        let mut args = [0; ResetDecoder::LEN];
        ResetDecoder { decoder_id: self.decoder_id }.write(&mut args);
        let give_up = self.clock.now().mono + Duration::from_secs(5);
        let mut answer = None;
        let mut next = self.clock.now().mono;
        while answer.is_none() {
            let now = self.clock.now().mono;
            ensure!(now < give_up, "no answer to reset_decoder for 5 s");
            if now >= next {
                // Until there is a route, and again where it was lost: a decoder may be reset twice.
                let _ = port.post(peer, |frame| {
                    request("reset_decoder", RESET, frame, |to| {
                        to[..args.len()].copy_from_slice(&args);
                        args.len()
                    })
                });
                port.tx();
                next = now + Duration::from_millis(200);
            }
            port.rx(|frame| {
                answer = ResponseHeader::parse(FORM, frame.data()).ok().filter(|header| header.request_id == RESET);
                Verdict::Drop
            });
        }
        let status = answer.map_or(status::OK, |header| header.status);
        ensure!(status == status::OK, "reset_decoder was answered with status {status}");
        Ok(())
    }

    /// Sends what is due.
    fn send<P: Port>(&self, state: &mut State, port: &mut P, peer: Peer, now: Nanos) -> anyhow::Result<()> {
        let rounds = self.story.rounds();
        loop {
            let parts = PARTS.min(rounds);
            let asked = state.asked.len() as u64;
            // After the last round of each part.
            if asked < parts && state.sent == rounds * (asked + 1) / parts {
                let ask =
                    GetCorrections { decoder_id: self.decoder_id, return_size: self.story.observables(), reset: false };
                let id = CORRECTIONS + asked as u32;
                let fill = |frame: &mut [u8]| request("get_corrections", id, frame, |to| ask.write(to).unwrap_or(0));
                match port.post(peer, fill) {
                    Ok(()) => state.asked.push(Some(state.sent)),
                    Err(PostError::Full) => return Ok(()),
                    Err(PostError::Unreachable) => bail!("the route to the server was lost"),
                }
                continue;
            }
            let under_way = state.sent - state.answered;
            if under_way >= self.window() as u64 {
                return Ok(());
            }
            let Some(due) = state.load.due(now, under_way as usize) else { return Ok(()) };
            let round = state.sent;
            let (bytes, count) = self.story.round(round);
            let measurements = Bits::new(bytes, count).unwrap_or(Bits::new(&[], 0).expect("no bits need no bytes"));
            let enqueue = EnqueueSyndromes { decoder_id: self.decoder_id, counter: round, measurements };
            let fill = |frame: &mut [u8]| {
                request("enqueue_syndromes", round as u32, frame, |to| enqueue.write(to).unwrap_or(0))
            };
            match port.post(peer, fill) {
                Ok(()) => {
                    let at = round as usize & (state.under_way.len() - 1);
                    state.under_way[at] = Some((round, due));
                    state.sent += 1;
                    state.load.sent();
                    if under_way == 0 {
                        state.last_heard = now;
                    }
                }
                Err(PostError::Full) => return Ok(()),
                Err(PostError::Unreachable) => bail!("the route to the server was lost"),
            }
        }
    }

    /// Takes an answer.
    fn answer(&self, state: &mut State, frame: &[u8], now: Nanos) {
        let Ok(header) = ResponseHeader::parse(FORM, frame) else { return };
        let id = header.request_id;
        if id == RESET {
            return;
        }
        if id >= CORRECTIONS {
            let Some(rounds) = state.asked.get_mut((id - CORRECTIONS) as usize).and_then(Option::take) else {
                state.streamed.stray += 1;
                return;
            };
            state.last_heard = now;
            state.heard += 1;
            let mut flips = [0; 8];
            let results = &frame[FORM.len()..frame.len().min(FORM.len() + header.result_len as usize)];
            let len = results.len().min(flips.len());
            flips[..len].copy_from_slice(&results[..len]);
            let found = (header.status == status::OK).then_some(u64::from_le_bytes(flips));
            let expected = self.story.corrections(rounds);
            if found == expected && matches!(header.status, status::OK | status::NOT_READY) {
                state.streamed.right += 1;
            } else {
                state.streamed.wrong.get_or_insert((rounds, found, expected));
            }
            return;
        }
        let at = id as usize & (state.under_way.len() - 1);
        let Some((_, due)) = state.under_way[at].take_if(|(round, _)| *round == u64::from(id)) else {
            state.streamed.stray += 1;
            return;
        };
        state.last_heard = now;
        if header.status != status::OK {
            state.refused.get_or_insert((id, header.status));
            return;
        }
        let rounds = self.story.rounds();
        state.streamed.latency.saturating_record(now.0.saturating_sub(due.0));
        state.answered += 1;
        let were_due = match self.pacing {
            Pacing::Closed { .. } => state.sent,
            Pacing::Open { rate, .. } => (((now - state.start).as_secs_f64() * rate) as u64 + 1).min(rounds),
        };
        let backlog = were_due.saturating_sub(state.answered);
        state.most = state.most.max(backlog);
        let part = state.streamed.parts.len() as u64 + 1;
        if state.answered == rounds * part / PARTS.min(rounds) {
            let at_ns = now.0.saturating_sub(state.start.0);
            state.streamed.parts.push(Part { rounds: state.answered, at_ns, backlog, backlog_most: state.most });
            state.most = 0;
        }
    }
}

/// Writes a request and returns its length.
fn request(name: &str, id: u32, frame: &mut [u8], args: impl FnOnce(&mut [u8]) -> usize) -> usize {
    let len = args(&mut frame[FORM.len()..]);
    let header = RequestHeader { function_id: fnv1a(name), arg_len: len as u32, request_id: id, ptp_timestamp: 0 };
    header.write(FORM, frame).expect("a frame holds a header") + len
}

fn name(id: u32) -> String {
    if id < CORRECTIONS { format!("round {id}") } else { "get_corrections".into() }
}
