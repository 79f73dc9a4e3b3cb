//! Windows: against whole decoding, and streams of rounds.

use std::{fmt::Write as _, fs, path::Path, sync::Arc};

use berth_qec::{
    Algorithm, BitsError, DecodeError, Decoder, ModelError, Tables,
    dem::DetectorErrorModel,
    mwpm::MwpmError,
    osd::BpOsd,
    relay::{Arithmetic, RelayBp},
    sparse::{MeasurementMap, SparseMatrix},
    window::{Arrival, Experiment, Inner, Intake, Layout, Pool, Sampler, Stream, StreamError, Window, WindowError},
};
use proptest::prelude::*;

use crate::common::{Random, model, shot};

/// Memory of a repetition code: `checks` detectors in each round; the first qubit is the observable.
pub(crate) fn memory(checks: usize, rounds: usize, p: f64) -> DetectorErrorModel {
    let mut text = String::new();
    for round in 0..rounds {
        let detector = |check: usize| format!("D{}", round * checks + check);
        for check in 0..checks {
            writeln!(text, "detector({check}, {round}) {}", detector(check)).unwrap();
            if round + 1 < rounds {
                writeln!(text, "error({p}) {} D{}", detector(check), (round + 1) * checks + check).unwrap();
            }
        }
        writeln!(text, "error({p}) {} L0", detector(0)).unwrap();
        for check in 1..checks {
            writeln!(text, "error({}) {} {}", p * (1.0 + 0.1 * check as f64), detector(check - 1), detector(check))
                .unwrap();
        }
        writeln!(text, "error({p}) {}", detector(checks - 1)).unwrap();
    }
    DetectorErrorModel::parse(&text).unwrap()
}

fn windows(window: usize, commit: usize, inner: Inner) -> Algorithm {
    Algorithm::Window(Window { window, commit, layout: Layout::Sliding, inner })
}

pub(crate) fn decode(decoder: &mut Decoder, events: &[u8]) -> Result<u64, DecodeError> {
    let mut flips = [0; 8];
    decoder.decode(events, &mut flips[..decoder.num_observables().div_ceil(8)])?;
    Ok(u64::from_le_bytes(flips))
}

#[test]
fn a_window_as_long_as_the_experiment_is_whole_decoding() {
    let relay = RelayBp { relays: 2, legs: 2, iterations: 20, seed: 1, arithmetic: Arithmetic::Fixed16 };
    let inner = [
        Inner::Mwpm,
        Inner::CorrelatedMwpm,
        Inner::BeliefMwpm,
        Inner::Lut { depth: 2 },
        Inner::RelayBp(relay),
        Inner::BpOsd(BpOsd::default()),
    ];
    let mut random = Random(1);
    for (model, rounds, of) in [
        (memory(4, 5, 0.03), 5, &inner[..]),
        (model("surface_d3_p5e-3.dem"), 4, &inner[..]),
        (model("surface_d5_p5e-3.dem"), 6, &inner[..3]),
    ] {
        for inner in of {
            let mut whole = Decoder::from_model(&model, (*inner).into()).unwrap();
            let mut cut: Vec<_> = [(0, 1), (0, rounds), (3, 2)]
                .into_iter()
                .map(|(more, commit)| Decoder::from_model(&model, windows(rounds + more, commit, *inner)).unwrap())
                .collect();
            for _ in 0..150 {
                let (events, _) = shot(&model, &mut random, 4.0);
                let expected = decode(&mut whole, &events);
                for cut in &mut cut {
                    assert_eq!(decode(cut, &events), expected, "{inner:?}");
                }
            }
        }
    }
}

