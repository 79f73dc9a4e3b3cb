//! Ring dispatch to a worker and back: no gaps, and no request without an answer.

mod common;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use berth_memory::Heap;
use berth_port::{Clock, Frame, Part, Port, Service, Task, Verdict};
use berth_ring::{Dispatcher, ErrorCode, Geometry, Producer, Ring, pair};
use berth_rpc::{COOL_OFF, Dispatch, RING_BUDGET, RpcService, SetupError, Stage, Undispatchable, Worker};
use berth_wire::rpc::{HeaderForm, ResponseHeader, status};
use common::*;
use proptest::prelude::*;

const FORM: HeaderForm = HeaderForm::V24;
const SLOTS: u32 = 4;

/// A ring in the host API's layout.
fn foreign_ring(slots: u32, slot_size: usize) -> (Producer, Dispatcher) {
    let geometry = Geometry::new(slots, slot_size).unwrap();
    let mut ring = Ring::new(Heap::new(geometry.size()), geometry).unwrap();
    (ring.producer().unwrap(), ring.dispatcher().unwrap())
}

struct Bench {
    clock: VirtualClock,
    service: RpcService<TestHandlers, VirtualClock, fn(Stage, u64)>,
    port: Outbox,
}

impl Bench {
    fn new(form: HeaderForm, (producer, dispatcher): (Producer, Dispatcher)) -> (Self, Dispatcher) {
        let clock = VirtualClock::default();
        let config = config(form, Undispatchable::Reply);
        let handlers = TestHandlers(clock.clone());
        let table = table(RING);
        let service = RpcService::new(config, table, handlers, Some(producer), clock.clone(), QUIET);
        (Self { clock, service: service.unwrap(), port: Outbox::new(100) }, dispatcher)
    }

    fn with_worker(form: HeaderForm) -> (Self, Worker<TestHandlers, VirtualClock>) {
        let (bench, dispatcher) = Self::new(form, pair(SLOTS, SLOT).unwrap());
        let (handlers, clock) = (TestHandlers(bench.clock.clone()), bench.clock.clone());
        (bench, Worker::new(form, table(RING), handlers, dispatcher, clock).unwrap())
    }

    /// Hands in a request from a peer. Returns an answer only if it is refused.
    fn send(&mut self, from: u16, form: HeaderForm, name: &str, args: &[u8]) -> Option<i32> {
        let mut message = request(form, name, u32::from(from), args);
        message.resize(SLOT, 0xAB);
        let mut frame = Frame::new(&mut message, SLOT, SLOT, peer(from));
        match self.service.handle(&mut frame, self.clock.now()) {
            Verdict::Reply => Some(parse(form, frame.data()).0),
            Verdict::Drop | Verdict::Keep => None,
        }
    }

    fn poll(&mut self) -> usize {
        self.service.poll(&mut self.port, self.clock.now())
    }

    fn answers(&mut self) -> Vec<(u16, Answer)> {
        self.poll();
        self.port.take(FORM)
    }

    fn timeouts(&self) -> (Option<u64>, Option<u64>) {
        let events = events(&self.service);
        (events.get("timed_out").copied(), events.get("late_answers").copied())
    }
}

fn word(value: i32) -> [u8; 4] {
    value.to_le_bytes()
}

#[test]
fn every_kind_of_answer_comes_back_to_its_peer() {
    for form in [HeaderForm::V24, HeaderForm::V16] {
        let (mut bench, mut worker) = Bench::with_worker(form);
        assert_eq!(bench.send(1, form, "increment", &[1, 2, 3]), None);
        assert_eq!(bench.send(2, form, "status", &word(42)), None);
        assert_eq!(bench.send(3, form, "panic", &word(0)), None);
        assert_eq!(bench.send(4, form, "claim", &word(8000)), None);
        assert_eq!(bench.service.outstanding(), 4);
        assert_eq!(bench.poll(), 0);
        assert_eq!(worker.poll(bench.clock.now()), 4);
        assert_eq!(bench.poll(), 4);
        let expected = [
            (1, (0, 1, vec![2, 3, 4])),
            (2, (42, 2, vec![])),
            (3, (status::HANDLER_FAILED, 3, vec![])),
            (4, (status::RESULT_TOO_LARGE, 4, vec![])),
        ];
        assert_eq!(bench.port.take(form), expected);
        assert_eq!(bench.service.outstanding(), 0);
        let expected = [("answered", 1), ("handler_error", 1), ("handler_failed", 1), ("result_too_large", 1)];
        assert_eq!(events(&bench.service), expected.into());
        let counted = counters(|visit| worker.counters(Part::Service, visit));
        assert_eq!((counted["received"], counted["answered"], counted["panicked"]), (4, 1, 1));
        assert_eq!(counted["calls_increment"], 1);
    }
}

