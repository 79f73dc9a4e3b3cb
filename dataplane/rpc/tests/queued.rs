//! Ring kernels for which messages wait: through the service, a ring and a worker.

mod common;

use std::{sync::Arc, time::Duration};

use berth_kernels::{
    Backpressure, Builtin, Choice, DROPPED, DUPLICATE, Kernel, QueueSettings, Registry, Runs, Settings, UNDER_WAY,
};
use berth_port::{Clock, Frame, Service, Verdict};
use berth_ring::pair;
use berth_rpc::{
    Dispatch, FunctionTable, Order, Program, RING_BUDGET, RingIndex, RpcService, SetupError, Stage, Undispatchable,
    Worker,
    handlers::{Handler, HandlerSet},
    updates,
};
use berth_wire::rpc::{HeaderForm, status};
use common::*;

const FORM: HeaderForm = HeaderForm::V24;
const SLOTS: u32 = 32;
const NAME: &str = "VectorAddRequest";

fn settings() -> Settings {
    let registry = Registry::default();
    let schema = |name| registry.find(name).unwrap().schema.clone();
    let queue = QueueSettings {
        waiting: 16,
        priority: true,
        backpressure: Backpressure::Reject,
        timeout: Duration::from_secs(30),
    };
    Settings {
        request: schema(NAME),
        response: schema("VectorAddResponse"),
        runs: Runs::Builtin(Builtin::VectorAdd),
        format: Choice::Auto,
        dedup: 64,
        active: true,
        queue: Some(queue),
    }
}

fn message(id: u8, priority: u8, a: f32) -> Vec<u8> {
    let mut bytes = vec![0; 43];
    (bytes[0], bytes[17]) = (5, priority);
    bytes[1..17].fill(id);
    bytes[35..39].copy_from_slice(&a.to_le_bytes());
    bytes
}

/// The kernel and a function beside it, which runs inline.
fn program(kernel: Kernel, mode: Dispatch) -> (Arc<FunctionTable>, HandlerSet) {
    let named = vec![("echo".to_owned(), Handler::Increment), (NAME.to_owned(), Handler::Kernel(Box::new(kernel)))];
    let handlers = HandlerSet::new(named, Vec::new()).unwrap();
    let mut functions = handlers.functions();
    functions[1].mode = mode;
    (Arc::new(FunctionTable::new(functions).unwrap()), handlers)
}

fn queued(settings: &Settings) -> (Arc<FunctionTable>, HandlerSet) {
    program(Kernel::new(settings.clone()).unwrap(), Dispatch::Queue(RingIndex(0)))
}

struct Bench {
    clock: VirtualClock,
    service: RpcService<HandlerSet, VirtualClock, fn(Stage, u64)>,
    worker: Worker<HandlerSet, VirtualClock>,
    port: Outbox,
}

impl Bench {
    fn new(settings: &Settings) -> Self {
        let clock = VirtualClock::default();
        let (producer, dispatcher) = pair(SLOTS, SLOT).unwrap();
        let config = config(FORM, Undispatchable::Reply);
        assert_eq!(config.order, Order::Arrival);
        let (table, handlers) = queued(settings);
        let service = RpcService::new(config, table, handlers, [producer], clock.clone(), QUIET as _).unwrap();
        let (table, handlers) = program(Kernel::for_worker(settings.clone()).unwrap(), Dispatch::Queue(RingIndex(0)));
        let worker = Worker::new(FORM, table, handlers, dispatcher, clock.clone()).unwrap();
        Self { clock, service, worker, port: Outbox::new(1000) }
    }

    /// The answer, if it comes at once.
    fn send(&mut self, client: u16, name: &str, id: u32, args: &[u8]) -> Option<Answer> {
        let message = request(FORM, name, id, args);
        let mut buf = vec![0; SLOT];
        buf[..message.len()].copy_from_slice(&message);
        let mut frame = Frame::new(&mut buf, message.len(), message.len(), peer(client));
        match self.service.handle(&mut frame, self.clock.now()) {
            Verdict::Reply => Some(parse(FORM, frame.data())),
            Verdict::Drop | Verdict::Keep => None,
        }
    }

    fn poll(&mut self) -> Vec<(u16, Answer)> {
        while self.service.poll(&mut self.port, self.clock.now()) > 0 {}
        self.port.take(FORM)
    }

    /// Client, id and status of what is answered while worker and service take turns.
    fn finish(&mut self) -> Vec<(u16, u32, i32)> {
        let mut all = Vec::new();
        loop {
            let answers = self.poll();
            all.extend(answers.iter().map(|(client, (status, id, _))| (*client, *id, *status)));
            if self.worker.poll(self.clock.now()) == 0 && answers.is_empty() {
                return all;
            }
        }
    }

