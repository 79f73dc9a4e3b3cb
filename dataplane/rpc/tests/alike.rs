//! The same messages get the same answers wherever they run, and whatever their slot held before.

mod common;

use std::sync::Arc;

use berth_memory::Heap;
use berth_port::{Clock, Frame, Service, Verdict};
use berth_qec::{Algorithm, Decoder};
use berth_ring::{Dispatcher, Geometry, Producer, Ring, pair};
use berth_rpc::{
    Config, Dispatch, Function, FunctionTable, RingIndex, RpcService, Stage, Undispatchable, Worker,
    handlers::{Handler, HandlerSet, Session},
};
use berth_wire::rpc::{
    Bits, HeaderForm,
    decoding::{EnqueueSyndromes, GetCorrections},
    status,
};
use common::*;

const FORMS: [HeaderForm; 2] = [HeaderForm::V24, HeaderForm::V16];

/// Functions whose handlers check the length themselves.
const SERVER: [&str; 3] = ["enqueue_syndromes", "get_corrections", "reset_decoder"];

fn handlers() -> HandlerSet {
    let functions = vec![
        ("rpc_increment".to_owned(), Handler::Increment),
        ("enqueue_syndromes".to_owned(), Handler::EnqueueSyndromes),
        ("get_corrections".to_owned(), Handler::GetCorrections),
        ("reset_decoder".to_owned(), Handler::ResetDecoder),
    ];
    let model = "error(0.1) D0 L0\nerror(0.1) D0 D1 L1\nerror(0.1) D1 L2\n";
    let session = || Session::new(Decoder::from_dem(model, Algorithm::Lut { depth: 2 }).unwrap());
    HandlerSet::new(functions, vec![session(), session()]).unwrap()
}

/// A service, and the workers at the other ends of its one-slot rings.
struct Bench {
    service: RpcService<HandlerSet, VirtualClock, fn(Stage, u64)>,
    workers: Vec<Worker<HandlerSet, VirtualClock>>,
    port: Outbox,
    form: HeaderForm,
}

impl Bench {
    /// Without a ring all functions are inline; otherwise the decoding server has the last ring, and the others the
    /// first.
    fn new(form: HeaderForm, rings: impl IntoIterator<Item = (Producer, Dispatcher)>) -> Self {
        let (producers, dispatchers): (Vec<_>, Vec<_>) = rings.into_iter().unzip();
        let mode = |function: &Function| match producers.len() {
            0 => Dispatch::Inline,
            n if SERVER.contains(&&*function.name) => Dispatch::Ring(RingIndex(n - 1)),
            _ => RING,
        };
        let functions = handlers().functions().into_iter();
        let functions = functions.map(|function| Function { mode: mode(&function), ..function }).collect();
        let table = Arc::new(FunctionTable::new(functions).unwrap());
        let config: Config = config(form, Undispatchable::Reply);
        let clock = VirtualClock::default();
        let service = RpcService::new(config, table.clone(), handlers(), producers, clock.clone(), QUIET).unwrap();
        let worker = |ring| Worker::new(form, table.clone(), handlers(), ring, clock.clone()).unwrap();
        let workers = dispatchers.into_iter().map(worker).collect();
        Self { service, workers, port: Outbox::new(1), form }
    }

    fn ask(&mut self, message: &[u8]) -> (i32, Vec<u8>) {
        let mut buf = vec![0xEE; SLOT];
        buf[..message.len()].copy_from_slice(message);
        let mut frame = Frame::new(&mut buf, message.len(), message.len(), peer(1));
        let now = VirtualClock::default().now();
        if self.service.handle(&mut frame, now) == Verdict::Reply {
            let (status, _, results) = parse(self.form, frame.data());
            return (status, results);
        }
        assert_eq!(
            self.workers.iter_mut().map(|worker| worker.poll(now)).sum::<usize>(),
            1,
            "one worker answers later"
        );
        assert_eq!(self.service.poll(&mut self.port, now), 1);
        let [(_, (status, _, ref results))] = self.port.take(self.form)[..] else { panic!("one answer") };
        (status, results.clone())
    }
}

fn foreign_ring() -> (Producer, Dispatcher) {
    let geometry = Geometry::new(1, SLOT).unwrap();
    let mut ring = Ring::new(Heap::new(geometry.size()), geometry).unwrap();
    (ring.producer().unwrap(), ring.dispatcher().unwrap())
}

fn enqueue(decoder_id: u64, bits: u8) -> Vec<u8> {
    let mut args = [0; 40];
    let measurements = [bits];
    let measurements = Bits::new(&measurements, 2).unwrap();
    let len = EnqueueSyndromes { decoder_id, counter: 0, measurements }.write(&mut args).unwrap();
    args[..len].to_vec()
}