/// What decided errors flip in later rounds is no less exact where it is more than a word: idle checks beside those of a code
/// change nothing.
#[test]
fn windows_have_any_number_of_detectors_behind_what_is_decided() {
    let (checks, rounds, idle) = (6, 12, 70);
    let mut random = Random(3);
    let mut narrow = String::new();
    let mut wide = String::new();
    for round in 0..rounds {
        let mut both = |line: &str| [&mut narrow, &mut wide].map(|text| writeln!(text, "{line}").unwrap());
        for check in 0..checks {
            let at = round * checks + check;
            both(&format!("detector({check}, {round}) D{at}"));
            // No two sets of errors weigh the same.
            let mut p = || 0.01 + 0.02 * (random.next() % 1_000_003) as f64 / 1_000_003.0;
            let [ends, reading, own] = [p(), p(), p()];
            match check {
                0 => both(&format!("error({ends}) D{at} L0")),
                _ => both(&format!("error({ends}) D{} D{at}", at - 1)),
            };
            if check + 1 == checks {
                both(&format!("error({own}) D{at}"));
            }
            if round + 1 < rounds {
                both(&format!("error({reading}) D{at} D{}", at + checks));
            }
        }
        for check in 0..idle {
            let at = checks * rounds + round * idle + check;
            writeln!(wide, "detector(9, {round}) D{at}\nerror(0.01) D{at}").unwrap();
            if round + 1 < rounds {
                writeln!(wide, "error(0.01) D{at} D{}", at + idle).unwrap();
            }
        }
    }
    let model = DetectorErrorModel::parse(&narrow).unwrap();
    let wide = DetectorErrorModel::parse(&wide).unwrap();
    for inner in [Inner::Mwpm, Inner::CorrelatedMwpm, Inner::BeliefMwpm, Inner::BpOsd(BpOsd::default())] {
        for (window, commit) in [(4, 2), (3, 1), (rounds, rounds)] {
            let mut narrow = Decoder::from_model(&model, windows(window, commit, inner)).unwrap();
            let mut wide = Decoder::from_model(&wide, windows(window, commit, inner)).unwrap();
            for _ in 0..200 {
                let (mut events, _) = shot(&model, &mut random, 2.0);
                let expected = decode(&mut narrow, &events);
                events.resize(wide.num_detectors().div_ceil(8), 0);
                assert_eq!(decode(&mut wide, &events), expected, "{inner:?}, {window} {commit}");
            }
        }
    }
}

/// What the second pass gains it gains in windows, too, whose cuts go through errors.
#[test]
fn linked_parts_make_windows_wrong_less_often() {
    let model = model("surface_d5_p5e-3.dem");
    let whole = [Algorithm::Mwpm, Algorithm::CorrelatedMwpm];
    let cut = [Inner::Mwpm, Inner::CorrelatedMwpm].map(|inner| windows(4, 2, inner));
    let mut wrong = [0; 4];
    for (algorithm, wrong) in whole.into_iter().chain(cut).zip(&mut wrong) {
        let mut decoder = Decoder::from_model(&model, algorithm).unwrap();
        let mut random = Random(4);
        for _ in 0..20_000 {
            let (events, flips) = shot(&model, &mut random, 1.0);
            *wrong += u32::from(decode(&mut decoder, &events).unwrap() != flips);
        }
    }
    println!("{wrong:?}");
    let [whole, whole_linked, cut, cut_linked] = wrong;
    assert!(whole_linked < whole && cut_linked < cut, "{wrong:?}");
}

#[test]
fn windows_of_two_distances_are_wrong_as_often_as_whole_decoding() {
    let model = memory(4, 50, 0.02);
    let algorithms = [
        Algorithm::Mwpm,
        windows(10, 5, Inner::Mwpm),
        windows(10, 5, Inner::BpOsd(BpOsd::default())),
        windows(10, 10, Inner::Mwpm),
    ];
    let mut decoders = algorithms.map(|algorithm| Decoder::from_model(&model, algorithm).unwrap());
    let (mut random, mut wrong) = (Random(2), [0; 4]);
    for _ in 0..3000 {
        let (events, flips) = shot(&model, &mut random, 1.0);
        for (decoder, wrong) in decoders.iter_mut().zip(&mut wrong) {
            *wrong += usize::from(decode(decoder, &events) != Ok(flips));
        }
    }
    println!("whole, windows of two distances by mwpm and bp_osd, and without a buffer: {wrong:?} wrong");
    let [whole, mwpm, bp_osd, without_buffer] = wrong;
    assert!(whole > 50 && mwpm.max(bp_osd) * 100 <= whole * 105, "{wrong:?}");
    assert!(without_buffer > mwpm, "{wrong:?}");
}

