//! Decoders against `PyMatching`, on the same shots.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde_json::Value;

use super::{
    super::{Pair, Reach, Row, in_turn, median},
    CPU, lines, number,
};
use crate::{
    build, setup,
    sh::{cmd, output, run},
};

/// Turns of each side; the fewest that tell an interval.
const TURNS: usize = 6;
/// Where the shots of larger codes are made, which take too much room to be kept.
const SHOTS: &str = "target/bench/shots";
/// Their distances.
const LARGER: [&str; 3] = ["9", "11", "13"];

pub(super) fn rows() -> Result<Vec<Row>> {
    let python = setup::python()?.to_string_lossy().into_owned();
    run(cmd(&python, ["perf/data/make_shots.py", SHOTS]).args(LARGER))?;
    let decode = build::example("berth-qec", "decode_bench")?;
    let ours = [decode.as_str()];
    let theirs = [python.as_str(), "perf/baselines/pymatching_decode.py"];
    // By distance, probability in units of 0.1 % and algorithm.
    let mut sets = BTreeMap::<(u64, u64, String), Vec<(Value, f64)>>::new();
    for turn in 0..TURNS {
        let take = |program: &[&str]| {
            let program = cmd("taskset", ["-c", CPU].iter().chain(program).chain(&["1", SHOTS]));
            lines(&output(&mut { program })?)
        };
        let (ours, theirs) = in_turn(turn, || take(&ours), || take(&theirs))?;
        for line in ours {
            let same = |other: &&Value| other["d"] == line["d"] && other["p"] == line["p"];
            let reference = theirs.iter().find(same).context("PyMatching did not decode this set")?;
            let (distance, p) = (number(&line, "d")? as u64, (number(&line, "p")? * 1e3).round() as u64);
            let algorithm = line["algorithm"].as_str().context("no algorithm")?.to_owned();
            let mean = number(reference, "mean_ns")?;
            sets.entry((distance, p, algorithm)).or_default().push((line, mean));
        }
    }
    sets.into_iter().map(row).collect()
}

/// The row of a set: means of whole batches, and beside them what single decodes took.
fn row(((distance, p, algorithm), turns): ((u64, u64, String), Vec<(Value, f64)>)) -> Result<Row> {
    let of = |key: &str| -> Result<f64> {
        let figures = turns.iter().map(|(line, _)| number(line, key)).collect::<Result<Vec<_>>>()?;
        Ok(median(figures.into_iter()))
    };
    let (p50, p99, p999, agrees) = (of("p50_ns")?, of("p99_ns")?, of("p999_ns")?, 100.0 * of("agreement")?);
    let most = match (algorithm.as_str(), distance, p) {
        ("mwpm", 5, 1) => Some(5000.0),
        ("mwpm", ..) => None,
        _ => Some(500.0),
    };
    let pairs = turns
        .iter()
        .map(|(line, theirs)| Ok(Pair { state: String::new(), ours: number(line, "mean_ns")?, theirs: *theirs }));
    Ok(Row {
        case: format!(
            "qec_decode {algorithm} d = {distance}, p = 0.{p} %, mean; p50 {p50:.0} ns, p99 {p99:.0} ns, p99.9 {p999:.0} ns, \
             agrees {agrees:.2} %"
        ),
        baseline: "PyMatching decode_batch, mean".into(),
        unit: "ns",
        reach: most.map_or(Reach::Printed, |most| Reach::Other(format!("p50 < {most} ns"), p50 < most)),
        pairs: pairs.collect::<Result<_>>()?,
    })
}
