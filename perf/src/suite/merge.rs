//! Several runs of one client as one case.

use super::turns::Taken;
use crate::{
    hiccup::Hiccups,
    report::{
        case::Point,
        json::{CaseReport, Latency, Schedule, spectrum},
        sparse::Sparse,
        suite::Turn,
    },
    tally::histogram,
};

/// One run as a turn.
pub(super) fn turn(taken: &Taken) -> Turn {
    let report = &taken.report;
    Turn {
        at_s: taken.at_s,
        seconds: report.seconds,
        answered_per_s: report.answered_per_s,
        counts: report.counts,
        latency: report.latency,
        histogram: report.histogram.clone(),
        hiccups: report.hiccups,
        bounce_before: report.bounce_before,
        bounce_after: report.bounce_after,
    }
}

/// All runs as one case, and each as a turn of it. There is at least one.
pub(super) fn turns(name: String, taken: impl Iterator<Item = Taken>) -> CaseReport {
    let taken: Vec<Taken> = taken.collect();
    let schedule = schedule(&taken);
    let (mut latency, mut hiccups) = (histogram(), histogram());
    let turns: Vec<Turn> = taken.iter().map(turn).collect();
    let mut taken = taken.into_iter();
    let first = taken.next().expect("a case has a turn");
    let mut merged = CaseReport { name, setup: first.setup, ..first.report };
    latency.add(merged.histogram.histogram()).expect("equal bounds");
    hiccups.add(merged.hiccup_histogram.histogram()).expect("equal bounds");
    for Taken { report, .. } in taken {
        latency.add(report.histogram.histogram()).expect("equal bounds");
        hiccups.add(report.hiccup_histogram.histogram()).expect("equal bounds");
        merged.counts.add(&report.counts);
        merged.seconds += report.seconds;
        merged.bounce_after = report.bounce_after;
        merged.streams.extend(report.streams);
        merged.first_mistake = merged.first_mistake.or(report.first_mistake);
        for (name, count) in report.port_counters {
            *merged.port_counters.entry(name).or_default() += count;
        }
        for refusal in report.refusals {
            match merged.refusals.iter_mut().find(|known| known.status == refusal.status) {
                Some(known) => known.count += refusal.count,
                None => merged.refusals.push(refusal),
            }
        }
        let end = merged.timeline.last().map_or(0.0, |point| point.at_s + point.seconds);
        merged.timeline.extend(report.timeline.into_iter().map(|point| Point { at_s: point.at_s + end, ..point }));
    }
    merged.answered_per_s = if merged.seconds > 0.0 { merged.counts.answered as f64 / merged.seconds } else { 0.0 };
    // Quantiles of parts do not add up; those of the whole are made of its histogram.
    merged.functions.clear();
    merged.latency = Latency::of(&latency);
    merged.schedule = schedule;
    merged.spectrum = spectrum(&latency);
    merged.hiccups = Hiccups::of(&hiccups);
    merged.histogram = Sparse::of(&latency);
    merged.hiccup_histogram = Sparse::of(&hiccups);
    merged.turns = turns;
    merged
}

/// How the client of all runs kept its schedule.
pub(super) fn schedule(taken: &[Taken]) -> Option<Schedule> {
    Schedule::merged(taken.iter().filter_map(|taken| taken.report.schedule.as_ref()))
}

/// The latency of all runs together.
pub(super) fn latency(taken: &[Taken]) -> Latency {
    let mut all = histogram();
    for taken in taken {
        all.add(taken.report.histogram.histogram()).expect("equal bounds");
    }
    Latency::of(&all)
}
