//! Fairness, idling, draining and accounting of an lcore, under virtual time.

mod common;

use std::{rc::Rc, time::Duration};

use berth_engine::{Idle, LONGEST_SLEEP, Lane, Lcore, Polled, SHORTEST_SLEEP, Step, Telemetry};
use berth_port::{Frame, Now, Part, Port, Service, Task, Verdict, Work};
use common::{Late, Log, Worker, at, port};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;

fn lcore(idle: Idle) -> (Lcore, Telemetry) {
    let telemetry = Telemetry::default();
    (Lcore::new("lcore1", idle, &telemetry), telemetry)
}

#[test]
fn lanes_take_turns_of_one_burst_whatever_is_queued() {
    let log = Log::default();
    let (mut lcore, _) = lcore(Idle::Spin);
    for (lane, queued) in [(0, 1000), (1, 40), (2, 1)] {
        lcore.add(Lane::new(format!("lane{lane}"), port(lane, queued, &log), Late::default()));
    }
    let steps: Vec<Step> = (0..9).map(|i| lcore.poll(at(i * US))).collect();
    let bursts: Vec<_> = log.borrow().iter().filter(|e| e.1 == "rx").map(|e| (e.0, e.2)).collect();
    assert_eq!(bursts, [(0, 32), (1, 32), (2, 1), (0, 32), (1, 8), (2, 0), (0, 32), (1, 0), (2, 0)]);
    assert_eq!(
        steps,
        [Step::Busy, Step::Busy, Step::Busy, Step::Busy, Step::Busy, Step::Spin, Step::Busy, Step::Spin, Step::Spin]
    );
    // Every answer of a burst leaves in that burst's own turn.
    let sent: Vec<_> = log.borrow().iter().filter(|e| e.1 == "tx").map(|e| (e.0, e.2)).collect();
    assert_eq!(sent, bursts);
}

#[test]
fn spin_never_sleeps() {
    let (mut lcore, _) = lcore(Idle::Spin);
    lcore.add(Lane::new("a", port(0, 1, &Log::default()), Late::default()));
    assert_eq!(lcore.poll(at(0)), Step::Busy);
    for second in 1..1000 {
        assert_eq!(lcore.poll(at(second * 1000 * MS)), Step::Spin);
    }
}

#[test]
fn adaptive_spins_exactly_its_time_after_the_last_frame_then_sleeps_by_timer() {
    let (mut lcore, _) = lcore(Idle::Adaptive);
    let port = port(0, 1, &Log::default());
    let queue = port.queue.clone();
    lcore.add(Lane::new("a", port, Late::default()));
    assert_eq!(lcore.poll(at(5 * US)), Step::Busy);
    assert_eq!(lcore.poll(at(6 * US)), Step::Spin);
    assert_eq!(lcore.poll(at(5 * US + MS - 1)), Step::Spin);
    assert_eq!(lcore.poll(at(5 * US + MS)), Step::Sleep(SHORTEST_SLEEP));
    // Without a descriptor every sleep is the shortest.
    assert_eq!(lcore.poll(at(7 * MS)), Step::Sleep(SHORTEST_SLEEP));
    *queue.borrow_mut() = 1;
    assert_eq!(lcore.poll(at(8 * MS)), Step::Busy);
    assert_eq!(lcore.poll(at(8 * MS + 1)), Step::Spin);
}

#[test]
fn wait_sleeps_at_once_and_longer_each_time_where_descriptors_wake_it() {
    let (mut lcore, telemetry) = lcore(Idle::Wait);
    let mut port = port(0, 1, &Log::default());
    port.fd = Some(7);
    let queue = port.queue.clone();
    lcore.add(Lane::new("a", port, Late::default()));
    assert_eq!(lcore.wait_fds().collect::<Vec<_>>(), [7]);
    assert_eq!(lcore.poll(at(0)), Step::Busy);
    let mut now = MS;
    for doubled in [1, 2, 4, 8, 16, 32, 64] {
        assert_eq!(lcore.poll(at(now)), Step::Sleep(SHORTEST_SLEEP * doubled));
        now += 100 * MS;
    }
    assert_eq!(lcore.poll(at(now)), Step::Sleep(LONGEST_SLEEP));
    assert_eq!(lcore.poll(at(now + 10 * MS)), Step::Sleep(LONGEST_SLEEP));
    *queue.borrow_mut() = 1;
    assert_eq!(lcore.poll(at(now + 20 * MS)), Step::Busy);
    assert_eq!(lcore.poll(at(now + 21 * MS)), Step::Sleep(SHORTEST_SLEEP));
    let counters = &telemetry.snapshot().lcores[0].counters;
    assert_eq!((counters["sleeps"], counters["slept_ns"]), (9, 720 * MS));
}

