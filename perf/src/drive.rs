//! The hot loop: one port, one emulator, one core.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use berth_port::{Clock, Nanos, Port, PostError, Verdict};

use crate::{emulator::Emulator, load::Limit, tally::Interval};

/// How long a port may find no route to the peer before the case gives up.
const UNREACHABLE: Duration = Duration::from_secs(5);

/// How a case is divided in time.
#[derive(Debug, Clone, Copy)]
pub struct Phases {
    /// Time before anything is measured; its requests are verified and not counted.
    pub warmup: Duration,
    /// How long or how many requests are measured.
    pub limit: Limit,
    /// How often results are handed to the housekeeping thread.
    pub interval: Duration,
}

/// Where the hot loop exchanges filled intervals for empty ones, without waiting and without allocating.
#[derive(Debug)]
pub struct Exchange {
    filled: rtrb::Producer<Box<Interval>>,
    empty: rtrb::Consumer<Box<Interval>>,
}

/// The housekeeping thread's end of an [`Exchange`].
#[derive(Debug)]
pub struct Collector {
    filled: rtrb::Consumer<Box<Interval>>,
    empty: rtrb::Producer<Box<Interval>>,
}

/// Intervals in circulation: the housekeeping thread may be this many intervals late before intervals grow longer.
const INTERVALS: usize = 4;

/// Two ends that share a few intervals for a mix of `steps` steps, and the first interval to fill.
pub fn exchange(steps: usize) -> (Exchange, Collector, Box<Interval>) {
    let (to_collector, filled) = rtrb::RingBuffer::new(INTERVALS + 1);
    let (mut empty, to_loop) = rtrb::RingBuffer::new(INTERVALS + 1);
    for _ in 0..INTERVALS {
        empty.push(Box::new(Interval::new(steps))).expect("the ring holds every interval");
    }
    let first = Box::new(Interval::new(steps));
    (Exchange { filled: to_collector, empty: to_loop }, Collector { filled, empty }, first)
}

impl Exchange {
    /// Hands over `interval` and puts an empty one in its place; `false` where none is free yet.
    #[inline]
    fn hand_over(&mut self, interval: &mut Box<Interval>, now: Nanos) -> bool {
        let Ok(mut fresh) = self.empty.pop() else { return false };
        interval.end = now;
        fresh.case = interval.case;
        fresh.start = now;
        fresh.last_answer = now;
        std::mem::swap(interval, &mut fresh);
        self.filled.push(fresh).expect("the ring holds every interval");
        true
    }
}

impl Collector {
    /// Gives the next filled interval to `take` and recycles it; `false` where there is none.
    pub fn collect(&mut self, take: impl FnOnce(&Interval)) -> bool {
        let Ok(mut interval) = self.filled.pop() else { return false };
        take(&interval);
        interval.clear();
        self.empty.push(interval).expect("the ring holds every interval");
        true
    }
}

/// Why a case could not be driven to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DriveError {
    /// The port found no route to the peer for more than 5 s.
    #[error("no route to the peer for {} s; does it answer ARP or NDP on this link?", UNREACHABLE.as_secs())]
    Unreachable,
    /// A frame of the case is longer than the port carries.
    #[error("the case has frames of {frame} bytes, the port carries {max}; choose a smaller --payload")]
    FrameTooLong {
        /// The case's longest frame in bytes.
        frame: usize,
        /// [`Port::max_frame`].
        max: usize,
    },
}

/// Runs one case on the calling thread until its limit, or until `stop` is set.
///
/// Latency runs from the intended send to the moment the port lends the answer. Both are read from `clock`: once per
/// poll, once per answer and once per request.
pub fn drive<P: Port, C: Clock>(
    port: &mut P,
    clock: &C,
    emulator: &mut Emulator,
    phases: Phases,
    exchange: &mut Exchange,
    stop: &AtomicBool,
) -> Result<(), DriveError> {
    let (frame, max) = (emulator.longest_frame(), port.max_frame());
    if frame > max {
        return Err(DriveError::FrameTooLong { frame, max });
    }
    let peer = emulator.peer();
    let start = clock.now().mono;
    let mut measure_at = Some(start + phases.warmup);
    let mut hand_over_at = Nanos(u64::MAX);
    let mut last_poll = start;
    let mut unreachable_since = None;
    loop {
        let now = clock.now().mono;
        if let Some(at) = measure_at {
            if now >= at {
                measure_at = None;
                emulator.measure(phases.limit, now);
                emulator.tally().start = now;
                hand_over_at = now + phases.interval;
            }
        } else {
            emulator.tally().hiccups.saturating_record(now.0.saturating_sub(last_poll.0));
            if now >= hand_over_at && exchange.hand_over(emulator.tally(), now) {
                hand_over_at = now + phases.interval;
            }
        }
        last_poll = now;

        port.rx(|frame| {
            emulator.answer(frame.data(), frame.wire_len(), frame.peer(), clock.now().mono);
            Verdict::Drop
        });
        emulator.expire(now);
        loop {
            let now = clock.now();
            let Some(request) = emulator.due(now.mono) else { break };
            match port.post(peer, |frame| emulator.write(&request, now, frame)) {
                Ok(()) => {
                    emulator.sent(request, now);
                    unreachable_since = None;
                }
                Err(PostError::Full) => {
                    emulator.refused_by_port();
                    break;
                }
                Err(PostError::Unreachable) => {
                    if now.mono - *unreachable_since.get_or_insert(now.mono) > UNREACHABLE {
                        return Err(DriveError::Unreachable);
                    }
                    break;
                }
            }
        }
        port.tx();

        if measure_at.is_none() && emulator.finished(now) {
            break;
        }
        if stop.load(Relaxed) {
            measure_at = None;
            emulator.stop(now);
        }
    }
    while !exchange.hand_over(emulator.tally(), clock.now().mono) {
        std::thread::yield_now();
    }
    Ok(())
}
