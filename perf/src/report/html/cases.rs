//! Cases: their table, and their plots, those that belong together in one.

use std::fmt::Write as _;

use super::{
    chart::{Chart, Series, XAxis},
    escape, group, micros,
};
use crate::{
    bounce::Bounce,
    report::{
        Report,
        case::Point,
        json::{CaseReport, Latency},
    },
};

/// Points over time that a plot shows at most; of more, each shows the worst of its neighbours.
const PLOT_POINTS: usize = 300;

/// Cases that are drawn in one plot: in a suite a case with its baselines, of every report; else all of a run.
pub(super) struct Group<'a> {
    /// The case's name; empty where there is a single group.
    name: String,
    /// What each line is called, with its case.
    lines: Vec<(String, &'a CaseReport)>,
}

/// The groups of all reports, in order of first appearance.
pub(super) fn groups<'a>(reports: &[(&str, &'a Report)]) -> Vec<Group<'a>> {
    let mut groups: Vec<Group<'a>> = Vec::new();
    let apart = reports.len() > 1 || reports.iter().any(|(_, report)| report.suite.is_some());
    for (report_name, report) in reports {
        for case in &report.cases {
            let name = if apart { case.baseline_of.as_ref().unwrap_or(&case.name).clone() } else { String::new() };
            let mut line = match (&case.contestant, apart) {
                (Some(contestant), true) => contestant.clone(),
                _ => case.name.clone(),
            };
            if reports.len() > 1 {
                let contestant = if case.baseline_of.is_some() { format!(": {line}") } else { String::new() };
                line = format!("{report_name}{contestant}");
            }
            match groups.iter_mut().find(|group| group.name == name) {
                Some(group) => group.lines.push((line, case)),
                None => groups.push(Group { name, lines: vec![(line, case)] }),
            }
        }
    }
    groups
}

