//! `cargo xtask bench rpc`, `lease`, `rdma`, `knobs` and `telemetry`: the speed tables.
//!
//! Two contestants take turns many times over, so that both see the same moods of the machine; a row is the median of
//! the ratios of neighbours. On two cores the distance between them changes as the host moves them, so that rows over
//! two cores are kept apart by the state in which both neighbours ran: near or far.

mod appliance;
mod knobs;
mod lease;
mod network;
mod ofi;
mod programs;
mod rdma;
mod telemetry;

use std::fmt::Write as _;

use anyhow::Result;

use crate::{serve, setup};

/// A figure and what it is measured against, taken one right after the other.
#[derive(Debug, Clone)]
pub(crate) struct Pair {
    /// `near`, `far`, or `mixed` where it changed in between; empty where one core is involved.
    pub(crate) state: String,
    pub(crate) ours: f64,
    /// NaN where there is no baseline.
    pub(crate) theirs: f64,
}

/// How a row's ratio is judged.
#[derive(Debug, Clone)]
pub(crate) enum Reach {
    AtMost(f64),
    AtLeast(f64),
    /// Ours less theirs, in their unit.
    Added(f64),
    /// Something else, in words, and whether it was met.
    Other(String, bool),
    Printed,
}

/// One row of the table.
pub(crate) struct Row {
    pub(crate) case: String,
    pub(crate) baseline: String,
    pub(crate) unit: &'static str,
    pub(crate) reach: Reach,
    pub(crate) pairs: Vec<Pair>,
}

pub(crate) fn rpc() -> Result<()> {
    setup::all()?;
    serve::build()?;
    let mut rows = network::rows()?;
    rows.extend(programs::rows()?);
    report("rpc", &rows)
}

pub(crate) fn lease() -> Result<()> {
    setup::all()?;
    serve::build()?;
    report("lease", &lease::rows()?)
}

pub(crate) fn rdma() -> Result<()> {
    setup::all()?;
    serve::build()?;
    let mut rows = rdma::host_rows()?;
    rows.extend(ofi::rows()?);
    rows.extend(rdma::guest_rows()?);
    report("rdma", &rows)
}

pub(crate) fn knobs() -> Result<()> {
    setup::all()?;
    serve::build()?;
    report("knobs", &knobs::rows()?)
}

pub(crate) fn appliance() -> Result<()> {
    setup::all()?;
    serve::build()?;
    report("appliance", &appliance::rows()?)
}

pub(crate) fn telemetry() -> Result<()> {
    setup::all()?;
    telemetry::build()?;
    report("telemetry", &telemetry::rows()?)
}

fn report(name: &str, rows: &[Row]) -> Result<()> {
    let table = table(rows);
    println!("\n{table}");
    std::fs::write(format!("target/bench/{name}.md"), table)?;
    println!("written to target/bench/{name}.md; every run's own report lies beside it");
    Ok(())
}

fn table(rows: &[Row]) -> String {
    let mut text = String::from(
        "| case | baseline | state | pairs | ours | baseline's | ratio | reach | |\n|---|---|---|---|---|---|---|---|---|\n",
    );
    for row in rows {
        let mut states: Vec<&str> = row.pairs.iter().map(|pair| pair.state.as_str()).collect();
        states.sort_unstable();
        states.dedup();
        for state in states {
            let of_state: Vec<&Pair> = row.pairs.iter().filter(|pair| pair.state == state).collect();
            let ours = median(of_state.iter().map(|pair| pair.ours));
            let theirs = median(of_state.iter().map(|pair| pair.theirs));
            let ratio = median(of_state.iter().map(|pair| pair.ours / pair.theirs));
            let added = median(of_state.iter().map(|pair| pair.ours - pair.theirs));
            let (reach, met) = match &row.reach {
                Reach::AtMost(most) => (format!("<= {most:.2}x"), Some(ratio <= *most)),
                Reach::AtLeast(least) => (format!(">= {least:.2}x"), Some(ratio >= *least)),
                Reach::Added(most) => (format!("< {most} {} added", row.unit), Some(added < *most)),
                Reach::Other(reach, met) => (reach.clone(), Some(*met)),
                Reach::Printed => ("printed".into(), None),
            };
            let _ = writeln!(
                text,
                "| {} | {} | {state} | {} | {} | {} | {} | {reach} | {} |",
                row.case,
                row.baseline,
                of_state.len(),
                figure(ours, row.unit),
                figure(theirs, row.unit),
                if ratio.is_nan() { String::new() } else { format!("{ratio:.2}x") },
                met.map_or("", |met| if met { "met" } else { "short" }),
            );
        }
    }
    text
}

fn figure(value: f64, unit: &str) -> String {
    match value {
        _ if value.is_nan() => String::new(),
        100.0.. => format!("{value:.0} {unit}"),
        _ => format!("{value:.2} {unit}"),
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[n / 2],
        n => f64::midpoint(values[n / 2 - 1], values[n / 2]),
    }
}
