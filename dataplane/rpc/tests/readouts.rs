//! `qec_decode` of outcomes that are not certain, and its confidence: inline and on a worker.

mod common;

use std::{collections::BTreeMap, convert::Infallible, sync::Arc};

use berth_port::{Clock, Part, Service as _, Task as _};
use berth_qec::{
    Algorithm, Decoder, Tables,
    dem::DetectorErrorModel,
    gap::Gap,
    readout::Readout,
    sparse::{MeasurementMap, SparseMatrix},
};
use berth_ring::pair;
use berth_rpc::{
    Dispatch, Function, FunctionTable, RpcService, Stage, Undispatchable, Worker,
    handlers::{BAD_VALUE, Handler, HandlerError, HandlerSet, QecDecode, Session, Shot},
};
use berth_wire::rpc::{HandlerSchema, HeaderForm, TypeDesc, TypeId, status};
use common::*;

/// Two rounds of a check: D0 is measurement 0, D1 both.
const CHECK: &str = "error(0.01) D0 L0\nerror(0.05) D0 D1\nerror(0.02) D1\n";

/// A decoder of the check, read out, that knows gaps.
fn check(steps: Option<u64>) -> Session {
    let map = MeasurementMap::new(SparseMatrix::from_flat(&[0, -1, 0, 1, -1], None).unwrap());
    let model = DetectorErrorModel::parse(CHECK).unwrap();
    let tables = Arc::new(Tables::new(&model, Algorithm::Mwpm).unwrap());
    let (readout, gap) = (Readout::new(&tables, &map).unwrap(), Gap::new(&tables).unwrap());
    let mut decoder = Decoder::new(tables).with_readout(Arc::new(readout)).with_gap(Arc::new(gap));
    if let Some(steps) = steps {
        decoder.set_steps(steps);
    }
    Session::with_map(decoder, map).unwrap().named("check")
}

const SHOTS: [(&str, Shot); 6] = [
    ("events", Shot::Events),
    ("soft4", Shot::Soft4),
    ("soft8", Shot::Soft8),
    ("float32", Shot::Float32),
    ("leakage8", Shot::Leakage8),
    ("leakage32", Shot::Leakage32),
];

fn handlers(steps: Option<u64>) -> HandlerSet {
    let function = |(name, shot): (&str, _)| {
        (name.to_owned(), Handler::QecDecode(QecDecode { decoder: 0, shot, confidence: true }))
    };
    HandlerSet::new(SHOTS.map(function).into(), vec![check(steps)]).unwrap()
}

/// A service, and the worker that has its functions where they are not inline.
struct Bench {
    service: RpcService<HandlerSet, VirtualClock, fn(Stage, u64)>,
    worker: Option<Worker<HandlerSet, VirtualClock>>,
    functions: Arc<FunctionTable>,
    form: HeaderForm,
}

impl Bench {
    fn new(form: HeaderForm, mode: Dispatch, make: impl Fn() -> HandlerSet) -> Self {
        let set = |function| Function { mode, ..function };
        let functions = Arc::new(FunctionTable::new(make().functions().into_iter().map(set).collect()).unwrap());
        let (config, clock) = (config(form, Undispatchable::Reply), VirtualClock::default());
        let (producer, dispatcher) = (mode == RING).then(|| pair(1, SLOT).unwrap()).unzip();
        let service = RpcService::new(config, functions.clone(), make(), producer, clock.clone(), QUIET).unwrap();
        let worker = dispatcher.map(|ring| Worker::new(form, functions.clone(), make(), ring, clock).unwrap());
        Self { service, worker, functions, form }
    }

    /// One for each form of the header and each place.
    fn all(steps: Option<u64>) -> [Self; 4] {
        let [v24, v16] = [HeaderForm::V24, HeaderForm::V16];
        [(v24, Dispatch::Inline), (v16, Dispatch::Inline), (v24, RING), (v16, RING)]
            .map(|(form, mode)| Self::new(form, mode, || handlers(steps)))
    }

    fn call(&mut self, name: &str, args: &[u8]) -> (i32, Vec<u8>) {
        let (message, now) = (request(self.form, name, 1, args), VirtualClock::default().now());
        if let Some((status, _, result)) = handle(&mut self.service, self.form, &message, SLOT, now) {
            return (status, result);
        }
        let mut port = Outbox::new(1);
        assert_eq!(self.worker.as_mut().map(|worker| worker.poll(now)), Some(1));
        assert_eq!(self.service.poll(&mut port, now), 1);
        let [(_, (status, _, ref result))] = port.take(self.form)[..] else { panic!("one answer") };
        (status, result.clone())
    }

