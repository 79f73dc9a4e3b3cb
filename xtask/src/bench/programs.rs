//! Rows of programs that measure themselves and print JSON lines.

mod decoders;

use anyhow::{Context, Result};
use serde_json::Value;

use super::{Pair, Reach, Row};
use crate::{
    build,
    sh::{cmd, output},
};

/// The core of measurements on one core.
pub(super) const CPU: &str = "1";

pub(super) fn rows() -> Result<Vec<Row>> {
    let headers = ("headers of a datagram of 56 B, frame in to frame out, one core", "udp_ns", 30.0);
    let dispatch = [
        ("dispatch of rpc_increment 32 B, inline, frame in to frame out, one core", "dispatch_ns", 25.0),
        ("dispatch of rpc_increment 32 B, ring, slot in to slot out, one core", "ring_ns", 60.0),
    ];
    let mut rows = beside_a_copy("berth-net", "host_bench", "memcpy of the frame", &[headers])?;
    rows.extend(beside_a_copy("berth-rpc", "dispatch_bench", "memcpy of the payload", &dispatch)?);
    rows.push(ring()?);
    rows.push(burst()?);
    rows.extend(decoders::rows()?);
    Ok(rows)
}

/// The JSON lines that an example prints.
pub(super) fn example(package: &str, name: &str, pinned: bool) -> Result<Vec<Value>> {
    let binary = build::example(package, name)?;
    let mut program = if pinned { cmd("taskset", ["-c", CPU, &binary]) } else { cmd::<&str>(&binary, []) };
    lines(&output(&mut program)?)
}

pub(super) fn lines(text: &str) -> Result<Vec<Value>> {
    text.lines().map(|line| serde_json::from_str(line).with_context(|| format!("no JSON: {line}"))).collect()
}

pub(super) fn number(line: &Value, key: &str) -> Result<f64> {
    line[key].as_f64().with_context(|| format!("{line} has no {key}"))
}

/// What an example prints under these names, with what each may add to a copy at most, in nanoseconds.
fn beside_a_copy(package: &str, name: &str, copy: &str, cases: &[(&str, &str, f64)]) -> Result<Vec<Row>> {
    let lines = example(package, name, true)?;
    let rows = cases.iter().map(|&(case, key, most)| {
        let pairs = lines.iter().map(|line| {
            let (ours, theirs) = (number(line, key)?, number(line, "memcpy_ns")?);
            Ok(Pair { state: String::new(), ours, theirs })
        });
        Ok(Row {
            case: case.into(),
            baseline: copy.into(),
            unit: "ns",
            reach: Reach::Added(most),
            pairs: pairs.collect::<Result<_>>()?,
        })
    });
    rows.collect()
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
        reach: Reach::AtMost(1.3),
        pairs: pairs.collect::<Result<_>>()?,
    })
}

/// When the first of a burst is answered, whose decodes take long.
fn burst() -> Result<Row> {
    let lines = example("berth-perf", "burst_bench", false)?;
    let pairs = lines.iter().map(|line| {
        let (ours, theirs) = (number(line, "first_of_32_ns")? / 1e3, number(line, "alone_ns")? / 1e3);
        Ok(Pair { state: String::new(), ours, theirs })
    });
    Ok(Row {
        case: "first answer of a burst of 32 qec_decode mwpm, d = 7, p = 0.5 %".into(),
        baseline: "the same request alone".into(),
        unit: "us",
        reach: Reach::AtMost(2.0),
        pairs: pairs.collect::<Result<_>>()?,
    })
}
