//! Load from below to beyond what a server can answer.
//!
//! Saturation is measured first, with a closed loop. Then requests are due on a schedule that waits for nothing, at parts
//! and multiples of that rate, and each latency counts from the moment its request was due.

use std::sync::atomic::Ordering::Relaxed;

use anyhow::bail;

use super::{
    bench::{Bench, Measure},
    books,
    file::{Overload, Suite},
    merge,
    turns::Taken,
};
use crate::report::{
    json::CaseReport,
    suite::{OverloadReport, Step, Verdict},
};

/// What ran, and what it showed.
pub(super) struct Ran {
    pub(super) cases: Vec<CaseReport>,
    pub(super) report: OverloadReport,
    pub(super) verdicts: Vec<Verdict>,
}

/// Requests that a poll loop has in hand beside those that wait: a burst.
const BURST: u32 = 64;

/// A bound on latency is widened by what a host stalls now and then.
const STALL_NS: f64 = 1e6;

/// Takes so many turns of all loads.
pub(super) fn run(bench: &Bench, suite: &Suite, wanted: &Overload, turns: u32) -> anyhow::Result<Ran> {
    let server = suite.server.iter().find(|server| server.name == wanted.server).expect("the file was checked");
    let measure = Measure { seconds: suite.seconds, warmup: suite.warmup, expect_losses: true };
    let mut saturated: Vec<Taken> = Vec::new();
    let mut steps: Vec<Vec<Taken>> = wanted.loads.iter().map(|_| Vec::new()).collect();
    let mut verdicts = Vec::new();
    for turn in 0..turns {
        let (process, vars) = bench.serve(server)?;
        let mut sent = 0;
        let mut ask = |pacing: [String; 2]| -> anyhow::Result<Taken> {
            if bench.stop.load(Relaxed) {
                bail!("stopped by a signal");
            }
            let mut words = vars.words(&wanted.client)?;
            words.extend(pacing);
            let (report, setup) = bench.ask(&words, measure)?;
            sent += report.port_counters.get("tx_frames").copied().unwrap_or(0);
            Ok(Taken { at_s: bench.started.elapsed().as_secs_f64() - report.seconds, report, setup })
        };
        let closed = ask(["--window".into(), wanted.window.to_string()])?;
        let saturation = closed.report.answered_per_s;
        eprintln!("turn {} of {turns}: saturation at {saturation:.0}/s", turn + 1);
        if saturation <= 0.0 {
            bail!("{}: nothing was answered at saturation", wanted.server);
        }
        saturated.push(closed);
        for (load, taken) in wanted.loads.iter().zip(&mut steps) {
            let open = ask(["--rate".into(), format!("{:.1}", saturation * load)])?;
            let report = &open.report;
            eprintln!(
                "  {load}x: {:.0}/s answered, p99 {:.0} us, {} refused, {} dropped",
                report.answered_per_s,
                report.latency.p99 as f64 / 1e3,
                report.counts.refused,
                report.counts.lost
            );
            taken.push(open);
        }
        let snapshot = books::close(process)?;
        let (books, wrong) = books::books(&snapshot);
        let (received, overrun) = (books::port_sum(&snapshot, "rx_frames"), books::port_sum(&snapshot, "rx_overrun"));
        let mut verdict = books::verdict(&books, &wrong);
        // Sockets tell what the kernel dropped before the port saw it; other ports have no such place.
        verdict.passed &= sent == received + overrun;
        verdict.what = format!("the books of turn {} add up", turn + 1);
        verdict.detail =
            format!("{sent} sent = {received} received + {overrun} dropped by the full queue; {}", verdict.detail);
        verdicts.push(verdict);
    }
    let saturation_per_s = median(saturated.iter().map(|taken| taken.report.answered_per_s));
    let mut cases = vec![merge::turns(format!("saturation, window {}", wanted.window), saturated.into_iter())];
    let mut report = OverloadReport {
        saturation_per_s,
        peak_per_s: 0.0,
        bound_ns: (1.5e9 * f64::from(wanted.queue + BURST) / saturation_per_s + STALL_NS) as u64,
        steps: Vec::new(),
    };
    for (load, taken) in wanted.loads.iter().zip(steps) {
        report.steps.push(step(*load, saturation_per_s, suite.seconds, &taken));
        cases.push(merge::turns(format!("{load}x of saturation"), taken.into_iter()));
    }
    for case in &mut cases {
        case.client = Some(wanted.client.clone());
    }
    report.peak_per_s = report.steps.iter().map(|step| step.goodput_per_s).fold(0.0, f64::max);
    verdicts.extend(judge(&report, wanted));
    Ok(Ran { cases, report, verdicts })
}

fn step(load: f64, saturation: f64, seconds: f64, taken: &[Taken]) -> Step {
    let merged = merge::latency(taken);
    let sum = |count: fn(&CaseReport) -> u64| taken.iter().map(|taken| count(&taken.report)).sum::<u64>();
    Step {
        load,
        offered_per_s: load * saturation,
        // By the length of the schedule: what is answered after its end belongs to it, the time after does not.
        goodput_per_s: median(
            taken.iter().map(|taken| taken.report.counts.answered as f64 / seconds.max(taken.report.seconds)),
        ),
        latency: merged,
        schedule: merge::schedule(taken),
        refused: sum(|report| report.counts.refused),
        dropped: sum(|report| report.counts.lost),
        unsent: sum(|report| report.counts.unsent),
        hiccup_ns: taken.iter().map(|taken| taken.report.hiccups.max_ns).max().unwrap_or(0),
    }
}

