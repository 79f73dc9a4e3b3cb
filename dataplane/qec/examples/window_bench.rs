//! Times windows beside whole matching on the same experiments of a surface code: one core, a JSON line for each length.
//!
//! `cargo run --release -p berth-qec --example window_bench [EXPERIMENTS [ROUNDS[,ROUNDS]... [MODEL]]]`
//!
//! EXPERIMENTS (default 2500) of ROUNDS rounds (default 402; each 30 and a multiple of 6) are drawn and decoded, whole and in windows
//! of 14 rounds that decide 6; of longer ones fewer, as many rounds as of the first ROUNDS. MODEL (default surface_d7_p5e-3) is one of
//! Stim's with a loop of two rounds. `ns_a_round` is of whole experiments; `window_ns` of the rounds that complete a window; `last_ns` of
//! the last round, to the answer. `whole` and `agree` are null where a model may not have so many rounds.

#[path = "../tests/common/mod.rs"]
mod common;

use std::{
    fs,
    hint::black_box,
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};

use anyhow::{Context, Result, ensure};
use berth_qec::{
    Algorithm, Decoder, Tables,
    dem::{DemError, DetectorErrorModel},
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
    let args: Vec<_> = std::env::args().skip(1).collect();
    let experiments = args.first().map_or(Ok(2500), |text| text.parse::<u64>()).context("EXPERIMENTS")?;
    let lengths = args.get(1).map_or("402", String::as_str).split(',').map(str::parse::<u64>);
    let lengths = lengths.collect::<Result<Vec<_>, _>>().context("ROUNDS")?;
    let usual = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../config/decoders/surface_d7_p5e-3.dem");
    let path = args.get(2).map_or_else(usual, PathBuf::from);
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let part = model(&text, MODEL_ROUNDS)?;
    let window =
        Window { window: WINDOW as usize, commit: COMMIT as usize, layout: Layout::Sliding, inner: Inner::Mwpm };
    let tables = Arc::new(Tables::new(&part, Algorithm::Window(window))?);
    for &rounds in &lengths {
        ensure!(
            rounds >= MODEL_ROUNDS && (rounds - MODEL_ROUNDS).is_multiple_of(COMMIT),
            "ROUNDS is 30 and a multiple of 6"
        );
        let whole = model(&text, rounds).ok();
        let matching = whole.map(|whole| Decoder::from_model(&whole, Algorithm::Mwpm)).transpose()?;
        let experiments = (experiments * lengths[0]).div_ceil(rounds);
        println!("{}", measure(&part, &tables, matching, experiments, rounds)?);
    }
    Ok(())
}

fn measure(
    part: &DetectorErrorModel,
    tables: &Arc<Tables>,
    mut matching: Option<Decoder>,
    experiments: u64,
    rounds: u64,
) -> Result<serde_json::Value> {
    let mut stream = Stream::with_rounds(tables.clone(), Some(rounds))?;
    let map = MeasurementMap::identity(part.num_detectors());
    let experiment = Arc::new(Experiment::new(tables.clone(), &map, Some(rounds))?);
    let detectors = experiment.measurements_before(rounds) as usize;
    if let Some(matching) = &matching {
        ensure!(detectors == matching.num_detectors(), "both have the same detectors");
    }
    let mut random = Random(1);
    let mut sampler = Sampler::new(experiment.clone(), part)?;
    let [mut whole_ns, mut windows_ns, mut agree] = [0, 0, 0];
    let mut wrong = [0, 0];
    let mut window_ns = Histogram::<u64>::new(3)?;
    let mut last_ns = Histogram::<u64>::new(3)?;
    for _ in 0..experiments {
        sampler.restart();
        let mut drawn = Vec::with_capacity(rounds as usize);
        let mut events = vec![0_u8; detectors.div_ceil(8)];
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
        if let Some(matching) = &mut matching {
            let start = Instant::now();
            matching.decode(black_box(&events), &mut flips)?;
            whole_ns += start.elapsed().as_nanos() as u64;
        }

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
    let whole = json!({ "errors": wrong[0], "ns_a_round": whole_ns as f64 / all });
    Ok(json!({
        "experiments": experiments,
        "rounds": rounds,
        "whole": matching.as_ref().map(|_| whole),
        "windows": { "errors": wrong[1], "ns_a_round": windows_ns as f64 / all },
        "agree": matching.as_ref().map(|_| agree),
        "window_ns": quantiles(&window_ns),
        "last_ns": quantiles(&last_ns),
    }))
}

/// The memory of so many rounds: all but four of them are of the model's loop.
fn model(text: &str, rounds: u64) -> Result<DetectorErrorModel, DemError> {
    let (before, repeat) = text.split_once("\nrepeat ").unwrap_or((text, ""));
    let body = repeat.trim_start_matches(|c: char| c.is_ascii_digit());
    DetectorErrorModel::parse(&format!("{before}\nrepeat {}{body}", (rounds - 4) / 2))
}