#[test]
fn windows_of_a_surface_code_are_about_as_good_as_whole_decoding() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../perf/data/surface_d5_p5e-3");
    let file = |kind| fs::read(root.with_file_name(format!("surface_d5_p5e-3.{kind}.b8"))).unwrap();
    let (events, flips) = (file("dets"), file("obs"));
    let wrong = |algorithm| {
        let mut decoder = Decoder::from_model(&model("surface_d5_p5e-3.dem"), algorithm).unwrap();
        let shots = events.chunks_exact(15).zip(&flips);
        shots.filter(|(events, flips)| decode(&mut decoder, events) != Ok(u64::from(**flips))).count()
    };
    let (whole, cut) = (wrong(Algorithm::Mwpm), wrong(windows(4, 1, Inner::Mwpm)));
    println!("of {} shots {whole} and {cut} wrong", flips.len());
    assert!(cut * 2 <= whole * 3 + 10, "{whole} {cut}");
}

fn stream(model: &DetectorErrorModel, algorithm: Algorithm, total: Option<u64>) -> Stream {
    Stream::with_rounds(Arc::new(Tables::new(model, algorithm).unwrap()), total).unwrap()
}

/// The middle of a short model is what longer experiments have more of.
#[test]
fn experiments_may_be_longer_than_the_model() {
    let (short, long) = (memory(4, 16, 0.03), memory(4, 16 + 30, 0.03));
    let algorithm = windows(6, 3, Inner::Mwpm);
    let mut whole = Decoder::from_model(&long, algorithm).unwrap();
    let mut stream = stream(&short, algorithm, Some(46));
    let mut endless = self::stream(&short, algorithm, None);
    let mut random = Random(3);
    for _ in 0..200 {
        let (events, _) = shot(&long, &mut random, 1.5);
        let round = |at: u64| [events[at as usize / 2] >> (at % 2 * 4) & 0xF];
        let allocated = allocation_counter::measure(|| {
            for at in 0..46 {
                assert_eq!((stream.num_detectors(at), stream.arrived()), (4, at));
                stream.round(at, &round(at)).unwrap();
                endless.round(at, &round(at)).unwrap();
                let decided = if at < 5 { 0 } else { (at - 5) / 3 * 3 + 3 };
                assert_eq!(endless.decided(), decided);
                assert_eq!(stream.decided(), if at == 45 { 46 } else { decided });
                if at < 45 {
                    assert_eq!(stream.flips(), endless.flips(), "round {at}");
                }
            }
        });
        assert_eq!(allocated.count_total, 0);
        assert_eq!(Ok(stream.flips()[0]), decode(&mut whole, &events));
        assert_eq!(stream.round(46, &[0]), Err(StreamError::Ended(46)));
        assert_eq!(stream.reset(), Ok(()));
        assert_eq!(endless.reset(), Err(StreamError::Undecided(46 - 42)));
    }
}

