//! Rows of suites of `lab/bench`, each in a guest of its own.

use anyhow::{Context, Result};
use serde::Deserialize;

use super::{Pair, Reach, Row};
use crate::lab;

/// A pair of figures, as a suite of `lab/bench` prints it.
#[derive(Deserialize)]
struct Line {
    case: String,
    baseline: String,
    /// The ratio to reach at most; without it and `least` the row is printed.
    reach: Option<f64>,
    /// The ratio to reach at least.
    least: Option<f64>,
    /// Of both figures.
    #[serde(default)]
    unit: Unit,
    ours: f64,
    theirs: f64,
}

#[derive(Deserialize, Default, Clone, Copy)]
enum Unit {
    #[default]
    #[serde(rename = "us")]
    Micros,
    #[serde(rename = "k/s")]
    ThousandsPerSecond,
    #[serde(rename = "MB/s")]
    MegabytesPerSecond,
}

/// Runs these suites, and makes a row of each case.
pub(super) fn rows(suites: &[&str]) -> Result<Vec<Row>> {
    let mut rows: Vec<Row> = Vec::new();
    for line in lab::bench(suites)?.lines() {
        let Line { case, baseline, reach, least, unit, ours, theirs } =
            serde_json::from_str(line).with_context(|| format!("not a pair of figures: {line}"))?;
        let pair = Pair { state: "guest".into(), ours, theirs };
        if let Some(row) = rows.iter_mut().find(|row| row.case == case) {
            row.pairs.push(pair);
            continue;
        }
        let reach = match (reach, least) {
            (Some(most), _) => Reach::AtMost(most),
            (None, Some(least)) => Reach::AtLeast(least),
            (None, None) => Reach::Printed,
        };
        let unit = match unit {
            Unit::Micros => "us",
            Unit::ThousandsPerSecond => "k/s",
            Unit::MegabytesPerSecond => "MB/s",
        };
        rows.push(Row { case, baseline, unit, reach, pairs: vec![pair] });
    }
    Ok(rows)
}