#[test]
fn the_wait_for_the_worker_and_the_way_through_the_ring_are_measured() {
    let clock = VirtualClock::default();
    let (producer, dispatcher) = pair(SLOTS, SLOT).unwrap();
    let times = std::cell::RefCell::new(Vec::new());
    let record = |stage, nanos| times.borrow_mut().push((stage, nanos));
    let (config, handlers) = (config(FORM, Undispatchable::Reply), TestHandlers(clock.clone()));
    let mut service = RpcService::new(config, table(RING), handlers, Some(producer), clock.clone(), record).unwrap();
    let handlers = TestHandlers(clock.clone());
    let mut worker = Worker::new(FORM, table(RING), handlers, dispatcher, clock.clone()).unwrap();
    let mut outbox = Outbox::new(100);
    let send = |service: &mut RpcService<_, _, _>| {
        let mut message = request(FORM, "increment", 1, &[]);
        message[16..24].fill(0);
        let len = message.len();
        message.resize(SLOT, 0);
        let verdict = service.handle(&mut Frame::new(&mut message, len, len, peer(1)), clock.now());
        assert_eq!(verdict, Verdict::Drop);
    };
    let millis = |n| clock.advance(Duration::from_millis(n));
    // The second comes when the worker has answered the first and nobody has looked.
    send(&mut service);
    worker.poll(clock.now());
    millis(1);
    send(&mut service);
    millis(1);
    assert_eq!(service.poll(&mut outbox, clock.now()), 1);
    // As far as the poll core has seen, the worker turns to the second now, 1 ms after it came.
    worker.poll(clock.now());
    millis(2);
    assert_eq!(service.poll(&mut outbox, clock.now()), 1);
    drop(service);
    let ms = 1_000_000;
    let expected = [(Stage::RingWait, 0), (Stage::RingTime, 2 * ms), (Stage::RingWait, ms), (Stage::RingTime, 3 * ms)];
    assert_eq!(times.into_inner(), expected);
}

#[test]
fn a_worker_is_a_task_that_its_service_feeds() {
    let (mut bench, mut worker) = Bench::with_worker(FORM);
    assert_eq!(bench.send(1, FORM, "increment", &[1]), None);
    assert!(worker.turn(bench.clock.now(), false, true).is_none());
    let work = worker.turn(bench.clock.now(), true, true);
    assert_eq!((work.received, work.replied), (1, 1));
    assert!(worker.is_fed());
    drop(bench);
    assert!(!worker.is_fed());
}

#[test]
fn refusals_take_no_slot() {
    let (mut bench, mut worker) = Bench::with_worker(FORM);
    assert_eq!(bench.send(1, FORM, "nobody", &[]), Some(status::UNKNOWN_FUNCTION));
    assert_eq!(bench.send(1, FORM, "status", &[]), Some(status::SCHEMA_MISMATCH));
    assert_eq!(worker.poll(bench.clock.now()), 0);
}

#[test]
fn a_full_ring_is_answered_as_overloaded() {
    let (mut bench, mut worker) = Bench::with_worker(FORM);
    for from in 0..SLOTS as u16 {
        assert_eq!(bench.send(from, FORM, "increment", &[]), None);
    }
    assert_eq!(bench.send(9, FORM, "increment", &[]), Some(status::OVERLOADED));
    worker.poll(bench.clock.now());
    assert_eq!(bench.send(9, FORM, "increment", &[]), Some(status::OVERLOADED), "answers wait to be taken");
    assert_eq!(bench.answers().len(), 4);
    assert_eq!(bench.send(9, FORM, "increment", &[]), None);
    assert_eq!(events(&bench.service), [("answered", 4), ("overloaded", 2)].into());
    assert_eq!(counters(|visit| bench.service.counters(visit))["ring_overruns"], 2);
}