/// The table of all cases, and each group's plots.
pub(super) fn render(page: &mut String, reports: &[(&str, &Report)], groups: &[Group<'_>]) {
    if let [only] = groups
        && only.name.is_empty()
    {
        page.push_str("<section>\n<h2>Latency by percentile</h2>\n");
        note(page);
        spectrum(page, only);
        page.push_str("</section>\n");
    }
    table(page, groups);
    families(page, reports);
    page.push_str("<section>\n<h2>Case by case</h2>\n");
    if groups.iter().any(|group| !group.name.is_empty()) {
        note(page);
    }
    for group in groups {
        if group.name.is_empty() {
            for (index, (name, case)) in group.lines.iter().enumerate() {
                let _ = writeln!(page, "<article>\n<h3 class=\"s{}\">{}</h3>", index % 8, escape(name));
                over_time(page, case);
                page.push_str("</article>\n");
            }
        } else {
            let _ = writeln!(page, "<article>\n<h3>{}</h3>\n<div class=\"pair\"><div>", escape(&group.name));
            spectrum(page, group);
            page.push_str("</div><div>");
            match &group.lines[..] {
                [(_, case)] => over_time(page, case),
                _ => together(page, group),
            }
            page.push_str("</div></div>\n</article>\n");
        }
    }
    page.push_str("</section>\n");
}

fn note(page: &mut String) {
    page.push_str(
        "<p class=\"note\">From the moment a request was due to its answer. Percentiles stand evenly by their nines, \
         which is 1/(1-p) on a logarithmic axis: each step to the right is ten times rarer.</p>\n",
    );
}

fn spectrum(page: &mut String, group: &Group<'_>) {
    let series = group.lines.iter().enumerate().map(|(index, (name, case))| Series {
        label: name,
        class: format!("s{}", index % 8),
        dots: false,
        points: case
            .spectrum
            .iter()
            .map(|(quantile, ns)| (nines(*quantile, case.latency.n), *ns as f64 / 1e3))
            .collect(),
    });
    let series: Vec<_> = series.filter(|series| !series.points.is_empty()).collect();
    let rarest = series.iter().flat_map(|series| &series.points).map(|point| point.0).fold(1.0, f64::max);
    Chart { x: XAxis::Nines(rarest), log: true, unit: "us", height: 380.0, series: &series }.render(page);
    legend(page, &series);
}

/// The negative decimal logarithm of what lies beyond a quantile; the last point is that of the slowest answer.
fn nines(quantile: f64, n: u64) -> f64 {
    -(1.0 - quantile).max(1.0 / n.max(2) as f64).log10()
}

pub(super) fn legend(page: &mut String, series: &[Series<'_>]) {
    page.push_str("<ul class=\"legend\">\n");
    for series in series {
        let _ = writeln!(page, "<li class=\"{}\">{}</li>", series.class, escape(series.label));
    }
    page.push_str("</ul>\n");
}

/// Throughput and latency of cases that differ in their pacing alone.
fn families(page: &mut String, reports: &[(&str, &Report)]) {
    let mut families: Vec<(String, Vec<&CaseReport>)> = Vec::new();
    for (report_name, report) in reports {
        for case in report.cases.iter().filter(|case| case.baseline_of.is_none() && case.latency.n > 0) {
            let Some(client) = &case.client else { continue };
            let mut words = client.split(' ');
            let mut kept: Vec<_> = case.server.iter().map(|server| format!("{server}:")).collect();
            while let Some(word) = words.next() {
                if matches!(word, "--rate" | "--window" | "--burst") {
                    words.next();
                } else {
                    kept.push(word.to_owned());
                }
            }
            let name = if reports.len() > 1 { format!("{report_name}: {}", kept.join(" ")) } else { kept.join(" ") };
            match families.iter_mut().find(|(known, _)| *known == name) {
                Some((_, cases)) => cases.push(case),
                None => families.push((name, vec![case])),
            }
        }
    }
    families.retain(|(_, cases)| cases.len() > 1);
    if families.is_empty() {
        return;
    }
    page.push_str("<section>\n<h2>Throughput and latency</h2>\n<p class=\"note\">Cases that differ in their pacing alone, by what they had answered.</p>\n");
    for (name, mut cases) in families {
        cases.sort_by(|a, b| a.answered_per_s.total_cmp(&b.answered_per_s));
        let line = |label, class: &str, value: fn(&Latency) -> u64| Series {
            label,
            class: class.into(),
            dots: false,
            points: cases.iter().map(|case| (case.answered_per_s, value(&case.latency) as f64 / 1e3)).collect(),
        };
        let series = [line("p99.9", "max", |l| l.p99_9), line("p99", "p99", |l| l.p99), line("p50", "p50", |l| l.p50)];
        let most = cases.iter().map(|case| case.answered_per_s).fold(1.0, f64::max);
        let _ = writeln!(page, "<article>\n<h3><code>{}</code></h3>", escape(&name));
        Chart { x: XAxis::PerSecond(most), log: true, unit: "us", height: 240.0, series: &series }.render(page);
        legend(page, &series);
        page.push_str("</article>\n");
    }
    page.push_str("</section>\n");
}

fn table(page: &mut String, groups: &[Group<'_>]) {
    page.push_str(
        "<section>\n<h2>Cases</h2>\n<div class=\"scroll\"><table>\n<thead><tr><th>case</th><th>n</th><th>rate /s</th>\
         <th>min</th><th>p50</th><th>p90</th><th>p99</th><th>p99.9</th><th>p99.99</th><th>max</th><th>lost</th>\
         <th>dup</th><th>reord</th><th>refused</th><th>wrong</th><th>bounce</th><th>hiccups</th></tr></thead>\n<tbody>\n",
    );
    let rows = || {
        groups.iter().flat_map(|group| group.lines.iter().enumerate().map(move |(index, line)| (group, index, line)))
    };
    for (of, index, (line, case)) in rows() {
        let counts = &case.counts;
        let alone = of.name.is_empty() || of.lines.len() == 1;
        let name = if alone { &case.name } else { line };
        if !alone && index == 0 {
            let _ = writeln!(page, "<tr class=\"head\"><th colspan=\"17\">{}</th></tr>", escape(&of.name));
        }
        let _ =
            write!(page, "<tr><th class=\"s{}\">{}</th><td>{}</td>", index % 8, escape(name), group(case.latency.n));
        let _ = write!(page, "<td>{}</td>", group(case.answered_per_s.round() as u64));
        percentiles(page, &case.latency);
        for count in [counts.lost, counts.duplicates, counts.reordered, counts.refused, counts.bad()] {
            let _ = write!(page, "<td{}>{}</td>", if count > 0 { " class=\"some\"" } else { "" }, group(count));
        }
        let bounces = [case.bounce_before, case.bounce_after].map(bounce).join(" → ");
        let hiccups = &case.hiccups;
        let _ = writeln!(page, "<td>{bounces}</td><td>{} over 100 µs</td></tr>", group(hiccups.over_100_us));
        if case.functions.len() > 1 {
            for function in &case.functions {
                let name = escape(&function.name);
                let _ =
                    write!(page, "<tr class=\"part\"><th>{name}</th><td>{}</td><td></td>", group(function.latency.n));
                percentiles(page, &function.latency);
                page.push_str("<td colspan=\"7\"></td></tr>\n");
            }
        }
    }
    page.push_str("</tbody>\n</table></div>\n<p class=\"note\">Latencies in microseconds. The bounce is the round trip of a cache line between the client's CPU and the server's, before and after the case: compare cases of the same state only.</p>\n");
    for (_, _, (_, case)) in rows() {
        for refusal in &case.refusals {
            let status = refusal.status.map_or("other statuses".into(), |status| format!("status {status}"));
            let name = refusal.name.as_ref().map_or(String::new(), |name| format!(" ({})", escape(name)));
            let _ = writeln!(
                page,
                "<p class=\"note\">{}: {} refused with {status}{name}</p>",
                escape(&case.name),
                group(refusal.count)
            );
        }
        if let Some(mistake) = &case.first_mistake {
            let _ = writeln!(page, "<p class=\"alarm\">{}: {}</p>", escape(&case.name), escape(mistake));
        }
    }
    page.push_str("</section>\n");
}

fn percentiles(page: &mut String, latency: &Latency) {
    let Latency { min, p50, p90, p99, p99_9, p99_99, max, .. } = *latency;
    for ns in [min, p50, p90, p99, p99_9, p99_99, max] {
        let _ = if latency.n > 0 { write!(page, "<td>{}</td>", micros(ns)) } else { write!(page, "<td>-</td>") };
    }
}

fn bounce(bounce: Option<Bounce>) -> String {
    bounce.map_or("?".into(), |bounce| format!("{:.2} {}", bounce.median_ns / 1e3, bounce.state.name()))
}

/// One case over time.
fn over_time(page: &mut String, case: &CaseReport) {
    let points = thin(&case.timeline);
    let Some(last) = points.last() else { return };
    let end = last.at_s + last.seconds;
    let line = |label, class: &str, dots, value: fn(&Point) -> f64| Series {
        label,
        class: class.into(),
        dots,
        points: points
            .iter()
            .map(|point| (point.at_s + point.seconds / 2.0, value(point)))
            .filter(|p| p.1 > 0.0)
            .collect(),
    };
    let latency = [
        line("longest", "max", true, |point| point.max_ns as f64 / 1e3),
        line("p99", "p99", false, |point| point.p99_ns as f64 / 1e3),
        line("p50", "p50", false, |point| point.p50_ns as f64 / 1e3),
        line("longest client hiccup", "hiccup", true, |point| point.hiccup_ns as f64 / 1e3),
    ];
    let rate = [line("answers per second", "rate", false, |point| point.answered as f64 / point.seconds.max(1e-9))];
    for (series, unit, log, height) in [(&latency[..], "us", true, 240.0), (&rate[..], "/s", false, 150.0)] {
        Chart { x: XAxis::Seconds(end), log, unit, height, series }.render(page);
        legend(page, series);
    }
}

/// Several cases over time, the median and the 99th percentile of each.
fn together(page: &mut String, group: &Group<'_>) {
    let mut end = 0.0_f64;
    let mut series = Vec::new();
    let labels: Vec<_> = group.lines.iter().map(|(name, _)| [format!("{name}, p99"), format!("{name}, p50")]).collect();
    for (index, ((_, case), [p99, p50])) in group.lines.iter().zip(&labels).enumerate() {
        let points = thin(&case.timeline);
        end = end.max(points.last().map_or(0.0, |point| point.at_s + point.seconds));
        let line = |label, class: String, value: fn(&Point) -> u64| Series {
            label,
            class,
            dots: false,
            points: points
                .iter()
                .map(|point| (point.at_s + point.seconds / 2.0, value(point) as f64 / 1e3))
                .filter(|point| point.1 > 0.0)
                .collect(),
        };
        series.push(line(p99, format!("s{} dash", index % 8), |point| point.p99_ns));
        series.push(line(p50, format!("s{}", index % 8), |point| point.p50_ns));
    }
    Chart { x: XAxis::Seconds(end), log: true, unit: "us", height: 380.0, series: &series }.render(page);
    legend(page, &series);
}

/// At most [`PLOT_POINTS`] points: each stands for neighbours and shows their worst latency and mean rate.
fn thin(timeline: &[Point]) -> Vec<Point> {
    let neighbours = timeline.len().div_ceil(PLOT_POINTS).max(1);
    let worst = |points: &[Point]| {
        let max = |value: fn(&Point) -> u64| points.iter().map(value).max().unwrap_or(0);
        Point {
            at_s: points[0].at_s,
            seconds: points.iter().map(|point| point.seconds).sum(),
            answered: points.iter().fold(0, |sum, point| sum.saturating_add(point.answered)),
            p50_ns: max(|point| point.p50_ns),
            p99_ns: max(|point| point.p99_ns),
            max_ns: max(|point| point.max_ns),
            hiccup_ns: max(|point| point.hiccup_ns),
        }
    };
    timeline.chunks(neighbours).map(worst).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thinned_timeline_keeps_every_answer_and_the_worst_latency() {
        let point =
            |i: u64| Point { at_s: i as f64, seconds: 1.0, answered: 2, p50_ns: 1, p99_ns: 2, max_ns: i, hiccup_ns: 3 };
        let timeline: Vec<_> = (0..1000).map(point).collect();
        let thinned = thin(&timeline);
        assert!(thinned.len() <= PLOT_POINTS);
        assert_eq!(thinned.iter().map(|point| point.answered).sum::<u64>(), 2000);
        assert_eq!(thinned.iter().map(|point| point.max_ns).max(), Some(999));
        assert_eq!((thinned[1].at_s, thinned[1].seconds), (4.0, 4.0));
    }

    #[test]
    fn each_nine_is_one_step() {
        assert!((nines(0.9, 1_000_000) - 1.0).abs() < 1e-9);
        assert!((nines(0.999, 1_000_000) - 3.0).abs() < 1e-9);
        assert!((nines(1.0, 10_000) - 4.0).abs() < 1e-9);
    }
}
