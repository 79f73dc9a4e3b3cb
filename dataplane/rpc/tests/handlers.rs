//! The builtin handlers, through a service.

mod common;
#[path = "sessions/rounds.rs"]
mod rounds;

use std::sync::Arc;

use berth_port::Clock;
use berth_qec::{
    Algorithm, Decoder,
    mock::MockTable,
    relay::RelayBp,
    sparse::{MeasurementMap, SparseMatrix},
};
use berth_rpc::{
    FunctionTable, RpcService, Stage, Undispatchable,
    handlers::{Handler, HandlerError, HandlerSet, MapMismatch, QecDecode, Session, UNMATCHABLE},
};
use berth_wire::rpc::{
    Bits, HeaderForm, bits,
    decoding::{EnqueueSyndromes, GetCorrections, status as decoding},
    status,
};
use common::*;
use proptest::prelude::*;

/// Three detectors in a row between two boundaries. The errors at both ends and those in between flip one observable
/// each.
const CHAIN: &str = "error(0.1) D0 L0\nerror(0.1) D0 D1 L1\nerror(0.1) D1 D2 L2 L9\nerror(0.1) D2 L3\n";

/// The flips in the chain's table of depth 1. Bit i of a syndrome is detector i.
fn chain_flips(syndrome: u8) -> u16 {
    match syndrome {
        0b001 => 0b1,
        0b011 => 0b10,
        0b110 => 0b10_0000_0100,
        0b100 => 0b1000,
        _ => 0,
    }
}

fn chain() -> Decoder {
    Decoder::from_dem(CHAIN, Algorithm::Lut { depth: 1 }).unwrap()
}

/// Detectors without a boundary, so that an odd number of events has no explanation.
fn closed() -> Decoder {
    Decoder::from_dem("error(0.1) D0 D1 L0\n", Algorithm::Mwpm).unwrap()
}

struct Bench {
    service: RpcService<HandlerSet, VirtualClock, fn(Stage, u64)>,
    form: HeaderForm,
}

impl Bench {
    fn new(form: HeaderForm, functions: Vec<(&str, Handler)>, sessions: Vec<Session>) -> Self {
        let functions = functions.into_iter().map(|(name, handler)| (name.to_owned(), handler)).collect();
        let set = HandlerSet::new(functions, sessions).unwrap();
        let table = Arc::new(FunctionTable::new(set.functions()).unwrap());
        let config = config(form, Undispatchable::Reply);
        let service = RpcService::new(config, table, set, None, VirtualClock::default(), QUIET).unwrap();
        Self { service, form }
    }

    fn server(sessions: Vec<Session>) -> Self {
        let functions = vec![
            ("reset_decoder", Handler::ResetDecoder),
            ("enqueue_syndromes", Handler::EnqueueSyndromes),
            ("get_corrections", Handler::GetCorrections),
        ];
        Self::new(HeaderForm::V24, functions, sessions)
    }

    fn send(&mut self, message: &[u8]) -> (i32, Vec<u8>) {
        let (status, id, result) =
            handle(&mut self.service, self.form, message, SLOT, VirtualClock::default().now()).unwrap();
        assert_eq!(id, 11);
        (status, result)
    }

    fn call(&mut self, name: &str, args: &[u8]) -> (i32, Vec<u8>) {
        self.send(&request(self.form, name, 11, args))
    }

    fn enqueue(&mut self, decoder_id: u64, measurements: &[bool]) -> i32 {
        self.enqueue_from(decoder_id, 0, measurements)
    }

    fn enqueue_from(&mut self, decoder_id: u64, counter: u64, measurements: &[bool]) -> i32 {
        let (mut packed, mut args) = ([0; 16], [0; 64]);
        bits::pack(measurements.iter().copied(), &mut packed).unwrap();
        let measurements = Bits::new(&packed, measurements.len()).unwrap();
        let len = EnqueueSyndromes { decoder_id, counter, measurements }.write(&mut args).unwrap();
        let (status, result) = self.call("enqueue_syndromes", &args[..len]);
        assert!(result.is_empty());
        status
    }

    fn corrections(&mut self, decoder_id: u64, return_size: u64, reset: bool) -> (i32, Vec<u8>) {
        let mut args = [0; GetCorrections::LEN];
        GetCorrections { decoder_id, return_size, reset }.write(&mut args).unwrap();
        self.call("get_corrections", &args)
    }

