//! Times the decoders on the shots of `perf/data`: the handler only, one core, one JSON line per set and algorithm.
//!
//! `cargo run --release -p berth-qec --example decode_bench [--correlated] [--budget-us=N] [ROUNDS [FOLDER [DISTANCE]...]]`
//!
//! FOLDER has sets that `perf/data/make_shots.py` made there; look-up tables are for the smaller codes. With distances, matching alone
//! decodes the sets of these in FOLDER, of every noise that is there; with `--correlated` in two passes, with `--budget-us` in the steps
//! that a function with this `budget_us` has. Every shot is decoded ROUNDS times (default 3) after a warm-up round.
//!
//! `p50_ns` and the like are of single decodes, without the cost of reading the clock; `mean_ns` and `shots_per_s` are of whole
//! rounds. `build_ms` is from the text of the model to the decoder, `four_kib` what four decoders with the same tables hold.
//!
//! A shot takes the same steps each time, so the least of its times is the decoder's own, and what another one has above that is the
//! host's: `own_p9999_ns` and `own_max_ns` are of the least times. `budget_us` is what the limit of steps stands for, `exhausted` shots that it
//! ended, `over` decodes that took 2 us longer than that, `over_own` shots that did each time.

use std::{
    fs,
    hint::black_box,
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};

use anyhow::{Context, Result, bail};
use berth_qec::{Algorithm, Decoder, ModelError, Tables, dem::DetectorErrorModel, lut::LutError, mwpm::STEPS_PER_US};
use hdrhistogram::Histogram;
use serde_json::json;

/// What a decode may take beyond its budget.
const SLACK_NS: u64 = 2000;

fn main() -> Result<()> {
    let (flags, args): (Vec<_>, Vec<_>) = std::env::args().skip(1).partition(|arg| arg.starts_with("--"));
    let (mut correlated, mut budget_us) = (false, None);
    for flag in &flags {
        match flag.strip_prefix("--budget-us=") {
            Some(budget) => budget_us = Some(budget.parse::<u64>().context("--budget-us is a number")?),
            None if flag == "--correlated" => correlated = true,
            None => bail!("{flag} is no flag"),
        }
    }
    let rounds = match args.first() {
        Some(rounds) => rounds.parse().context("ROUNDS is a number of rounds")?,
        None => 3,
    };
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let (models, data) = (root.join("config/decoders"), root.join("perf/data"));
    let folder = args.get(1).map(PathBuf::from);
    let chosen = args.iter().skip(2).map(|distance| distance.parse().context("DISTANCE is a number"));
    let chosen = chosen.collect::<Result<Vec<u32>>>()?;
    let mut sets = Vec::new();
    if chosen.is_empty() {
        sets.extend([3, 5, 7].map(|distance| (distance, models.clone(), data.clone())));
    }
    if let Some(folder) = folder {
        let distances = if chosen.is_empty() { distances(&folder)? } else { chosen.clone() };
        sets.extend(distances.into_iter().map(|distance| (distance, folder.clone(), folder.clone())));
    }
    let matching = if correlated { ("correlated_mwpm", Algorithm::CorrelatedMwpm) } else { ("mwpm", Algorithm::Mwpm) };
    let algorithms = [matching, ("lut1", Algorithm::Lut { depth: 1 }), ("lut2", Algorithm::Lut { depth: 2 })];
    let reference = if correlated { "correlated" } else { "pymatching" };
    let noises = [(0.001, "_p1e-3", ""), (0.005, "_p5e-3", "_p5e-3"), (0.01, "_p1e-2", "_p1e-2")];
    for (distance, models, data) in sets {
        let with_tables = distance <= 7 && chosen.is_empty();
        for (p, noise, model) in if chosen.is_empty() { &noises[..2] } else { &noises } {
            let file = |kind: &str| data.join(format!("surface_d{distance}{noise}.{kind}.b8"));
            if !chosen.is_empty() && !file("dets").exists() {
                continue;
            }
            let read = |kind| fs::read(file(kind)).with_context(|| file(kind).display().to_string());
            let set = Set { events: read("dets")?, flips: read("obs")?, pymatching: read(reference)? };
            let path = models.join(format!("surface_d{distance}{model}.dem"));
            let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            for (name, algorithm) in algorithms.iter().take(if with_tables { 3 } else { 1 }) {
                let started = Instant::now();
                let mut decoder = match Decoder::from_dem(&text, *algorithm) {
                    Err(ModelError::Lut(too_large @ LutError::TooLarge { .. })) => {
                        eprintln!("d={distance} p={p} {name}: {too_large}");
                        continue;
                    }
                    decoder => decoder?,
                };
                if let Some(budget) = budget_us {
                    decoder.set_steps(budget * STEPS_PER_US);
                }
                let mut line = json!({
                    "decoder": "berth", "algorithm": name, "d": distance, "p": p,
                    "build_ms": started.elapsed().as_secs_f64() * 1e3,
                    "four_kib": four(&text, *algorithm)? / 1024,
                });
                let figures = measure(&mut decoder, &set, rounds)?;
                line.as_object_mut().context("an object")?.extend(figures);
                println!("{line}");
            }
        }
    }
    Ok(())
}

