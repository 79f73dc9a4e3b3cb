//! Stages of sampled bursts, hiccups and workers, in virtual time.

mod common;

use std::{cell::Cell, rc::Rc};

use berth_engine::{HICCUP, Idle, Lane, Lcore, Polled, Telemetry, Timed};
use berth_port::{BURST, Clock, Frame, Now, Part, Port, Recorder, SAMPLE_EVERY, Service, Task, Verdict, Work};
use common::{Late, Log, Worker, at, port};

/// A clock that moves by this many nanoseconds with each reading.
#[derive(Clone)]
struct Ticking(Rc<Cell<u64>>, u64);

impl Clock for Ticking {
    fn now(&self) -> Now {
        self.0.set(self.0.get() + self.1);
        at(self.0.get())
    }
}

/// Answers, and takes 10 us per frame.
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
    let mut lcore = Lcore::new("cpu1", Idle::Spin, &telemetry);
    let worker = Worker::default();
    *worker.queue.borrow_mut() = 4;
    lcore.add(Polled::worker("worker1", "a", worker));
    lcore.add(Polled::worker("worker1", "b", Worker::default()));
    // Each turn lasts until the next begins: 4 requests in 8 us for the first port, nothing in 2 us for the second.
    for now in [0, 8_000, 10_000] {
        lcore.poll(at(now));
    }
    assert_eq!(telemetry.snapshot().workers[0].counters["served"], 0, "published every millisecond");
    lcore.poll(at(1_000_000));
    let workers = telemetry.snapshot().workers;
    let seen = workers.iter().map(|worker| {
        let counters = ["elapsed_ns", "busy_ns", "served"].map(|name| worker.counters[name]);
        (&*worker.name, &*worker.port, counters, worker.worker_time.count, worker.worker_time.p50 / 100)
    });
    let expected = [("worker1", "a", [1_000_000, 8_000, 4], 4, 20), ("worker1", "b", [1_000_000, 0, 0], 0, 0)];
    assert_eq!(seen.collect::<Vec<_>>(), expected);
    assert!((workers[0].busy_fraction - 0.008).abs() < 1e-9);
    let timed = telemetry.histograms();
    let whose = |timed: &Timed| (timed.thread.clone(), timed.port.clone(), timed.name);
    assert_eq!(whose(&timed[0]), ("cpu1".into(), None, "hiccup"));
    assert_eq!(whose(&timed[1]), ("worker1".into(), Some("a".into()), "worker_time"));
}

#[test]
fn a_sample_of_the_turns_of_a_worker_is_timed() {
    let telemetry = Telemetry::default();
    let mut lcore = Lcore::new("cpu1", Idle::Spin, &telemetry);
    let worker = Worker::default();
    *worker.queue.borrow_mut() = usize::MAX;
    lcore.add(Polled::worker("worker1", "a", worker));
    for turn in 0..=2 * u64::from(SAMPLE_EVERY) {
        lcore.poll(at(turn));
    }
    let expected = if cfg!(feature = "no-telemetry") { 0 } else { 2 * BURST as u64 };
    assert_eq!(telemetry.snapshot().workers[0].worker_time.count, expected);
}

/// Counts and records under other names after the first turn.
#[derive(Default)]
struct Renamed(bool, [Recorder; 2]);

impl Task for Renamed {
    fn turn(&mut self, now: Now, _: bool, _: bool) -> Work {
        self.0 = true;
        Work { polls: 1, began: now.mono, ..Work::default() }
    }

    fn counters(&self, _: Part, visit: &mut dyn FnMut(&'static str, u64)) {
        if self.0 {
            visit("calls_new", 1);
            visit("calls_newer", 2);
        } else {
            visit("calls_old", 7);
        }
    }

    fn histograms(&self, visit: &mut dyn FnMut(&'static str, &Recorder)) {
        let [old, new] = &self.1;
        if self.0 { visit("time_new", new) } else { visit("time_old", old) }
    }
}

#[test]
fn counters_and_histograms_that_change_their_names_are_shown_under_the_new_ones() {
    let telemetry = Telemetry::default();
    let mut lcore = Lcore::new("cpu1", Idle::Spin, &telemetry);
    let task = Renamed::default();
    task.1[1].record(500);
    lcore.add(Polled::worker("worker1", "a", task));
    let times = || {
        let all = telemetry.histograms().into_iter();
        all.filter(|timed| timed.name.starts_with("time")).map(|timed| (timed.name, timed.histogram.len())).collect()
    };
    let before: Vec<_> = times();
    assert_eq!(before, [("time_old", 0)]);
    for now in [0, 1_000_000] {
        lcore.poll(at(now));
    }
    let counters = &telemetry.snapshot().workers[0].counters;
    let calls: Vec<_> = counters.iter().filter(|(name, _)| name.starts_with("calls")).collect();
    assert_eq!(calls, [(&"calls_new".to_string(), &1), (&"calls_newer".to_string(), &2)]);
    let after: Vec<_> = times();
    assert_eq!(after, [("time_new", 1)]);
}
