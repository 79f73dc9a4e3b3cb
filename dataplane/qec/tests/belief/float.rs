//! Relay belief propagation in floating point, against its definition step by step.

use std::{collections::BTreeMap, fmt::Write as _};

use berth_qec::{
    Algorithm, DecodeError, Decoder,
    dem::DetectorErrorModel,
    relay::{Arithmetic, MAX_RELAYS, RelayBp},
};
use proptest::prelude::*;

use crate::common::{Random, model, shot};

fn float(relays: usize, legs: usize, iterations: usize, seed: u64) -> RelayBp {
    RelayBp { relays, legs, iterations, seed, arithmetic: Arithmetic::Float64 }
}

/// Errors with different detectors, by these, and their probabilities; no error flips the same detectors as another.
type Errors = BTreeMap<Vec<usize>, (f64, u64)>;

/// One relay.
struct Relay {
    marginals: Vec<f64>,
    /// By error and detector.
    told: BTreeMap<(usize, usize), f64>,
}

/// Flips and weight of the answer, by the definition in the crate's documentation.
fn reference(errors: &Errors, events: &[bool], of: RelayBp) -> Result<(u64, f64), DecodeError> {
    let detectors: Vec<&Vec<usize>> = errors.keys().collect();
    let priors: Vec<f64> = errors.values().map(|(p, _)| ((1.0 - p) / p).ln()).collect();
    let flips: Vec<u64> = errors.values().map(|(_, flips)| *flips).collect();
    if events.iter().all(|event| !event) {
        return Ok((0, 0.0));
    }
    let mut random = Random(of.seed);
    let mut relays: Vec<Relay> =
        (0..of.relays).map(|_| Relay { marginals: priors.clone(), told: BTreeMap::new() }).collect();
    for leg in 0..of.legs {
        let strengths: Vec<Vec<f64>> = (0..priors.len())
            .map(|_| {
                let drawn = (0..MAX_RELAYS).map(|_| -7864 + (((random.next() >> 32) as i64 * 29492) >> 32));
                let mut drawn: Vec<f64> = drawn.map(|strength| strength as f64 / 32768.0).collect();
                if leg == 0 {
                    drawn[0] = 0.125;
                }
                drawn
            })
            .collect();
        for relay in &mut relays {
            let edges = detectors.iter().enumerate();
            relay.told = edges
                .flat_map(|(error, of)| of.iter().map(move |detector| (error, *detector)))
                .map(|edge| (edge, priors[edge.0]))
                .collect();
        }
        for _ in 0..of.iterations {
            let mut solutions: Vec<(f64, u64)> = Vec::new();
            for (number, relay) in relays.iter_mut().enumerate() {
                let sent: BTreeMap<(usize, usize), f64> = relay
                    .told
                    .keys()
                    .map(|(error, detector)| {
                        let others = relay.told.iter().filter(|((other, at), _)| at == detector && other != error);
                        let (mut size, mut is_negative) = (f64::MAX, events[*detector]);
                        for (_, told) in others {
                            size = size.min(told.abs());
                            is_negative ^= told.is_sign_negative();
                        }
                        ((*error, *detector), if is_negative { -size } else { size })
                    })
                    .collect();
                for (error, of) in detectors.iter().enumerate() {
                    let strength = strengths[error][number];
                    let own = priors[error] * (1.0 - strength) + relay.marginals[error] * strength;
                    let sum = |of: &[usize], from: f64| of.iter().fold(from, |sum, at| sum + sent[&(error, *at)]);
                    for at in 0..of.len() {
                        let behind: Vec<usize> = of[at + 1..].iter().rev().copied().collect();
                        relay.told.insert((error, of[at]), sum(&of[..at], own) + sum(&behind, 0.0));
                    }
                    relay.marginals[error] = sum(of, own);
                }
                let happened: Vec<usize> = (0..priors.len()).filter(|error| relay.marginals[*error] <= 0.0).collect();
                let mut made = vec![false; events.len()];
                happened.iter().flat_map(|error| detectors[*error]).for_each(|at| made[*at] ^= true);
                if made == events {
                    let weight = happened.iter().map(|error| priors[*error]).sum();
                    solutions.push((weight, happened.iter().fold(0, |all, error| all ^ flips[*error])));
                }
            }
            if let Some((weight, flips)) =
                solutions.into_iter().reduce(|one, next| if next.0 < one.0 { next } else { one })
            {
                return Ok((flips, weight));
            }
        }
    }
    Err(DecodeError::NoSolution)
}

fn decode(decoder: &mut Decoder, events: &[bool]) -> Result<(u64, f64), DecodeError> {
    let byte = |bits: &[bool]| bits.iter().rev().fold(0, |byte, bit| byte << 1 | u8::from(*bit));
    let events: Vec<u8> = events.chunks(8).map(byte).collect();
    let mut flips = [0; 8];
    decoder.decode(&events, &mut flips[..decoder.num_observables().div_ceil(8)])?;
    Ok((u64::from_le_bytes(flips), decoder.weight().unwrap()))
}