/// At any round, what was decided stays, and what comes is decided by the tables that go on.
#[test]
fn other_probabilities_take_over_in_the_middle() {
    let round = |at: usize, [one, other]: [f64; 2]| {
        format!("detector({at}) D{at}\nerror({one}) D{at} L0\nerror({other}) D{at}\n")
    };
    let text = |p: [f64; 2]| (0..40).map(|at| round(at, p)).collect::<String>();
    let [before, after] = [[0.2, 0.1], [0.1, 0.2]].map(|p| DetectorErrorModel::parse(&text(p)).unwrap());
    assert!(before.is_alike(&after) && !before.is_alike(&memory(1, 40, 0.1)));
    let pool = Pool::new(1);
    for layout in [Layout::Sliding, Layout::Parallel] {
        let algorithm = Algorithm::Window(Window { window: 6, commit: 2, layout, inner: Inner::Mwpm });
        let tables = [&before, &after].map(|model| Arc::new(Tables::new(model, algorithm).unwrap()));
        assert!(tables[0].is_alike(&tables[1]));
        let map = MeasurementMap::identity(40);
        let intake = |tables: &Arc<Tables>| {
            let experiment = Experiment::new(tables.clone(), &map, None).unwrap();
            Intake::new(Arc::new(experiment)).helped(&pool, 2)
        };
        for taken_over in 0..30 {
            let mut running = intake(&tables[0]);
            let mut decided = 0;
            for at in 0..30 {
                if at == taken_over {
                    let mut next = intake(&tables[1]);
                    next.take_over(&mut running);
                    running = next;
                    decided = running.decided();
                    assert_eq!(running.arrived(), at);
                }
                running.take(&[1], 1).unwrap();
            }
            running.settle().unwrap();
            // One set of tables flips the observable in each round, the other one in none.
            assert_eq!(running.flips(), [decided % 2], "{layout:?} {taken_over}");
        }
    }
    let other = Tables::new(&memory(1, 40, 0.1), windows(6, 2, Inner::Mwpm)).unwrap();
    assert!(!other.is_alike(&Tables::new(&before, windows(6, 3, Inner::Mwpm)).unwrap()));
}

#[test]
fn rounds_come_once_and_in_order() {
    let model = memory(4, 8, 0.03);
    let mut stream = stream(&model, windows(4, 2, Inner::Mwpm), Some(8));
    assert_eq!(stream.round(1, &[0]), Err(StreamError::OutOfOrder { round: 1, next: 0 }));
    stream.round(0, &[1]).unwrap();
    assert_eq!(stream.round(0, &[1]), Err(StreamError::Twice { round: 0, next: 1 }));
    let length = BitsError::Length { expected: 1, found: 2 };
    assert_eq!(stream.round(1, &[0, 0]), Err(StreamError::Events(length)));
    assert_eq!(stream.round(1, &[0x10]), Err(StreamError::Events(BitsError::Padding)));
    (1..4).for_each(|at| stream.round(at, &[0]).unwrap());
    assert_eq!((stream.flips(), stream.decided()), (&[1][..], 2));
    assert_eq!(stream.reset(), Err(StreamError::Undecided(2)));
    assert_eq!((stream.flips(), stream.arrived(), stream.decided()), (&[0][..], 0, 0));
    (0..8).for_each(|at| stream.round(at, &[0]).unwrap());
    assert_eq!((stream.flips(), stream.decided()), (&[0][..], 8));
    assert_eq!(stream.reset(), Ok(()));
}

#[test]
fn a_window_that_cannot_be_decoded_fails_the_experiment() {
    // Detector 1 of each round is out of reach.
    let round = |at| format!("detector(0, {at}) D{0}\ndetector(1, {at}) D{1}\nerror(0.1) D{0} L0", 2 * at, 2 * at + 1);
    let text = (0..6).map(round).collect::<Vec<_>>().join("\n");
    let model = DetectorErrorModel::parse(&text).unwrap();
    let mut stream = stream(&model, windows(2, 1, Inner::Mwpm), Some(6));
    stream.round(0, &[0b10]).unwrap();
    assert_eq!(stream.round(1, &[0]), Err(StreamError::Decode(DecodeError::Unmatchable)));
    assert_eq!(stream.round(2, &[0]), Err(StreamError::Failed));
    assert_eq!(stream.reset(), Err(StreamError::Undecided(2)));
    (0..6).for_each(|at| stream.round(at, &[u8::from(at == 3)]).unwrap());
    assert_eq!(stream.flips(), [1]);
    let mut whole = Decoder::from_model(&model, windows(2, 1, Inner::Mwpm)).unwrap();
    assert_eq!(decode(&mut whole, &[0b10, 0]), Err(DecodeError::Unmatchable));
    assert_eq!(decode(&mut whole, &[0b01, 0]), Ok(1), "it goes on");
}

