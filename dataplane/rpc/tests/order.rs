//! Each client gets its answers in the order of its requests, and waits for nobody else's.

mod common;

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use berth_port::{Clock, Frame, Service, Verdict};
use berth_ring::pair;
use berth_rpc::{
    Call, Config, Dispatch, Function, FunctionIndex, FunctionTable, Handlers, Order, Outcome, RING_BUDGET, RpcService,
    Stage, Undispatchable, Worker,
};
use berth_wire::rpc::{HandlerSchema, HeaderForm, TypeDesc, TypeId, status};
use common::*;
use proptest::prelude::*;

const FORM: HeaderForm = HeaderForm::V24;
const SLOTS: u32 = 4;

/// Answers with its arguments.
struct Echo;

impl Handlers for Echo {
    fn call(&mut self, _: FunctionIndex, call: &mut Call<'_>) -> Outcome {
        Ok(call.args().len())
    }
}

/// "fast" runs inline, "slow" on the worker.
fn functions() -> Arc<FunctionTable> {
    let bytes = TypeDesc::variable(TypeId::ArrayUInt8);
    let schema = HandlerSchema::new(&[bytes], &[bytes]).unwrap();
    let slow = Function { mode: Dispatch::Ring, ..Function::new("slow", schema) };
    Arc::new(FunctionTable::new(vec![Function::new("fast", schema), slow]).unwrap())
}

struct Bench {
    clock: VirtualClock,
    service: RpcService<Echo, VirtualClock, fn(Stage, u64)>,
    worker: Worker<Echo, VirtualClock>,
    port: Outbox,
}

impl Bench {
    fn new(order: Order) -> Self {
        let clock = VirtualClock::default();
        let (producer, dispatcher) = pair(SLOTS, SLOT).unwrap();
        let config = Config { order, ..config(FORM, Undispatchable::Reply) };
        let service = RpcService::new(config, functions(), Echo, Some(producer), clock.clone(), QUIET).unwrap();
        let worker = Worker::new(FORM, functions(), Echo, dispatcher, clock.clone()).unwrap();
        Self { clock, service, worker, port: Outbox::new(1000) }
    }

    /// The answer, if it comes at once.
    fn send(&mut self, client: u16, name: &str, id: u32) -> Option<Answer> {
        let message = request(FORM, name, id, &id.to_le_bytes());
        let mut buf = vec![0; SLOT];
        buf[..message.len()].copy_from_slice(&message);
        let mut frame = Frame::new(&mut buf, message.len(), message.len(), peer(client));
        match self.service.handle(&mut frame, self.clock.now()) {
            Verdict::Reply => Some(parse(FORM, frame.data())),
            Verdict::Drop => None,
        }
    }

    fn poll(&mut self) -> Vec<(u16, u32, i32)> {
        while self.service.poll(&mut self.port, self.clock.now()) > 0 {}
        self.port.take(FORM).into_iter().map(|(client, (status, id, _))| (client, id, status)).collect()
    }

    fn left_out(&self) -> u64 {
        counters(|visit| self.service.counters(visit))["order_full"]
    }
}

#[test]
fn what_is_ready_at_once_waits_for_what_the_client_asked_before() {
    let mut bench = Bench::new(Order::Arrival);
    assert!(bench.send(1, "fast", 1).is_some());
    assert!(bench.send(1, "slow", 2).is_none());
    assert!(bench.send(1, "fast", 3).is_none());
    assert!(bench.send(1, "nobody", 4).is_none(), "a refusal waits, too");
    assert!(bench.send(2, "fast", 5).is_some(), "another client does not");
    assert!(bench.send(1, "slow", 6).is_none());
    assert!(bench.send(1, "fast", 7).is_none());
    assert_eq!(bench.poll(), []);
    assert_eq!(bench.service.outstanding(), 5);
    bench.worker.poll(bench.clock.now());
    let unknown = status::UNKNOWN_FUNCTION;
    assert_eq!(bench.poll(), [(1, 2, 0), (1, 3, 0), (1, 4, unknown), (1, 6, 0), (1, 7, 0)]);
    assert!(bench.send(1, "fast", 8).is_some(), "nothing is before it any more");
    assert_eq!(events(&bench.service), [("answered", 7), ("unknown_function", 1)].into());
}

#[test]
fn a_port_that_need_not_keep_the_order_answers_at_once() {
    let mut bench = Bench::new(Order::Ready);
    assert!(bench.send(1, "slow", 1).is_none());
    assert!(bench.send(1, "fast", 2).is_some());
}

