//! `cargo xtask bench rpc`, `lease`, `rdma`, `nvme`, `wasm`, `gpu`, `hip`, `knobs` and `telemetry`: the speed tables.
//!
//! Two contestants take turns many times over, so that both see the same moods of the machine; a row is the median of
//! the ratios of neighbours, with an interval around it where there are turns enough. On two cores the distance between them
//! changes as the host moves them, so that rows over two cores are kept apart by the state in which both neighbours ran: near
//! or far.

mod appliance;
mod capacity;
mod gpu;
mod guest;
mod hip;
mod knobs;
mod lease;
mod network;
mod nvme;
mod ofi;
mod programs;
mod qec;
mod rdma;
mod telemetry;
mod wasm;

use std::{fmt::Write as _, time::Instant};

use anyhow::Result;

pub(crate) use network::OUT;

use crate::{build, setup};

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
    /// The rate of servers that had no time left: at least so much, judged where both were busy for [`BUSY`] of their time.
    /// By pair, the shares of ours and theirs.
    Capacity(Option<f64>, Vec<[f64; 2]>),
    /// Something else, in words, and whether it was met.
    Other(String, bool),
    Printed,
}

/// The least share of its time that a server must have had work for a rate to be its own, and not its client's.
const BUSY: f64 = 0.95;

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
    build::berth()?;
    let mut rows = network::rows()?;
    rows.extend(programs::rows()?);
    report("rpc", &rows)
}

pub(crate) fn lease() -> Result<()> {
    setup::all()?;
    build::berth()?;
    report("lease", &lease::rows()?)
}

pub(crate) fn rdma() -> Result<()> {
    setup::all()?;
    build::berth()?;
    let mut rows = rdma::host_rows()?;
    rows.extend(ofi::rows()?);
    rows.extend(guest::rows(&rdma::GUESTS)?);
    report("rdma", &rows)
}

pub(crate) fn nvme(part: Option<&str>) -> Result<()> {
    setup::all()?;
    build::berth()?;
    let mut rows = Vec::new();
    if part != Some("guest") {
        rows.extend(nvme::rows()?);
    }
    if part != Some("host") {
        rows.extend(guest::rows(&["nvme"])?);
    }
    report(&part.map_or("nvme".into(), |part| format!("nvme-{part}")), &rows)
}

pub(crate) fn wasm(part: Option<&str>) -> Result<()> {
    setup::build()?;
    build::berth()?;
    let mut rows = Vec::new();
    if part != Some("messages") {
        rows.extend(wasm::tasklets()?);
    }
    if part != Some("tasklets") {
        rows.extend(wasm::messages()?);
    }
    report(&part.map_or("wasm".into(), |part| format!("wasm-{part}")), &rows)
}

pub(crate) fn gpu() -> Result<()> {
    setup::all()?;
    build::berth()?;
    gpu::run_all()
}

/// Each row of a GPU once, over NVIDIA's driver in software.
pub(crate) fn gpu_quick() -> Result<()> {
    setup::build()?;
    build::berth()?;
    gpu::quick()
}

pub(crate) use gpu::{each_row as gpu_rows, rows_over};

/// Whether there is a GPU of NVIDIA's that functions run on.
pub(crate) fn has_card() -> Result<bool> {
    Ok(gpu::Card::find()?.is_some())
}

/// What `bench gpu` prints, of what was built; no row is begun later than `until`.
pub(crate) fn gpu_table(until: Instant) -> Result<gpu::Table> {
    gpu::Table::measure(until)
}

/// With `quick`, little of everything.
pub(crate) fn qec(quick: bool) -> Result<()> {
    setup::all()?;
    let (name, scale) = if quick { ("qec-quick", qec::QUICK) } else { ("qec", qec::WHOLE) };
    report(name, &qec::rows(&scale)?)
}

pub(crate) fn hip() -> Result<()> {
    setup::all()?;
    build::berth()?;
    let table = table(&hip::rows()?) + &hip::not_measured();
    written("hip", &table)
}

pub(crate) fn knobs() -> Result<()> {
    setup::all()?;
    build::berth()?;
    report("knobs", &knobs::rows()?)
}

pub(crate) fn appliance() -> Result<()> {
    setup::all()?;
    build::berth()?;
    report("appliance", &appliance::rows()?)
}

pub(crate) fn telemetry() -> Result<()> {
    setup::all()?;
    telemetry::build()?;
    report("telemetry", &telemetry::rows()?)
}

fn report(name: &str, rows: &[Row]) -> Result<()> {
    written(name, &table(rows))
}

