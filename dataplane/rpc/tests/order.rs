//! Each client gets its answers in the order of its requests, and waits for no other client's.

mod common;

use std::sync::Arc;

use berth_port::{Clock, Frame, Service, Verdict};
use berth_ring::pair;
use berth_rpc::{
    Call, Config, Function, FunctionIndex, FunctionTable, Handlers, Order, Outcome, RING_BUDGET, RpcService, Stage,
    Undispatchable, Worker,
};
use berth_wire::rpc::{HandlerSchema, HeaderForm, TypeDesc, TypeId, status};
use common::*;

const FORM: HeaderForm = HeaderForm::V24;
const SLOTS: u32 = 4;

/// Answers with its arguments.
struct Echo;

impl Handlers for Echo {
    fn call(&mut self, _: FunctionIndex, call: &mut Call<'_>) -> Outcome {
        Ok(call.args().len())
    }
}

/// `fast` runs inline, `slow` on the worker.
fn functions() -> Arc<FunctionTable> {
    let bytes = TypeDesc::variable(TypeId::ArrayUInt8);
    let schema = HandlerSchema::new(&[bytes], &[bytes]).unwrap();
    let slow = Function { mode: RING, ..Function::new("slow", schema) };
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
            Verdict::Drop | Verdict::Keep => None,
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

/// The room for waiting answers is bounded, and one client leaves as much to the others as it takes.
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
