//! Tasks of one core share its time whatever their frames and requests cost, in virtual time.

mod common;

use std::{
    cell::{Cell, RefCell},
    num::NonZeroU32,
    rc::Rc,
};

use berth_engine::{Idle, Lane, Lcore, Polled, Step, Telemetry};
use berth_port::{Frame, Nanos, Now, Service, Verdict};
use common::{Log, Worker, at, port};

const US: u64 = 1_000;
const SECOND: u64 = 1_000_000_000;

/// Takes this many nanoseconds per frame.
struct Costly {
    each: u64,
    clock: Rc<Cell<u64>>,
}

impl Service for Costly {
    fn handle(&mut self, _: &mut Frame<'_>, _: Now) -> Verdict {
        self.clock.set(self.clock.get() + self.each);
        Verdict::Reply
    }

    fn counters(&self, _: &mut dyn FnMut(&'static str, u64)) {}
}

/// Number of frames or requests that wait for a task.
type Queue = Rc<RefCell<usize>>;

/// A core with tasks of given costs per frame and weights, and their queues.
struct Core {
    lcore: Lcore,
    telemetry: Telemetry,
    clock: Rc<Cell<u64>>,
    queues: Vec<Queue>,
}

impl Core {
    fn new(lanes: &[(u64, u32)]) -> Self {
        let (telemetry, clock) = (Telemetry::default(), Rc::new(Cell::new(0)));
        let mut lcore = Lcore::new("lcore1", Idle::Spin, &telemetry);
        let mut queues = Vec::new();
        for (index, &(each, weight)) in lanes.iter().enumerate() {
            let port = port(index, 0, &Log::default());
            queues.push(port.queue.clone());
            let lane = Lane::new(format!("{index}"), port, Costly { each, clock: clock.clone() });
            lcore.add(lane.weight(NonZeroU32::new(weight).unwrap()));
        }
        Self { lcore, telemetry, clock, queues }
    }

    fn add_worker(&mut self, each: u64, weight: u32) {
        let worker = Worker { each, clock: self.clock.clone(), ..Worker::default() };
        self.queues.push(worker.queue.clone());
        let index = self.queues.len().to_string();
        self.lcore.add(Polled::worker("worker1", index, worker).weight(NonZeroU32::new(weight).unwrap()));
    }

    fn poll(&mut self) -> Step {
        // Every turn takes some time, with frames or without.
        self.clock.set(self.clock.get() + 100);
        self.lcore.poll(at(self.clock.get()))
    }

    /// Polls until `end`; calls `feed` with the time before each poll.
    fn until(&mut self, end: u64, mut feed: impl FnMut(u64, &[Queue])) {
        while self.clock.get() < end {
            feed(self.clock.get(), &self.queues);
            self.poll();
        }
    }

    fn empty(&self) {
        for queue in &self.queues {
            *queue.borrow_mut() = 0;
        }
    }

    /// Each task's published share of the time in which all were busy; lanes first.
    fn shares(&mut self) -> Vec<f64> {
        self.poll();
        self.clock.set(self.clock.get() + SECOND);
        self.poll();
        let snapshot = self.telemetry.snapshot();
        let [lcore] = &snapshot.lcores[..] else { panic!("one lcore") };
        let lanes = lcore.lanes.iter().map(|lane| &lane.counters);
        let counters = lanes.chain(snapshot.workers.iter().map(|worker| &worker.counters));
        let busy: Vec<_> = counters.map(|counters| counters["busy_ns"]).collect();
        let all: u64 = busy.iter().sum();
        assert_eq!(all, lcore.counters["busy_ns"]);
        busy.iter().map(|own| *own as f64 / all as f64).collect()
    }
}

fn keep_full(_: u64, queues: &[Queue]) {
    for queue in queues {
        *queue.borrow_mut() = 1000;
    }
}

fn assert_near(shares: &[f64], wanted: &[f64]) {
    for (share, wanted) in shares.iter().zip(wanted) {
        assert!((share / wanted - 1.0).abs() < 0.03, "{shares:?}, not {wanted:?}");
    }
}

#[test]
fn lanes_with_work_share_the_time_whatever_a_frame_costs() {
    for costs in [&[(100, 1), (100, 1)][..], &[(100, 1), (10 * US, 1)], &[(50, 1), (1_000, 1), (20 * US, 1), (300, 1)]]
    {
        let mut core = Core::new(costs);
        core.until(2 * SECOND, keep_full);
        core.empty();
        assert_near(&core.shares(), &vec![1.0 / costs.len() as f64; costs.len()]);
    }
}

#[test]
fn weights_are_shares_of_time() {
    let mut core = Core::new(&[(100, 3), (10 * US, 1), (1_000, 4)]);
    core.until(2 * SECOND, keep_full);
    core.empty();
    assert_near(&core.shares(), &[3.0 / 8.0, 1.0 / 8.0, 4.0 / 8.0]);
}

#[test]
fn a_worker_and_a_port_share_a_core_by_weight() {
    for [lane, worker] in [[1, 1], [3, 1], [1, 4]] {
        let mut core = Core::new(&[(100, lane)]);
        core.add_worker(20 * US, worker);
        core.until(2 * SECOND, keep_full);
        core.empty();
        let all = f64::from(lane + worker);
        assert_near(&core.shares(), &[f64::from(lane) / all, f64::from(worker) / all]);
    }
}

#[test]
fn time_that_a_lane_does_not_need_is_the_others() {
    // The first asks for a tenth of the core: 1 us every 10.
    let mut core = Core::new(&[(1_000, 1), (5_000, 1), (50, 1)]);
    let mut next = 0;
    core.until(2 * SECOND, |now, queues| {
        keep_full(now, &queues[1..]);
        while next < now {
            next += 10 * US;
            *queues[0].borrow_mut() += 1;
        }
    });
    core.empty();
    let shares = core.shares();
    assert!(shares[0] > 0.10 && shares[0] < 0.12, "{shares:?}");
    assert_near(&shares[1..], &[(1.0 - shares[0]) / 2.0; 2]);
}

#[test]
fn an_idle_lane_keeps_no_credit() {
    let mut core = Core::new(&[(1_000, 1), (1_000, 1)]);
    // The second is idle for two seconds,
    core.until(2 * SECOND, |now, queues| keep_full(now, &queues[..1]));
    let before = core.telemetry.snapshot().lcores[0].lanes[0].counters["busy_ns"];
    // and then both have work for a second: the first does not pay those back.
    core.until(3 * SECOND, keep_full);
    let first = core.telemetry.snapshot().lcores[0].lanes[0].counters["busy_ns"] - before;
    assert!(first.abs_diff(SECOND / 2) < SECOND / 20, "{first} ns of a second");
}

#[test]
fn nobody_starves_and_a_frame_waits_for_one_turn_of_each_other_lane() {
    // A burst of the last takes 3.2 ms.
    let mut core = Core::new(&[(100, 1), (2_000, 1), (100 * US, 1)]);
    let worst = Rc::new(Cell::new(0));
    let mut sent = None;
    for _ in 0..50_000 {
        keep_full(0, &core.queues[1..]);
        let now = core.clock.get();
        let waiting = *core.queues[0].borrow();
        match sent {
            Some(at) if waiting == 0 => {
                worst.set(worst.get().max(now - at));
                sent = None;
            }
            None => {
                *core.queues[0].borrow_mut() = 1;
                sent = Some(now);
            }
            Some(_) => {}
        }
        core.poll();
    }
    assert!(worst.get() <= 32 * (100 + 2) * US + 3 * US, "a frame waited for {} ns", worst.get());
}

#[test]
fn a_lane_that_was_passed_over_is_served_before_the_core_sleeps() {
    let telemetry = Telemetry::default();
    let mut lcore = Lcore::new("lcore1", Idle::Wait, &telemetry);
    let clock = Rc::new(Cell::new(0));
    let queues: Vec<_> = (0..3)
        .map(|index| {
            let port = port(index, 64, &Log::default());
            let queue = port.queue.clone();
            let each = [10, 100 * US, 300 * US][index];
            lcore.add(Lane::new(format!("{index}"), port, Costly { each, clock: clock.clone() }));
            queue
        })
        .collect();
    loop {
        clock.set(clock.get() + 100);
        if let Step::Sleep(_) = lcore.poll(Now { mono: Nanos(clock.get()), wall: Nanos(0) }) {
            break;
        }
    }
    assert!(queues.iter().all(|queue| *queue.borrow() == 0));
}
