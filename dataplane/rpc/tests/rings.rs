//! Several rings behind one service. What happens in one delays no other, and each client still gets its answers in the
//! order of its requests.

mod common;

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use berth_port::{Clock, Frame, Service, Verdict};
use berth_ring::pair;
use berth_rpc::{
    Call, Config, Dispatch, Function, FunctionIndex, FunctionTable, Handlers, Order, Outcome, Program, RING_BUDGET,
    RingIndex, RpcService, SetupError, Stage, Undispatchable, Worker, updates,
};
use berth_wire::rpc::{HandlerSchema, HeaderForm, TypeDesc, TypeId, status};
use common::*;
use proptest::prelude::*;

const FORM: HeaderForm = HeaderForm::V24;
const SLOTS: u32 = 4;
/// Budget of `slow1`.
const SHORT: Duration = Duration::from_millis(10);
/// Longer than the service's messages.
const RING_SLOT: usize = 2 * SLOT;

/// Answers with its arguments; `long` with as much as the slot can hold.
struct Echo;

const NAMES: [&str; 5] = ["fast", "slow0", "slow1", "slow2", "long"];

impl Handlers for Echo {
    fn call(&mut self, FunctionIndex(index): FunctionIndex, call: &mut Call<'_>) -> Outcome {
        Ok(if NAMES[index] == "long" { call.results().len() } else { call.args().len() })
    }
}

/// `fast` runs inline, each other function in the ring of its number if there are that many, and `long` in the last.
fn functions(rings: usize) -> Arc<FunctionTable> {
    let bytes = TypeDesc::variable(TypeId::ArrayUInt8);
    let schema = HandlerSchema::new(&[bytes], &[bytes]).unwrap();
    let function = |(at, name): (usize, &&str)| Function {
        mode: match *name {
            "fast" => Dispatch::Inline,
            "long" => Dispatch::Ring(RingIndex(rings - 1)),
            _ => Dispatch::Ring(RingIndex((at - 1) % rings)),
        },
        budget: (*name == "slow1").then_some(SHORT),
        ..Function::new(name, schema)
    };
    Arc::new(FunctionTable::new(NAMES.iter().enumerate().map(function).collect()).unwrap())
}

struct Bench {
    clock: VirtualClock,
    service: RpcService<Echo, VirtualClock, fn(Stage, u64)>,
    workers: Vec<Worker<Echo, VirtualClock>>,
    port: Outbox,
}

impl Bench {
    fn new(order: Order, rings: usize) -> Self {
        let clock = VirtualClock::default();
        let (producers, dispatchers): (Vec<_>, Vec<_>) = (0..rings).map(|_| pair(SLOTS, RING_SLOT).unwrap()).unzip();
        let config = Config { order, ..config(FORM, Undispatchable::Reply) };
        let service = RpcService::new(config, functions(rings), Echo, producers, clock.clone(), QUIET).unwrap();
        let worker = |ring| Worker::new(FORM, functions(rings), Echo, ring, clock.clone()).unwrap();
        let workers = dispatchers.into_iter().map(worker).collect();
        Self { clock, service, workers, port: Outbox::new(1000) }
    }

    /// The status, if the answer comes at once.
    fn send(&mut self, client: u16, name: &str, id: u32) -> Option<i32> {
        let message = request(FORM, name, id, &id.to_le_bytes());
        let mut buf = vec![0; SLOT];
        buf[..message.len()].copy_from_slice(&message);
        let mut frame = Frame::new(&mut buf, message.len(), message.len(), peer(client));
        match self.service.handle(&mut frame, self.clock.now()) {
            Verdict::Reply => {
                let (status, answered, _) = parse(FORM, frame.data());
                assert_eq!(answered, id);
                Some(status)
            }
            Verdict::Drop | Verdict::Keep => None,
        }
    }

    fn work(&mut self, ring: usize) -> usize {
        self.workers[ring].poll(self.clock.now())
    }

    /// Client, id and status of each answer.
    fn poll(&mut self) -> Vec<(u16, u32, i32)> {
        while self.service.poll(&mut self.port, self.clock.now()) > 0 {}
        self.taken()
    }