    fn reset(&mut self, decoder_id: u64) -> i32 {
        let (status, result) = self.call("reset_decoder", &decoder_id.to_le_bytes());
        assert!(result.is_empty());
        status
    }
}

#[test]
fn increment_wraps_and_takes_any_length() {
    for form in [HeaderForm::V24, HeaderForm::V16] {
        let mut bench = Bench::new(form, vec![("rpc_increment", Handler::Increment)], vec![]);
        let args: Vec<u8> = (0..=255).collect();
        for len in [0, 1, SLOT - form.len()] {
            let expected = args[..len].iter().map(|byte| byte + 1).collect();
            assert_eq!(bench.call("rpc_increment", &args[..len]), (0, expected));
        }
        assert_eq!(bench.call("rpc_increment", &[255]), (0, vec![0]));
    }
}

#[test]
fn mock_decode_answers_what_was_recorded() {
    let mut table = MockTable::new(3, 5);
    table.insert(&[1, 0, 1], &[1, 1, 0, 0, 1]).unwrap();
    let mut bench = Bench::new(HeaderForm::V24, vec![("mock_decode", Handler::MockDecode(table))], vec![]);
    assert_eq!(bench.call("mock_decode", &[1, 0, 1]), (0, vec![1, 1, 0, 0, 1]));
    assert_eq!(bench.call("mock_decode", &[1, 1, 1]), (0, vec![0; 5]));
    assert_eq!(bench.call("mock_decode", &[1, 0]), (status::SCHEMA_MISMATCH, vec![]));
}

#[test]
fn qec_decode_keeps_its_contract() {
    for form in [HeaderForm::V24, HeaderForm::V16] {
        let functions = vec![
            ("qec_decode", Handler::QecDecode(QecDecode::events(1))),
            ("closed", Handler::QecDecode(QecDecode::events(0))),
        ];
        let mut bench = Bench::new(form, functions, vec![Session::new(closed()), Session::new(chain())]);
        for syndrome in 0..8 {
            let flips = chain_flips(syndrome).to_le_bytes().to_vec();
            assert_eq!(bench.call("qec_decode", &[syndrome, 3, 0, 0, 0]), (0, flips), "{syndrome:#b}");
        }
        let mismatch = (status::SCHEMA_MISMATCH, vec![]);
        assert_eq!(bench.call("qec_decode", &[1, 2, 0, 0, 0]), mismatch, "n is another model's");
        assert_eq!(bench.call("qec_decode", &[1, 3, 0, 0, 1]), mismatch, "all of n counts");
        assert_eq!(bench.call("qec_decode", &[1, 0, 3, 0, 0, 0]), mismatch, "more bytes than n needs");
        assert_eq!(bench.call("qec_decode", &[3, 0, 0, 0]), mismatch, "fewer bytes than n needs");
        assert_eq!(bench.call("qec_decode", &[0, 0, 3]), mismatch, "no n");
        assert_eq!(bench.call("qec_decode", &[0b1000, 3, 0, 0, 0]), mismatch, "an event beyond n");
        assert_eq!(bench.call("closed", &[0b11, 2, 0, 0, 0]), (0, vec![1]));
        assert_eq!(bench.call("closed", &[0b01, 2, 0, 0, 0]), (UNMATCHABLE, vec![]));
        assert_eq!(bench.call("closed", &[0b11, 2, 0, 0, 0]), (0, vec![1]), "it goes on");
    }
}

