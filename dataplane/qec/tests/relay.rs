//! Belief propagation, and windows. Relays: models by hand, random hypergraphs against exhaustive search, real and sampled shots.

mod common;
#[path = "belief/float.rs"]
mod float;
#[path = "belief/osd.rs"]
mod osd;
#[path = "belief/parallel.rs"]
mod parallel;
#[path = "belief/window.rs"]
mod window;

use std::{fmt::Write as _, fs, path::Path};

use berth_qec::{
    Algorithm, DecodeError, Decoder, ModelError,
    relay::{Arithmetic, MAX_ITERATIONS, MAX_LEGS, MAX_RELAYS, RelayBp, RelayError, UNIT},
};
use common::{Random, model, shot};
use proptest::prelude::*;

fn decoder(text: &str, relay: RelayBp) -> Decoder {
    Decoder::from_dem(text, Algorithm::RelayBp(relay)).unwrap()
}

/// Flips and weight, in fixed point.
fn decode(decoder: &mut Decoder, events: u64) -> Result<(u64, f64), DecodeError> {
    let mut flips = [0; 8];
    let len = decoder.num_detectors().div_ceil(8);
    decoder.decode(&events.to_le_bytes()[..len], &mut flips[..decoder.num_observables().div_ceil(8)])?;
    Ok((u64::from_le_bytes(flips), decoder.weight().unwrap() * UNIT))
}

/// ln((1 - p) / p) in fixed point.
fn prior(p: f64) -> f64 {
    ((1.0 - p).ln() * UNIT - p.ln() * UNIT).round().max(1.0)
}

#[test]
fn known_syndromes() {
    // A repetition code.
    let text = "error(0.01) D0 L0\nerror(0.01) D0 D1 L1\nerror(0.01) D1 D2 L2\nerror(0.01) D2 D3 L3\nerror(0.01) D3 L4";
    let mut decoder = decoder(text, RelayBp::default());
    let common = prior(0.01);
    assert_eq!(common as u32, 294);
    for (events, flips, weight) in [
        (0b0000, 0, 0.0),
        (0b0001, 0b00001, common),
        (0b0011, 0b00010, common),
        (0b0101, 0b00110, 2.0 * common),
        (0b1001, 0b10001, 2.0 * common),
        (0b1111, 0b01010, 2.0 * common),
    ] {
        assert_eq!(decode(&mut decoder, events), Ok((flips, weight)), "{events:b}");
    }
    // An error of three detectors, likelier than its parts together, and less likely than two of them.
    let text = "error(0.02) D0 L0\nerror(0.02) D1 L1\nerror(0.02) D2 L2\nerror(0.001) D0 D1 D2 L3";
    let mut decoder = self::decoder(text, RelayBp::default());
    for (events, flips, weight) in [(0b111, 0b1000, prior(0.001)), (0b011, 0b0011, 2.0 * prior(0.02))] {
        assert_eq!(decode(&mut decoder, events), Ok((flips, weight)), "{events:b}");
    }
}

#[test]
fn errors_of_the_same_detectors_are_one() {
    // L1 is likelier than L0. Together they are likelier than the other two together.
    let text = "error(0.01) D0 D1 L0\nerror(0.02) D0 D1 L1\nerror(0.1) D0 L2\nerror(0.01) D1 L3";
    let mut decoder = decoder(text, RelayBp::default());
    let both = 0.01 + 0.02 - 2.0 * 0.01 * 0.02;
    assert_eq!(decode(&mut decoder, 0b11), Ok((0b10, prior(both))));
    // Parts are taken together: D1 cancels.
    let mut decoder = self::decoder("error(0.01) D0 D1 ^ D1 D2 L0\nerror(0.3) D1 L1", RelayBp::default());
    assert_eq!(decode(&mut decoder, 0b101), Ok((1, prior(0.01))));
}

#[test]
fn likely_and_certain_errors() {
    let text = "error(1) D0 L0\nerror(0.9) D1 L1\nerror(0) D2 L2\nerror(0.01) D2 L3\nerror(0.7) L4\nerror(0.5) D3 L5";
    let mut decoder = decoder(text, RelayBp::default());
    assert_eq!(decode(&mut decoder, 0b0011), Ok((0b1_0011, 0.0)));
    assert_eq!(decode(&mut decoder, 0b0001), Ok((0b1_0001, prior(0.1))));
    assert_eq!(decode(&mut decoder, 0b0111), Ok((0b1_1011, prior(0.01))));
    assert_eq!(decode(&mut decoder, 0b1011), Ok((0b11_0011, 1.0)));
    assert_eq!(decode(&mut decoder, 0b0010), Err(DecodeError::NoSolution), "an error that is certain did not happen");
}