proptest! {
    #[test]
    fn random_hypergraphs(
        errors in prop::collection::btree_map(prop::collection::btree_set(0_usize..6, 1..5), 0.001_f64..0.5, 1..14),
        relays in 1_usize..=8,
        legs in 1_usize..4,
        seed: u32,
    ) {
        let errors: Errors = errors
            .into_iter()
            .enumerate()
            .map(|(at, (detectors, p))| (detectors.into_iter().collect(), (p, 1 << at)))
            .collect();
        let mut text = String::from("detector D5\n");
        for (detectors, (p, flips)) in &errors {
            write!(text, "error({p})").unwrap();
            for at in detectors {
                write!(text, " D{at}").unwrap();
            }
            writeln!(text, " L{}", flips.trailing_zeros()).unwrap();
        }
        let of = float(relays, legs, 7, seed.into());
        let mut decoder = Decoder::from_dem(&text, Algorithm::RelayBp(of)).unwrap();
        for events in 0..64_u8 {
            let events: Vec<bool> = (0..6).map(|at| events >> at & 1 == 1).collect();
            prop_assert_eq!(decode(&mut decoder, &events), reference(&errors, &events, of));
        }
    }
}

/// The errors of a model, those of the same detectors as one.
fn errors(model: &DetectorErrorModel) -> Errors {
    let mut errors: BTreeMap<Vec<usize>, (f64, BTreeMap<u64, f64>)> = BTreeMap::new();
    let either = |p: f64, q: f64| p + q - 2.0 * p * q;
    for mechanism in model.mechanisms() {
        let (mut detectors, mut flips) = (std::collections::BTreeSet::new(), 0);
        for part in mechanism.parts() {
            for at in part.detectors {
                if !detectors.remove(&(*at as usize)) {
                    detectors.insert(*at as usize);
                }
            }
            flips ^= part.observables;
        }
        let (p, of_flips) = errors.entry(detectors.into_iter().collect()).or_default();
        *p = either(*p, mechanism.probability());
        let of_these = of_flips.entry(flips).or_default();
        *of_these = either(*of_these, mechanism.probability());
    }
    errors.remove(&Vec::new());
    let likeliest = |of: BTreeMap<u64, f64>| of.into_iter().rev().max_by(|a, b| a.1.total_cmp(&b.1)).unwrap().0;
    errors.into_iter().map(|(detectors, (p, of_flips))| (detectors, (p, likeliest(of_flips)))).collect()
}

#[test]
fn shots_of_real_models() {
    let mut random = Random(7);
    for (name, relays, shots) in
        [("surface_d3_p5e-3.dem", 1, 300), ("surface_d3_p5e-3.dem", 3, 200), ("bicycle_72.dem", 1, 4)]
    {
        let model = model(name);
        let of = float(relays, 2, 20, 3);
        let mut decoder = Decoder::from_model(&model, Algorithm::RelayBp(of)).unwrap();
        let errors = errors(&model);
        for _ in 0..shots {
            let (events, _) = shot(&model, &mut random, 2.0);
            let events: Vec<bool> = (0..model.num_detectors()).map(|at| events[at / 8] >> (at % 8) & 1 == 1).collect();
            assert_eq!(decode(&mut decoder, &events), reference(&errors, &events, of), "{name}");
        }
    }
}

#[test]
fn likely_and_certain_errors_and_what_no_error_makes() {
    let text = "error(1) D0 L0\nerror(0.9) D1 L1\nerror(0) D2 L2\nerror(0.01) D2 L3\nerror(0.7) L4\nerror(0.5) D3 L5\ndetector D4";
    for relays in [1, 8] {
        let mut decoder = Decoder::from_dem(text, Algorithm::RelayBp(float(relays, 4, 60, 0))).unwrap();
        let mut answer = |events: u8| decode(&mut decoder, &[0, 1, 2, 3, 4].map(|at| events >> at & 1 == 1));
        let weight = |p: f64| ((1.0 - p) / p).ln();
        assert_eq!(answer(0b0011), Ok((0b1_0011, 0.0)));
        assert_eq!(answer(0b0001), Ok((0b1_0001, weight(1.0 - 0.9))));
        assert_eq!(answer(0b0111), Ok((0b1_1011, weight(0.01))));
        assert_eq!(answer(0b1011), Ok((0b11_0011, 0.0)));
        for unexplained in [0b0010, 0b1_0011] {
            assert_eq!(answer(unexplained), Err(DecodeError::NoSolution));
        }
        assert_eq!(answer(0b0011), Ok((0b1_0011, 0.0)), "it goes on");
    }
}