#[test]
fn a_sleep_follows_a_whole_empty_round_only() {
    let (mut lcore, _) = lcore(Idle::Wait);
    for lane in 0..2 {
        lcore.add(Lane::new("x", port(lane, usize::from(lane == 1), &Log::default()), Late::default()));
    }
    let steps: Vec<_> = (0..6).map(|i| lcore.poll(at(i))).collect();
    let sleep = Step::Sleep(SHORTEST_SLEEP);
    assert_eq!(steps, [Step::Spin, Step::Busy, Step::Spin, sleep, Step::Spin, sleep]);
}

#[test]
fn wait_spins_for_answers_it_owes_then_looks_for_them_by_timer() {
    let (mut lcore, _) = lcore(Idle::Wait);
    let mut port = port(0, 1, &Log::default());
    port.fd = Some(7);
    lcore.add(Lane::new("a", port, Late { after: Some(Duration::from_millis(5)), ..Late::default() }));
    assert_eq!(lcore.poll(at(0)), Step::Busy);
    assert_eq!(lcore.poll(at(MS - 1)), Step::Spin);
    for ms in 1..5 {
        assert_eq!(lcore.poll(at(ms * MS)), Step::Sleep(SHORTEST_SLEEP));
    }
    assert_eq!(lcore.poll(at(5 * MS)), Step::Busy);
    assert_eq!(lcore.poll(at(6 * MS)), Step::Sleep(SHORTEST_SLEEP));
    assert_eq!(lcore.poll(at(7 * MS)), Step::Sleep(SHORTEST_SLEEP * 2));
}

#[test]
fn a_drain_answers_what_has_arrived_and_what_is_owed() {
    let (mut lcore, telemetry) = lcore(Idle::Wait);
    let (log, late) = (Log::default(), Late { after: Some(Duration::from_millis(3)), ..Late::default() });
    let port = port(0, 70, &log);
    let queue = port.queue.clone();
    lcore.add(Lane::new("a", port, late));
    lcore.drain(at(0), Duration::from_millis(10));
    assert_eq!([0, 1, 2].map(|i| lcore.poll(at(i))), [Step::Busy; 3]);
    assert_eq!(lcore.poll(at(3)), Step::Spin);
    // What comes after the queue was empty once is not received.
    *queue.borrow_mut() = 5;
    assert_eq!(lcore.poll(at(3 * MS - 1)), Step::Spin);
    assert_eq!(lcore.poll(at(3 * MS + 2)), Step::Busy);
    assert_eq!(lcore.poll(at(3 * MS + 3)), Step::Done);
    assert_eq!(lcore.poll(at(3 * MS + 4)), Step::Done);
    assert_eq!(*queue.borrow(), 5);
    let snapshot = telemetry.snapshot();
    let counters = &snapshot.lcores[0].lanes[0].counters;
    assert_eq!((counters["frames_rx"], counters["frames_replied"]), (70, 70));
    assert_eq!(snapshot.lcores[0].counters["drain_abandoned"], 0);
}

#[test]
fn a_drain_ends_at_its_deadline_and_counts_what_it_abandons() {
    let (mut lcore, telemetry) = lcore(Idle::Spin);
    lcore.add(Lane::new("a", port(0, 3, &Log::default()), Late { never: true, ..Late::default() }));
    lcore.poll(at(0));
    lcore.drain(at(1), Duration::from_millis(10));
    for ms in 1..10 {
        assert_eq!(lcore.poll(at(ms * MS)), Step::Spin);
    }
    assert_eq!(lcore.poll(at(10 * MS + 1)), Step::Done);
    assert_eq!(telemetry.snapshot().lcores[0].counters["drain_abandoned"], 3);
}