#[test]
fn what_makes_no_windows() {
    let make = |text: &str, algorithm| Decoder::from_dem(text, algorithm).unwrap_err();
    let timed = "detector(0) D0\nerror(0.1) D0";
    for (window, commit) in [(2, 0), (2, 3), (0, 0)] {
        let error = make(timed, windows(window, commit, Inner::Mwpm));
        assert_eq!(error, ModelError::Window(WindowError::Commit { window, commit }));
    }
    let error = make("detector(0) D0\nerror(0.1) D0 D1", windows(2, 1, Inner::Mwpm));
    assert_eq!(error, ModelError::Window(WindowError::NoTime(1)));
    let error = make("detector(0) D0 D1 D2\nerror(0.1) D0 D1 D2", windows(2, 1, Inner::Mwpm));
    assert_eq!(error, ModelError::Mwpm(MwpmError::NotGraphlike { line: 2, detectors: 3 }));
    let long = "repeat 100000 {\ndetector(0) D0\nshift_detectors(1) 1\n}";
    let error = make(long, windows(1000, 1, Inner::Mwpm));
    assert_eq!(error, ModelError::Window(WindowError::Overlapping { windows: 1000 }));
    let rates: Vec<_> = (0..100).map(|at| format!("detector({at}) D{at}\nerror(0.{}) D{at}", at + 10)).collect();
    assert_eq!(make(&rates.join("\n"), windows(2, 1, Inner::Mwpm)), ModelError::Window(WindowError::NotAlike));
    let tables = |algorithm| Arc::new(Tables::new(&memory(2, 9, 0.1), algorithm).unwrap());
    assert_eq!(Stream::new(tables(Algorithm::Mwpm)).unwrap_err(), StreamError::NoWindows);
    let no_such = StreamError::Rounds { model: 9, step: 2 };
    for total in [Some(8), Some(10)] {
        assert_eq!(Stream::with_rounds(tables(windows(4, 2, Inner::Mwpm)), total).unwrap_err(), no_such);
    }
    Stream::with_rounds(tables(windows(4, 2, Inner::Mwpm)), Some(11)).unwrap();
    let too_long = Stream::with_rounds(tables(windows(8, 2, Inner::Mwpm)), None).unwrap_err();
    assert_eq!(too_long, no_such, "no two windows in the middle");
}

/// Every check is read in every round; a detector is the change since the round before.
fn readings(checks: usize, rounds: usize) -> MeasurementMap {
    let row = |at: usize| [at.checked_sub(checks).map(|at| at as i64), Some(at as i64), Some(-1)].into_iter().flatten();
    let flat: Vec<i64> = (0..checks * rounds).flat_map(row).collect();
    MeasurementMap::new(SparseMatrix::from_flat(&flat, None).unwrap())
}

fn packed(bits: &[bool]) -> Vec<u8> {
    let byte = |bits: &[bool]| bits.iter().rev().fold(0, |byte, bit| byte << 1 | u8::from(*bit));
    bits.chunks(8).map(byte).collect()
}