    fn taken(&mut self) -> Vec<(u16, u32, i32)> {
        let answers = self.port.take(FORM).into_iter();
        let checked = answers.map(|(client, (status, id, results))| {
            assert_eq!(results, if status == 0 { id.to_le_bytes().to_vec() } else { vec![] });
            (client, id, status)
        });
        checked.collect()
    }

    fn counted(&self, name: &str) -> u64 {
        counters(|visit| self.service.counters(visit))[name]
    }
}

#[test]
fn a_stuck_worker_holds_up_no_other_ring() {
    let mut bench = Bench::new(Order::Ready, 2);
    for (client, name, id) in [(1, "slow0", 1), (1, "slow1", 2), (2, "slow1", 3)] {
        assert_eq!(bench.send(client, name, id), None);
    }
    assert_eq!(bench.work(1), 2);
    assert_eq!(bench.poll(), [(1, 2, 0), (2, 3, 0)]);
    assert_eq!(bench.service.outstanding(), 1);
    for id in 4..100 {
        assert_eq!(bench.send(1, "slow1", id), None);
        assert_eq!(bench.work(1), 1);
        assert_eq!(bench.poll(), [(1, id, 0)]);
    }
    bench.clock.advance(RING_BUDGET + Duration::from_nanos(1));
    assert_eq!(bench.poll(), [(1, 1, status::HANDLER_FAILED)]);
    assert_eq!(bench.work(0), 1);
    assert_eq!((bench.poll(), bench.counted("late_answers")), (vec![], 1));
}

#[test]
fn each_ring_has_its_own_time() {
    for order in [Order::Ready, Order::Arrival] {
        let mut bench = Bench::new(order, 2);
        bench.send(1, "slow0", 1);
        bench.send(2, "slow1", 2);
        bench.clock.advance(SHORT);
        assert_eq!(bench.poll(), []);
        bench.clock.advance(Duration::from_nanos(1));
        assert_eq!(bench.poll(), [(2, 2, status::HANDLER_FAILED)]);
        // The first ring's worker goes on, the other's slots are those of a stuck one.
        assert_eq!(bench.work(0), 1);
        assert_eq!(bench.poll(), [(1, 1, 0)]);
        assert_eq!((bench.counted("timed_out"), bench.counted("late_answers")), (1, 0));
    }
}

#[test]
fn a_full_ring_refuses_its_own_requests_alone() {
    let mut bench = Bench::new(Order::Arrival, 2);
    for id in 0..SLOTS {
        assert_eq!(bench.send(1, "slow0", id), None);
    }
    assert_eq!(bench.send(2, "slow0", 10), Some(status::OVERLOADED));
    assert_eq!(bench.send(2, "slow1", 11), None);
    assert_eq!(bench.work(1), 1);
    assert_eq!(bench.poll(), [(2, 11, 0)]);
    let all = ["ring_full", "ring_overruns", "ring_pushed", "ring_collected"].map(|name| bench.counted(name));
    assert_eq!(all, [1, 1, u64::from(SLOTS) + 1, 1], "those of both rings");
}

#[test]
fn answers_of_all_rings_keep_the_order_of_requests() {
    let mut bench = Bench::new(Order::Arrival, 2);
    for (id, name) in ["slow0", "slow1", "fast", "slow1", "slow0", "nobody"].into_iter().enumerate() {
        assert_eq!(bench.send(1, name, id as u32), None);
    }
    assert_eq!(bench.send(2, "slow1", 6), None);
    assert_eq!(bench.work(1), 3);
    assert_eq!(bench.poll(), [(2, 6, 0)], "another client's does not wait");
    assert_eq!(bench.service.outstanding(), 6);
    assert_eq!(bench.work(0), 2);
    let unknown = status::UNKNOWN_FUNCTION;
    assert_eq!(bench.poll(), [(1, 0, 0), (1, 1, 0), (1, 2, 0), (1, 3, 0), (1, 4, 0), (1, 5, unknown)]);
    assert_eq!(bench.send(1, "fast", 7), Some(0));
    assert_eq!(events(&bench.service), [("answered", 7), ("unknown_function", 1)].into());
}