#[test]
fn a_drain_stops_receiving_from_a_flood_at_half_its_time() {
    let (mut lcore, _) = lcore(Idle::Spin);
    let flood = port(0, usize::MAX, &Log::default());
    let queue = Rc::clone(&flood.queue);
    lcore.add(Lane::new("a", flood, Late::default()));
    lcore.drain(at(0), Duration::from_millis(10));
    assert_eq!(lcore.poll(at(5 * MS - 1)), Step::Busy);
    assert_eq!(lcore.poll(at(5 * MS)), Step::Done);
    assert_eq!(*queue.borrow(), usize::MAX - 32);
}

/// Answers late, and feeds a worker as long as it lives.
struct Feeding(Late, #[expect(dead_code, reason = "held")] Rc<()>);

impl Service for Feeding {
    fn handle(&mut self, frame: &mut Frame<'_>, now: Now) -> Verdict {
        self.0.handle(frame, now)
    }

    fn poll<P: Port>(&mut self, port: &mut P, now: Now) -> usize {
        self.0.poll(port, now)
    }

    fn outstanding(&self) -> usize {
        self.0.outstanding()
    }

    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        self.0.counters(visit);
    }
}

#[test]
fn a_worker_drains_after_the_lane_that_feeds_it() {
    let (mut lcore, telemetry) = lcore(Idle::Spin);
    let feeder = Rc::new(());
    let worker = Worker { feeder: Rc::downgrade(&feeder), ..Worker::default() };
    let queue = worker.queue.clone();
    lcore.add(Polled::worker("worker1", "a", worker));
    let late = Late { after: Some(Duration::from_millis(6)), ..Late::default() };
    lcore.add(Lane::new("a", port(0, 1, &Log::default()), Feeding(late, feeder)));
    lcore.drain(at(0), Duration::from_millis(10));
    assert_eq!([0, 1, 2, 3].map(|i| lcore.poll(at(i))), [Step::Spin, Step::Busy, Step::Spin, Step::Spin]);
    // The worker found nothing, and half the time is over: it serves what comes all the same.
    *queue.borrow_mut() = 1;
    assert_eq!(lcore.poll(at(5 * MS)), Step::Busy);
    // The lane's answer leaves; then it is done, and then the worker is.
    let steps = [1, 2, 3, 4].map(|i| lcore.poll(at(6 * MS + i)));
    assert_eq!(steps, [Step::Busy, Step::Spin, Step::Spin, Step::Done]);
    let snapshot = telemetry.snapshot();
    assert_eq!((snapshot.workers[0].counters["served"], *queue.borrow()), (1, 0));
    assert_eq!(snapshot.lcores[0].lanes[0].counters["frames_replied"], 1);
    assert_eq!(snapshot.lcores[0].counters["drain_abandoned"], 0);
}

#[test]
fn a_worker_that_is_fed_to_the_end_is_no_answer_owed() {
    let (mut lcore, telemetry) = lcore(Idle::Spin);
    let feeder = Rc::new(());
    lcore.add(Polled::worker("worker1", "a", Worker { feeder: Rc::downgrade(&feeder), ..Worker::default() }));
    lcore.drain(at(0), Duration::from_millis(10));
    assert_eq!([1, 10 * MS - 1, 10 * MS].map(|now| lcore.poll(at(now))), [Step::Spin, Step::Spin, Step::Done]);
    assert_eq!(telemetry.snapshot().lcores[0].counters["drain_abandoned"], 0);
}

#[test]
fn a_worker_that_is_fed_is_looked_at_every_millisecond() {
    for idle in [Idle::Wait, Idle::Adaptive] {
        let (mut lcore, _) = lcore(idle);
        let feeder = Rc::new(());
        let worker = Worker { feeder: Rc::downgrade(&feeder), ..Worker::default() };
        *worker.queue.borrow_mut() = 1;
        lcore.add(Polled::worker("worker1", "a", worker));
        assert_eq!([0, MS - 1].map(|now| lcore.poll(at(now))), [Step::Busy, Step::Spin], "{idle:?}");
        assert_eq!([MS, 2 * MS, 9 * MS].map(|now| lcore.poll(at(now))), [Step::Sleep(SHORTEST_SLEEP); 3], "{idle:?}");
    }
}