#[test]
fn a_full_ring_is_refused_in_order() {
    let mut bench = Bench::new(Order::Arrival);
    for id in 0..=SLOTS {
        assert!(bench.send(1, "slow", id).is_none());
    }
    bench.worker.poll(bench.clock.now());
    let expected: Vec<_> = (0..SLOTS).map(|id| (1, id, 0)).chain([(1, SLOTS, status::OVERLOADED)]).collect();
    assert_eq!(bench.poll(), expected);
}

#[test]
fn a_worker_that_hangs_holds_an_answer_for_its_budget_and_no_longer() {
    let mut bench = Bench::new(Order::Arrival);
    assert!(bench.send(1, "slow", 1).is_none());
    assert!(bench.send(1, "fast", 2).is_none());
    bench.clock.advance(RING_BUDGET);
    assert_eq!(bench.poll(), []);
    bench.clock.advance(std::time::Duration::from_nanos(1));
    assert_eq!(bench.poll(), [(1, 1, status::HANDLER_FAILED), (1, 2, 0)]);
    assert!(bench.send(1, "fast", 3).is_some());
}

/// What waits is bounded, and one client leaves the others as much room as it takes.
#[test]
fn a_client_takes_half_of_the_room_and_its_further_requests_are_not_run() {
    let mut bench = Bench::new(Order::Arrival);
    assert!(bench.send(1, "slow", 0).is_none());
    assert!(bench.send(2, "slow", 0).is_none());
    for id in 1..100 {
        assert!(bench.send(1, "fast", id).is_none());
    }
    assert_eq!(bench.left_out(), 95);
    assert!(bench.send(2, "fast", 1).is_none());
    assert_eq!(bench.left_out(), 95);
    bench.worker.poll(bench.clock.now());
    let mut expected: Vec<_> = (0..5).map(|id| (1, id, 0)).collect();
    expected.extend([(2, 0, 0), (2, 1, 0)]);
    assert_eq!(bench.poll(), expected);
    assert_eq!(counters(|visit| bench.service.counters(visit))["calls_fast"], 5);
    let expected = [("answered", 7), ("overloaded", 95), ("order_full", 95), ("dropped_undispatchable", 95)];
    assert_eq!(events(&bench.service), expected.into());
}

#[derive(Debug, Clone)]
enum Step {
    Send(u16, &'static str),
    Work,
    Poll,
    Wait,
    Transmit,
}

fn step() -> impl Strategy<Value = Step> {
    let names = prop::sample::select(&["fast", "slow", "nobody"][..]);
    prop_oneof![
        8 => (0..3_u16, names).prop_map(|(client, name)| Step::Send(client, name)),
        2 => Just(Step::Work),
        3 => Just(Step::Poll),
        1 => Just(Step::Wait),
        2 => Just(Step::Transmit),
    ]
}

proptest! {
    /// Whatever the order of events, each client's answers come in the order of its requests, every request has one but
    /// for those that are counted as left out, and who waits for nothing is answered at once.
    #[test]
    fn answers_keep_the_order_of_requests(steps in prop::collection::vec(step(), 1..150), room in 1..4_usize) {
        let mut bench = Bench::new(Order::Arrival);
        bench.port.room = room;
        let mut waiting = BTreeMap::<u16, VecDeque<u32>>::new();
        let mut next = 0;
        let finish = [Step::Work, Step::Poll, Step::Transmit].into_iter().cycle().take(90);
        for step in steps.into_iter().chain(finish) {
            match step {
                Step::Send(client, name) => {
                    let (before, mine) = (bench.left_out(), waiting.entry(client).or_default());
                    // What is in the transmit queue already goes out before what is answered at once.
                    let is_first = mine.len() == bench.port.sent.iter().filter(|(to, _)| *to == peer(client)).count();
                    let answer = bench.send(client, name, next);
                    prop_assert!(!is_first || name == "slow" || answer.is_some(), "waits for another client");
                    match answer {
                        Some(answer) => {
                            prop_assert!(is_first, "an answer overtook");
                            prop_assert_eq!(answer.1, next);
                        }
                        None if bench.left_out() == before => mine.push_back(next),
                        None => prop_assert!(!is_first, "left out though nothing was before it"),
                    }
                    next += 1;
                }
                Step::Work => drop(bench.worker.poll(bench.clock.now())),
                Step::Poll => drop(bench.service.poll(&mut bench.port, bench.clock.now())),
                Step::Wait => bench.clock.advance(RING_BUDGET * 2 / 3),
                Step::Transmit => {
                    for (client, (_, id, _)) in bench.port.take(FORM) {
                        prop_assert_eq!(waiting.get_mut(&client).and_then(VecDeque::pop_front), Some(id));
                    }
                }
            }
            events(&bench.service);
        }
        prop_assert_eq!(bench.service.outstanding(), 0);
        prop_assert!(waiting.values().all(VecDeque::is_empty));
    }
}