    fn outcome(&self, outcome: &str) -> u64 {
        events(&self.service).get(&*format!("kernel_{NAME}_{outcome}")).copied().unwrap_or(0)
    }
}

#[test]
fn higher_priorities_go_first_whoever_sent_them() {
    let mut bench = Bench::new(&settings());
    // The worker has as many as it may before the others come.
    for id in 1..=UNDER_WAY as u8 {
        assert_eq!(bench.send(1, NAME, id.into(), &message(id, 0, 1.0)), None);
    }
    assert_eq!(bench.poll(), []);
    for (client, id, priority) in [(1, 21, 3), (2, 22, 9), (1, 23, 255), (2, 24, 9), (1, 25, 0)] {
        assert_eq!(bench.send(client, NAME, id.into(), &message(id, priority, 1.0)), None);
    }
    let first = (1..=UNDER_WAY as u32).map(|id| (1, id, 0));
    let then = [(1, 23, 0), (2, 22, 0), (2, 24, 0), (1, 21, 0), (1, 25, 0)];
    assert_eq!(bench.finish(), first.chain(then).collect::<Vec<_>>());
    assert_eq!((bench.outcome("answered"), bench.service.outstanding()), (13, 0));
}

#[test]
fn a_message_is_timed_from_the_poll_that_received_it_until_its_answer_is_ready() {
    fn times(service: &impl Service) -> Vec<(&'static str, u64, u64)> {
        let mut all = Vec::new();
        service.histograms(&mut |name, times| all.push((name, times.snapshot().len(), times.snapshot().max())));
        all
    }
    let mut bench = Bench::new(&settings());
    assert_eq!(bench.send(1, NAME, 1, &message(1, 0, 1.0)), None);
    bench.clock.advance(Duration::from_nanos(70));
    assert_eq!(bench.finish(), [(1, 1, 0)]);
    // What is answered from memory, or waits in vain, is no sample.
    assert_eq!(bench.send(1, NAME, 1, &message(1, 0, 1.0)).map(|(status, ..)| status), Some(0));
    assert_eq!(times(&bench.service), [("kernel_time_VectorAddRequest", 1, 70)]);

    let inline = Kernel::new(Settings { queue: None, ..settings() }).unwrap();
    let (table, handlers) = program(inline, Dispatch::Inline);
    let clock = VirtualClock::default();
    let config = config(FORM, Undispatchable::Reply);
    let mut service = RpcService::new(config, table, handlers, [], clock.clone(), QUIET).unwrap();
    let received = clock.now();
    clock.advance(Duration::from_nanos(90));
    for (name, bytes) in [("echo", vec![1; 43]), (NAME, vec![0; 43]), (NAME, message(1, 0, 1.0))] {
        let message = request(FORM, name, 1, &bytes);
        let mut buf = vec![0; SLOT];
        buf[..message.len()].copy_from_slice(&message);
        let mut frame = Frame::new(&mut buf, message.len(), message.len(), peer(1));
        assert_eq!(service.handle(&mut frame, received), Verdict::Reply);
    }
    assert_eq!(times(&service), [("kernel_time_VectorAddRequest", 1, 90)]);
}

#[test]
fn an_answer_is_the_kernels_and_overtakes_nothing_of_other_functions() {
    let mut bench = Bench::new(&settings());
    assert_eq!(bench.send(1, NAME, 7, &message(7, 1, 2.5)), None);
    // It is not held up by what waits.
    assert_eq!(bench.send(1, "echo", 8, &[1]), Some((0, 8, vec![2])));
    assert_eq!(bench.poll(), []);
    assert_eq!(bench.worker.poll(bench.clock.now()), 1);
    let answers = bench.poll();
    let [(1, (0, 7, answer))] = &answers[..] else { panic!("{answers:?}") };
    assert_eq!((answer.len(), answer[0], &answer[35..]), (39, 4, &2.5_f32.to_le_bytes()[..]));
    // The same bytes again: at once. Other bytes with the id: refused.
    assert_eq!(bench.send(1, NAME, 9, &message(7, 1, 2.5)), Some((0, 9, answer.clone())));
    assert_eq!(bench.send(1, NAME, 10, &message(7, 1, 3.5)), Some((DUPLICATE, 10, vec![])));
    assert_eq!(bench.send(1, NAME, 11, &message(7, 1, 3.5)[1..30]), Some((status::SCHEMA_MISMATCH, 11, vec![])));
    let counts = ["answered", "repeated", "duplicate", "malformed"].map(|outcome| bench.outcome(outcome));
    assert_eq!(counts, [1, 1, 1, 1]);
}