    /// Counters of whatever runs the functions.
    fn counters(&self) -> BTreeMap<&'static str, u64> {
        match &self.worker {
            Some(worker) => counters(|visit| worker.counters(Part::Service, visit)),
            None => counters(|visit| self.service.counters(visit)),
        }
    }

    fn schema(&self, name: &str) -> HandlerSchema {
        let mut functions = self.functions.functions().iter();
        functions.find(|function| function.name == name).unwrap().schema
    }
}

/// ln((1 - p) / p) of both errors of a pair that make one event together, less that of the other.
fn gap(one: f64, other: [f64; 2]) -> f64 {
    let odds = |p: f64| ((1.0 - p) / p).ln();
    odds(other[0]) + odds(other[1]) - odds(one)
}

#[test]
fn outcomes_come_in_each_encoding_of_the_document_and_answers_with_their_confidence() {
    for mut bench in Bench::all(None) {
        let mut ask = |name: &str, shot: &[u8]| {
            let (status, result) = bench.call(name, &[shot, &[2, 0, 0, 0]].concat());
            assert_eq!((status, result.len()), (0, 5), "{name}: the byte of the flips, and a float32");
            (result[0], f64::from(f32::from_le_bytes(result[1..].try_into().unwrap())))
        };
        // Both outcomes are 1: an event of D0.
        let certain = gap(0.01, [0.05, 0.02]);
        let floats = |ones: [f32; 2]| ones.map(f32::to_le_bytes).concat();
        for (name, shot) in [
            ("events", &[0b01][..]),
            ("soft4", &[0xFF]),
            ("soft8", &[255, 255]),
            ("float32", &floats([1.0, 1.0])),
            ("leakage8", &[1, 1]),
            ("leakage32", &[1, 0, 0, 0, 1, 0, 0, 0]),
        ] {
            let (flips, found) = ask(name, shot);
            assert!(flips == 1 && (found - certain).abs() < 1e-5, "{name}: {flips} {found}, not {certain}");
        }
        // The second one is 1 with the probability 1 - q, and D1 flips at 0.02 or q.
        for (name, shot, q) in [
            ("soft4", &[0xBF][..], 4.0 / 15.0),
            ("soft8", &[255, 192], 63.0 / 255.0),
            ("float32", &floats([1.0, 0.75]), 0.25),
        ] {
            let (flips, found) = ask(name, shot);
            let doubtful = gap(0.01, [0.05, 0.02 + q - 0.04 * q]);
            assert!(flips == 0 && (found + doubtful).abs() < 1e-5, "{name}: {flips} {found}, not {doubtful}");
        }
        // Nothing is known of the second: L0 and D1, or the other two, which then weigh as one.
        let odds = |p: f64| ((1.0 - p) / p).ln();
        for (name, shot) in
            [("leakage8", &[1, 2][..]), ("leakage32", &[1, 0, 0, 0, 2, 0, 0, 0]), ("float32", &floats([1.0, 0.5]))]
        {
            let (flips, found) = ask(name, shot);
            assert!(flips == 0 && (found - (odds(0.01) - odds(0.05))).abs() < 1e-5, "{name}: {flips} {found}");
        }
    }
}

