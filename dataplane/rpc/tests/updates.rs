//! Programs of services and workers are replaced between requests, and nothing is dropped on their core.

mod common;

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use berth_port::{Clock, Frame, Sender, Service, Verdict};
use berth_qec::{
    Algorithm, Decoder, Tables, dem::DetectorErrorModel, gap::Gap, readout::Readout, sparse::MeasurementMap,
};
use berth_ring::pair;
use berth_rpc::{
    Call, Dispatch, Function, FunctionIndex, FunctionTable, Handlers, Outcome, Program, RpcService, SetupError, Stage,
    Undispatchable, Worker,
    handlers::{Handler, HandlerSet, QecDecode, Session, Shot},
    updates,
};
use berth_wire::rpc::{HandlerSchema, HeaderForm, TypeDesc, TypeId, status};
use common::*;

const FORM: HeaderForm = HeaderForm::V24;

/// Answers every function with these bytes; counts its drops.
struct Says(&'static [u8], Arc<AtomicUsize>);

impl Handlers for Says {
    fn call(&mut self, _: FunctionIndex, call: &mut Call<'_>) -> Outcome {
        call.results()[..self.0.len()].copy_from_slice(self.0);
        Ok(self.0.len())
    }
}

impl Drop for Says {
    fn drop(&mut self) {
        self.1.fetch_add(1, Relaxed);
    }
}

fn table(names: &[&str], mode: Dispatch) -> Arc<FunctionTable> {
    let bytes = TypeDesc::variable(TypeId::ArrayUInt8);
    let schema = HandlerSchema::new(&[bytes], &[bytes]).unwrap();
    let functions = names.iter().map(|name| Function { mode, ..Function::new(name, schema) });
    Arc::new(FunctionTable::new(functions.collect()).unwrap())
}

struct Bench {
    service: RpcService<Says, VirtualClock, fn(Stage, u64)>,
    sender: Sender<Program<Says>, Program<Says>>,
    dropped: Arc<AtomicUsize>,
}

impl Bench {
    fn new(names: &[&str], says: &'static [u8]) -> Self {
        let (sender, updates) = updates();
        let dropped = Arc::<AtomicUsize>::default();
        let (config, handlers) = (config(FORM, Undispatchable::Reply), Says(says, dropped.clone()));
        let clock = VirtualClock::default();
        let service = RpcService::new(config, table(names, Dispatch::Inline), handlers, None, clock, QUIET);
        Self { service: service.unwrap().updated_by(updates), sender, dropped }
    }

    fn program(&self, names: &[&str], says: &'static [u8]) -> Program<Says> {
        Program::new(table(names, Dispatch::Inline), Says(says, self.dropped.clone()))
    }

    fn call(&mut self, name: &str) -> (i32, Vec<u8>) {
        let now = VirtualClock::default().now();
        let (status, _, result) = handle(&mut self.service, FORM, &request(FORM, name, 1, &[]), SLOT, now).unwrap();
        (status, result)
    }

    fn poll(&mut self) {
        assert_eq!(self.service.poll(&mut Outbox::new(0), VirtualClock::default().now()), 0);
    }
}

#[test]
fn a_poll_takes_the_new_program_whole_and_sends_the_old_one_back() {
    let mut bench = Bench::new(&["gone", "stays"], b"old");
    let new = bench.program(&["new", "stays"], b"new");
    assert_eq!(bench.call("stays"), (0, b"old".to_vec()));
    assert!(bench.sender.send(new).is_ok());
    assert_eq!(bench.sender.room(), 0);
    assert_eq!(bench.call("new"), (status::UNKNOWN_FUNCTION, vec![]), "not yet");
    assert_eq!(bench.call("gone"), (0, b"old".to_vec()));

    bench.poll();
    assert_eq!(bench.sender.room(), 1);
    for name in ["new", "stays"] {
        assert_eq!(bench.call(name), (0, b"new".to_vec()));
    }
    assert_eq!(bench.call("gone"), (status::UNKNOWN_FUNCTION, vec![]));
    assert_eq!(bench.dropped.load(Relaxed), 0, "the service drops nothing");
    assert_eq!(bench.sender.returned().count(), 1);
    assert_eq!(bench.dropped.load(Relaxed), 1);

    let counted = counters(|visit| bench.service.counters(visit));
    assert_eq!((counted["calls_stays"], counted["calls_new"], counted.get("calls_gone")), (2, 1, None));
}

#[test]
fn a_program_waits_until_the_one_before_was_taken() {
    let mut bench = Bench::new(&["f"], b"0");
    let programs = [b"1", b"2", b"3"].map(|says| bench.program(&["f"], says));
    for (i, program) in programs.into_iter().enumerate() {
        let refused = bench.program(&["f"], b"not");
        assert!(bench.sender.send(program).is_ok());
        assert!(bench.sender.send(refused).is_err());
        bench.poll();
        // There is no room for a third replaced one.
        assert_eq!(bench.call("f"), (0, vec![b'1' + i.min(1) as u8]));
    }
    assert_eq!(bench.dropped.load(Relaxed), 3, "those that were refused");
    assert_eq!(bench.sender.returned().count(), 2);
    bench.poll();
    assert_eq!(bench.call("f"), (0, b"3".to_vec()));
}

#[test]
fn a_program_is_checked_before_it_is_sent() {
    let dropped = Arc::<AtomicUsize>::default();
    let program = Program::new(table(&["f"], RING), Says(b"", dropped));
    assert_eq!(program.check(FORM, SLOT, 1), Ok(()));
    assert_eq!(program.check(FORM, SLOT, 0), Err(SetupError::NoRing("f".into())));
    assert_eq!(program.check(FORM, 8, 1), Err(SetupError::ShortSlots { slot_size: 8, header: 24 }));
}

#[test]
fn what_waits_in_the_ring_meets_the_workers_new_program() {
    let (producer, dispatcher) = pair(8, SLOT).unwrap();
    let (clock, dropped) = (VirtualClock::default(), Arc::<AtomicUsize>::default());
    let says = |says| Says(says, dropped.clone());
    let old = || table(&["gone", "stays"], RING);
    let config = config(FORM, Undispatchable::Reply);
    let mut service = RpcService::new(config, old(), says(b"old"), Some(producer), clock.clone(), QUIET).unwrap();
    let (mut sender, updates) = updates();
    let worker = Worker::new(FORM, old(), says(b"old"), dispatcher, clock.clone()).unwrap();
    let mut worker = worker.updated_by(updates);

    let mut send = |name: &str, id| {
        let mut message = request(FORM, name, id, &[]);
        message.resize(SLOT, 0);
        assert_eq!(service.handle(&mut Frame::new(&mut message, 24, 24, peer(1)), clock.now()), Verdict::Drop);
    };
    send("gone", 1);
    send("stays", 2);
    assert!(sender.send(Program::new(table(&["stays"], RING), says(b"new"))).is_ok());
    assert_eq!(worker.poll(clock.now()), 2);
    let mut port = Outbox::new(8);
    assert_eq!(service.poll(&mut port, clock.now()), 2);
    let expected = [(1, (status::UNKNOWN_FUNCTION, 1, vec![])), (1, (0, 2, b"new".to_vec()))];
    assert_eq!(port.take(FORM), expected, "each has its own answer");
    assert_eq!((dropped.load(Relaxed), sender.returned().count(), dropped.load(Relaxed)), (0, 1, 1));
}

#[test]
fn decoding_sessions_go_on_where_they_are_inherited() {
    const NOT_READY: i32 = 4;
    const MODEL: &str = "error(0.1) D0 L0\nerror(0.1) D0 D1\nerror(0.1) D1\n";
    let program = |sessions: usize| {
        let session = |_| Session::new(Decoder::from_dem(MODEL, Algorithm::Mwpm).unwrap());
        let functions =
            [("enqueue_syndromes", Handler::EnqueueSyndromes), ("get_corrections", Handler::GetCorrections)];
        let functions = functions.map(|(name, handler)| (name.to_owned(), handler)).into();
        HandlerSet::new(functions, (0..sessions).map(session).collect()).unwrap()
    };
    let table = |set: &HandlerSet| Arc::new(FunctionTable::new(set.functions()).unwrap());
    let words = |words: &[u64], last: u8| {
        let mut args: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        args.push(last);
        args
    };
    let (mut sender, updates) = updates();
    let first = program(1);
    let (config, clock) = (config(FORM, Undispatchable::Reply), VirtualClock::default());
    let service = RpcService::new(config, table(&first), first, None, clock.clone(), QUIET);
    let mut service = service.unwrap().updated_by(updates);
    let mut call = |name, args: Vec<u8>, next: Option<HandlerSet>| {
        if let Some(next) = next {
            assert!(sender.send(Program::new(table(&next), next)).is_ok());
            service.poll(&mut Outbox::new(0), clock.now());
        }
        handle(&mut service, FORM, &request(FORM, name, 1, &args), SLOT, clock.now()).unwrap().0
    };
    assert_eq!(call("enqueue_syndromes", words(&[0, 1, 0, 2], 0b01), None), 0);
    // The session is the second of the new program, whose first is new.
    let next = program(2).inheriting(vec![(1, 0)]);
    assert_eq!(call("get_corrections", words(&[1, 1], 0), Some(next)), 0);
    assert_eq!(call("get_corrections", words(&[0, 1], 0), None), NOT_READY);
    assert_eq!(call("get_corrections", words(&[0, 1], 0), Some(program(1))), NOT_READY, "nothing is inherited");
}

#[test]
fn decodes_that_are_out_of_steps_are_counted_on() {
    let line = |at| format!("error(0.1) D{at} D{} L{}\n", (at + 1) % 200, at % 7);
    let model = (0..200).map(line).collect::<Vec<_>>().concat();
    let program = |steps| {
        let decoder = Decoder::from_dem(&model, Algorithm::Mwpm).unwrap().within(steps);
        let functions = vec![("qec_decode".to_owned(), Handler::QecDecode(QecDecode::events(0)))];
        HandlerSet::new(functions, vec![Session::new(decoder).named("ring")]).unwrap()
    };
    let table = |set: &HandlerSet| Arc::new(FunctionTable::new(set.functions()).unwrap());
    let (mut sender, updates) = updates();
    let first = program(0);
    let (config, clock) = (config(FORM, Undispatchable::Reply), VirtualClock::default());
    let service = RpcService::new(config, table(&first), first, None, clock.clone(), QUIET);
    let mut service = service.unwrap().updated_by(updates);
    let args = [vec![0b0011_0110; 25], 200_u32.to_le_bytes().to_vec()].concat();
    let mut call = |next: Option<HandlerSet>| {
        if let Some(next) = next {
            assert!(sender.send(Program::new(table(&next), next)).is_ok());
            service.poll(&mut Outbox::new(0), clock.now());
            assert_eq!(sender.returned().count(), 1);
        }
        let (status, _, _) =
            handle(&mut service, FORM, &request(FORM, "qec_decode", 1, &args), SLOT, clock.now()).unwrap();
        assert_eq!(status, 0);
        counters(|visit| service.counters(visit))["decoder_ring_exhausted"]
    };
    assert_eq!(call(None), 1);
    assert_eq!(call(Some(program(0).inheriting(vec![(0, 0)]))), 2);
    assert_eq!(call(Some(program(0))), 3, "another decoder of the name counts on");
    assert_eq!(call(Some(program(u64::MAX).inheriting(vec![(0, 0)]))), 3, "the limit is the new program's");
}

/// What a session has gathered goes on, with a decoder that does what the new functions ask of it.
#[test]
fn a_session_goes_on_with_a_decoder_that_is_asked_for_more() {
    let model = DetectorErrorModel::parse("error(0.1) D0 L0\nerror(0.2) D0 D1\nerror(0.2) D1\n").unwrap();
    let tables = Arc::new(Tables::new(&model, Algorithm::Mwpm).unwrap());
    let readout = Arc::new(Readout::new(&tables, &MeasurementMap::identity(2)).unwrap());
    let gap = Arc::new(Gap::new(&tables).unwrap());
    let program = |is_asked: bool| {
        let plain = Decoder::new(tables.clone());
        let decoder = if is_asked { plain.with_readout(readout.clone()).with_gap(gap.clone()) } else { plain };
        let shot = if is_asked { Shot::Soft8 } else { Shot::Events };
        let functions = vec![
            ("qec_decode".to_owned(), Handler::QecDecode(QecDecode { decoder: 0, shot, confidence: is_asked })),
            ("enqueue_syndromes".to_owned(), Handler::EnqueueSyndromes),
            ("get_corrections".to_owned(), Handler::GetCorrections),
        ];
        HandlerSet::new(functions, vec![Session::new(decoder).named("d")]).unwrap()
    };
    let table = |set: &HandlerSet| Arc::new(FunctionTable::new(set.functions()).unwrap());
    let (mut sender, updates) = updates();
    let first = program(false);
    let (config, clock) = (config(FORM, Undispatchable::Reply), VirtualClock::default());
    let service = RpcService::new(config, table(&first), first, None, clock.clone(), QUIET);
    let mut service = service.unwrap().updated_by(updates);
    let mut call = |next: Option<HandlerSet>, name: &str, args: &[u8]| {
        if let Some(next) = next {
            assert!(sender.send(Program::new(table(&next), next)).is_ok());
            service.poll(&mut Outbox::new(0), clock.now());
            assert_eq!(sender.returned().count(), 1);
        }
        let (status, _, result) = handle(&mut service, FORM, &request(FORM, name, 1, args), SLOT, clock.now()).unwrap();
        (status, result)
    };
    let words =
        |words: &[u64], last: u8| [words.iter().flat_map(|word| word.to_le_bytes()).collect(), vec![last]].concat();
    assert_eq!(call(None, "qec_decode", &[0b01, 2, 0, 0, 0]), (0, vec![1]));
    assert_eq!(call(None, "enqueue_syndromes", &words(&[0, 0, 0, 1], 1)).0, 0, "half a shot");
    let (status, result) = call(Some(program(true).inheriting(vec![(0, 0)])), "qec_decode", &[255, 100, 2, 0, 0, 0]);
    assert_eq!((status, result.len()), (0, 5));
    assert_eq!(call(None, "enqueue_syndromes", &words(&[0, 0, 0, 1], 1)).0, 0, "the other half");
    assert_eq!(call(None, "get_corrections", &words(&[0, 1], 0)), (0, vec![0]));
    let back = Some(program(false).inheriting(vec![(0, 0)]));
    assert_eq!(call(back, "get_corrections", &words(&[0, 1], 0)), (0, vec![0]), "still there");
    assert_eq!(call(None, "qec_decode", &[0b01, 2, 0, 0, 0]), (0, vec![1]));
}