#[test]
fn what_no_error_makes() {
    let mut decoder = decoder("error(0.01) D0 D1 L0\nerror(0.01) D1 D2\ndetector D3", RelayBp::default());
    assert_eq!(decode(&mut decoder, 0b1000), Err(DecodeError::NoSolution), "a detector that nothing reaches");
    assert_eq!(decode(&mut decoder, 0b0001), Err(DecodeError::NoSolution), "an odd number");
    assert_eq!(decode(&mut decoder, 0b0101), Ok((1, 2.0 * prior(0.01))), "it goes on");
    // Nothing at all.
    assert_eq!(decode(&mut self::decoder("", RelayBp::default()), 0), Ok((0, 0.0)));
    assert_eq!(decode(&mut self::decoder("detector D0", RelayBp::default()), 1), Err(DecodeError::NoSolution));
}

#[test]
fn the_budget_holds_whatever_comes() {
    let model = model("bicycle_72.dem");
    let relay = RelayBp { relays: 2, legs: 2, iterations: 5, seed: 0, arithmetic: Arithmetic::Fixed16 };
    let mut decoder = Decoder::from_model(&model, Algorithm::RelayBp(relay)).unwrap();
    let mut random = Random(1);
    let mut flips = [0; 2];
    assert_eq!(decoder.decode(&[0xFF; 32], &mut flips), Err(DecodeError::Events(berth_qec::BitsError::Padding)));
    for _ in 0..20 {
        let mut events: Vec<u8> = std::iter::repeat_with(|| random.next() as u8).take(32).collect();
        events[31] &= 0x0F;
        assert_eq!(decoder.decode(&events, &mut flips), Err(DecodeError::NoSolution));
    }
    decoder.decode(&[0; 32], &mut flips).unwrap();
}

#[test]
fn parameters_and_sizes_have_limits() {
    let good = RelayBp::default();
    let most = RelayBp { relays: MAX_RELAYS, legs: MAX_LEGS, iterations: MAX_ITERATIONS, ..good };
    decoder("error(0.1) D0", most);
    for bad in [
        RelayBp { relays: 0, ..good },
        RelayBp { legs: 0, ..good },
        RelayBp { iterations: 0, ..good },
        RelayBp { relays: MAX_RELAYS + 1, ..good },
        RelayBp { legs: MAX_LEGS + 1, ..good },
        RelayBp { iterations: MAX_ITERATIONS + 1, ..good },
    ] {
        let made = Decoder::from_dem("error(0.1) D0", Algorithm::RelayBp(bad));
        assert_eq!(made.unwrap_err(), ModelError::Relay(RelayError::Parameters));
    }
    let large = "repeat 65537 {\nerror(0.1) D0\nshift_detectors 1\n}";
    let made = Decoder::from_dem(large, Algorithm::RelayBp(good));
    let expected = RelayError::TooLarge { errors: 65537, edges: 65537, legs: good.legs };
    assert_eq!(made.unwrap_err(), ModelError::Relay(expected));
}

#[test]
fn the_seed_decides() {
    let model = model("bicycle_72.dem");
    let shots: Vec<_> = std::iter::repeat_with({
        let mut random = Random(5);
        move || shot(&model, &mut random, 9.0).0
    })
    .take(60)
    .collect();
    let answers = |seed: u64| {
        let relay = RelayBp { relays: 2, legs: 3, iterations: 10, seed, arithmetic: Arithmetic::Fixed16 };
        let mut decoder = Decoder::from_model(&self::model("bicycle_72.dem"), Algorithm::RelayBp(relay)).unwrap();
        let mut flips = [0; 2];
        shots.iter().map(|events| decoder.decode(events, &mut flips).map(|()| flips)).collect::<Vec<_>>()
    };
    assert_eq!(answers(1), answers(1));
    assert_ne!(answers(1), answers(2));
}

/// A random model: of each error its probability and detectors. Each error has an observable of its own, so the flips
/// of an answer tell its errors.
fn hypergraphs() -> impl Strategy<Value = (Vec<(f64, u8)>, Vec<u8>)> {
    let error = (0.001_f64..0.3, 1_u8..);
    (prop::collection::btree_map(1_u8.., error, 1..11), prop::collection::vec(any::<u8>(), 8))
        .prop_map(|(errors, sets)| (errors.into_iter().map(|(detectors, (p, _))| (p, detectors)).collect(), sets))
}