#[test]
fn answers_wait_for_the_transmit_queue_and_none_is_lost() {
    let (mut bench, mut worker) = Bench::with_worker(FORM);
    bench.port.room = 1;
    for from in 0..4 {
        bench.send(from, FORM, "increment", &[from as u8]);
    }
    worker.poll(bench.clock.now());
    for from in 0..4 {
        assert_eq!(bench.poll(), 1, "{from}");
        assert_eq!(bench.poll(), 0, "the queue is full");
        assert_eq!(bench.service.outstanding(), 3 - usize::from(from));
        assert_eq!(bench.port.take(FORM), [(from, (0, u32::from(from), vec![from as u8 + 1]))]);
    }
    assert_eq!(events(&bench.service)["answered"], 4);
}

#[test]
fn a_peer_that_cannot_be_reached_holds_nobody_up() {
    let (mut bench, mut worker) = Bench::with_worker(FORM);
    bench.port.unreachable = Some(peer(1));
    bench.send(1, FORM, "increment", &[]);
    bench.send(2, FORM, "increment", &[]);
    worker.poll(bench.clock.now());
    assert_eq!(bench.answers(), [(2, (0, 2, vec![]))]);
    assert_eq!(events(&bench.service), [("answered", 2), ("unroutable", 1)].into());
}

#[test]
fn a_stuck_worker_is_answered_for_once() {
    let (mut bench, mut worker) = Bench::with_worker(FORM);
    bench.send(1, FORM, "take", &word(1));
    bench.send(2, FORM, "take", &word(1));
    bench.clock.advance(BUDGET);
    assert_eq!(bench.answers(), [], "within the budget");
    bench.clock.advance(Duration::from_nanos(1));
    assert_eq!(bench.answers(), [(1, (status::HANDLER_FAILED, 1, vec![]))], "the second has the first's time, too");
    assert_eq!((bench.answers(), bench.service.outstanding()), (vec![], 1));
    bench.clock.advance(BUDGET);
    bench.send(3, FORM, "increment", &[7]);
    assert_eq!(bench.answers(), [(2, (status::HANDLER_FAILED, 2, vec![]))]);
    assert_eq!(bench.timeouts(), (Some(2), None));
    assert_eq!(bench.send(4, FORM, "increment", &[]), None);
    assert_eq!(bench.send(5, FORM, "increment", &[]), Some(status::OVERLOADED), "slots given up are not free");
    worker.poll(bench.clock.now());
    assert_eq!(bench.answers(), [(3, (0, 3, vec![8])), (4, (0, 4, vec![]))], "late answers are discarded");
    assert_eq!(bench.timeouts(), (Some(2), Some(2)));
    assert_eq!(bench.service.outstanding(), 0);
}

#[test]
fn a_workers_time_starts_anew_with_each_answer() {
    let (mut bench, mut worker) = Bench::with_worker(FORM);
    // Never idle and never late.
    for from in 0..100 {
        bench.send(from, FORM, "take", &word(0));
        assert_eq!(bench.answers().len(), usize::from(from > 0));
        bench.clock.advance(BUDGET * 3 / 4);
        worker.poll(bench.clock.now());
    }
    assert_eq!(bench.answers().len(), 1);
    // Then stuck.
    bench.send(100, FORM, "take", &word(1));
    bench.clock.advance(BUDGET * 3 / 4);
    bench.send(101, FORM, "take", &word(1));
    bench.clock.advance(BUDGET / 2);
    assert_eq!(bench.answers(), [(100, (status::HANDLER_FAILED, 100, vec![]))]);
    worker.poll(bench.clock.now());
    assert_eq!(bench.answers(), [(101, (0, 101, vec![1, 0, 0, 0]))]);
    assert_eq!(bench.timeouts(), (Some(1), Some(1)));
}

