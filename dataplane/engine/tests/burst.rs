//! When the clock is read and when answers leave: on a core that spins for one lane, and with handlers that take long.

mod common;

use std::{cell::Cell, rc::Rc};

use berth_engine::{HICCUP, Idle, Lane, Lcore, Step, Telemetry};
use berth_port::{BURST, Clock, Frame, Now, SAMPLE_EVERY, Service, Verdict};
use common::{Late, Log, at, port};

/// A clock that stands still until it is moved, and counts how often it is read.
#[derive(Clone, Default)]
struct Watch {
    now: Rc<Cell<u64>>,
    readings: Rc<Cell<u64>>,
}

impl Watch {
    fn advance(&self, nanos: u64) {
        self.now.set(self.now.get() + nanos);
    }
}

impl Clock for Watch {
    fn now(&self) -> Now {
        self.readings.set(self.readings.get() + 1);
        at(self.now.get())
    }
}

/// Answers each frame after this many nanoseconds, and stores the time that it is told.
struct Takes(Watch, u64, Rc<Cell<u64>>);

impl Service for Takes {
    fn handle(&mut self, _: &mut Frame<'_>, now: Now) -> Verdict {
        self.2.set(now.mono.0);
        self.0.advance(self.1);
        Verdict::Reply
    }

    fn counters(&self, _: &mut dyn FnMut(&'static str, u64)) {}
}

fn sent(log: &Log) -> Vec<usize> {
    log.take()
        .into_iter()
        .filter(|(_, event, frames)| *event == "tx" && *frames > 0)
        .map(|(.., frames)| frames)
        .collect()
}

#[test]
fn a_burst_of_slow_handlers_is_answered_as_it_goes() {
    let (telemetry, watch, log) = (Telemetry::default(), Watch::default(), Log::default());
    let mut lcore = Lcore::new("l", Idle::Spin, &telemetry);
    let frames = port(0, 3 * BURST, &log);
    lcore.add(Lane::new("a", frames, Takes(watch.clone(), 5_000, Rc::default())).timed(watch.clone()));
    for _ in 0..3 {
        lcore.poll(watch.now());
        assert_eq!(sent(&log), [1; BURST]);
    }
}

#[test]
fn a_burst_of_fast_handlers_is_answered_at_once_and_costs_few_readings() {
    let (telemetry, watch, log) = (Telemetry::default(), Watch::default(), Log::default());
    let mut lcore = Lcore::new("l", Idle::Spin, &telemetry);
    let bursts = SAMPLE_EVERY as usize;
    let frames = port(0, bursts * BURST, &log);
    lcore.add(Lane::new("a", frames, Takes(watch.clone(), 50, Rc::default())).timed(watch.clone()));
    for _ in 0..bursts {
        lcore.poll(at(watch.now.get()));
    }
    assert_eq!(sent(&log), vec![BURST; bursts]);
    // Three for each; two for the one that is a sample, whose other four tell of its first frame, too.
    assert_eq!(watch.readings.get(), 3 * bursts as u64 + if cfg!(feature = "no-telemetry") { 0 } else { 3 });
}

/// An lcore whose lane has had its sample already, and whose port finds frames after `blind` empty polls.
fn looks(idle: Idle, lanes: usize, blind: usize) -> (Step, u64, [u64; 2], u64) {
    let (telemetry, watch, log) = (Telemetry::default(), Watch::default(), Log::default());
    let told = Rc::new(Cell::new(0));
    let mut lcore = Lcore::new("l", idle, &telemetry);
    let frames = port(0, 1, &log);
    let (queue, blinded) = (frames.queue.clone(), frames.blind.clone());
    lcore.add(Lane::new("a", frames, Takes(watch.clone(), 100, told.clone())).timed(watch.clone()));
    for other in 1..lanes {
        lcore.add(Lane::new("b", port(other, 0, &log), Late::default()));
    }
    for _ in 0..lanes {
        lcore.poll(watch.now());
    }
    watch.advance(1_000);
    blinded.set(blind);
    *queue.borrow_mut() = 1;
    let (now, before) = (watch.now(), watch.readings.get());
    // The host takes the CPU away meanwhile.
    watch.advance(2 * HICCUP.as_nanos() as u64);
    let step = lcore.poll(now);
    let readings = watch.readings.get() - before;
    lcore.drain(watch.now(), HICCUP);
    while lcore.poll(watch.now()) != Step::Done {
        watch.advance(1_000);
    }
    let lcore = &telemetry.snapshot().lcores[0];
    let late = told.get() - now.mono.0;
    (step, readings, [lcore.hiccups.count, lcore.lanes[0].histograms["service_time"].count], late)
}

#[test]
fn a_core_that_spins_for_one_lane_reads_the_clock_when_frames_come() {
    let stolen = 2 * HICCUP.as_nanos() as u64;
    // Found by the first poll: the time is that of the poll.
    let [first, fourth, none] = [0, 4, 16].map(|blind| looks(Idle::Spin, 1, blind));
    assert_eq!((first.0, first.1, first.3), (Step::Busy, 0, 0));
    // Found by a later one: the frame is told when it came, what passed before was a hiccup, and no part of its service.
    assert_eq!((fourth.0, fourth.1, fourth.3), (Step::Busy, 1, stolen));
    if !cfg!(feature = "no-telemetry") {
        assert_eq!((first.2, fourth.2), ([0, 2], [1, 2]));
    }
    assert_eq!((none.0, none.1), (Step::Spin, 0));
    // A core that may sleep, or has other lanes, looks once.
    for (idle, lanes) in [(Idle::Wait, 1), (Idle::Adaptive, 1), (Idle::Spin, 2)] {
        assert_ne!(looks(idle, lanes, 1).0, Step::Busy);
    }
}