fn intake(model: &DetectorErrorModel, algorithm: Algorithm, map: &MeasurementMap, total: Option<u64>) -> Intake {
    let tables = Arc::new(Tables::new(model, algorithm).unwrap());
    Intake::new(Arc::new(Experiment::new(tables, map, total).unwrap()))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn measurements_are_decoded_alike_however_they_are_cut(
        seed: u64,
        checks in prop_oneof![Just(1_usize), Just(4), Just(9), Just(70)],
        more in 0..4_usize,
        is_read: bool,
        is_endless: bool,
        cuts in prop::collection::vec(1..150_usize, 1..20),
    ) {
        let rounds = 16 + 3 * more;
        let (short, long) = (memory(checks, 16, 0.03), memory(checks, rounds, 0.03));
        let algorithm = windows(6, 3, if checks < 60 { Inner::Mwpm } else { Inner::Lut { depth: 1 } });
        let map = if is_read { readings(checks, 16) } else { MeasurementMap::identity(16 * checks) };
        let total = (!is_endless).then_some(rounds as u64);
        let (mut intake, mut stream) = (intake(&short, algorithm, &map, total), stream(&short, algorithm, total));
        for shot_seed in 0..3 {
            let (bytes, _) = shot(&long, &mut Random(seed ^ shot_seed), 1.5);
            let events: Vec<bool> = (0..rounds * checks).map(|at| bytes[at / 8] >> (at % 8) & 1 != 0).collect();
            let mut bits = events.clone();
            if is_read {
                (checks..bits.len()).for_each(|at| bits[at] ^= bits[at - checks]);
            }
            let (mut at, mut cuts) = (0, cuts.iter().cycle());
            while at < bits.len() {
                let end = bits.len().min(at + cuts.next().unwrap());
                prop_assert_eq!(intake.take(&packed(&bits[at..end]), end - at), Ok(()));
                at = end;
                while stream.arrived() < (at / checks) as u64 {
                    let round = stream.arrived();
                    stream.round(round, &packed(&events[round as usize * checks..][..checks])).unwrap();
                }
                prop_assert_eq!((intake.arrived(), intake.decided()), (stream.arrived(), stream.decided()));
                prop_assert_eq!(intake.flips(), stream.flips());
            }
            prop_assert_eq!(intake.has_ended(), !is_endless);
            if !is_endless {
                let mut whole = Decoder::from_model(&long, algorithm).unwrap();
                prop_assert_eq!(decode(&mut whole, &bytes), Ok(intake.flips()[0]));
            }
            let undecided = intake.arrived() - intake.decided().min(intake.arrived());
            prop_assert_eq!(intake.reset(), undecided);
            let _ = stream.reset();
        }
    }
}

#[test]
fn measurements_have_a_place_and_an_end() {
    let model = memory(3, 8, 0.03);
    let mut intake = intake(&model, windows(4, 2, Inner::Mwpm), &readings(3, 8), Some(12));
    assert_eq!((intake.left(), intake.arrival(0, 3), intake.arrival(0, 36)), (36, Arrival::Next, Arrival::Next));
    for (round, count) in [(1, 3), (0, 4), (0, 39), (0xFFFF, 3)] {
        assert_eq!(intake.arrival(round, count), Arrival::Elsewhere, "{round} {count}");
    }
    let allocated = allocation_counter::measure(|| {
        for round in 0..5 {
            assert_eq!(intake.arrival(round, 3), Arrival::Next);
            intake.take(&[0b001], 3).unwrap();
        }
    });
    assert_eq!(allocated.count_total, 0);
    for (round, count, arrival) in [
        (4, 3, Arrival::Before),
        (0, 15, Arrival::Before),
        (4, 6, Arrival::Elsewhere),
        (5, 6, Arrival::Next),
        (6, 3, Arrival::Elsewhere),
        (5, 22, Arrival::Elsewhere),
    ] {
        assert_eq!(intake.arrival(round, count), arrival, "{round} {count}");
    }
    // What lies behind the last bit does not matter.
    assert_eq!(intake.take(&[0xFF, 0xFF, 0xFF], 22), Err(StreamError::Beyond { count: 22, left: 21 }));
    assert_eq!((intake.arrived(), intake.decided(), intake.flips()), (5, 2, &[1][..]));
    assert_eq!(intake.take(&[0b1111_1001], 3), Ok(()));
    assert_eq!((intake.arrival(6, 2), intake.take(&[0b01], 2)), (Arrival::Elsewhere, Ok(())));
    assert_eq!(intake.arrival(6, 1), Arrival::Elsewhere, "the round was begun");
    assert_eq!(intake.take(&[0], 1), Ok(()));
    assert_eq!((intake.arrived(), intake.decided(), intake.flips()), (7, 4, &[1][..]));
    assert_eq!((intake.reset(), intake.flips(), intake.left()), (3, &[0][..], 36));

    let mut endless = self::intake(&model, windows(4, 2, Inner::Mwpm), &readings(3, 8), None);
    for round in 0..70_000_u32 {
        assert_eq!(endless.arrival(round as u16, 3), Arrival::Next);
        endless.take(&[u8::from(round >= 66_000)], 3).unwrap();
    }
    assert_eq!((endless.arrived(), endless.decided(), endless.left()), (70_000, 69_998, u64::MAX));
    assert_eq!(endless.flips(), [1]);
    let times = [69_999, 69_999 - 0x7FFF, 70_000 + 0x7FFF].map(|round: u32| endless.arrival(round as u16, 3));
    assert_eq!(times, [Arrival::Before, Arrival::Before, Arrival::Elsewhere]);
}

