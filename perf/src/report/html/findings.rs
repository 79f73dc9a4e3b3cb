//! What a suite found beside its cases: judgements, contests, overload, soak, and what is missing.

use std::fmt::Write as _;

use super::{
    cases::legend,
    chart::{Chart, Series, XAxis},
    duration, escape, group,
};
use crate::report::{
    Report,
    suite::{Book, Estimate, OverloadReport, SoakReport, Step, SuiteFacts},
};

pub(super) fn render(page: &mut String, heading: &str, report: &Report) {
    let Some(facts) = &report.suite else { return };
    let _ = writeln!(page, "<section>\n<h2>{heading}Judged</h2>\n<ul class=\"verdicts\">");
    for verdict in &facts.verdicts {
        let (class, word) = if verdict.passed { ("good", "ok") } else { ("bad", "not ok") };
        let _ = writeln!(
            page,
            "<li class=\"{class}\"><b>{word}</b> {}<span>{}</span></li>",
            escape(&verdict.what),
            escape(&verdict.detail)
        );
    }
    page.push_str("</ul>\n");
    if !facts.missing.is_empty() {
        page.push_str("<h3>Not measured</h3>\n<ul class=\"verdicts\">\n");
        for missing in &facts.missing {
            let _ = writeln!(page, "<li>{}<span>{}</span></li>", escape(&missing.what), escape(&missing.why));
        }
        page.push_str("</ul>\n");
    }
    page.push_str("</section>\n");
    contests(page, heading, facts);
    if let Some(overload) = &facts.overload {
        render_overload(page, heading, overload);
    }
    if let Some(soak) = &facts.soak {
        render_soak(page, heading, soak);
    }
}

/// Each case over its baselines, with intervals drawn around 1.
fn contests(page: &mut String, heading: &str, facts: &SuiteFacts) {
    if facts.contests.is_empty() && facts.programs.is_empty() {
        return;
    }
    let _ = writeln!(
        page,
        "<section>\n<h2>{heading}Against baselines</h2>\n<p class=\"note\">Ours over theirs, by neighbouring turns in which the \
         cores stood alike, with 95 % confidence intervals of resampled turns. Of latencies less is better, of rates more.</p>"
    );
    if !facts.contests.is_empty() {
        page.push_str("<div class=\"scroll\"><table>\n<thead><tr><th>case</th><th>baseline</th><th>state</th><th>pairs</th><th>p50</th><th>p99</th><th>rate</th></tr></thead>\n<tbody>\n");
    }
    for contest in &facts.contests {
        let cell = |estimate: Option<Estimate>| {
            estimate.map_or("-".into(), |Estimate { ratio, low, high }| {
                format!("{ratio:.3}x <span class=\"soft\">{low:.3} to {high:.3}</span>")
            })
        };
        let _ = writeln!(
            page,
            "<tr><th>{}</th><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            escape(&contest.case),
            escape(&contest.baseline),
            escape(&contest.state),
            contest.pairs,
            cell(contest.p50),
            cell(contest.p99),
            cell(contest.rate)
        );
    }
    if !facts.contests.is_empty() {
        page.push_str("</tbody>\n</table></div>\n");
    }
    for program in &facts.programs {
        let mut sorted = program.figures.clone();
        sorted.sort_unstable_by(f64::total_cmp);
        let Some(median) = sorted.get(sorted.len() / 2) else { continue };
        let _ = writeln!(
            page,
            "<p class=\"note\">{} beside {}: {} {median:.2} {}, median of {} turns</p>",
            escape(&program.baseline),
            escape(&program.case),
            escape(&program.what),
            escape(&program.unit),
            sorted.len()
        );
    }
    page.push_str("</section>\n");
}

