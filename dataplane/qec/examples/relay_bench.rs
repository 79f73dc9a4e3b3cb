//! Times relay belief propagation, matching and look-up tables on shots of the models in `config/decoders`: one core, a
//! line of a table for each model and algorithm.
//!
//! `cargo run --release -p berth-qec --example relay_bench [SHOTS]`
//!
//! SHOTS (default 1000) shots of each model are sampled, the same for all algorithms. Times are of single decodes.
//! Errors are predictions that differ from what was sampled; those without an answer are among them. The last column is a
//! FNV-1a hash over the predictions, 8 bytes of each, all ones where there is none.

#[path = "../tests/common/mod.rs"]
mod common;

use std::{hint::black_box, time::Instant};

use anyhow::{Context, Result};
use berth_qec::{
    Algorithm, Decoder,
    osd::{BpOsd, Schedule, Statistics},
    relay::{Arithmetic, RelayBp},
};
use common::{Random, model, shot};

const MODELS: [&str; 8] = [
    "surface_d3",
    "surface_d3_p5e-3",
    "surface_d5",
    "surface_d5_p5e-3",
    "surface_d7",
    "surface_d7_p5e-3",
    "bicycle_72",
    "bicycle_144",
];

fn main() -> Result<()> {
    let shots = std::env::args().nth(1).map_or(Ok(1000), |shots| shots.parse()).context("SHOTS is a number")?;
    let single = RelayBp { relays: 1, legs: 32, ..RelayBp::default() };
    let float = RelayBp { relays: 1, legs: 60, arithmetic: Arithmetic::Float64, ..RelayBp::default() };
    let localized = BpOsd { statistics: Statistics::Localized, ..BpOsd::default() };
    let algorithms = [
        ("relay_bp", Algorithm::RelayBp(RelayBp::default())),
        ("relay_bp, 1 relay of 32 legs", Algorithm::RelayBp(single)),
        ("relay_bp, float64, 1 relay of 60 legs", Algorithm::RelayBp(float)),
        ("bp_osd", Algorithm::BpOsd(BpOsd::default())),
        ("bp_osd, parallel", Algorithm::BpOsd(BpOsd { schedule: Schedule::Parallel, ..BpOsd::default() })),
        ("bp_osd, order 0", Algorithm::BpOsd(BpOsd { order: 0, ..BpOsd::default() })),
        ("bp_osd, localized", Algorithm::BpOsd(localized)),
        ("bp_osd, localized, order 0", Algorithm::BpOsd(BpOsd { order: 0, ..localized })),
        ("mwpm", Algorithm::Mwpm),
        ("correlated_mwpm", Algorithm::CorrelatedMwpm),
        ("belief_mwpm", Algorithm::BeliefMwpm),
        ("lut, depth 1", Algorithm::Lut { depth: 1 }),
    ];
    println!(
        "| model | algorithm | shots/s | p50 | p99 | longest | errors of {shots} | without answer | predictions |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for name in MODELS {
        let model = model(&format!("{name}.dem"));
        let mut random = Random(1);
        let sampled: Vec<_> = std::iter::repeat_with(|| shot(&model, &mut random, 1.0)).take(shots).collect();
        for (algorithm, parameters) in algorithms {
            match Decoder::from_model(&model, parameters) {
                Ok(decoder) => println!("| {name} | {algorithm} | {}", measure(decoder, &sampled)),
                Err(e) => eprintln!("{name}, {algorithm}: {e}"),
            }
        }
    }
    Ok(())
}

fn measure(mut decoder: Decoder, shots: &[(Vec<u8>, u64)]) -> String {
    let (mut wrong, mut unanswered, mut hash) = (0, 0, 0xCBF2_9CE4_8422_2325_u64);
    let mut times = Vec::new();
    for (events, expected) in shots {
        let mut flips = [0; 8];
        let started = Instant::now();
        let decoded = decoder.decode(black_box(events), &mut flips[..decoder.num_observables().div_ceil(8)]);
        times.push(started.elapsed().as_secs_f64() * 1e6);
        unanswered += u32::from(decoded.is_err());
        wrong += u32::from(decoded.is_err() || u64::from_le_bytes(flips) != *expected);
        for byte in if decoded.is_ok() { flips } else { [0xFF; 8] } {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3);
        }
    }
    let rate = times.len() as f64 / times.iter().sum::<f64>() * 1e6;
    times.sort_by(f64::total_cmp);
    let at = |quantile: f64| times[((times.len() - 1) as f64 * quantile) as usize];
    let (p50, p99, longest) = (at(0.5), at(0.99), at(1.0));
    format!("{rate:.0} | {p50:.2} us | {p99:.1} us | {longest:.0} us | {wrong} | {unanswered} | {hash:016x} |")
}
