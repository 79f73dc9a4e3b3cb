//! The files of a suite, and what it prints.

use std::{
    fs::File,
    io::{BufWriter, Write as _},
    path::Path,
    time::{Duration, SystemTime},
};

use anyhow::Context as _;
use hdrhistogram::serialization::{
    V2DeflateSerializer,
    interval_log::{IntervalLogWriterBuilder, Tag},
};

use super::bench::slug;
use crate::report::{
    self, Report,
    hlog::{MAX_VALUE_DIVISOR, create},
    html,
    json::CaseReport,
    stream::{Pace, RULE},
    suite::{Contest, Estimate, OverloadReport, Program},
    table,
};

/// Writes `report.json`, `report.html`, and for each case `CASE.hlog` and `CASE.hgrm`.
pub(super) fn write(out: &Path, report: &Report) -> anyhow::Result<()> {
    report::write_json(&out.join("report.json"), report)?;
    report::write(&out.join("report.html"), &html::render(&[(report.name(), report)]))?;
    for case in &report.cases {
        let stem = slug(&case.name);
        log(&out.join(format!("{stem}.hlog")), report, case)?;
        let path = out.join(format!("{stem}.hgrm"));
        let file = File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
        percentiles(&mut BufWriter::new(file), case).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

/// An `HdrHistogram` V2 log with an interval for each turn.
fn log(path: &Path, report: &Report, case: &CaseReport) -> anyhow::Result<()> {
    let mut file = create(path)?;
    let mut serializer = V2DeflateSerializer::new();
    let mut builder = IntervalLogWriterBuilder::new();
    builder.add_comment(&format!("[Logged with berth {}]", report.environment.berth)).add_comment(&case.name);
    let began = SystemTime::UNIX_EPOCH + Duration::from_secs(report.environment.started);
    builder.with_start_time(began).with_base_time(began).with_max_value_divisor(MAX_VALUE_DIVISOR);
    let mut writer = builder.begin_log_with(&mut file, &mut serializer)?;
    for turn in &case.turns {
        let at = Duration::from_secs_f64(turn.at_s.max(0.0));
        let tag = Tag::new("latency").context("a tag without a comma")?;
        writer
            .write_histogram(&turn.histogram.histogram(), at, Duration::from_secs_f64(turn.seconds), Some(tag))
            .map_err(|error| anyhow::anyhow!("cannot write {}: {error:?}", path.display()))?;
    }
    file.flush().with_context(|| format!("cannot write {}", path.display()))
}

/// The percentile output of `HdrHistogram`, in microseconds, five points per halving.
fn percentiles(to: &mut impl std::io::Write, case: &CaseReport) -> std::io::Result<()> {
    let histogram = case.histogram.histogram();
    writeln!(to, "{:>12} {:>14} {:>10} {:>14}\n", "Value", "Percentile", "TotalCount", "1/(1-Percentile)")?;
    let mut total = 0;
    for step in histogram.iter_quantiles(5) {
        total += step.count_since_last_iteration();
        let (value, quantile) = (step.value_iterated_to() as f64 / 1e3, step.quantile_iterated_to());
        if quantile < 1.0 {
            writeln!(to, "{value:>12.3} {quantile:>14.12} {total:>10} {:>14.2}", 1.0 / (1.0 - quantile))?;
        } else {
            writeln!(to, "{value:>12.3} {quantile:>14.12} {total:>10}")?;
        }
    }
    let us = |ns: f64| ns / 1e3;
    writeln!(to, "#[Mean    = {:>12.3}, StdDeviation   = {:>12.3}]", us(histogram.mean()), us(histogram.stdev()))?;
    writeln!(to, "#[Max     = {:>12.3}, Total count    = {:>12}]", us(histogram.max() as f64), histogram.len())?;
    // Buckets of three significant digits: 2048 counters each, and as many as reach the longest latency.
    writeln!(to, "#[Buckets = {:>12}, SubBuckets     = {:>12}]", histogram.buckets(), 2048)?;
    to.flush()
}

/// What a suite prints.
pub(super) fn render(report: &Report) -> String {
    use std::fmt::Write as _;

    let mut text = table::render(report);
    let Some(facts) = &report.suite else { return text };
    // Writing to a string succeeds.
    if !facts.contests.is_empty() {
        text.push_str("\nagainst baselines, with 95 % confidence intervals; latencies: less is better\n");
        for contest in &facts.contests {
            text.push_str(&line(contest));
        }
    }
    for Program { baseline, what, unit, case, figures } in &facts.programs {
        let mut sorted = figures.clone();
        sorted.sort_unstable_by(f64::total_cmp);
        let median = sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN);
        let _ =
            writeln!(text, "{baseline}, beside {case}: {what} {median:.2} {unit}, median of {} turns", figures.len());
    }
    let paces = Pace::all(&report.cases);
    if !paces.is_empty() {
        let _ = writeln!(text, "\nstreams: {RULE}");
    }
    for pace in paces {
        let _ =
            writeln!(text, "  a round each {:.1} us: {}", pace.offered_ns / 1e3, pace.sustained().unwrap_or_default());
        for (case, stream) in &pace.cases {
            let _ = writeln!(
                text,
                "    {}: {} rounds behind in the last quarter, at most {}; {:.3} us a round",
                case.name,
                stream.backlog_late(),
                stream.backlog_most(),
                stream.round_ns / 1e3
            );
        }
    }
    if let Some(overload) = &facts.overload {
        text.push_str(&steps(overload));
    }
    if !facts.missing.is_empty() {
        text.push_str("\nnot measured\n");
        for missing in &facts.missing {
            let _ = writeln!(text, "  {}: {}", missing.what, missing.why);
        }
    }
    text.push_str("\njudged\n");
    for verdict in &facts.verdicts {
        let word = if verdict.passed { "ok" } else { "NOT OK" };
        let _ = writeln!(text, "  {word:<6} {}: {}", verdict.what, verdict.detail);
    }
    let _ = writeln!(text, "{:.0} s", facts.seconds);
    text
}

fn line(contest: &Contest) -> String {
    let ratio = |estimate: Option<Estimate>| {
        estimate.map_or("-".into(), |Estimate { ratio, low, high }| format!("{ratio:.3}x [{low:.3}, {high:.3}]"))
    };
    let Contest { case, baseline, state, pairs, p50, p99, rate } = contest;
    let figures =
        [("p50", p50), ("p99", p99), ("rate", rate)].map(|(name, estimate)| format!("{name} {}", ratio(*estimate)));
    format!("  {case} over {baseline}, {state}, {pairs} pairs: {}\n", figures.join(", "))
}

fn steps(overload: &OverloadReport) -> String {
    use std::fmt::Write as _;

    let mut text = format!(
        "\nsaturation at {:.0}/s; latency in us from the moment a request was due, of those answered\n{:>6} {:>10} {:>10} {:>9} {:>9} {:>9} {:>9} {:>9} {:>7}\n",
        overload.saturation_per_s,
        "load",
        "offered/s",
        "goodput/s",
        "p50",
        "p99",
        "p99.9",
        "refused",
        "dropped",
        "unsent"
    );
    for step in &overload.steps {
        let us = |ns: u64| ns as f64 / 1e3;
        let _ = writeln!(
            text,
            "{:>5}x {:>10.0} {:>10.0} {:>9.1} {:>9.1} {:>9.1} {:>9} {:>9} {:>7}",
            step.load,
            step.offered_per_s,
            step.goodput_per_s,
            us(step.latency.p50),
            us(step.latency.p99),
            us(step.latency.p99_9),
            step.refused,
            step.dropped,
            step.unsent
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{report::case::Case, tally::histogram};

    #[test]
    fn the_percentile_output_has_its_form() {
        let mut case = Case::new("c".into(), None, &[]);
        case.latency = histogram();
        case.latency.record_n(1000, 90).unwrap();
        case.latency.record_n(5000, 10).unwrap();
        let mut text = Vec::new();
        percentiles(&mut text, &CaseReport::of(&case)).unwrap();
        let text = String::from_utf8(text).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "       Value     Percentile TotalCount 1/(1-Percentile)");
        assert_eq!(lines[2], "       1.000 0.000000000000         90           1.00");
        assert!(lines.contains(&"       5.003 1.000000000000        100"), "{text}");
        assert!(text.contains("Total count    =          100]"));
    }
}
