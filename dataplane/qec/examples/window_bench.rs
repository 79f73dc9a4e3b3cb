//! Times windows beside whole matching on the same experiments of `surface_d7_p5e-3`: one core, one JSON line.
//!
//! `cargo run --release -p berth-qec --example window_bench [EXPERIMENTS [ROUNDS]]`
//!
//! EXPERIMENTS (default 2500) of ROUNDS rounds (default 402; 30 and a multiple of 6) are drawn and decoded, whole and in windows
//! of 14 rounds that decide 6. `ns_a_round` is of whole experiments; `window_ns` of the rounds that complete a window; `last_ns` of the last
//! round, to the answer.

#[path = "../tests/common/mod.rs"]
mod common;

use std::{fs, hint::black_box, path::Path, sync::Arc, time::Instant};

use anyhow::{Context, Result, ensure};
use berth_qec::{
    Algorithm, Decoder, Tables,
    dem::DetectorErrorModel,
    sparse::MeasurementMap,
    window::{Experiment, Inner, Layout, Sampler, Stream, Window},
};
use common::Random;
use hdrhistogram::Histogram;
use serde_json::json;

/// Rounds of a window, and of those the ones that it decides: an even number, as the model's loop is of two.
const WINDOW: u64 = 14;
const COMMIT: u64 = 6;
/// Rounds of the model for windows: all kinds of them occur.
const MODEL_ROUNDS: u64 = 30;

fn main() -> Result<()> {
    let number = |at, usual| std::env::args().nth(at).map_or(Ok(usual), |text| text.parse::<u64>());
    let (experiments, rounds) = (number(1, 2500).context("EXPERIMENTS")?, number(2, 402).context("ROUNDS")?);
    ensure!(
        rounds >= MODEL_ROUNDS && (rounds - MODEL_ROUNDS).is_multiple_of(COMMIT),
        "ROUNDS is 30 and a multiple of 6"
    );
    let (whole, part) = (model(rounds)?, model(MODEL_ROUNDS)?);
    let mut matching = Decoder::from_model(&whole, Algorithm::Mwpm)?;
    let window =
        Window { window: WINDOW as usize, commit: COMMIT as usize, layout: Layout::Sliding, inner: Inner::Mwpm };
    let tables = Arc::new(Tables::new(&part, Algorithm::Window(window))?);
    let mut stream = Stream::with_rounds(tables.clone(), Some(rounds))?;
    let map = MeasurementMap::identity(part.num_detectors());
    let experiment = Arc::new(Experiment::new(tables, &map, Some(rounds))?);
    ensure!(experiment.measurements_before(rounds) == whole.num_detectors() as u64, "both have the same detectors");

    let mut random = Random(1);
    let [mut whole_ns, mut windows_ns, mut agree] = [0, 0, 0];
    let mut wrong = [0, 0];
    let mut window_ns = Histogram::<u64>::new(3)?;
    let mut last_ns = Histogram::<u64>::new(3)?;
    for _ in 0..experiments {
        let mut sampler = Sampler::new(experiment.clone(), &part)?;
        let mut drawn = Vec::with_capacity(rounds as usize);
        let mut events = vec![0_u8; whole.num_detectors().div_ceil(8)];
        let mut at = 0;
        while let Some(words) = sampler.round(|p| random.happens(p)) {
            let count = experiment.num_detectors(drawn.len() as u64);
            for bit in (0..count).filter(|bit| words[bit / 64] >> (bit % 64) & 1 == 1) {
                events[(at + bit) / 8] |= 1 << ((at + bit) % 8);
            }
            at += count;
            let bytes = words.iter().flat_map(|word| word.to_le_bytes()).take(count.div_ceil(8));
            drawn.push(bytes.collect::<Vec<u8>>());
        }
        let truth = sampler.flips()[0];

        let mut flips = [0; 1];
        let start = Instant::now();
        matching.decode(black_box(&events), &mut flips)?;
        whole_ns += start.elapsed().as_nanos() as u64;

        let _ = stream.reset();
        let begin = Instant::now();
        let mut before = begin;
        for (round, bytes) in drawn.iter().enumerate() {
            let decided = stream.decided();
            stream.round(round as u64, black_box(bytes))?;
            let now = Instant::now();
            let took = (now - before).as_nanos() as u64;
            if round as u64 + 1 == rounds {
                last_ns.record(took)?;
            } else if stream.decided() > decided {
                window_ns.record(took)?;
            }
            before = now;
        }
        windows_ns += (before - begin).as_nanos() as u64;
        let answers = [u64::from(flips[0]), stream.flips()[0]];
        for (wrong, answer) in wrong.iter_mut().zip(answers) {
            *wrong += u64::from(answer != truth);
        }
        agree += u64::from(answers[0] == answers[1]);
    }
    let all = (experiments * rounds) as f64;
    let quantiles = |of: &Histogram<u64>| json!({ "p50": of.value_at_quantile(0.5), "p99": of.value_at_quantile(0.99), "longest": of.max() });
    println!(
        "{}",
        json!({
            "experiments": experiments,
            "rounds": rounds,
            "whole": { "errors": wrong[0], "ns_a_round": whole_ns as f64 / all },
            "windows": { "errors": wrong[1], "ns_a_round": windows_ns as f64 / all },
            "agree": agree,
            "window_ns": quantiles(&window_ns),
            "last_ns": quantiles(&last_ns),
        })
    );
    Ok(())
}

/// The memory of so many rounds: the model's loop is of two.
fn model(rounds: u64) -> Result<DetectorErrorModel> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../config/decoders/surface_d7_p5e-3.dem");
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let text = text.replace("\nrepeat 2 {\n", &format!("\nrepeat {} {{\n", (rounds - 4) / 2));
    Ok(DetectorErrorModel::parse(&text)?)
}
