//! The builtin handlers, through a service.

mod common;

use std::{fmt::Write as _, sync::Arc};

use berth_port::{Clock, Service as _};
use berth_qec::{
    Algorithm, Decoder, Tables,
    dem::DetectorErrorModel,
    mock::MockTable,
    relay::RelayBp,
    sparse::{MeasurementMap, SparseMatrix},
    window::{Experiment, Inner, Layout, Pool, Window},
};
use berth_rpc::{
    FunctionTable, RpcService, Stage, Undispatchable,
    handlers::{Handler, HandlerError, HandlerSet, MapMismatch, QecDecode, Session, Streaming, UNMATCHABLE},
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

/// A session named `memory` of experiments of eight rounds of two checks and more, in windows of four rounds of which two are
/// decided. An event of the first check alone flips the observable, one of the second does not.
fn memory(rounds: Option<u64>, streaming: Streaming) -> Session {
    let mut text = String::new();
    for round in 0..8 {
        let [first, second] = [2 * round, 2 * round + 1];
        write!(text, "detector({round}) D{first} D{second}\nerror(0.1) D{first} L0\nerror(0.1) D{second}\n").unwrap();
        writeln!(text, "error(0.01) D{first} D{second}").unwrap();
    }
    let window = Window { window: 4, commit: 2, layout: Layout::Sliding, inner: Inner::Mwpm };
    let tables = Arc::new(Tables::new(&DetectorErrorModel::parse(&text).unwrap(), Algorithm::Window(window)).unwrap());
    let experiment = Experiment::new(tables.clone(), &MeasurementMap::identity(16), rounds).unwrap();
    Session::streaming(Decoder::new(tables), Arc::new(experiment), streaming, None).named("memory")
}

const QUIET_ROUND: [bool; 2] = [false; 2];
const FLIP: [bool; 2] = [true, false];

#[test]
fn rounds_are_decoded_as_they_arrive_and_corrections_wait_for_the_last() {
    let mut bench = Bench::server(vec![memory(Some(10), Streaming::default())]);
    let not_ready = (decoding::NOT_READY, vec![]);
    for experiment in 1..=3 {
        for round in 0..10 {
            assert_eq!(bench.enqueue(0, if round == 3 { &FLIP } else { &QUIET_ROUND }), decoding::OK);
            let expected = if round == 9 { (decoding::OK, vec![experiment % 2]) } else { not_ready.clone() };
            assert_eq!(bench.corrections(0, 1, false), expected, "round {round}");
        }
    }
    assert_eq!(bench.corrections(0, 1, true), (decoding::OK, vec![1]));
    assert_eq!(bench.corrections(0, 1, true), not_ready);
    // Rounds in any portions: of one measurement, of many rounds; not beyond the last.
    assert_eq!(bench.enqueue(0, &[true]), decoding::OK);
    assert_eq!(bench.enqueue(0, &[false; 19]), decoding::OK);
    assert_eq!(bench.corrections(0, 1, true), (decoding::OK, vec![1]));
    assert_eq!(bench.enqueue(0, &[false; 19]), decoding::OK);
    assert_eq!(bench.enqueue(0, &[false; 2]), decoding::OK, "overfilled");
    assert_eq!(bench.corrections(0, 1, false), (decoding::INTERNAL_ERROR, vec![]));
    assert_eq!(bench.enqueue(0, &[false; 20]), decoding::OK);
    assert_eq!(bench.corrections(0, 1, false), (decoding::INTERNAL_ERROR, vec![]), "failed until a reset");
    assert_eq!(bench.reset(0), decoding::OK);
    assert_eq!(bench.enqueue(0, &[true; 20]), decoding::OK);
    assert_eq!(bench.corrections(0, 1, true), (decoding::OK, vec![0]), "each first check, and each second one");
    assert_eq!(bench.corrections(0, 2, true).0, decoding::BAD_REQUEST);
}

#[test]
fn corrections_of_decided_rounds_are_there_at_any_time() {
    let early = Streaming { early: true, ..Streaming::default() };
    for (rounds, streaming) in [(Some(100), early), (None, Streaming::default())] {
        let mut bench = Bench::server(vec![memory(rounds, streaming)]);
        let mut flips = 0;
        for round in 0..100_u64 {
            assert_eq!(bench.enqueue(0, if round % 5 == 1 { &FLIP } else { &QUIET_ROUND }), decoding::OK);
            let decided = if round < 3 {
                0
            } else if rounds == Some(round + 1) {
                100
            } else {
                (round - 3) / 2 * 2 + 2
            };
            let total = (0..decided).filter(|round| round % 5 == 1).count() as u8 % 2;
            let expected = match decided {
                0 => (decoding::NOT_READY, vec![]),
                _ => (decoding::OK, vec![total ^ flips]),
            };
            assert_eq!(bench.corrections(0, 1, false), expected, "round {round} of {rounds:?}");
            if round == 50 {
                // What was read is left out from now on, and the experiment goes on.
                assert_eq!(bench.corrections(0, 1, true), expected);
                assert_eq!(bench.corrections(0, 1, true), (decoding::NOT_READY, vec![]));
                flips = total;
            }
        }
    }
}

#[test]
fn numbered_rounds_come_once_and_in_order() {
    let numbered = Streaming { numbered: true, early: true };
    let mut bench = Bench::server(vec![memory(Some(8), numbered)]);
    let counted = |bench: &Bench| {
        let counters = counters(|visit| bench.service.counters(visit));
        ["repeated", "out_of_order", "undecided"].map(|what| counters[&*format!("decoder_memory_{what}")])
    };
    // The low 16 bits count: clients put the number of the shot above them.
    let shot = 5 << 16;
    assert_eq!(bench.enqueue_from(0, shot | 1, &FLIP), decoding::BAD_REQUEST, "a round is missing");
    assert_eq!(bench.enqueue_from(0, shot, &[true; 3]), decoding::BAD_REQUEST, "half a round");
    assert_eq!(bench.enqueue_from(0, shot, &FLIP), decoding::OK);
    assert_eq!(bench.enqueue_from(0, shot, &FLIP), decoding::OK, "the answer may have been lost");
    assert_eq!(bench.enqueue_from(0, shot | 1, &[false; 6]), decoding::OK);
    assert_eq!(bench.enqueue_from(0, shot | 2, &[true; 6]), decoding::BAD_REQUEST, "one of three rounds is new");
    assert_eq!(counted(&bench), [1, 3, 0]);
    assert_eq!(bench.corrections(0, 1, false), (decoding::OK, vec![1]), "nothing came of all this");
    assert_eq!(bench.enqueue_from(0, shot | 4, &[false; 8]), decoding::OK);
    assert_eq!(bench.enqueue_from(0, shot | 7, &FLIP), decoding::OK, "the last one again");
    assert_eq!(bench.corrections(0, 1, false), (decoding::OK, vec![1]));
    assert_eq!(bench.enqueue_from(0, 6 << 16, &FLIP), decoding::OK, "the next experiment");
    assert_eq!(bench.enqueue_from(0, 6 << 16 | 1, &[false; 6]), decoding::OK);
    assert_eq!(bench.corrections(0, 1, true), (decoding::OK, vec![0]), "both");
    assert_eq!(counted(&bench), [2, 3, 0]);
    assert_eq!(bench.reset(0), decoding::OK);
    assert_eq!(counted(&bench), [2, 3, 2], "two of four rounds were decided");
    assert_eq!(bench.enqueue_from(0, 4, &FLIP), decoding::BAD_REQUEST, "it begins anew");
    assert_eq!(bench.enqueue_from(0, 0, &[true, false, true, false, true, false, false, false]), decoding::OK);
    assert_eq!(bench.corrections(0, 1, true), (decoding::OK, vec![0]));
}

#[test]
fn a_window_that_cannot_be_decoded_fails_its_session() {
    let text = "detector(0) D0 D1\nerror(0.1) D0 D1 L0\nshift_detectors(1) 2\n";
    let model = DetectorErrorModel::parse(&format!("repeat 8 {{\n{text}}}")).unwrap();
    let window = Window { window: 2, commit: 1, layout: Layout::Sliding, inner: Inner::Mwpm };
    let tables = Arc::new(Tables::new(&model, Algorithm::Window(window)).unwrap());
    let experiment = Arc::new(Experiment::new(tables.clone(), &MeasurementMap::identity(16), None).unwrap());
    let mut bench =
        Bench::server(vec![Session::streaming(Decoder::new(tables), experiment, Streaming::default(), None)]);
    assert_eq!(bench.enqueue(0, &[true, true, true]), decoding::OK);
    assert_eq!(bench.corrections(0, 1, false), (decoding::NOT_READY, vec![]));
    assert_eq!(bench.enqueue(0, &[false]), decoding::OK, "ingested, though it cannot be decoded");
    assert_eq!(bench.corrections(0, 1, false), (decoding::INTERNAL_ERROR, vec![]));
    assert_eq!(bench.enqueue(0, &[false; 5]), decoding::OK);
    assert_eq!(bench.corrections(0, 1, false), (decoding::INTERNAL_ERROR, vec![]));
    assert_eq!(bench.reset(0), decoding::OK);
    assert_eq!(bench.enqueue(0, &[true, true, false, false]), decoding::OK);
    assert_eq!(bench.corrections(0, 1, false), (decoding::OK, vec![1]));
}

/// A session of experiments of 41 rounds of three checks in parallel windows, which cores of the pool decode.
fn parallel(rounds: Option<u64>, pool: &Pool, cores: usize) -> Session {
    let mut text = String::new();
    for round in 0..41 {
        for check in 0..3 {
            let at = 3 * round + check;
            writeln!(text, "detector({check}, {round}) D{at}\nerror(0.0{}) D{at} L0", check + 1).unwrap();
            if round < 40 {
                writeln!(text, "error(0.02) D{at} D{}", at + 3).unwrap();
            }
            if check > 0 {
                writeln!(text, "error(0.03) D{at} D{}", at - 1).unwrap();
            }
        }
    }
    let window = Window { window: 8, commit: 2, layout: Layout::Parallel, inner: Inner::Mwpm };
    let tables = Arc::new(Tables::new(&DetectorErrorModel::parse(&text).unwrap(), Algorithm::Window(window)).unwrap());
    let experiment = Experiment::new(tables.clone(), &MeasurementMap::identity(3 * 41), rounds).unwrap();
    let streaming = Streaming { early: true, ..Streaming::default() };
    Session::streaming(Decoder::new(tables), Arc::new(experiment), streaming, Some((pool, cores))).named("memory")
}

#[test]
fn cores_that_help_change_no_answer() {
    let random = &mut fastrand::Rng::with_seed(1);
    for rounds in [Some(41), Some(65), None] {
        let (none, two) = (Pool::new(0), Pool::new(2));
        let mut alone = Bench::server(vec![parallel(rounds, &none, 8)]);
        let mut helped = Bench::server(vec![parallel(rounds, &two, 3)]);
        let mut helps = 0;
        for round in 0..2000 {
            let events = [(); 3].map(|()| random.u8(..8) == 0);
            for bench in [&mut alone, &mut helped] {
                assert_eq!(bench.enqueue(0, &events), decoding::OK);
            }
            while random.bool() && two.help() {
                helps += 1;
            }
            if random.u8(..8) == 0 {
                let reset = random.u8(..4) == 0;
                assert_eq!(helped.corrections(0, 1, reset), alone.corrections(0, 1, reset), "round {round}");
            }
            if random.u8(..200) == 0 {
                assert_eq!([&mut alone, &mut helped].map(|bench| bench.reset(0)), [decoding::OK; 2]);
            }
        }
        assert!(helps > 100, "{helps}");
        let counted = |bench: &Bench| counters(|visit| bench.service.counters(visit))["decoder_memory_undecided"];
        assert_eq!(counted(&helped), counted(&alone));
    }
}

#[test]
fn a_window_that_another_core_cannot_decode_fails_its_session() {
    let text = "detector(0) D0 D1\nerror(0.1) D0 D1 L0\nshift_detectors(1) 2\n";
    let model = DetectorErrorModel::parse(&format!("repeat 12 {{\n{text}}}")).unwrap();
    let window = Window { window: 2, commit: 1, layout: Layout::Parallel, inner: Inner::Mwpm };
    let tables = Arc::new(Tables::new(&model, Algorithm::Window(window)).unwrap());
    let experiment = Arc::new(Experiment::new(tables.clone(), &MeasurementMap::identity(24), Some(12)).unwrap());
    let pool = Pool::new(1);
    let streaming = Streaming::default();
    let mut bench =
        Bench::server(vec![Session::streaming(Decoder::new(tables), experiment, streaming, Some((&pool, 2)))]);
    // The last measurements come; another experiment begins, or somebody asks.
    for ask in [true, false] {
        let mut bits = [false; 24];
        bits[23] = true;
        assert_eq!(bench.enqueue(0, &bits), decoding::OK);
        if !ask {
            assert_eq!(bench.enqueue(0, &[false; 24]), decoding::OK, "ingested, and ignored");
        }
        assert_eq!(bench.corrections(0, 1, false), (decoding::INTERNAL_ERROR, vec![]));
        assert_eq!(bench.corrections(0, 1, false), (decoding::INTERNAL_ERROR, vec![]));
        assert_eq!(bench.reset(0), decoding::OK);
    }
    assert_eq!(bench.enqueue(0, &[true; 24]), decoding::OK);
    assert_eq!(bench.corrections(0, 1, false), (decoding::OK, vec![0]));
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