/// A client that sends again while its message waits, or while the worker has it, has it run once.
#[test]
fn a_message_that_comes_again_before_it_was_answered_runs_once() {
    let mut bench = Bench::new(&settings());
    let again = message(5, 0, 1.0);
    assert_eq!(bench.send(1, NAME, 1, &again), None);
    assert_eq!(bench.send(1, NAME, 2, &again), None);
    assert_eq!(bench.poll(), []);
    assert_eq!(bench.send(1, NAME, 3, &again), None);
    assert_eq!(bench.send(1, NAME, 4, &message(5, 0, 2.0)), None);
    assert_eq!(bench.send(2, NAME, 5, &again), None, "another sender's is another message");
    assert_eq!(bench.finish(), [(1, 1, 0), (1, 2, 0), (1, 3, 0), (1, 4, DUPLICATE), (2, 5, 0)]);
    let calls = counters(|visit| berth_port::Task::counters(&bench.worker, berth_port::Part::Service, visit));
    assert_eq!(calls["calls_VectorAddRequest"], 2);
    let counts = ["answered", "repeated", "duplicate"].map(|outcome| bench.outcome(outcome));
    assert_eq!(counts, [2, 2, 1]);
    assert!(!calls.keys().any(|name| name.starts_with("kernel_")), "messages are counted where they wait");
}

#[test]
fn what_finds_no_room_ends_as_configured() {
    for (backpressure, answer, oldest) in [
        (Backpressure::Reject, Some(status::OVERLOADED), None),
        (Backpressure::DropNew, Some(DROPPED), None),
        (Backpressure::DropOldest, None, Some((1, 1, DROPPED))),
    ] {
        let queue = QueueSettings { backpressure, ..settings().queue.unwrap() };
        let mut bench = Bench::new(&Settings { queue: Some(queue), ..settings() });
        for id in 1..=16 {
            assert_eq!(bench.send(1, NAME, id.into(), &message(id, id, 1.0)), None);
        }
        let given = bench.send(2, NAME, 17, &message(17, 0, 1.0)).map(|(status, ..)| status);
        assert_eq!(given, answer, "{backpressure:?}");
        let answers = bench.finish();
        assert_eq!(answers.first().copied().filter(|first| first.2 != 0), oldest, "{backpressure:?}");
        assert_eq!(answers.iter().filter(|(.., status)| *status == 0).count(), 16);
        assert_eq!(bench.outcome("answered"), 16);
        assert_eq!(bench.outcome("rejected") + bench.outcome("dropped"), 1);
    }
}

#[test]
fn what_waits_too_long_is_dropped_and_a_worker_that_is_late_fails_what_it_has() {
    let queue = QueueSettings { timeout: Duration::from_millis(5), ..settings().queue.unwrap() };
    let mut bench = Bench::new(&Settings { queue: Some(queue), ..settings() });
    for id in 1..=UNDER_WAY as u8 + 2 {
        assert_eq!(bench.send(1, NAME, id.into(), &message(id, 0, 1.0)), None);
    }
    assert_eq!(bench.poll(), []);
    bench.clock.advance(Duration::from_millis(5));
    assert_eq!(bench.poll(), []);
    bench.clock.advance(Duration::from_nanos(1));
    let dropped: Vec<_> = bench.poll().into_iter().map(|(_, (status, id, _))| (id, status)).collect();
    assert_eq!(dropped, [(9, DROPPED), (10, DROPPED)]);
    bench.clock.advance(RING_BUDGET);
    let failed: Vec<_> = bench.poll().into_iter().map(|(_, (status, id, _))| (id, status)).collect();
    assert_eq!(failed, [(1, status::HANDLER_FAILED)], "each has the worker's time to itself");
    // It was not answered, so it may run when it comes again.
    assert_eq!(bench.send(1, NAME, 20, &message(1, 0, 1.0)), None);
    assert_eq!(bench.finish().last(), Some(&(1, 20, 0)));
    let counts = ["answered", "dropped", "failed"].map(|outcome| bench.outcome(outcome));
    assert_eq!(counts, [UNDER_WAY as u64, 2, 1]);
}