/// More observables than a word of the decoder has.
#[test]
fn answers_have_as_many_observables_as_the_model() {
    for algorithm in [Algorithm::Mwpm, Algorithm::Lut { depth: 2 }] {
        let wide = || {
            let chain = "error(0.1) D0 L7\nerror(0.1) D0 D1 L64 L200\nerror(0.1) D1 L999";
            Session::new(Decoder::from_dem(chain, algorithm).unwrap())
        };
        let flips = |observables: &[usize]| {
            let mut flips = vec![0; 125];
            for at in observables {
                flips[at / 8] |= 1 << (at % 8);
            }
            flips
        };
        let mut bench =
            Bench::new(HeaderForm::V24, vec![("qec_decode", Handler::QecDecode(QecDecode::events(0)))], vec![wide()]);
        assert_eq!(bench.call("qec_decode", &[0b11, 2, 0, 0, 0]), (0, flips(&[64, 200])));
        assert_eq!(bench.call("qec_decode", &[0b10, 2, 0, 0, 0]), (0, flips(&[999])));
        let mut bench = Bench::server(vec![wide()]);
        assert_eq!(bench.enqueue(0, &[true, true]), decoding::OK);
        assert_eq!(bench.enqueue(0, &[true, false]), decoding::OK);
        assert_eq!(bench.corrections(0, 1000, false), (decoding::OK, flips(&[7, 64, 200])));
    }
}

#[test]
fn qec_decode_tells_that_belief_propagation_found_nothing() {
    let relay = Algorithm::RelayBp(RelayBp::default());
    let decoder = Decoder::from_dem("error(0.1) D0 D1 D2 L0\nerror(0.1) D1 D2 L1", relay).unwrap();
    let functions = vec![("qec_decode", Handler::QecDecode(QecDecode::events(0)))];
    let mut bench = Bench::new(HeaderForm::V24, functions, vec![Session::new(decoder)]);
    assert_eq!(bench.call("qec_decode", &[0b111, 3, 0, 0, 0]), (0, vec![1]));
    assert_eq!(bench.call("qec_decode", &[0b010, 3, 0, 0, 0]), (UNMATCHABLE, vec![]));
    assert_eq!(bench.call("qec_decode", &[0b001, 3, 0, 0, 0]), (0, vec![3]));
}

#[test]
fn volumes_accumulate_until_they_are_cleared() {
    let mut bench = Bench::server(vec![Session::new(closed()), Session::new(chain())]);
    let corrections = |flips: u16| (decoding::OK, flips.to_le_bytes().to_vec());
    assert_eq!(bench.corrections(1, 10, false), (decoding::NOT_READY, vec![]));
    assert_eq!(bench.enqueue(1, &[true]), decoding::OK);
    assert_eq!(bench.corrections(1, 10, false), (decoding::NOT_READY, vec![]));
    assert_eq!(bench.enqueue(1, &[true, false]), decoding::OK);
    assert_eq!(bench.corrections(1, 10, false), corrections(0b10));
    assert_eq!(bench.enqueue(1, &[true, false, false]), decoding::OK);
    assert_eq!(bench.corrections(1, 10, false), corrections(0b11), "both volumes");
    assert_eq!(bench.corrections(1, 10, true), corrections(0b11), "reading clears nothing");
    assert_eq!(bench.corrections(1, 10, false), (decoding::NOT_READY, vec![]), "a reset does");
    assert_eq!(bench.enqueue(1, &[false, true, true]), decoding::OK);
    assert_eq!(bench.enqueue(1, &[false]), decoding::OK);
    assert_eq!(bench.corrections(1, 10, false), (decoding::NOT_READY, vec![]), "a new volume has begun");
    assert_eq!(bench.enqueue(1, &[false, false]), decoding::OK);
    assert_eq!(bench.corrections(1, 10, false), corrections(0b10_0000_0100));
    assert_eq!(bench.reset(1), decoding::OK);
    assert_eq!(bench.corrections(1, 10, false), (decoding::NOT_READY, vec![]));
}