/// Bytes that four decoders of one model hold, which have its tables in common.
fn four(text: &str, algorithm: Algorithm) -> Result<i64> {
    let model = DetectorErrorModel::parse(text)?;
    let mut made = Ok(Vec::new());
    let held = allocation_counter::measure(|| {
        made = Tables::new(&model, algorithm).map(|tables| {
            let tables = Arc::new(tables);
            (0..4).map(|_| Decoder::new(tables.clone())).collect::<Vec<_>>()
        });
    });
    made?;
    Ok(held.bytes_current)
}

/// Code distances of the sets in a folder, ascending.
fn distances(folder: &Path) -> Result<Vec<u32>> {
    let mut distances = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let distance = name.strip_prefix("surface_d").and_then(|name| name.strip_suffix("_p1e-3.obs.b8"));
        distances.extend(distance.map(str::parse::<u32>).transpose()?);
    }
    distances.sort_unstable();
    Ok(distances)
}

struct Set {
    events: Vec<u8>,
    flips: Vec<u8>,
    pymatching: Vec<u8>,
}

fn measure(decoder: &mut Decoder, set: &Set, rounds: u32) -> Result<serde_json::Map<String, serde_json::Value>> {
    let shots = set.flips.len();
    let width = decoder.num_detectors().div_ceil(8);
    let (mut agree, mut wrong) = (0, 0);
    for ((events, flips), pymatching) in set.events.chunks_exact(width).zip(&set.flips).zip(&set.pymatching) {
        let mut predicted = [0];
        decoder.decode(events, &mut predicted)?;
        agree += usize::from(predicted[0] == *pymatching);
        wrong += usize::from(predicted[0] != *flips);
    }

    let started = Instant::now();
    for _ in 0..rounds {
        for events in set.events.chunks_exact(width) {
            let mut predicted = [0];
            decoder.decode(black_box(events), &mut predicted)?;
            black_box(predicted);
        }
    }
    let mean_ns = started.elapsed().as_nanos() as f64 / f64::from(rounds) / shots as f64;

    let exhausted = decoder.exhausted() / u64::from(rounds + 1);
    let budget_us = decoder.steps().map(|steps| steps / STEPS_PER_US);
    let most = budget_us.map_or(u64::MAX, |budget| budget * 1000 + SLACK_NS);
    let clock_ns = (0..1000).map(|_| Instant::now().elapsed().as_nanos() as u64).min().unwrap_or(0);
    let mut times = Histogram::<u64>::new_with_bounds(1, 1_000_000_000, 3)?;
    let mut least = vec![u64::MAX; shots];
    let mut over = 0;
    for _ in 0..rounds {
        for (events, least) in set.events.chunks_exact(width).zip(&mut least) {
            let mut predicted = [0];
            let started = Instant::now();
            decoder.decode(black_box(events), &mut predicted)?;
            let took = started.elapsed().as_nanos() as u64;
            black_box(predicted);
            let took = took.saturating_sub(clock_ns).max(1);
            times.saturating_record(took);
            *least = took.min(*least);
            over += u64::from(took > most);
        }
    }
    least.sort_unstable();
    let figures = json!({
        "shots": shots,
        "p50_ns": times.value_at_quantile(0.5),
        "p99_ns": times.value_at_quantile(0.99),
        "p999_ns": times.value_at_quantile(0.999),
        "p9999_ns": times.value_at_quantile(0.9999),
        "own_p9999_ns": least[(shots as f64 * 0.9999).ceil() as usize - 1],
        "own_max_ns": least[shots - 1],
        "budget_us": budget_us,
        "exhausted": exhausted,
        "over": over,
        "over_own": least.iter().filter(|least| **least > most).count(),
        "mean_ns": mean_ns.round(),
        "shots_per_s": (1e9 / mean_ns).round(),
        "agreement": agree as f64 / shots as f64,
        "logical_errors": wrong,
    });
    match figures {
        serde_json::Value::Object(figures) => Ok(figures),
        _ => unreachable!("json!({{}}) is an object"),
    }
}