#[test]
fn a_full_transmit_queue_loses_nothing() {
    let queue = QueueSettings { backpressure: Backpressure::DropOldest, ..settings().queue.unwrap() };
    let mut bench = Bench::new(&Settings { queue: Some(queue), ..settings() });
    bench.port.room = 1;
    for id in 1..=40 {
        assert_eq!(bench.send(1, NAME, id.into(), &message(id, 0, 1.0)), None);
    }
    let mut answers = Vec::new();
    while answers.len() < 40 {
        let some = bench.finish();
        assert!(!some.is_empty());
        answers.extend(some);
    }
    let ids: Vec<_> = answers.iter().map(|answer| answer.1).collect();
    assert_eq!(ids, (1..=40).collect::<Vec<_>>());
    assert_eq!((bench.outcome("dropped"), bench.outcome("answered")), (24, 16));
}

#[test]
fn a_reload_keeps_what_waits_unless_the_kernel_answers_another_way() {
    let (mut sender, updates) = updates();
    let mut bench = Bench::new(&settings());
    bench.service = bench.service.updated_by(updates);
    let send = |bench: &mut Bench, ids: std::ops::RangeInclusive<u8>| {
        for id in ids {
            assert_eq!(bench.send(1, NAME, id.into(), &message(id, 0, 1.0)), None);
        }
    };
    send(&mut bench, 1..=10);
    assert_eq!(bench.poll(), []);
    // It takes no more, and finishes what it has.
    let (table, handlers) = queued(&Settings { active: false, ..settings() });
    assert!(sender.send(Program::new(table, handlers)).is_ok());
    assert_eq!(bench.poll(), []);
    assert_eq!(sender.returned().count(), 1);
    assert_eq!(bench.send(1, NAME, 99, &message(99, 0, 1.0)).unwrap().0, 2);
    assert_eq!(bench.finish(), (1..=10).map(|id| (1, id, 0)).collect::<Vec<_>>());
    let (table, handlers) = queued(&settings());
    assert!(sender.send(Program::new(table, handlers)).is_ok());
    assert_eq!(bench.poll(), []);
    assert_eq!(sender.returned().count(), 1);
    send(&mut bench, 11..=20);
    assert_eq!(bench.poll(), []);
    // A kernel that runs inline is another one: eight are under way, and two wait for nobody.
    bench.port.room = 1;
    let inline = Kernel::new(Settings { queue: None, ..settings() }).unwrap();
    let (table, handlers) = program(inline, Dispatch::Inline);
    assert!(sender.send(Program::new(table, handlers)).is_ok());
    let mut answers = Vec::new();
    for _ in 0..4 {
        bench.service.poll(&mut bench.port, bench.clock.now());
        answers.extend(bench.port.take(FORM).into_iter().map(|(_, (status, id, _))| (id, status)));
    }
    assert_eq!(answers, [(19, DROPPED), (20, DROPPED)]);
    assert_eq!(sender.returned().count(), 1, "what it replaced is given back once they were told");
    bench.port.room = 100;
    assert_eq!(bench.finish(), (11..=18).map(|id| (1, id, 0)).collect::<Vec<_>>());
    let counts = ["answered", "dropped", "not_active"].map(|outcome| bench.outcome(outcome));
    assert_eq!(counts, [18, 2, 1]);
    assert_eq!(bench.service.outstanding(), 0);
}

#[test]
fn what_an_old_queue_sent_is_nothing_of_the_new_one() {
    let (mut sender, updates) = updates();
    let mut bench = Bench::new(&settings());
    bench.service = bench.service.updated_by(updates);
    for id in 1..=8 {
        assert_eq!(bench.send(1, NAME, id.into(), &message(id, 0, 1.0)), None);
    }
    assert_eq!(bench.poll(), []);
    let (table, handlers) = queued(&Settings { dedup: 32, ..settings() });
    assert!(sender.send(Program::new(table, handlers)).is_ok());
    assert_eq!(bench.poll(), []);
    for id in 11..=18 {
        assert_eq!(bench.send(1, NAME, id.into(), &message(id, 0, 2.0)), None);
    }
    assert_eq!(bench.finish(), (1..=8).chain(11..=18).map(|id| (1, id, 0)).collect::<Vec<_>>());
    for id in 11..=18_u8 {
        let (status, _, answer) = bench.send(1, NAME, 30, &message(id, 0, 2.0)).unwrap();
        assert_eq!((status, answer[1], &answer[35..]), (0, id, &2.0_f32.to_le_bytes()[..]));
    }
    assert_eq!(bench.send(1, NAME, 31, &message(1, 0, 1.0)), None, "the new one knows nothing of it");
    assert_eq!(bench.outcome("answered"), 16);
}

#[test]
fn a_queue_needs_its_ring() {
    let (table, handlers) = queued(&settings());
    let config = config(FORM, Undispatchable::Reply);
    let refused = RpcService::new(config, table, handlers, None, VirtualClock::default(), QUIET).err();
    assert_eq!(refused, Some(SetupError::NoRing(NAME.into())));
}
