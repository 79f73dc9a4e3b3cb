//! Parallel windows: against whole decoding, and by any number of cores in any order.

use std::{
    fmt::Write as _,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
};

use berth_qec::{
    Algorithm, DecodeError, Decoder, ModelError, Tables,
    dem::DetectorErrorModel,
    osd::BpOsd,
    window::{Inner, Layout, Pool, Stream, StreamError, Window, WindowError},
};

use super::window::{decode, memory};
use crate::common::{Random, model, shot};

fn windows(window: usize, commit: usize, inner: Inner) -> Algorithm {
    Algorithm::Window(Window { window, commit, layout: Layout::Parallel, inner })
}

fn stream(model: &DetectorErrorModel, algorithm: Algorithm, total: Option<u64>) -> Stream {
    Stream::with_rounds(Arc::new(Tables::new(model, algorithm).unwrap()), total).unwrap()
}

/// The events of a round of four checks.
fn round(events: &[u8], at: u64) -> [u8; 1] {
    [events[at as usize / 2] >> (at % 2 * 4) & 0xF]
}

/// Where each error has an observable of its own, the answer is a set of errors. It makes the syndrome, so that windows and gaps
/// have decided each error once, and know of each other what they need.
#[test]
fn what_windows_and_gaps_decide_makes_the_syndrome() {
    let mut random = Random(5);
    for (rounds, of) in [(8, 1), (17, 2), (29, 3), (64, 7)] {
        // Some errors flip detectors of three rounds.
        let (mut text, mut errors) = (String::new(), Vec::new());
        for at in 0..rounds {
            for check in 0..3 {
                let detector = |later: usize, check: usize| (at + later) * 3 + check;
                writeln!(text, "detector({check}, {at}) D{}", detector(0, check)).unwrap();
                let mut made = vec![vec![detector(0, check)], vec![detector(0, check), detector(1, check)]];
                if check == 0 {
                    made.push(vec![detector(0, 0), detector(2, 1)]);
                }
                errors.extend(made.into_iter().filter(|of| of.iter().all(|detector| *detector < 3 * rounds)));
            }
        }
        for (observable, detectors) in errors.iter().enumerate() {
            let p = 0.01 + (random.next() % 1000) as f64 / 20_000.0;
            write!(text, "error({p})").unwrap();
            for at in detectors {
                write!(text, " D{at}").unwrap();
            }
            writeln!(text, " L{observable}").unwrap();
        }
        let model = DetectorErrorModel::parse(&text).unwrap();
        for (window, commit) in [(9, 3), (10, 4), (8, 6), (4, 2)] {
            for inner in [Inner::Mwpm, Inner::CorrelatedMwpm, Inner::BpOsd(BpOsd::default())] {
                let mut decoder = Decoder::from_model(&model, windows(window, commit, inner)).unwrap();
                for _ in 0..60 {
                    let mut events = vec![0; (3 * rounds).div_ceil(8)];
                    (0..3 * rounds)
                        .filter(|_| random.next().is_multiple_of(4))
                        .for_each(|at| events[at / 8] |= 1 << (at % 8));
                    let mut flips = vec![0; errors.len().div_ceil(8)];
                    decoder.decode(&events, &mut flips).unwrap();
                    let mut made = vec![0; events.len()];
                    for (_, detectors) in errors.iter().enumerate().filter(|(at, _)| flips[at / 8] >> (at % 8) & 1 != 0)
                    {
                        for at in detectors {
                            made[at / 8] ^= 1 << (at % 8);
                        }
                    }
                    assert_eq!(made, events, "{rounds} rounds in windows of {window} and {commit}, {inner:?}, {of}");
                }
            }
        }
    }
}

/// An error across the border of two windows is half of one to each; where nothing stands before what a window decides, it must not
/// take that half for another error.
#[test]
fn errors_across_borders_are_found() {
    let (rounds, mut text) = (20, String::new());
    for at in 0..rounds {
        writeln!(text, "detector({at}) D{at}\nerror(0.01) D{at} L{}", 2 * at).unwrap();
        if at + 1 < rounds {
            writeln!(text, "error(0.03) D{at} D{} L{}", at + 1, 2 * at + 1).unwrap();
        }
    }
    for (window, commit) in [(5, 4), (5, 3), (4, 1), (2, 1)] {
        let mut decoder = Decoder::from_dem(&text, windows(window, commit, Inner::Mwpm)).unwrap();
        // Nor can it tell the others from such halves, where nothing stands before.
        let is_told = |error: &usize| window - commit > 1 || error % 2 == 1;
        for error in (0..2 * rounds - 1).filter(is_told) {
            let events: u64 = if error % 2 == 0 { 1 } else { 0b11 };
            let answer = decode(&mut decoder, &(events << (error / 2)).to_le_bytes()[..3]);
            assert_eq!(answer, Ok(1 << error), "windows of {window} and {commit}");
        }
    }
}

