//! Ordered statistics: models by hand, random codes against exhaustive search, the bicycle code.

use std::fmt::Write as _;

use berth_qec::{
    Algorithm, BitsError, DecodeError, Decoder, ModelError,
    osd::{BpOsd, MAX_ITERATIONS, MAX_ORDER, OsdError, Schedule, Statistics},
};

use crate::common::{Random, model, shot};

const UNIT: f64 = (1 << 20) as f64;
const SERIAL: BpOsd = BpOsd { schedule: Schedule::Serial, iterations: 20, statistics: Statistics::Ordered, order: 10 };

/// All ways to run, of which the last runs out of iterations at once.
fn ways() -> impl Iterator<Item = BpOsd> {
    [Statistics::Ordered, Statistics::Localized].into_iter().flat_map(|statistics| {
        [Schedule::Serial, Schedule::Parallel].into_iter().flat_map(move |schedule| {
            let ways = [(20, 0), (20, 10), (1, 0), (1, 60)];
            ways.map(|(iterations, order)| BpOsd { schedule, iterations, statistics, order })
        })
    })
}

/// Flips, and weight in fixed point.
fn decode(decoder: &mut Decoder, events: u64) -> Result<(u64, u64), DecodeError> {
    let mut flips = [0; 8];
    let len = decoder.num_detectors().div_ceil(8);
    decoder.decode(&events.to_le_bytes()[..len], &mut flips[..decoder.num_observables().div_ceil(8)])?;
    Ok((u64::from_le_bytes(flips), (decoder.weight().unwrap() * UNIT) as u64))
}

fn weight(p: f64) -> u64 {
    (((1.0 - p).ln() - p.ln()) * UNIT).round().max(1.0) as u64
}

#[test]
fn known_syndromes() {
    for way in ways() {
        let text = "error(0.02) D0 L0\nerror(0.02) D1 L1\nerror(0.02) D2 L2\nerror(0.001) D0 D1 D2 L3\nerror(1) D3 L4";
        let mut decoder = Decoder::from_dem(text, Algorithm::BpOsd(way)).unwrap();
        assert_eq!(decode(&mut decoder, 0b1000), Ok((0b1_0000, 0)), "{way:?}");
        assert_eq!(decode(&mut decoder, 0b1011), Ok((0b1_0011, 2 * weight(0.02))), "{way:?}");
        if way.order > 0 {
            assert_eq!(decode(&mut decoder, 0b1111), Ok((0b1_1000, weight(0.001))), "{way:?}");
        }
        assert_eq!(
            decode(&mut decoder, 0b0000),
            Err(DecodeError::Unmatchable),
            "an error that is certain did not happen"
        );
        // Both parts are one error; D1 cancels.
        let mut decoder =
            Decoder::from_dem("error(0.01) D0 D1 ^ D1 D2 L0\ndetector D9", Algorithm::BpOsd(way)).unwrap();
        assert_eq!(decode(&mut decoder, 0b101), Ok((1, weight(0.01))), "{way:?}");
        assert_eq!(decode(&mut decoder, 0b001), Err(DecodeError::Unmatchable), "{way:?}");
        assert_eq!(decode(&mut decoder, 0b10_0000_0000), Err(DecodeError::Unmatchable), "{way:?}");
    }
    let mut nothing = Decoder::from_dem("", Algorithm::BpOsd(SERIAL)).unwrap();
    assert_eq!(decode(&mut nothing, 0), Ok((0, 0)));
}

/// Random codes of up to 12 errors and 8 detectors. There is an answer whenever there can be one, it makes the syndrome, and
/// nearly always weighs the least.
#[test]
fn answers_are_those_of_exhaustive_search() {
    let mut random = Random(3);
    let mut found = [(0, 0); 16];
    for _ in 0..200 {
        let errors: Vec<(f64, u64)> = (0..4 + random.next() % 9)
            .map(|_| (0.001 + (random.next() % 1000) as f64 * 0.0003, random.next() & random.next() & 0xFF))
            .filter(|(_, detectors)| *detectors != 0)
            .collect();
        let mut distinct = errors.clone();
        distinct.sort_by_key(|(_, detectors)| *detectors);
        distinct.dedup_by_key(|(_, detectors)| *detectors);
        let mut text = String::from("detector D7\n");
        for (index, (p, detectors)) in distinct.iter().enumerate() {
            let targets: Vec<_> = (0..8).filter(|at| detectors >> at & 1 == 1).map(|at| format!("D{at}")).collect();
            writeln!(text, "error({p}) {} L{index}", targets.join(" ")).unwrap();
        }
        let of_set = |set: u64| {
            let chosen = distinct.iter().enumerate().filter(|(index, _)| set >> index & 1 == 1);
            chosen.fold((0, 0), |(syndrome, sum), (_, (p, detectors))| (syndrome ^ detectors, sum + weight(*p)))
        };
        let mut least = [u64::MAX; 256];
        for set in 0..1 << distinct.len() {
            let (syndrome, weight) = of_set(set);
            least[syndrome as usize] = least[syndrome as usize].min(weight);
        }
        for (way, (exact, all)) in ways().zip(&mut found) {
            let mut decoder = Decoder::from_dem(&text, Algorithm::BpOsd(way)).unwrap();
            for syndrome in 0..256 {
                match decode(&mut decoder, syndrome) {
                    Ok((set, weight)) => {
                        assert_eq!(of_set(set), (syndrome, weight), "{way:?}\n{text}");
                        assert!(weight >= least[syndrome as usize], "{way:?}\n{text}");
                        *exact += usize::from(weight == least[syndrome as usize]);
                        *all += 1;
                    }
                    Err(error) => {
                        assert_eq!(error, DecodeError::Unmatchable);
                        assert!(least[syndrome as usize] == u64::MAX, "{way:?} {syndrome}\n{text}");
                    }
                }
            }
        }
    }
    for (way, (exact, all)) in ways().zip(found) {
        println!("{way:?}: {exact} of {all} weigh the least");
        let needed = if way.order > 0 { 95 } else { 70 };
        assert!(exact * 100 >= all * needed && all > 10_000, "{way:?}: {exact} of {all}");
    }
}