#[test]
fn the_table_tells_what_each_qec_decode_takes() {
    let [bench, ..] = Bench::all(None);
    let array = |type_id, size, n| TypeDesc::new(type_id, size, n).unwrap();
    let shots = [
        TypeDesc::variable(TypeId::BitPacked),
        array(TypeId::ArrayUInt8, 1, 2),
        array(TypeId::ArrayUInt8, 2, 2),
        array(TypeId::ArrayFloat32, 8, 2),
        array(TypeId::ArrayUInt8, 2, 2),
        array(TypeId::ArrayInt32, 8, 2),
    ];
    for ((name, _), shot) in SHOTS.iter().zip(shots) {
        let schema = bench.schema(name);
        assert_eq!(schema.args(), [shot, TypeDesc::one(TypeId::Int32)], "{name}");
        assert_eq!(schema.results(), [TypeDesc::bits(1), TypeDesc::one(TypeId::Float32)], "{name}");
    }
    for algorithm in [Algorithm::Mwpm, Algorithm::Lut { depth: 1 }] {
        let unable = Session::new(Decoder::from_dem(CHECK, algorithm).unwrap());
        let function = QecDecode { confidence: true, ..QecDecode::events(0) };
        let functions = vec![("f".to_owned(), Handler::<Infallible>::QecDecode(function))];
        let error = HandlerSet::new(functions, vec![unable]).unwrap_err();
        assert_eq!(error, HandlerError::Unable { function: "f".into(), decoder: 0 });
    }
    let function = QecDecode { shot: Shot::Soft8, ..QecDecode::events(0) };
    let functions = vec![("f".to_owned(), Handler::<Infallible>::QecDecode(function))];
    let error =
        HandlerSet::new(functions, vec![Session::new(Decoder::from_dem(CHECK, Algorithm::Mwpm).unwrap())]).unwrap_err();
    assert_eq!(error, HandlerError::Unable { function: "f".into(), decoder: 0 });
}

#[test]
fn outcomes_without_a_meaning_are_refused_and_counted() {
    for mut bench in Bench::all(None) {
        let floats = |ones: [f32; 2]| ones.map(f32::to_le_bytes).concat();
        let mut shots = vec![("leakage8", vec![3, 0]), ("leakage8", vec![0, 255])];
        shots.extend([("leakage32", vec![0, 0, 0, 0, 3, 0, 0, 0]), ("leakage32", [[0xFF; 4], [0; 4]].concat())]);
        shots.extend([f32::NAN, f32::INFINITY, -0.001, 1.001].map(|one| ("float32", floats([0.0, one]))));
        let refused = shots.len() as u64;
        for (name, shot) in shots {
            assert_eq!(bench.call(name, &[&shot[..], &[2, 0, 0, 0]].concat()), (BAD_VALUE, vec![]), "{name} {shot:?}");
        }
        let counters = bench.counters();
        assert_eq!((counters["decoder_check_bad_values"], counters["handler_error"]), (refused, refused));
        let mismatch = (status::SCHEMA_MISMATCH, vec![]);
        assert_eq!(bench.call("soft8", &[0, 0, 3, 0, 0, 0]), mismatch, "n is another model's");
        assert_eq!(bench.call("soft8", &[0, 0, 0, 3, 0, 0, 0]), mismatch, "a value more");
        assert_eq!(bench.call("float32", &[0, 0, 2, 0, 0, 0]), mismatch, "bytes for floats");
        assert_eq!(bench.call("soft8", &[0, 0, 2, 0, 0, 0]).0, 0, "it goes on");
    }
}

#[test]
fn the_last_half_byte_of_an_odd_number_of_outcomes_is_zero() {
    let model = DetectorErrorModel::parse("error(0.1) D0 L0\nerror(0.1) D1\nerror(0.1) D2").unwrap();
    let tables = Arc::new(Tables::new(&model, Algorithm::Mwpm).unwrap());
    let readout = Arc::new(Readout::new(&tables, &MeasurementMap::identity(3)).unwrap());
    let function = QecDecode { shot: Shot::Soft4, ..QecDecode::events(0) };
    let mut bench = Bench::new(HeaderForm::V24, Dispatch::Inline, || {
        let decoder = Decoder::new(tables.clone()).with_readout(readout.clone());
        let functions = vec![("soft4".to_owned(), Handler::QecDecode(function))];
        HandlerSet::new(functions, vec![Session::new(decoder)]).unwrap()
    });
    assert_eq!(bench.call("soft4", &[0x0F, 0x0F, 3, 0, 0, 0]), (0, vec![1]));
    assert_eq!(bench.call("soft4", &[0x0F, 0x1F, 3, 0, 0, 0]), (status::SCHEMA_MISMATCH, vec![]));
}

#[test]
fn an_answer_that_may_not_be_the_best_has_no_confidence() {
    for mut bench in Bench::all(Some(0)) {
        let (status, result) = bench.call("soft8", &[255, 192, 2, 0, 0, 0]);
        assert_eq!((status, result.len(), &result[1..]), (0, 5, &0.0_f32.to_le_bytes()[..]));
        assert_eq!(bench.counters()["decoder_check_exhausted"], 1);
    }
}