#[test]
fn a_window_as_long_as_the_experiment_is_whole_decoding() {
    let mut random = Random(1);
    for inner in [Inner::Mwpm, Inner::CorrelatedMwpm, Inner::BpOsd(BpOsd::default())] {
        let model = model("surface_d3_p5e-3.dem");
        let mut whole = Decoder::from_model(&model, inner.into()).unwrap();
        // Two rounds of the next window would be before those that it decides.
        let mut cut = [(4, 1), (9, 3), (3, 1)]
            .map(|(window, commit)| Decoder::from_model(&model, windows(window, commit, inner)).unwrap());
        for _ in 0..200 {
            let (events, _) = shot(&model, &mut random, 4.0);
            let expected = decode(&mut whole, &events);
            for cut in &mut cut {
                assert_eq!(decode(cut, &events), expected, "{inner:?}");
            }
        }
    }
}

#[test]
fn they_are_wrong_as_often_as_whole_decoding() {
    let memory = memory(4, 60, 0.02);
    let mut decoders = [Algorithm::Mwpm, windows(15, 5, Inner::Mwpm), windows(3, 1, Inner::Mwpm)]
        .map(|algorithm| Decoder::from_model(&memory, algorithm).unwrap());
    let (mut random, mut wrong) = (Random(2), [0; 3]);
    for _ in 0..3000 {
        let (events, flips) = shot(&memory, &mut random, 1.0);
        for (decoder, wrong) in decoders.iter_mut().zip(&mut wrong) {
            *wrong += usize::from(decode(decoder, &events) != Ok(flips));
        }
    }
    println!("whole, windows of three distances, windows of three rounds: {wrong:?} wrong");
    let [whole, windows, short] = wrong;
    assert!(whole > 50 && windows * 100 <= whole * 105 && short > windows, "{wrong:?}");
}

/// The middle of a short model is what longer experiments have more of; nothing depends on who decodes what, and when.
#[test]
fn predictions_are_the_same_whoever_decodes() {
    let (short, long) = (memory(4, 31, 0.03), memory(4, 31 + 6 * 7, 0.03));
    let algorithm = windows(6, 2, Inner::Mwpm);
    let mut whole = Decoder::from_model(&long, algorithm).unwrap();
    let mut random = Random(3);
    for helpers in [0, 1, 3, 8] {
        let pool = Pool::new(helpers);
        let mut alone = stream(&short, algorithm, Some(73));
        let mut helped = stream(&short, algorithm, Some(73)).helped(&pool, helpers + 1);
        let mut endless = stream(&short, algorithm, None).helped(&pool, 2);
        let mut late = 0;
        for _ in 0..150 {
            let (events, _) = shot(&long, &mut random, 1.5);
            let allocated = allocation_counter::measure(|| {
                for at in 0..73 {
                    for stream in [&mut alone, &mut helped, &mut endless] {
                        stream.round(at, &round(&events, at)).unwrap();
                    }
                    // The others come when they like to.
                    while !random.next().is_multiple_of(3) && pool.help() {}
                    let decided = if at < 5 { 0 } else { (at + 1) / 6 * 6 - 6 + 4 };
                    assert_eq!((endless.decided(), helped.arrived()), (decided, at + 1));
                    // The last window is longer.
                    let all = if at == 72 { 73 } else { decided.min(64) };
                    assert_eq!((alone.decided(), helped.decided()), (all, all));
                    late += u32::from(helped.flips() != alone.flips());
                    if random.next().is_multiple_of(8) {
                        helped.settle().unwrap();
                        assert_eq!(helped.flips(), alone.flips(), "round {at}");
                    }
                }
                helped.settle().unwrap();
                endless.settle().unwrap();
            });
            assert_eq!(allocated.count_total, 0);
            assert!(!pool.help(), "nothing waits");
            assert_eq!(helped.flips(), alone.flips());
            assert_eq!(Ok(alone.flips()[0]), decode(&mut whole, &events));
            assert_eq!([&mut alone, &mut helped].map(Stream::reset), [Ok(()), Ok(())]);
            assert_eq!(endless.reset(), Err(StreamError::Undecided(3)));
        }
        assert_eq!(late > 0, helpers > 0, "others did something");
    }
}