#[test]
fn a_function_without_a_budget_is_given_up_in_the_end() {
    let (mut bench, _worker) = Bench::with_worker(FORM);
    bench.send(1, FORM, "increment", &[]);
    bench.clock.advance(RING_BUDGET);
    assert_eq!(bench.answers(), []);
    bench.clock.advance(Duration::from_nanos(1));
    assert_eq!(bench.answers(), [(1, (status::HANDLER_FAILED, 1, vec![]))]);
}

#[test]
fn a_worker_rests_a_function_that_overruns() {
    let (mut bench, mut worker) = Bench::with_worker(FORM);
    let mut statuses = Vec::new();
    for micros in [11, 11, 11, 1] {
        bench.send(1, FORM, "take", &word(micros));
        worker.poll(bench.clock.now());
        statuses.extend(bench.answers().into_iter().map(|(_, (status, ..))| status));
    }
    assert_eq!(statuses, [0, 0, 0, status::OVERLOADED]);
    bench.clock.advance(COOL_OFF);
    bench.send(1, FORM, "take", &word(1));
    worker.poll(bench.clock.now());
    assert_eq!(bench.answers()[0].1.0, 0);
}

type Answerer = Box<dyn Fn(&mut [u8]) -> Result<usize, ErrorCode>>;

/// A foreign dispatcher may answer anything: only a proper response to the right request goes out.
#[test]
fn a_foreign_workers_answers_are_checked() {
    let good = ResponseHeader { status: 0, result_len: 2, request_id: 1, ptp_timestamp: 0 };
    let write = |header: ResponseHeader| {
        move |tx: &mut [u8]| {
            header.write(FORM, tx).unwrap();
            tx[24..26].copy_from_slice(&[7, 8]);
            Ok(26)
        }
    };
    let cases: [(Answerer, Answer); 8] = [
        (Box::new(write(good)), (0, 1, vec![7, 8])),
        (Box::new(write(ResponseHeader { status: 5, ..good })), (5, 1, vec![])),
        (Box::new(write(ResponseHeader { status: -99, ..good })), (-6, 1, vec![])),
        (Box::new(write(ResponseHeader { status: status::UNKNOWN_FUNCTION, ..good })), (-6, 1, vec![])),
        (Box::new(write(ResponseHeader { request_id: 2, ..good })), (-6, 1, vec![])),
        (Box::new(write(ResponseHeader { result_len: (SLOT - 23) as u32, ..good })), (-6, 1, vec![])),
        (Box::new(|_| Ok(0)), (-6, 1, vec![])),
        (Box::new(|_| Err(ErrorCode::FIRST_FREE)), (-6, 1, vec![])),
    ];
    for (answer, expected) in cases {
        let (mut bench, mut dispatcher) = Bench::new(FORM, foreign_ring(SLOTS, SLOT));
        bench.send(1, FORM, "increment", &[]);
        assert_eq!(dispatcher.poll(1, |_, tx| answer(tx)), 1);
        assert_eq!(bench.answers(), [(1, expected)]);
    }
}

/// A foreign producer may put anything into slots: each is answered, and none leaves a gap.
#[test]
fn a_worker_answers_every_slot_of_a_foreign_producer() {
    let clock = VirtualClock::default();
    let (mut producer, dispatcher) = foreign_ring(8, SLOT);
    let mut worker =
        Worker::new(FORM, table(Dispatch::Inline), TestHandlers(clock.clone()), dispatcher, clock.clone()).unwrap();
    let mut beyond = request(FORM, "increment", 3, &[0; 4]);
    beyond[8..12].copy_from_slice(&(SLOT as u32 - 23).to_le_bytes());
    let messages =
        [request(FORM, "increment", 1, &[1]), vec![0; 24], request(FORM, "nobody", 2, &[]), beyond, vec![0xFF; SLOT]];
    for message in &messages {
        let fill = |slot: &mut [u8]| {
            slot[..message.len()].copy_from_slice(message);
            message.len()
        };
        producer.push(fill).unwrap();
    }
    assert_eq!(worker.poll(clock.now()), 5);
    let mut statuses = Vec::new();
    producer.collect(9, |_, answer| {
        statuses.push(answer.map(|slot| ResponseHeader::parse(FORM, slot).unwrap().status));
    });
    let tagged = Err(berth_ring::TxError::Tagged(ErrorCode::FIRST_FREE));
    assert_eq!(statuses, [Ok(0), tagged, Ok(-1), Ok(-2), tagged]);
}