#[test]
fn what_makes_no_experiment() {
    let model = memory(3, 12, 0.03);
    let tables = Arc::new(Tables::new(&model, windows(4, 2, Inner::Mwpm)).unwrap());
    let make = |map: &MeasurementMap, total| Experiment::new(tables.clone(), map, total).map(drop);
    let rounds = tables.num_rounds();
    assert_eq!(rounds, Some(12));
    assert_eq!(make(&readings(3, 12), None), Ok(()));
    assert_eq!(make(&readings(3, 12), Some(13)), Err(StreamError::Rounds { model: 12, step: 2 }));
    assert_eq!(make(&readings(3, 11), rounds), Err(StreamError::Map { map: 33, model: 36 }));
    // Round 5 looks back further than round 3, and is no repetition of it.
    let mut flat: Vec<i64> = (0..36).flat_map(|at| [at, -1]).collect();
    flat.insert(2 * 15, 8);
    let map = MeasurementMap::new(SparseMatrix::from_flat(&flat, None).unwrap());
    assert_eq!((make(&map, rounds), make(&map, None)), (Ok(()), Err(StreamError::Measurements(5))));
    // All that is measured comes first, or nothing is.
    let first: Vec<i64> = (0..36).flat_map(|at| [at, 35, -1]).collect();
    for flat in [first, vec![-1; 36]] {
        let map = MeasurementMap::new(SparseMatrix::from_flat(&flat, None).unwrap());
        assert_eq!((make(&map, rounds), make(&map, None)), (Ok(()), Err(StreamError::Measurements(4))));
    }
    let matching = Arc::new(Tables::new(&model, Algorithm::Mwpm).unwrap());
    assert_eq!(matching.num_rounds(), None);
    assert_eq!(Experiment::new(matching, &readings(3, 12), None).unwrap_err(), StreamError::NoWindows);
}

#[test]
fn sampled_rounds_are_those_of_a_longer_model() {
    let (short, long) = (memory(70, 16, 0.03), memory(70, 16 + 30, 0.03));
    let tables = Arc::new(Tables::new(&short, windows(6, 3, Inner::Lut { depth: 1 })).unwrap());
    let identity = MeasurementMap::identity(short.num_detectors());
    let experiment = Arc::new(Experiment::new(tables, &identity, Some(46)).unwrap());
    let mut sampler = Sampler::new(experiment, &short).unwrap();
    for least in [0.0, 0.031, 0.1, 0.2] {
        let (mut events, mut flips) = (vec![false; long.num_detectors()], 0);
        for mechanism in long.mechanisms().filter(|mechanism| mechanism.probability() >= least) {
            for part in mechanism.parts() {
                part.detectors.iter().for_each(|at| events[*at as usize] ^= true);
                flips ^= part.observables;
            }
        }
        for round in 0..46 {
            let drawn = sampler.round(|probability| probability >= least).unwrap();
            let drawn: Vec<bool> = (0..70).map(|at| drawn[at / 64] >> (at % 64) & 1 != 0).collect();
            assert_eq!(drawn, events[round * 70..][..70], "round {round}, {least}");
        }
        assert_eq!(sampler.flips(), [flips]);
        assert_eq!(sampler.round(|_| true), None);
        // Nothing is left of an experiment that was given up.
        sampler.restart();
        (0..20).for_each(|_| _ = sampler.round(|probability| probability < 0.1).unwrap());
        sampler.restart();
    }
}