proptest! {
    /// An answer makes the syndrome; its weight is that of its errors, and no less than the least.
    #[test]
    fn answers_make_the_syndrome((errors, sets) in hypergraphs(), anything in any::<u8>(), relays in 1_usize..=8) {
        let mut text = String::from("detector D7\n");
        for (index, (p, detectors)) in errors.iter().enumerate() {
            write!(text, "error({p})").unwrap();
            for at in (0..8).filter(|at| detectors >> at & 1 == 1) {
                write!(text, " D{at}").unwrap();
            }
            writeln!(text, " L{index}").unwrap();
        }
        let mut decoder = decoder(&text, RelayBp { relays, ..RelayBp::default() });
        let of_set = |set: u64| {
            let chosen = errors.iter().enumerate().filter(|(index, _)| set >> index & 1 == 1);
            chosen.fold((0, 0.0), |(syndrome, weight), (_, (p, detectors))| (syndrome ^ detectors, weight + prior(*p)))
        };
        let mut made = vec![f64::INFINITY; 256];
        for set in 0..1 << errors.len() {
            let (syndrome, weight) = of_set(set);
            made[usize::from(syndrome)] = made[usize::from(syndrome)].min(weight);
        }
        let syndromes = sets.iter().map(|set| of_set(u64::from(*set)).0).chain([anything]);
        for syndrome in syndromes {
            match decode(&mut decoder, syndrome.into()) {
                Ok((set, weight)) => {
                    prop_assert_eq!(of_set(set), (syndrome, weight));
                    prop_assert!(weight >= made[usize::from(syndrome)]);
                }
                Err(error) => prop_assert_eq!(error, DecodeError::NoSolution),
            }
        }
    }
}

#[test]
fn single_errors_of_bicycle_codes_are_found() {
    for (name, detectors, errors) in [("bicycle_72.dem", 252, 648), ("bicycle_144.dem", 936, 2592)] {
        let model = model(name);
        let refused = Decoder::from_model(&model, Algorithm::Mwpm).unwrap_err();
        assert!(refused.to_string().contains("flips 3 detectors"), "{refused}");
        let mut decoder = Decoder::from_model(&model, Algorithm::RelayBp(RelayBp::default())).unwrap();
        assert_eq!((decoder.num_detectors(), decoder.num_observables()), (detectors, 12));
        assert_eq!(model.mechanisms().len(), errors);
        for mechanism in model.mechanisms() {
            let (mut events, mut expected) = (vec![0; detectors.div_ceil(8)], 0);
            for part in mechanism.parts() {
                part.detectors.iter().for_each(|at| events[*at as usize / 8] ^= 1 << (at % 8));
                expected ^= part.observables;
            }
            let mut flips = [0; 2];
            decoder.decode(&events, &mut flips).unwrap();
            assert_eq!(u64::from(u16::from_le_bytes(flips)), expected, "{name}, line {}", mechanism.line());
        }
    }
}

#[test]
fn logical_errors_of_the_bicycle_code() {
    let model = model("bicycle_72.dem");
    let mut decoder = Decoder::from_model(&model, Algorithm::RelayBp(RelayBp::default())).unwrap();
    let mut random = Random(11);
    let (mut wrong, mut unsolved) = (0, 0);
    for _ in 0..1000 {
        let (events, expected) = shot(&model, &mut random, 4.0);
        let mut flips = [0; 2];
        unsolved += usize::from(decoder.decode(&events, &mut flips).is_err());
        wrong += usize::from(u64::from(u16::from_le_bytes(flips)) != expected);
    }
    println!("{wrong} wrong, {unsolved} of them without a solution");
    assert!(wrong <= 30, "{wrong}");
}

#[test]
fn logical_errors_of_surface_codes_are_about_those_of_matching() {
    for (name, width, take) in [("surface_d3_p5e-3", 3, 5000), ("surface_d5_p5e-3", 15, 600)] {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let text = fs::read_to_string(root.join(format!("config/decoders/{name}.dem"))).unwrap();
        let file = |kind| fs::read(root.join(format!("perf/data/{name}.{kind}.b8"))).unwrap();
        let (events, flips) = (file("dets"), file("obs"));
        let wrong = |algorithm| {
            let mut decoder = Decoder::from_dem(&text, algorithm).unwrap();
            let shots = events.chunks_exact(width).zip(&flips).take(take);
            let wrong = shots.filter(|(events, flips)| {
                let mut predicted = [0];
                decoder.decode(events, &mut predicted).is_err() || predicted[0] != **flips
            });
            wrong.count()
        };
        let (matching, relay) = (wrong(Algorithm::Mwpm), wrong(Algorithm::RelayBp(RelayBp::default())));
        println!("{name}: of {take} shots {matching} and {relay} wrong");
        assert!(relay * 2 <= matching * 3 + 10 && matching <= relay * 2 + 10, "{matching} {relay}");
    }
}

#[test]
fn decoding_allocates_nothing() {
    let model = model("surface_d3_p5e-3.dem");
    let mut decoder = Decoder::from_model(&model, Algorithm::RelayBp(RelayBp::default())).unwrap();
    let mut random = Random(2);
    let shots: Vec<_> = std::iter::repeat_with(|| shot(&model, &mut random, 2.0).0).take(100).collect();
    let allocated = allocation_counter::measure(|| {
        for events in &shots {
            let _ = decoder.decode(events, &mut [0]);
        }
    });
    assert_eq!(allocated.count_total, 0);
}
