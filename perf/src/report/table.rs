//! The table for people.

use std::fmt::Write as _;

use super::json::{CaseReport, Latency, Report};
use crate::bounce::Bounce;

const HEADINGS: [&str; 15] = [
    "case", "n", "rate/s", "min", "p50", "p90", "p99", "p99.9", "p99.99", "max", "lost", "dup", "reord", "refused",
    "wrong",
];

/// The results as text, latencies in microseconds.
pub fn render(report: &Report) -> String {
    let mut rows = vec![HEADINGS.map(String::from)];
    for case in &report.cases {
        rows.push(row(case));
        if case.functions.len() > 1 {
            rows.extend(case.functions.iter().map(|function| {
                let mut cells: [String; 15] = std::array::from_fn(|_| String::new());
                cells[0] = format!("  {}", function.name);
                cells[1] = function.latency.n.to_string();
                cells[3..10].clone_from_slice(&latencies(&function.latency));
                cells
            }));
        }
    }
    let mut text = String::from("latency in us, from the intended send to the answer\n");
    let widths: [usize; 15] = std::array::from_fn(|i| rows.iter().map(|row| row[i].chars().count()).max().unwrap_or(0));
    for row in &rows {
        let _ = write!(text, "{:<width$}", row[0], width = widths[0]);
        for (cell, width) in row.iter().zip(widths).skip(1) {
            let _ = write!(text, "  {cell:>width$}");
        }
        text.push('\n');
    }
    for case in &report.cases {
        remarks(&mut text, case);
    }
    text
}

fn row(case: &CaseReport) -> [String; 15] {
    let counts = &case.counts;
    let mut cells: [String; 15] = std::array::from_fn(|_| String::new());
    cells[0].clone_from(&case.name);
    cells[1] = case.latency.n.to_string();
    cells[2] = format!("{:.0}", case.answered_per_s);
    cells[3..10].clone_from_slice(&latencies(&case.latency));
    let tail = [counts.lost, counts.duplicates, counts.reordered, counts.refused, counts.bad()];
    for (cell, count) in cells[10..].iter_mut().zip(tail) {
        *cell = count.to_string();
    }
    cells
}

fn latencies(latency: &Latency) -> [String; 7] {
    let Latency { min, p50, p90, p99, p99_9, p99_99, max, .. } = *latency;
    [min, p50, p90, p99, p99_9, p99_99, max]
        .map(|ns| if latency.n > 0 { format!("{:.2}", ns as f64 / 1e3) } else { "-".into() })
}

/// What a reader must know beside the figures.
fn remarks(text: &mut String, case: &CaseReport) {
    let hiccups = &case.hiccups;
    let bounce = |bounce: Option<Bounce>| {
        bounce.map_or("not measured".into(), |b| format!("{:.2} us ({})", b.median_ns / 1e3, b.state.name()))
    };
    let _ = writeln!(
        text,
        "{}: bounce {} before, {} after; hiccups: {} over 100 us, longest {:.0} us",
        case.name,
        bounce(case.bounce_before),
        bounce(case.bounce_after),
        hiccups.over_100_us,
        hiccups.max_ns as f64 / 1e3
    );
    if let Some(schedule) = &case.schedule {
        let [_, p50, _, p99, _, _, max] = latencies(&schedule.lag);
        let _ = writeln!(text, "  sent after it was due: p50 {p50} us, p99 {p99} us, longest {max} us");
        let [_, p50, _, p99, p99_9, ..] = latencies(&schedule.from_sent);
        let _ = writeln!(text, "  latency from the real send: p50 {p50} us, p99 {p99} us, p99.9 {p99_9} us");
    }
    let counts = &case.counts;
    let share = |part: u64| part as f64 / counts.predictions as f64 * 100.0;
    if counts.compared() > 0 {
        let _ = writeln!(
            text,
            "  {} predictions: {:.3} % agree with the reference; logical errors {} ({:.3} %), reference {} ({:.3} %)",
            counts.predictions,
            share(counts.agreements),
            counts.logical_errors,
            share(counts.logical_errors),
            counts.reference_logical_errors,
            share(counts.reference_logical_errors)
        );
    } else if counts.predictions > 0 {
        let errors = counts.logical_errors;
        let _ =
            writeln!(text, "  {} predictions: logical errors {errors} ({:.3} %)", counts.predictions, share(errors));
    }
    if let Some(rate) = case.logical_errors() {
        let [low, high] = rate.wilson().map(|end| end * 100.0);
        let _ = writeln!(
            text,
            "  {} different shots: the rate of logical errors is {low:.3} to {high:.3} % (95 %, Wilson)",
            rate.shots
        );
    }
    for refusal in &case.refusals {
        let status = refusal.status.map_or("others".into(), |status| format!("status {status}"));
        let name = refusal.name.as_ref().map_or(String::new(), |name| format!(" ({name})"));
        let _ = writeln!(text, "  refused: {} with {status}{name}", refusal.count);
    }
    let rare = [
        (counts.late, "lost requests were answered after the timeout"),
        (counts.stale, "answers were to requests too old to tell late from duplicate"),
        (counts.other_source, "frames came from another address than the peer's"),
        (counts.unsent, "requests were due and never sent: the server, or this client, is slower than the rate"),
        (counts.backpressure, "times the port had no room for a request that was due"),
    ];
    for (count, what) in rare.into_iter().filter(|(count, _)| *count > 0) {
        let _ = writeln!(text, "  {count} {what}");
    }
    if let Some(mistake) = &case.first_mistake {
        let _ = writeln!(text, "  first mistake: {mistake}");
    }
}
