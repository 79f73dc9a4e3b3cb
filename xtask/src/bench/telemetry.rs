//! What telemetry costs: Berth against itself with telemetry compiled out.

use std::fs;

use anyhow::{Context, Result};
use serde_json::Value;

use super::{
    Pair, Reach, Row,
    network::{self, Contest, Figure, OUT, PAGES, berth_of, contest, round_trip, throughput},
};
use crate::{
    hugepages::Hugepages,
    serve::{self, BERTH},
    sh::{cargo, run},
};

/// The same program that times nothing and publishes nothing.
const WITHOUT: &str = "target/bench/berth-no-telemetry";

const NAME: &str = "telemetry";

/// A hundredth is to be told apart.
const TURNS: usize = 31;

/// Builds both; the other one first, since both come out under the same name.
pub(super) fn build() -> Result<()> {
    fs::create_dir_all(OUT)?;
    let features = format!("{},no-telemetry", serve::FEATURES);
    run(&mut cargo(["build", "--release", "-p", "berth", "--features", &features]))?;
    fs::copy(BERTH, WITHOUT)?;
    serve::build()
}

pub(super) fn rows() -> Result<Vec<Row>> {
    let _pages = Hugepages::reserve(2 * PAGES);
    let mut rows = contest(&Contest {
        name: NAME,
        baseline: "telemetry compiled out",
        turns: TURNS,
        ours: Box::new(|| network::berth("memif", 32)),
        theirs: Box::new(|| berth_of(WITHOUT, "memif", 32)),
        figures: vec![
            throughput("rpc_increment 32 B, memif, open throughput", Reach::Printed),
            Figure { reach: Reach::Printed, ..round_trip("rpc_increment 32 B, memif, RTT p50", 1.0) },
        ],
    })?;
    rows.insert(0, undisturbed()?);
    Ok(rows)
}

/// The throughput while nothing disturbs: a hundredth cannot be told from whole turns, in which the host moves the cores
/// or takes them away.
fn undisturbed() -> Result<Row> {
    let ours = slices("berth")?;
    let theirs = slices("baseline")?;
    let without = |turn: Option<usize>| (fastest(&ours, turn), fastest(&theirs, turn));
    let (with, compiled_out) = without(None);
    // The jackknife's standard error, leaving out a turn of both.
    let ratios: Vec<f64> = (0..TURNS).map(|turn| without(Some(turn))).map(|(ours, theirs)| ours / theirs).collect();
    let mean = ratios.iter().sum::<f64>() / TURNS as f64;
    let squares: f64 = ratios.iter().map(|ratio| (ratio - mean).powi(2)).sum();
    let error = (squares * (TURNS - 1) as f64 / TURNS as f64).sqrt();
    Ok(Row {
        case: "rpc_increment 32 B, memif, open throughput, fastest tenth of all 0.1 s".into(),
        baseline: "telemetry compiled out".into(),
        unit: "M/s",
        reach: Reach::Other(format!(">= 0.99x (standard error {error:.3})"), with / compiled_out >= 0.99),
        pairs: vec![Pair { state: "any".into(), ours: with, theirs: compiled_out }],
    })
}

/// Answers in each tenth of a second of each turn, in millions a second.
fn slices(contestant: &str) -> Result<Vec<Vec<f64>>> {
    let turn = |turn: usize| {
        let report: Value =
            serde_json::from_str(&fs::read_to_string(format!("{OUT}/{NAME}-0-{contestant}-{turn}.json"))?)?;
        let slices = report["cases"][0]["timeline"].as_array().context("the report lacks its timeline")?;
        let rate = |slice: &Value| Some(slice["answered"].as_f64()? / slice["seconds"].as_f64()? * 1e-6);
        // The last one is what is left.
        let whole = slices.iter().filter(|slice| slice["seconds"].as_f64() > Some(0.09));
        whole.map(rate).collect::<Option<Vec<f64>>>().context("the report's timeline lacks a field")
    };
    (0..TURNS).map(turn).collect()
}

/// The mean of the fastest tenth of all slices, those of one turn left out.
fn fastest(turns: &[Vec<f64>], left_out: Option<usize>) -> f64 {
    let kept = turns.iter().enumerate().filter(|(turn, _)| Some(*turn) != left_out);
    let mut slices: Vec<f64> = kept.flat_map(|(_, slices)| slices).copied().collect();
    slices.sort_unstable_by(|a, b| b.total_cmp(a));
    slices.truncate(slices.len() / 10);
    slices.iter().sum::<f64>() / slices.len() as f64
}