#[test]
fn slots_must_hold_the_services_messages() {
    let (producer, dispatcher) = pair(1, 100).unwrap();
    let clock = VirtualClock::default();
    let config = config(FORM, Undispatchable::Reply);
    let table = table(RING);
    let handlers = || TestHandlers(clock.clone());
    let error = RpcService::new(config, table.clone(), handlers(), Some(producer), clock.clone(), |_, _| {}).err();
    assert_eq!(error, Some(SetupError::ShortRing { ring: 100, slot_size: SLOT }));
    assert!(Worker::new(FORM, table, handlers(), dispatcher, clock.clone()).is_ok());
}

#[derive(Debug, Clone)]
enum Step {
    Send(u8),
    Work,
    Poll,
    Wait,
    Transmit,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => any::<u8>().prop_map(Step::Send),
        2 => Just(Step::Work),
        3 => Just(Step::Poll),
        1 => Just(Step::Wait),
        2 => Just(Step::Transmit),
    ]
}

proptest! {
    /// Whatever the order of events, each request is answered exactly once: with its result, or as given up.
    #[test]
    fn every_request_is_answered_exactly_once(steps in prop::collection::vec(step(), 1..80)) {
        let (mut bench, mut worker) = Bench::with_worker(FORM);
        bench.port.room = 2;
        let (mut sent, mut answered) = (BTreeMap::new(), BTreeSet::new());
        let mut next = 0;
        let finish = [Step::Work, Step::Poll, Step::Transmit].into_iter().cycle().take(60);
        for step in steps.into_iter().chain(finish) {
            match step {
                Step::Send(byte) => {
                    match bench.send(next, FORM, "increment", &[byte]) {
                        None => prop_assert_eq!(sent.insert(next, byte), None),
                        Some(status) => prop_assert_eq!(status, status::OVERLOADED),
                    }
                    next += 1;
                }
                Step::Work => drop(worker.poll(bench.clock.now())),
                Step::Poll => drop(bench.poll()),
                Step::Wait => bench.clock.advance(RING_BUDGET * 2 / 3),
                Step::Transmit => {
                    for (from, (status, id, result)) in bench.port.take(FORM) {
                        prop_assert_eq!(u32::from(from), id);
                        if status == 0 {
                            prop_assert_eq!(result, [sent[&from].wrapping_add(1)]);
                        } else {
                            prop_assert_eq!(status, status::HANDLER_FAILED);
                        }
                        prop_assert!(answered.insert(from), "answered twice");
                    }
                }
            }
            events(&bench.service);
        }
        prop_assert_eq!(bench.service.outstanding(), 0);
        prop_assert!(answered.into_iter().eq(sent.into_keys()));
    }
}

/// Two threads and real time: every answer is right, and they come in order.
#[test]
fn a_worker_on_another_thread_answers_in_order() {
    let (mut bench, mut worker) = Bench::with_worker(FORM);
    let stop = Arc::new(AtomicBool::new(false));
    let (stopped, clock) = (stop.clone(), bench.clock.clone());
    let thread = std::thread::spawn(move || {
        while !stopped.load(Relaxed) {
            if worker.poll(clock.now()) == 0 {
                std::thread::yield_now();
            }
        }
    });
    let mut waiting = VecDeque::new();
    let mut sent = 0_u16;
    while sent < 20_000 || !waiting.is_empty() {
        if sent < 20_000 && waiting.len() < SLOTS as usize {
            assert_eq!(bench.send(sent, FORM, "increment", &sent.to_le_bytes()), None);
            waiting.push_back(sent);
            sent += 1;
        }
        if bench.poll() == 0 {
            std::thread::yield_now();
        }
        bench.port.tx();
        for (from, (status, _, result)) in bench.port.take(FORM) {
            assert_eq!(Some(from), waiting.pop_front());
            assert_eq!((status, result), (0, from.to_le_bytes().map(|byte| byte.wrapping_add(1)).to_vec()));
        }
    }
    stop.store(true, Relaxed);
    thread.join().unwrap();
}