/// An answer that waits for another ring frees its slot. The room that one client takes there is bounded.
#[test]
fn an_early_answer_frees_its_slot_and_one_client_takes_half_of_the_room() {
    let mut bench = Bench::new(Order::Arrival, 2);
    bench.send(1, "slow0", 0);
    for id in 1..100 {
        assert_eq!(bench.send(1, "slow1", id), None);
        assert_eq!(bench.work(1), usize::from(id <= 2 * SLOTS), "what could not be kept is not run");
        assert_eq!(bench.poll(), []);
    }
    assert_eq!(bench.counted("order_full"), 99 - 2 * u64::from(SLOTS));
    assert_eq!(bench.send(2, "slow1", 200), None);
    assert_eq!(bench.send(2, "fast", 201), None, "others have room");
    assert_eq!(bench.work(1), 1);
    assert_eq!(bench.poll(), [(2, 200, 0), (2, 201, 0)]);
    assert_eq!(bench.work(0), 1);
    assert_eq!(bench.poll(), (0..=2 * SLOTS).map(|id| (1, id, 0)).collect::<Vec<_>>());
    // All of it is free again.
    for id in 0..SLOTS {
        assert_eq!((bench.send(1, "slow0", id), bench.send(1, "slow1", id)), (None, None));
    }
    assert_eq!(bench.service.outstanding(), 2 * SLOTS as usize);
}

#[test]
fn a_request_that_times_out_early_is_answered_in_its_turn() {
    let mut bench = Bench::new(Order::Arrival, 2);
    bench.send(1, "slow0", 1);
    bench.send(1, "slow1", 2);
    bench.clock.advance(SHORT + Duration::from_nanos(1));
    assert_eq!((bench.poll(), bench.counted("timed_out")), (vec![], 1));
    assert_eq!(bench.work(1), 1);
    assert_eq!((bench.poll(), bench.counted("late_answers")), (vec![], 1));
    assert_eq!(bench.work(0), 1);
    assert_eq!(bench.poll(), [(1, 1, 0), (1, 2, status::HANDLER_FAILED)]);
    assert_eq!(events(&bench.service)["handler_failed"], 1);
}

#[test]
fn an_early_answer_is_as_long_as_one_that_waits_for_nobody() {
    let mut bench = Bench::new(Order::Arrival, 2);
    bench.send(1, "long", 1);
    bench.send(2, "slow0", 2);
    bench.send(2, "long", 3);
    let too_long = status::RESULT_TOO_LARGE;
    assert_eq!((bench.work(1), bench.poll()), (2, vec![(1, 1, too_long)]));
    assert_eq!((bench.work(0), bench.poll()), (1, vec![(2, 2, 0), (2, 3, too_long)]));
}

#[test]
fn a_client_that_always_waits_for_something_has_its_room_again_and_again() {
    let mut bench = Bench::new(Order::Arrival, 2);
    bench.send(1, "slow0", 0);
    for id in 1..100 {
        let name = if id % 2 == 0 { "slow0" } else { "slow1" };
        assert_eq!(bench.send(1, name, id), None);
        // The one before it.
        assert_eq!(bench.work((id as usize + 1) % 2), 1);
        assert_eq!(bench.poll(), [(1, id - 1, 0)]);
    }
    assert_eq!(bench.counted("order_full"), 0);
}

#[test]
fn rings_take_turns_at_a_transmit_queue_that_is_too_short() {
    let mut bench = Bench::new(Order::Arrival, 3);
    bench.port.room = 1;
    for id in 0..9 {
        bench.send(id as u16, NAMES[1 + id as usize / 3], id);
    }
    assert_eq!([0, 1, 2].map(|ring| bench.work(ring)), [3; 3]);
    let mut order = Vec::new();
    for _ in 0..9 {
        assert_eq!(bench.service.poll(&mut bench.port, bench.clock.now()), 1);
        order.extend(bench.taken().into_iter().map(|(_, id, _)| id));
    }
    assert_eq!(order, [0, 3, 6, 1, 4, 7, 2, 5, 8]);
}