#[test]
fn threads_decode_the_windows_of_several_experiments() {
    let memory = memory(4, 60, 0.03);
    let algorithm = windows(9, 3, Inner::Mwpm);
    let (pool, stop) = (Pool::new(2), AtomicBool::new(false));
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Relaxed) {
                    if !pool.help() {
                        thread::yield_now();
                    }
                }
            });
        }
        let experiments = [1, 2].map(|seed| {
            let (memory, pool) = (&memory, &pool);
            scope.spawn(move || {
                let mut whole = Decoder::from_model(memory, algorithm).unwrap();
                let mut helped = stream(memory, algorithm, Some(60)).helped(pool, 3);
                let mut random = Random(seed);
                for at in 0..1000 {
                    let (events, _) = shot(memory, &mut random, 1.5);
                    (0..60).for_each(|at| helped.round(at, &round(&events, at)).unwrap());
                    // Some are given up.
                    if at % 5 > 0 {
                        helped.settle().unwrap();
                        assert_eq!(Ok(helped.flips()[0]), decode(&mut whole, &events));
                    }
                    helped.reset().unwrap();
                }
            })
        });
        let ended = experiments.map(thread::ScopedJoinHandle::join);
        stop.store(true, Relaxed);
        for ended in ended {
            ended.unwrap();
        }
    });
    assert!(!pool.help(), "nothing waits");
}

#[test]
fn a_window_that_another_core_cannot_decode_fails_the_experiment() {
    // Detector 1 of each round is out of reach.
    let detectors =
        |at| format!("detector(0, {at}) D{0}\ndetector(1, {at}) D{1}\nerror(0.1) D{0} L0", 2 * at, 2 * at + 1);
    let text = (0..12).map(detectors).collect::<Vec<_>>().join("\n");
    let model = DetectorErrorModel::parse(&text).unwrap();
    let pool = Pool::new(1);
    let mut stream = stream(&model, windows(3, 1, Inner::Mwpm), Some(12)).helped(&pool, 2);
    (0..3).for_each(|at| stream.round(at, &[0b10]).unwrap());
    assert!(pool.help());
    assert_eq!(stream.round(3, &[0]), Err(StreamError::Decode(DecodeError::Unmatchable)));
    assert_eq!((stream.round(4, &[0]), stream.settle()), (Err(StreamError::Failed), Err(StreamError::Failed)));
    assert_eq!(stream.reset(), Err(StreamError::Undecided(4 - 2)));
    (0..3).for_each(|at| stream.round(at, &[0b10]).unwrap());
    assert_eq!(stream.settle(), Err(StreamError::Decode(DecodeError::Unmatchable)), "found when it is asked for");
    let _ = stream.reset();
    (0..12).for_each(|at| stream.round(at, &[u8::from(at == 3)]).unwrap());
    stream.settle().unwrap();
    assert_eq!(stream.flips(), [1]);
    assert_eq!(stream.reset(), Ok(()));
}

#[test]
fn what_is_too_short_for_parallel_windows() {
    let make = |text: &str, window, commit| {
        Decoder::from_dem(text, windows(window, commit, Inner::Mwpm)).map(drop).unwrap_err()
    };
    // An error of three rounds.
    let text = "detector(0) D0\ndetector(1) D1\ndetector(2) D2\nerror(0.1) D0 D2";
    for (window, commit, least) in [(3, 1, 2), (4, 3, 2), (2, 2, 2)] {
        let error = ModelError::Window(WindowError::Parallel { window, commit, least });
        assert_eq!(make(text, window, commit), error);
    }
    let error = ModelError::Window(WindowError::Parallel { window: 2, commit: 2, least: 1 });
    assert_eq!(make("detector(0) D0\nerror(0.1) D0", 2, 2), error);
    let error = ModelError::Window(WindowError::Commit { window: 2, commit: 3 });
    assert_eq!(make("detector(0) D0\nerror(0.1) D0", 2, 3), error);
    let memory = memory(2, 20, 0.1);
    let tables = Arc::new(Tables::new(&memory, windows(6, 2, Inner::Mwpm)).unwrap());
    let no_such = StreamError::Rounds { model: 20, step: 6 };
    assert_eq!(Stream::with_rounds(tables.clone(), Some(22)).unwrap_err(), no_such, "no whole window more");
    assert_eq!(Stream::with_rounds(tables, None).unwrap_err(), no_such, "no two windows in the middle");
}
