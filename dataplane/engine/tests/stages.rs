//! Stages of sampled bursts, hiccups and workers, in virtual time.

mod common;

use std::{cell::Cell, rc::Rc, time::Duration};

use berth_engine::{HICCUP, Idle, Lane, Lcore, Telemetry, WorkerMeter};
use berth_port::{BURST, Clock, Frame, Nanos, Now, Port, SAMPLE_EVERY, Service, Verdict};
use common::{Late, Log, at, port};

/// A clock that each reading moves on by so many nanoseconds.
#[derive(Clone)]
struct Ticking(Rc<Cell<u64>>, u64);

impl Clock for Ticking {
    fn now(&self) -> Now {
        self.0.set(self.0.get() + self.1);
        at(self.0.get())
    }
}

/// Answers, and takes 10 us for each frame.
struct Slow(Ticking);

impl Service for Slow {
    fn handle(&mut self, _: &mut Frame<'_>, _: Now) -> Verdict {
        self.0.0.set(self.0.0.get() + 10_000);
        Verdict::Reply
    }

    fn poll<P: Port>(&mut self, _: &mut P, _: Now) -> usize {
        // 5 us before the transmission, which belong to no stage.
        self.0.0.set(self.0.0.get() + 5_000);
        0
    }

    fn counters(&self, _: &mut dyn FnMut(&'static str, u64)) {}
}

#[test]
fn a_sampled_burst_is_timed_from_the_poll_to_its_transmission() {
    let (telemetry, clock) = (Telemetry::default(), Ticking(Rc::default(), 1_000));
    let mut lcore = Lcore::new("l", Idle::Spin, &telemetry);
    lcore.add(Lane::new("a", port(0, 2 * BURST, &Log::default()), Slow(clock.clone())).timed(clock.clone()));
    lcore.poll(clock.now());
    let stages = &telemetry.snapshot().lcores[0].lanes[0].histograms;
    let times = ["rx_time", "handler_time", "tx_time"].map(|stage| (stages[stage].count, stages[stage].max / 100));
    // A reading on its own is 1 us; the handler's is around 10 us. Buckets are 1/128 wide.
    assert_eq!(times, [(1, 10), (1, 110), (1, 10)]);
}

#[test]
fn one_burst_in_so_many_is_a_sample_and_an_empty_one_never() {
    let (telemetry, clock) = (Telemetry::default(), Ticking(Rc::default(), 100));
    let mut lcore = Lcore::new("l", Idle::Spin, &telemetry);
    let frames = port(0, 0, &Log::default());
    let queue = frames.queue.clone();
    lcore.add(Lane::new("a", frames, Late::default()).timed(clock.clone()));
    for burst in 0..3 * u64::from(SAMPLE_EVERY) {
        *queue.borrow_mut() = 1;
        lcore.poll(at(burst));
        lcore.poll(at(burst));
    }
    let stages = &telemetry.snapshot().lcores[0].lanes[0].histograms;
    let expected = if cfg!(feature = "no-telemetry") { 0 } else { 3 };
    assert_eq!(["rx_time", "handler_time", "tx_time"].map(|stage| stages[stage].count), [expected; 3]);
    assert_eq!(clock.0.get(), expected * 4 * 100, "readings");
}

#[test]
fn a_long_turn_that_did_nothing_is_a_hiccup_and_a_long_one_that_did_something_is_not() {
    let telemetry = Telemetry::default();
    let mut lcore = Lcore::new("l", Idle::Spin, &telemetry);
    let frames = port(0, 1, &Log::default());
    lcore.add(Lane::new("a", frames, Late::default()));
    let long = HICCUP.as_nanos() as u64;
    // What begins at 0 works, at `long` is empty and long, then empty and just short of it.
    for now in [0, long, 2 * long, 3 * long - 1] {
        lcore.poll(at(now));
    }
    let hiccups = telemetry.snapshot().lcores[0].hiccups;
    assert_eq!((hiccups.count, hiccups.max / 100), (1, long / 100));
}

#[test]
fn a_worker_is_seen_while_it_works() {
    let telemetry = Telemetry::default();
    let mut meter = WorkerMeter::new("worker1", &telemetry);
    let counted = Cell::new(0);
    let report = |visit: &mut dyn FnMut(&'static str, u64)| visit("answered", counted.get());
    meter.add("a", report);
    meter.add("b", report);
    // Each turn lasts until the next begins: 4 requests in 8 us on the first ring, nothing in 2 us on the second.
    meter.turn(0, Nanos(0), 4);
    meter.turn(1, Nanos(8_000), 0);
    meter.turn(0, Nanos(10_000), 0);
    counted.set(4);
    assert!(meter.is_due(Nanos(10_000)) && !meter.is_due(Nanos(10_000) + Duration::from_micros(999)));
    assert_eq!(telemetry.snapshot().workers[0].counters["answered"], 0);
    (0..2).for_each(|ring| meter.publish(ring, report));
    let workers = telemetry.snapshot().workers;
    let seen = workers.iter().map(|worker| {
        let counters = ["elapsed_ns", "busy_ns", "answered"].map(|name| worker.counters[name]);
        (&*worker.name, &*worker.port, counters, worker.worker_time.count, worker.worker_time.p50 / 100)
    });
    let expected = [("worker1", "a", [10_000, 8_000, 4], 4, 20), ("worker1", "b", [10_000, 0, 4], 0, 0)];
    assert_eq!(seen.collect::<Vec<_>>(), expected);
    assert!((workers[0].busy_fraction - 0.8).abs() < 1e-9);
}

#[test]
fn counters_that_change_their_names_are_shown_under_the_new_ones() {
    let telemetry = Telemetry::default();
    let mut meter = WorkerMeter::new("worker1", &telemetry);
    meter.add("a", |visit| visit("calls_old", 7));
    meter.publish(0, |visit| {
        visit("calls_new", 1);
        visit("calls_newer", 2);
    });
    let counters = &telemetry.snapshot().workers[0].counters;
    let calls: Vec<_> = counters.iter().filter(|(name, _)| name.starts_with("calls")).collect();
    assert_eq!(calls, [(&"calls_new".to_string(), &1), (&"calls_newer".to_string(), &2)]);
}