#[test]
fn failures_latch_until_a_reset_and_stay_with_their_decoder() {
    let mut bench = Bench::server(vec![Session::new(closed()), Session::new(chain())]);
    let failed = (decoding::INTERNAL_ERROR, vec![]);
    assert_eq!(bench.enqueue(0, &[true, false]), decoding::OK, "ingested, though it cannot be decoded");
    assert_eq!(bench.corrections(0, 1, true), failed);
    assert_eq!(bench.enqueue(0, &[true, true]), decoding::OK);
    assert_eq!(bench.corrections(0, 1, true), failed, "neither reading nor new rounds help");
    assert_eq!(bench.corrections(1, 10, false).0, decoding::NOT_READY);
    assert_eq!(bench.reset(0), decoding::OK);
    assert_eq!(bench.enqueue(0, &[true, true]), decoding::OK);
    assert_eq!(bench.corrections(0, 1, false), (decoding::OK, vec![1]));

    assert_eq!(bench.enqueue(0, &[true, true, true]), decoding::OK, "overfilled");
    assert_eq!(bench.corrections(0, 1, false), failed);
    assert_eq!(bench.reset(0), decoding::OK);

    // Malformed, but it names its decoder: no measurements, a mapping id, an arg_len beyond the slot.
    for (at, value) in [(24, 0_u64), (16, 1)] {
        let mut args = [0; 33];
        args[24] = 1;
        args[at..at + 8].copy_from_slice(&value.to_le_bytes());
        assert_eq!(bench.call("enqueue_syndromes", &args), (decoding::BAD_REQUEST, vec![]));
        assert_eq!(bench.corrections(0, 1, false), failed);
        assert_eq!(bench.reset(0), decoding::OK);
    }
    let mut args = [0; 33];
    args[24] = 1;
    let mut message = request(HeaderForm::V24, "enqueue_syndromes", 11, &args);
    message[8..12].copy_from_slice(&(SLOT as u32).to_le_bytes());
    assert_eq!(bench.send(&message), (decoding::BAD_REQUEST, vec![]));
    assert_eq!(bench.corrections(0, 1, false), failed);
}

#[test]
fn corrections_are_checked_in_upstreams_order() {
    let mut bench = Bench::server(vec![Session::new(chain())]);
    let status = |bench: &mut Bench, return_size| bench.corrections(0, return_size, false).0;
    assert_eq!(status(&mut bench, 9), decoding::BAD_REQUEST, "the size comes before readiness");
    assert_eq!(status(&mut bench, 10), decoding::NOT_READY);
    assert_eq!(bench.enqueue(0, &[true; 4]), decoding::OK);
    assert_eq!(status(&mut bench, 0), decoding::BAD_REQUEST, "no size comes before failure");
    assert_eq!(status(&mut bench, u64::MAX), decoding::BAD_REQUEST, "nor does a negative one");
    assert_eq!(status(&mut bench, 9), decoding::INTERNAL_ERROR, "failure comes before the size");
}

#[test]
fn requests_name_a_decoder_and_are_long_enough() {
    let mut bench = Bench::server(vec![Session::new(chain())]);
    for name in ["enqueue_syndromes", "get_corrections", "reset_decoder"] {
        assert_eq!(bench.call(name, &[0; 7]), (decoding::BAD_REQUEST, vec![]), "{name}");
        assert_eq!(bench.call(name, &[1, 0, 0, 0, 0, 0, 0, 0]), (decoding::INVALID_DECODER, vec![]), "{name}");
        assert_eq!(bench.call(name, &[0xFF; 40]), (decoding::INVALID_DECODER, vec![]), "{name}");
    }
    assert_eq!(bench.corrections(0, 10, false).0, decoding::NOT_READY, "none of these was for decoder 0");
    assert_eq!(bench.call("get_corrections", &[0; 16]), (decoding::BAD_REQUEST, vec![]));
    // Longer than needed is fine.
    assert_eq!(bench.call("reset_decoder", &[0; 100]), (decoding::OK, vec![]));
    let mut args = [0; 40];
    args[8] = 10;
    assert_eq!(bench.call("get_corrections", &args), (decoding::NOT_READY, vec![]));
}

#[test]
fn bits_beyond_the_last_measurement_are_ignored() {
    let mut bench = Bench::server(vec![Session::new(chain())]);
    let mut args = [0; 33];
    (args[24], args[32]) = (1, 0xFF);
    assert_eq!(bench.call("enqueue_syndromes", &args), (decoding::OK, vec![]));
    assert_eq!(bench.enqueue(0, &[false, false]), decoding::OK);
    assert_eq!(bench.corrections(0, 10, false), (0, chain_flips(0b001).to_le_bytes().to_vec()));
}