#[test]
fn parameters_and_sizes_have_limits() {
    let most = BpOsd { iterations: MAX_ITERATIONS, order: MAX_ORDER, ..SERIAL };
    Decoder::from_dem("error(0.1) D0", Algorithm::BpOsd(most)).unwrap();
    for bad in [
        BpOsd { iterations: 0, ..SERIAL },
        BpOsd { iterations: MAX_ITERATIONS + 1, ..SERIAL },
        BpOsd { order: MAX_ORDER + 1, ..SERIAL },
    ] {
        let made = Decoder::from_dem("error(0.1) D0", Algorithm::BpOsd(bad));
        assert_eq!(made.unwrap_err(), ModelError::Osd(OsdError::Parameters));
    }
    let made = Decoder::from_dem("error(0.1) D16384", Algorithm::BpOsd(SERIAL));
    assert_eq!(made.unwrap_err(), ModelError::Osd(OsdError::TooLarge { errors: 1, edges: 1, detectors: 16385 }));
}

/// Whatever comes is answered, without an allocation, and always in the same way.
#[test]
fn every_syndrome_of_the_bicycle_code_is_answered() {
    let model = model("bicycle_72.dem");
    for (statistics, order) in
        [Statistics::Ordered, Statistics::Localized].into_iter().flat_map(|of| [(of, 0), (of, 5)])
    {
        let way = BpOsd { iterations: 5, statistics, order, ..SERIAL };
        let mut decoder = Decoder::from_model(&model, Algorithm::BpOsd(way)).unwrap();
        let (mut random, mut flips) = (Random(1), [0; 2]);
        assert_eq!(decoder.decode(&[0xFF; 32], &mut flips), Err(DecodeError::Events(BitsError::Padding)));
        let syndromes: Vec<_> = std::iter::repeat_with(|| shot(&model, &mut random, 60.0).0).take(20).collect();
        let answers = |decoder: &mut Decoder| {
            let mut answers = [([0; 2], 0.0); 20];
            for (events, answer) in syndromes.iter().zip(&mut answers) {
                decoder.decode(events, &mut answer.0).unwrap();
                answer.1 = decoder.weight().unwrap();
            }
            answers
        };
        let mut all = Vec::new();
        let allocated = allocation_counter::measure(|| {
            let answers = answers(&mut decoder);
            assert!(answers.iter().all(|(_, weight)| *weight > 0.0));
            allocation_counter::opt_out(|| all.push(answers));
        });
        assert_eq!(allocated.count_total, 0);
        assert_eq!(answers(&mut decoder), all[0]);
    }
}

/// Of the same shots `ldpc` 2.4.1 of `PyPI`, with the same parameters and ordered statistics, gets 14 (serial) and 10 wrong.
#[test]
fn logical_errors_of_the_bicycle_code() {
    let model = model("bicycle_72.dem");
    for (schedule, statistics) in [
        (Schedule::Serial, Statistics::Ordered),
        (Schedule::Parallel, Statistics::Ordered),
        (Schedule::Serial, Statistics::Localized),
        (Schedule::Parallel, Statistics::Localized),
    ] {
        let way = BpOsd { schedule, statistics, ..SERIAL };
        let mut decoder = Decoder::from_model(&model, Algorithm::BpOsd(way)).unwrap();
        let mut random = Random(11);
        let mut wrong = 0;
        for _ in 0..1000 {
            let (events, expected) = shot(&model, &mut random, 4.0);
            let mut flips = [0; 2];
            decoder.decode(&events, &mut flips).unwrap();
            wrong += usize::from(u64::from(u16::from_le_bytes(flips)) != expected);
        }
        println!("{way:?}: {wrong} wrong");
        assert!(wrong <= 25, "{wrong}");
    }
}
