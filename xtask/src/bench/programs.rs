//! Rows of programs that measure both sides themselves and print JSON lines.

use anyhow::{Context, Result};
use serde_json::Value;

use super::{Pair, Reach, Row};
use crate::{
    setup,
    sh::{cargo, cmd, output},
};

/// The core of measurements on one core.
const CPU: &str = "1";

pub(super) fn rows() -> Result<Vec<Row>> {
    let mut rows = dispatch()?;
    rows.push(ring()?);
    rows.extend(decoders()?);
    Ok(rows)
}

/// Builds an example and returns its path.
pub(super) fn build(package: &str, name: &str) -> Result<String> {
    crate::sh::run(&mut cargo(["build", "--release", "--quiet", "-p", package, "--example", name]))?;
    Ok(format!("target/release/examples/{name}"))
}

/// The JSON lines that an example prints.
pub(super) fn example(package: &str, name: &str, pinned: bool) -> Result<Vec<Value>> {
    let binary = build(package, name)?;
    let mut program = if pinned { cmd("taskset", ["-c", CPU, &binary]) } else { cmd::<&str>(&binary, []) };
    lines(&output(&mut program)?)
}

pub(super) fn lines(text: &str) -> Result<Vec<Value>> {
    text.lines().map(|line| serde_json::from_str(line).with_context(|| format!("no JSON: {line}"))).collect()
}

pub(super) fn number(line: &Value, key: &str) -> Result<f64> {
    line[key].as_f64().with_context(|| format!("{line} has no {key}"))
}

fn dispatch() -> Result<Vec<Row>> {
    let lines = example("berth-rpc", "dispatch_bench", true)?;
    let rows = [("inline, frame in to frame out", "dispatch_ns"), ("ring, slot in to slot out", "ring_ns")];
    let rows = rows.map(|(path, key)| {
        let pairs = lines.iter().map(|line| {
            let (ours, theirs) = (number(line, key)?, number(line, "memcpy_ns")?);
            Ok(Pair { state: String::new(), ours, theirs })
        });
        Ok(Row {
            case: format!("dispatch of rpc_increment 32 B, {path}, one core"),
            baseline: "memcpy of the payload".into(),
            unit: "ns",
            reach: Reach::Added(60.0),
            pairs: pairs.collect::<Result<_>>()?,
        })
    });
    rows.into_iter().collect()
}

fn ring() -> Result<Row> {
    let lines = example("berth-ring", "pingpong_bench", false)?;
    let pairs = lines.into_iter().filter(|line| line["round"].is_u64()).map(|line| {
        let (ours, theirs) = (number(&line, "ring_ns")?, number(&line, "bare_ns")?);
        let state = if theirs < 250.0 { "near" } else { "far" };
        Ok(Pair { state: state.into(), ours, theirs })
    });
    Ok(Row {
        case: "ring dispatch to a second core, 32 B".into(),
        baseline: "bare two-core ping-pong".into(),
        unit: "ns",
        reach: Reach::AtMost(1.5),
        pairs: pairs.collect::<Result<_>>()?,
    })
}

fn decoders() -> Result<Vec<Row>> {
    let python = setup::python()?;
    let ours = example("berth-qec", "decode_bench", true)?;
    let reference = cmd("taskset", ["-c", CPU, &python.to_string_lossy(), "perf/baselines/pymatching_decode.py"]);
    let theirs = lines(&output(&mut { reference })?)?;
    let rows = ours.iter().map(|line| {
        let (distance, p, algorithm) =
            (number(line, "d")?, number(line, "p")?, line["algorithm"].as_str().unwrap_or(""));
        let same = |other: &&Value| other["d"] == line["d"] && other["p"] == line["p"];
        let reference = theirs.iter().find(same).context("PyMatching did not decode this set")?;
        let (p50, share) = (number(line, "p50_ns")?, 100.0 * number(line, "agreement")?);
        let most = match (algorithm, distance as u32) {
            ("mwpm", 5) if p < 0.002 => Some(5000.0),
            ("lut1" | "lut2", _) => Some(500.0),
            _ => None,
        };
        Ok(Row {
            case: format!(
                "qec_decode {algorithm} d = {distance}, p = {} %, mean; p50 {p50} ns, agrees {share:.2} %",
                100.0 * p
            ),
            baseline: "PyMatching decode_batch, mean".into(),
            unit: "ns",
            reach: most.map_or(Reach::Printed, |most| Reach::Other(format!("p50 < {most} ns"), p50 < most)),
            pairs: vec![Pair {
                state: String::new(),
                ours: number(line, "mean_ns")?,
                theirs: number(reference, "mean_ns")?,
            }],
        })
    });
    rows.collect()
}