fn corrections(decoder_id: u64) -> Vec<u8> {
    let mut args = [0; GetCorrections::LEN];
    GetCorrections { decoder_id, return_size: 3, reset: false }.write(&mut args).unwrap();
    args.to_vec()
}

/// A message that claims `claimed` bytes of arguments and has `there`, and whether that is a cut message.
struct Probe {
    name: &'static str,
    message: Vec<u8>,
    is_cut: bool,
}

fn probes(form: HeaderForm) -> Vec<Probe> {
    let reset = 1_u64.to_le_bytes().to_vec();
    let bytes: Vec<u8> = (0..60).collect();
    let names = [
        ("rpc_increment", bytes),
        ("enqueue_syndromes", enqueue(1, 0b01)),
        ("get_corrections", corrections(1)),
        ("reset_decoder", reset),
    ];
    let mut probes = Vec::new();
    for (name, args) in names {
        for there in 0..=args.len() {
            for claimed in [there, there + 1, args.len(), 100, SLOT - form.len(), SLOT, u32::MAX as usize] {
                let mut message = request(form, name, 1, &args[..there]);
                message[8..12].copy_from_slice(&(claimed as u32).to_le_bytes());
                probes.push(Probe { name, message, is_cut: claimed > there });
            }
        }
    }
    probes
}

/// Sends every probe after a whole volume that fills the slot. Collects its answer, and what the decoders say then.
fn answers(bench: &mut Bench, skip: impl Fn(&Probe) -> bool) -> Vec<(i32, Vec<u8>)> {
    let form = bench.form;
    let mut answers = Vec::new();
    for probe in probes(form) {
        for decoder_id in [0_u64, 1] {
            let reset = request(form, "reset_decoder", 1, &decoder_id.to_le_bytes());
            let whole = request(form, "enqueue_syndromes", 1, &enqueue(decoder_id, 0b11));
            answers.extend([bench.ask(&reset), bench.ask(&whole)]);
        }
        let mut long = request(form, "enqueue_syndromes", 1, &enqueue(1, 0b10));
        long.resize(SLOT, 1);
        let len = (SLOT - form.len()) as u32;
        long[8..12].copy_from_slice(&len.to_le_bytes());
        answers.push(bench.ask(&long));
        answers.push(if skip(&probe) { (status::BAD_LENGTH, vec![]) } else { bench.ask(&probe.message) });
        for decoder_id in [0_u64, 1] {
            answers.push(bench.ask(&request(form, "get_corrections", 1, &corrections(decoder_id))));
        }
    }
    answers
}

#[test]
fn a_ring_answers_what_inline_dispatch_answers() {
    for form in FORMS {
        let inline = answers(&mut Bench::new(form, None), |_| false);
        for rings in 1..=2 {
            let rings = (0..rings).map(|_| pair(1, SLOT).unwrap());
            let ring = answers(&mut Bench::new(form, rings), |_| false);
            for (at, (ring, inline)) in ring.iter().zip(&inline).enumerate() {
                assert_eq!(ring, inline, "answer {at}");
            }
            assert_eq!(ring.len(), inline.len());
        }
        // The corpus has refusals of the gate, of handlers, and answers.
        for status in [status::BAD_LENGTH, 0, 2, 3] {
            assert!(inline.iter().any(|answer| answer.0 == status), "{status}");
        }
    }
}

/// A slot of the host API does not tell how many of its bytes are real. A request that claims more than it has is
/// refused there before it takes a slot, and reaches no handler.
#[test]
fn a_foreign_dispatcher_never_sees_a_request_that_was_cut() {
    let is_refused = |probe: &Probe| probe.is_cut && SERVER.contains(&probe.name);
    for form in FORMS {
        let expected = answers(&mut Bench::new(form, None), is_refused);
        let mut foreign = Bench::new(form, Some(foreign_ring()));
        assert_eq!(answers(&mut foreign, |_| false), expected);
    }
}

/// A full enqueue, then the same without its measurements.
#[test]
fn an_enqueue_without_its_measurements_is_a_bad_request() {
    let form = HeaderForm::V24;
    for ring in [None, Some(pair(1, SLOT).unwrap())] {
        let mut bench = Bench::new(form, ring);
        let whole = request(form, "enqueue_syndromes", 1, &enqueue(0, 0b01));
        assert_eq!(bench.ask(&whole), (0, vec![]));
        assert_eq!(bench.ask(&whole[..whole.len() - 1]), (2, vec![]));
        assert_eq!(bench.ask(&request(form, "get_corrections", 1, &corrections(0))), (3, vec![]));
    }
}