fn render_overload(page: &mut String, heading: &str, overload: &OverloadReport) {
    let _ = writeln!(
        page,
        "<section>\n<h2>{heading}Offered load</h2>\n<p class=\"note\">Saturation at {} answers per second. Latencies count from \
         the moment a request was due, of those that were answered; at most {} is allowed at p99 past saturation.</p>",
        group(overload.saturation_per_s.max(0.0) as u64),
        duration(overload.bound_ns)
    );
    let most = overload.steps.iter().map(|step| step.offered_per_s).fold(1.0, f64::max);
    let line = |label, class: &str, value: fn(&Step) -> f64| Series {
        label,
        class: class.into(),
        dots: false,
        points: overload
            .steps
            .iter()
            .map(|step| (step.offered_per_s, value(step)))
            .filter(|point| point.1 > 0.0)
            .collect(),
    };
    let rates = [
        line("offered", "hiccup dash", |step| step.offered_per_s),
        line("answered right", "rate", |step| step.goodput_per_s),
    ];
    let latencies = [
        line("p99.9", "max", |step| step.latency.p99_9 as f64 / 1e3),
        line("p99", "p99", |step| step.latency.p99 as f64 / 1e3),
        line("p50", "p50", |step| step.latency.p50 as f64 / 1e3),
    ];
    page.push_str("<div class=\"pair\">");
    for (series, unit, log) in [(&rates[..], "/s", false), (&latencies[..], "us", true)] {
        page.push_str("<div>");
        Chart { x: XAxis::PerSecond(most), log, unit, height: 320.0, series }.render(page);
        legend(page, series);
        page.push_str("</div>");
    }
    page.push_str("</div>\n<div class=\"scroll\"><table>\n<thead><tr><th>load</th><th>offered /s</th><th>answered /s</th><th>p50</th><th>p99</th><th>p99.9</th><th>refused</th><th>dropped</th><th>unsent</th></tr></thead>\n<tbody>\n");
    for step in &overload.steps {
        let _ = writeln!(
            page,
            "<tr><th>{}x</th><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            step.load,
            group(step.offered_per_s.max(0.0) as u64),
            group(step.goodput_per_s.max(0.0) as u64),
            duration(step.latency.p50),
            duration(step.latency.p99),
            duration(step.latency.p99_9),
            group(step.refused),
            group(step.dropped),
            group(step.unsent)
        );
    }
    page.push_str("</tbody>\n</table></div>\n</section>\n");
}

fn render_soak(page: &mut String, heading: &str, soak: &SoakReport) {
    let _ = writeln!(page, "<section>\n<h2>{heading}Over the whole time</h2>");
    let end = soak.samples.last().map_or(0.0, |sample| sample.at_s);
    let line = |label, class: &str, value: fn(&crate::report::suite::Sample) -> f64| Series {
        label,
        class: class.into(),
        dots: false,
        points: soak.samples.iter().map(|sample| (sample.at_s, value(sample))).filter(|point| point.1 > 0.0).collect(),
    };
    let memory = [line("resident memory", "p50", |sample| sample.rss_kib as f64 / 1024.0)];
    let counts = [
        line("descriptors", "p99", |sample| sample.descriptors as f64),
        line("threads", "rate", |sample| sample.threads as f64),
    ];
    page.push_str("<div class=\"pair\">");
    for (series, unit) in [(&memory[..], "MiB"), (&counts[..], "")] {
        page.push_str("<div>");
        Chart { x: XAxis::Seconds(end), log: false, unit, height: 240.0, series }.render(page);
        legend(page, series);
        page.push_str("</div>");
    }
    page.push_str("</div>\n<div class=\"scroll\"><table>\n<thead><tr><th>load</th><th>runs</th><th>sent</th><th>answered</th><th>refused</th><th>lost</th><th>wrong</th><th>p50</th><th>p99</th></tr></thead>\n<tbody>\n");
    for load in &soak.loads {
        let counts = &load.counts;
        let _ = writeln!(
            page,
            "<tr><th>{}</th><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            escape(&load.name),
            group(load.runs),
            group(counts.sent),
            group(counts.answered),
            group(counts.refused),
            group(counts.lost),
            group(counts.bad()),
            duration(load.latency.p50),
            duration(load.latency.p99)
        );
    }
    page.push_str("</tbody>\n</table></div>\n<h3>Books</h3>\n<div class=\"scroll\"><table>\n<thead><tr><th>port</th><th>received</th><th>answered</th><th>refused</th><th>dropped</th><th>unaccounted for</th></tr></thead>\n<tbody>\n");
    for book in &soak.books {
        let Book { port, received, answered, refused, dropped } = book;
        let sum = |counts: &std::collections::BTreeMap<String, u64>| {
            let all: Vec<_> =
                counts.iter().map(|(reason, count)| format!("{} {}", group(*count), escape(reason))).collect();
            if all.is_empty() { "0".into() } else { all.join(" + ") }
        };
        let _ = writeln!(
            page,
            "<tr><th>{}</th><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            escape(port),
            group(*received),
            group(*answered),
            sum(refused),
            sum(dropped),
            book.missing()
        );
    }
    page.push_str("</tbody>\n</table></div>\n</section>\n");
}