#[test]
fn every_function_needs_its_ring_and_every_ring_long_slots() {
    let config = config(FORM, Undispatchable::Reply);
    let make = |slots: &[usize]| {
        let rings: Vec<_> = slots.iter().map(|&slot| pair(SLOTS, slot).unwrap().0).collect();
        RpcService::new(config, functions(3), Echo, rings, VirtualClock::default(), QUIET).err()
    };
    assert_eq!(make(&[SLOT, SLOT, SLOT]), None);
    assert_eq!(make(&[SLOT, SLOT]), Some(SetupError::NoRing("slow2".into())));
    assert_eq!(make(&[SLOT, SLOT, 100]), Some(SetupError::ShortRing { ring: 100, slot_size: SLOT }));
}

#[test]
fn a_new_program_moves_a_function_to_another_ring_and_its_answers_keep_their_order() {
    let mut bench = Bench::new(Order::Arrival, 2);
    let (mut sender, updates) = updates();
    bench.service = bench.service.updated_by(updates);
    assert_eq!(bench.send(1, "slow0", 1), None);
    let bytes = TypeDesc::variable(TypeId::ArrayUInt8);
    let schema = HandlerSchema::new(&[bytes], &[bytes]).unwrap();
    let moved = Function { mode: Dispatch::Ring(RingIndex(1)), ..Function::new("slow0", schema) };
    let moved = Arc::new(FunctionTable::new(vec![moved]).unwrap());
    assert!(sender.send(Program::new(moved, Echo)).is_ok());
    assert_eq!(bench.poll(), []);
    assert_eq!(bench.send(1, "slow0", 2), None);
    assert_eq!((bench.work(1), bench.poll()), (1, vec![]));
    assert_eq!((bench.work(0), bench.poll()), (1, vec![(1, 1, 0), (1, 2, 0)]));
}

#[derive(Debug, Clone)]
enum Step {
    Send(u16, &'static str),
    Work(usize),
    Poll,
    Wait,
    Transmit,
}

fn step() -> impl Strategy<Value = Step> {
    let names = prop::sample::select(&["fast", "slow0", "slow1", "slow2", "nobody"][..]);
    prop_oneof![
        8 => (0..3_u16, names).prop_map(|(client, name)| Step::Send(client, name)),
        3 => (0..3_usize).prop_map(Step::Work),
        3 => Just(Step::Poll),
        1 => Just(Step::Wait),
        2 => Just(Step::Transmit),
    ]
}

proptest! {
    /// Whatever the order of events and the number of rings: each client's answers come in the order of its requests,
    /// every request has one except those counted as left out, and a client that waits for nothing is answered at once.
    #[test]
    fn answers_keep_the_order_of_requests(
        rings in 1..=3_usize,
        steps in prop::collection::vec(step(), 1..150),
        room in 1..4_usize,
    ) {
        let mut bench = Bench::new(Order::Arrival, rings);
        bench.port.room = room;
        let mut waiting = BTreeMap::<u16, VecDeque<u32>>::new();
        let mut next = 0;
        let round = [Step::Work(0), Step::Work(1), Step::Work(2), Step::Poll, Step::Transmit];
        let finish = round.into_iter().cycle().take(5 * 40);
        for step in steps.into_iter().chain(finish) {
            match step {
                Step::Send(client, name) => {
                    let (before, mine) = (bench.counted("order_full"), waiting.entry(client).or_default());
                    let full = bench.counted("ring_full");
                    // What is in the transmit queue already goes out before what is answered at once.
                    let is_first = mine.len() == bench.port.sent.iter().filter(|(to, _)| *to == peer(client)).count();
                    let answer = bench.send(client, name, next);
                    let is_slow = name.starts_with("slow");
                    prop_assert!(!is_first || is_slow || answer.is_some(), "waits for another client");
                    if answer.is_some() {
                        prop_assert!(is_first, "an answer overtook");
                    } else if bench.counted("order_full") == before {
                        mine.push_back(next);
                    } else {
                        prop_assert!(!is_first, "left out though nothing was before it");
                        let refused = bench.counted("ring_full") > full;
                        prop_assert!(rings > 1 || !is_slow || refused, "one ring answers in order");
                    }
                    next += 1;
                }
                Step::Work(ring) if ring < rings => drop(bench.work(ring)),
                Step::Work(_) => {}
                Step::Poll => drop(bench.service.poll(&mut bench.port, bench.clock.now())),
                Step::Wait => bench.clock.advance(RING_BUDGET * 2 / 3),
                Step::Transmit => {
                    for (client, id, _) in bench.taken() {
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