/// Has work whenever it is asked to rest, as often as `restless` says.
struct Restless(u32);

impl Task for Restless {
    fn turn(&mut self, now: Now, _: bool, _: bool) -> Work {
        Work { polls: 1, began: now.mono, ..Work::default() }
    }

    fn rest(&mut self) -> bool {
        self.0 = self.0.saturating_sub(1);
        self.0 == 0
    }

    fn counters(&self, _: Part, _: &mut dyn FnMut(&'static str, u64)) {}
}

#[test]
fn a_core_sleeps_once_every_task_announces_its_work() {
    let (mut lcore, telemetry) = lcore(Idle::Wait);
    lcore.add(Polled::worker("a", "a", Restless(3)));
    lcore.add(Polled::worker("b", "b", Restless(2)));
    let steps = [0, 1, 2, 3, 4].map(|now| lcore.poll(at(now * MS)));
    assert!(matches!(steps, [Step::Spin, Step::Spin, Step::Spin, Step::Sleep(_), Step::Spin]), "{steps:?}");
    lcore.drain(at(6 * MS), Duration::ZERO);
    while lcore.poll(at(7 * MS)) != Step::Done {}
    assert_eq!(telemetry.snapshot().lcores[0].counters["sleeps"], 1);
}

#[test]
fn an_lcore_without_lanes_idles_and_drains() {
    let (mut lcore, telemetry) = lcore(Idle::Wait);
    assert!(matches!(lcore.poll(at(0)), Step::Sleep(_)));
    lcore.drain(at(1), Duration::from_secs(1));
    assert_eq!(lcore.poll(at(2)), Step::Done);
    assert_eq!(telemetry.snapshot().lcores[0].counters["slept_ns"], 2);
}

#[test]
fn counters_add_up_and_service_time_spans_poll_to_poll() {
    let (mut lcore, telemetry) = lcore(Idle::Wait);
    lcore.add(Lane::new("a", port(0, 40, &Log::default()), Late::default()));
    lcore.add(Lane::new("b", port(1, 2, &Log::default()), Late { after: Some(Duration::ZERO), ..Late::default() }));
    // a: 32 in 700 ns; b: 2 in 300; a: 8 in 500; b: nothing; a: nothing, and a sleep of 998,000 ns.
    for now in [1000, 1700, 2000, 2500, 2600, 1_000_600] {
        lcore.poll(at(now));
    }
    lcore.drain(at(1_000_700), Duration::from_secs(1));
    assert_eq!([1_000_700, 1_000_800].map(|now| lcore.poll(at(now))), [Step::Spin, Step::Done]);
    let snapshot = telemetry.snapshot();
    let lcore = &snapshot.lcores[0];
    assert_eq!(lcore.name, "lcore1");
    assert_eq!(
        (lcore.counters["elapsed_ns"], lcore.counters["slept_ns"], lcore.counters["sleeps"]),
        (999_800, 998_000, 1)
    );
    assert!((lcore.busy_fraction - 1500.0 / 999_800.0).abs() < 1e-12);
    let [a, b] = &lcore.lanes[..] else { panic!("two lanes") };
    let of = |counters: &berth_engine::Counters| {
        ["polls", "empty_polls", "busy_ns", "frames_rx", "frames_replied"].map(|name| counters[name])
    };
    assert_eq!(of(&a.counters), [4, 2, 1200, 40, 40]);
    assert_eq!(of(&b.counters), [4, 3, 300, 2, 2]);
    assert_eq!((a.port["received"], a.service["handled"], a.service["owed"]), (40, 40, 0));
    let (a, b) = (a.histograms["service_time"], b.histograms["service_time"]);
    assert_eq!((a.count, a.min, a.p50, a.max), (40, 500, 703, 703));
    assert_eq!((b.count, b.min, b.max), (2, 300, 301));
}