#[test]
fn measurements_become_events_through_the_map() {
    // Two rounds of three measurements; a detector is the difference of a stabiliser between the rounds.
    let map = || MeasurementMap::new(SparseMatrix::from_flat(&[0, 3, -1, 1, 4, -1, 2, 5, -1], None).unwrap());
    assert_eq!(Session::with_map(closed(), map()).unwrap_err(), MapMismatch { map: 3, model: 2 });
    let mut bench = Bench::server(vec![Session::with_map(chain(), map()).unwrap()]);
    assert_eq!(bench.enqueue(0, &[true, true, false]), decoding::OK);
    assert_eq!(bench.enqueue(0, &[false, true, true]), decoding::OK);
    assert_eq!(bench.corrections(0, 10, false), (0, chain_flips(0b101).to_le_bytes().to_vec()));
    for round in [[true, true, false], [true, false, true]] {
        assert_eq!(bench.enqueue(0, &round), decoding::OK);
    }
    assert_eq!(bench.corrections(0, 10, false), (0, chain_flips(0b110).to_le_bytes().to_vec()));
}

#[test]
fn a_function_needs_its_decoder() {
    let functions =
        vec![("qec_decode".to_owned(), Handler::<std::convert::Infallible>::QecDecode(QecDecode::events(1)))];
    let error = HandlerSet::new(functions, vec![Session::new(chain())]).unwrap_err();
    assert_eq!(error, HandlerError::NoDecoder { function: "qec_decode".into(), decoder: 1, decoders: 1 });
}

/// A model of the decoding server, after the specification.
#[derive(Default)]
struct Model {
    measurements: Vec<bool>,
    corrections: u16,
    ready: bool,
    failed: bool,
}

impl Model {
    fn enqueue(&mut self, measurements: &[bool]) -> i32 {
        if measurements.is_empty() {
            self.failed = true;
            return decoding::BAD_REQUEST;
        }
        if self.failed {
            return decoding::OK;
        }
        self.ready = false;
        self.measurements.extend(measurements);
        if self.measurements.len() > 3 {
            self.failed = true;
        } else if self.measurements.len() == 3 {
            let syndrome = self.measurements.drain(..).rev().fold(0, |word, bit| word << 1 | u8::from(bit));
            self.corrections ^= chain_flips(syndrome);
            self.ready = true;
        }
        decoding::OK
    }

    fn corrections(&mut self, return_size: u64, reset: bool) -> (i32, Vec<u8>) {
        let status = match (return_size, self.failed, self.ready) {
            (0, ..) => decoding::BAD_REQUEST,
            (_, true, _) => decoding::INTERNAL_ERROR,
            (10, _, true) => {
                let corrections = self.corrections.to_le_bytes().to_vec();
                if reset {
                    (self.corrections, self.ready) = (0, false);
                }
                return (decoding::OK, corrections);
            }
            (10, _, false) => decoding::NOT_READY,
            _ => decoding::BAD_REQUEST,
        };
        (status, vec![])
    }
}

#[derive(Debug, Clone)]
enum Rpc {
    Enqueue(usize, Vec<bool>),
    Corrections(usize, u64, bool),
    Reset(usize),
}

fn rpc() -> impl Strategy<Value = Rpc> {
    let measurements = prop::collection::vec(any::<bool>(), 0..=4);
    let size = prop_oneof![8 => Just(10), 1 => Just(0), 1 => Just(9)];
    prop_oneof![
        6 => (0..2_usize, measurements).prop_map(|(id, measurements)| Rpc::Enqueue(id, measurements)),
        4 => (0..2_usize, size, any::<bool>()).prop_map(|(id, size, reset)| Rpc::Corrections(id, size, reset)),
        1 => (0..2_usize).prop_map(Rpc::Reset),
    ]
}

proptest! {
    #[test]
    fn sessions_behave_like_the_model(rpcs in prop::collection::vec(rpc(), 1..60)) {
        let mut bench = Bench::server(vec![Session::new(chain()), Session::new(chain())]);
        let mut models = [Model::default(), Model::default()];
        for rpc in rpcs {
            match rpc {
                Rpc::Enqueue(id, measurements) => {
                    prop_assert_eq!(bench.enqueue(id as u64, &measurements), models[id].enqueue(&measurements));
                }
                Rpc::Corrections(id, size, reset) => {
                    let expected = models[id].corrections(size, reset);
                    prop_assert_eq!(bench.corrections(id as u64, size, reset), expected);
                }
                Rpc::Reset(id) => {
                    models[id] = Model::default();
                    prop_assert_eq!(bench.reset(id as u64), decoding::OK);
                }
            }
        }
    }
}