fn written(name: &str, table: &str) -> Result<()> {
    println!("\n{table}");
    std::fs::create_dir_all(OUT)?;
    std::fs::write(format!("{OUT}/{name}.md"), table)?;
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
            let at: Vec<usize> = (0..row.pairs.len()).filter(|at| row.pairs[*at].state == state).collect();
            let of_state = || at.iter().map(|at| &row.pairs[*at]);
            let mut ours = figure(median(of_state().map(|pair| pair.ours)), row.unit);
            let mut theirs = figure(median(of_state().map(|pair| pair.theirs)), row.unit);
            let ratios: Vec<f64> = of_state().map(|pair| pair.ours / pair.theirs).collect();
            let ratio = median(ratios.iter().copied());
            let added = median(of_state().map(|pair| pair.ours - pair.theirs));
            let (reach, met) = match &row.reach {
                Reach::AtMost(most) => (format!("<= {most:.2}x"), Some(ratio <= *most)),
                Reach::AtLeast(least) => (format!(">= {least:.2}x"), Some(ratio >= *least)),
                Reach::Added(most) => (format!("< {most} {} added", row.unit), Some(added < *most)),
                Reach::Capacity(least, busy) => {
                    let [our, their] = [0, 1].map(|side| median(at.iter().map(|at| busy[*at][side])));
                    let _ = write!(ours, ", busy {:.0} %", 100.0 * our);
                    let _ = write!(theirs, ", busy {:.0} %", 100.0 * their);
                    match least {
                        _ if our.min(their) < BUSY => (format!("not judged: busy < {:.0} %", 100.0 * BUSY), None),
                        Some(least) => (format!(">= {least:.2}x"), Some(ratio >= *least)),
                        None => ("printed".into(), None),
                    }
                }
                Reach::Other(reach, met) => (reach.clone(), Some(*met)),
                Reach::Printed => ("printed".into(), None),
            };
            let _ = writeln!(
                text,
                "| {} | {} | {state} | {} | {ours} | {theirs} | {} | {reach} | {} |",
                row.case,
                row.baseline,
                at.len(),
                if ratio.is_nan() { String::new() } else { with_interval(ratio, ratios) },
                met.map_or("", |met| if met { "met" } else { "short" }),
            );
        }
    }
    text
}

/// A median ratio, and the interval that holds the true one in 95 of 100 such tables, by the order of the pairs' ratios; fewer
/// than six pairs tell none.
fn with_interval(median: f64, mut ratios: Vec<f64>) -> String {
    ratios.sort_unstable_by(f64::total_cmp);
    let (pairs, mut below, mut chance) = (ratios.len(), 0, 0.5_f64.powi(ratios.len() as i32));
    let mut tail = chance;
    // The true median lies below the n-th ratio as often as a coin falls so fewer than n times.
    while tail <= 0.025 && 2 * below + 2 < pairs {
        below += 1;
        chance *= (pairs + 1 - below) as f64 / below as f64;
        tail += chance;
    }
    match below {
        0 => format!("{median:.2}x"),
        _ => format!("{median:.2}x [{:.2}, {:.2}]", ratios[below - 1], ratios[pairs - below]),
    }
}

/// Both of a pair, ours first in every other turn: the second finds a warmer machine.
fn in_turn<T>(turn: usize, ours: impl FnOnce() -> Result<T>, theirs: impl FnOnce() -> Result<T>) -> Result<(T, T)> {
    if turn.is_multiple_of(2) {
        let ours = ours()?;
        Ok((ours, theirs()?))
    } else {
        let theirs = theirs()?;
        Ok((ours()?, theirs))
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn row(reach: Reach, ratios: &[f64]) -> Row {
        let pairs = ratios.iter().map(|ratio| Pair { state: String::new(), ours: *ratio, theirs: 1.0 }).collect();
        Row { case: "c".into(), baseline: "b".into(), unit: "M/s", reach, pairs }
    }

    #[test]
    fn a_rate_is_judged_where_both_servers_were_busy() {
        let ends = |busy: [f64; 2], end: &str| {
            let text = table(&[row(Reach::Capacity(Some(0.9), vec![busy]), &[0.95])]);
            assert!(text.trim_end().ends_with(end), "{text}");
        };
        ends([0.99, 0.96], "| 0.95 M/s, busy 99 % | 1.00 M/s, busy 96 % | 0.95x | >= 0.90x | met |");
        ends([0.99, 0.94], "| not judged: busy < 95 % |  |");
        ends([0.50, 0.99], "| not judged: busy < 95 % |  |");
    }

    #[test]
    fn intervals_are_those_of_the_median() {
        // Of six coins all fall alike with a chance of 2 in 64, of five with 2 in 32; of 20 five or fewer with 4.1 %.
        let ratios = |n: usize| (1..=n).map(|n| n as f64).collect::<Vec<_>>();
        assert_eq!(with_interval(3.0, ratios(5)), "3.00x");
        assert_eq!(with_interval(3.5, ratios(6)), "3.50x [1.00, 6.00]");
        assert_eq!(with_interval(10.5, ratios(20)), "10.50x [6.00, 15.00]");
    }

    #[test]
    fn the_order_of_a_pair_alternates() {
        let order = std::cell::RefCell::new(String::new());
        let side = |name: &'static str| {
            let order = &order;
            move || {
                order.borrow_mut().push_str(name);
                Ok(name)
            }
        };
        for turn in 0..3 {
            assert_eq!(in_turn(turn, side("o"), side("t")).unwrap(), ("o", "t"));
        }
        assert_eq!(order.into_inner(), "ottoot");
    }
}