fn judge(report: &OverloadReport, wanted: &Overload) -> Vec<Verdict> {
    let past: Vec<&Step> = report.steps.iter().filter(|step| step.load > 1.0).collect();
    // Where less was offered than the peak, no more than that could be answered.
    let part = |step: &Step| step.goodput_per_s / report.peak_per_s.min(step.offered_per_s);
    let least = past.iter().min_by(|a, b| part(a).total_cmp(&part(b)));
    let allowed = |step: &Step| report.bound_ns + step.hiccup_ns;
    let slowest = past.iter().max_by_key(|step| i128::from(step.latency.p99) - i128::from(allowed(step)));
    let mut verdicts = Vec::new();
    if let Some(step) = least {
        let part = part(step);
        verdicts.push(Verdict {
            what: format!("goodput past saturation stays at {} of its peak or more", wanted.goodput),
            passed: part >= wanted.goodput,
            detail: format!("{part:.3} at {}x: {:.0}/s of {:.0}/s", step.load, step.goodput_per_s, report.peak_per_s),
        });
    }
    if let Some(step) = slowest {
        let bound = allowed(step);
        verdicts.push(Verdict {
            what: format!("the p99 of what is answered is bounded by the queue of {}", wanted.queue),
            passed: step.latency.n > 0 && step.latency.p99 <= bound,
            detail: format!(
                "{:.0} us at {}x, {:.0} us allowed",
                step.latency.p99 as f64 / 1e3,
                step.load,
                bound as f64 / 1e3
            ),
        });
    }
    verdicts.push(punctual(&report.steps));
    verdicts
}

/// Whether the client sent what was due when it was due, but for what it was kept from polling: a client that is too slow
/// is ever later, and what it measures is itself.
fn punctual(steps: &[Step]) -> Verdict {
    let unsent: u64 = steps.iter().map(|step| step.unsent).sum();
    let lag = |step: &Step| step.schedule.as_ref().map_or(0, |schedule| schedule.lag.p99);
    let late = |step: &Step| lag(step).saturating_sub(step.hiccup_ns);
    let latest = steps.iter().max_by_key(|step| late(step));
    Verdict {
        what: "the client kept its schedule".into(),
        passed: unsent == 0 && latest.is_none_or(|step| late(step) <= STALL_NS as u64),
        detail: latest.map_or_else(String::new, |step| {
            format!(
                "99 % were sent within {:.0} us of their time at {}x, the client's longest hiccup was {:.0} us; {unsent} were never sent",
                lag(step) as f64 / 1e3,
                step.load,
                step.hiccup_ns as f64 / 1e3
            )
        }),
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        report::json::{Latency, Schedule},
        tally::histogram,
    };

    fn report(goodput: &[(f64, f64)], p99_ns: u64) -> OverloadReport {
        let latency = Latency { n: 9, p99: p99_ns, ..Latency::of(&histogram()) };
        let steps = goodput.iter().map(|(load, goodput)| Step {
            load: *load,
            offered_per_s: load * 1e4,
            goodput_per_s: *goodput,
            latency,
            schedule: None,
            refused: 0,
            dropped: 0,
            unsent: 0,
            hiccup_ns: 0,
        });
        let steps: Vec<_> = steps.collect();
        OverloadReport { saturation_per_s: 1e4, peak_per_s: 1e4, bound_ns: 20_000_000, steps }
    }

    #[test]
    fn a_collapse_and_an_endless_queue_are_found() {
        let wanted = Overload {
            server: "s".into(),
            client: "rpc".into(),
            window: 64,
            loads: vec![0.5, 2.0],
            queue: 64,
            goodput: 0.9,
        };
        let passed =
            |report: &OverloadReport| judge(report, &wanted).iter().map(|verdict| verdict.passed).collect::<Vec<_>>();
        assert_eq!(passed(&report(&[(0.5, 5e3), (2.0, 9.5e3)], 10_000_000)), [true, true, true]);
        assert_eq!(passed(&report(&[(0.5, 5e3), (2.0, 8e3)], 10_000_000)), [false, true, true]);
        assert_eq!(passed(&report(&[(0.5, 5e3), (2.0, 9.5e3)], 30_000_000)), [true, false, true]);
        // A client that is late by more than it was kept from polling measures itself.
        let mut lag = histogram();
        lag.record_n(400_000_000, 100).unwrap();
        let mut late = report(&[(0.5, 5e3), (2.0, 9.5e3)], 10_000_000);
        late.steps[1].schedule = Schedule::of(&lag, &histogram());
        assert_eq!(passed(&late), [true, true, false]);
        late.steps[1].hiccup_ns = 400_000_000;
        assert_eq!(passed(&late), [true, true, true]);
        // Below saturation there is less to answer, and that is no collapse.
        assert_eq!(passed(&report(&[(0.1, 1e3), (2.0, 1e4)], 0)), [true, true, true]);
    }
}
