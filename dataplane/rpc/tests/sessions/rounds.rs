//! Sessions of the decoding server that decode as rounds arrive.

use std::{fmt::Write as _, sync::Arc};

use berth_port::Service as _;
use berth_qec::{
    Algorithm, Decoder, Tables,
    dem::DetectorErrorModel,
    sparse::MeasurementMap,
    window::{Experiment, Inner, Layout, Pool, Window},
};
use berth_rpc::handlers::{Session, Streaming};
use berth_wire::rpc::decoding::status as decoding;

use crate::{Bench, common::counters};

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
