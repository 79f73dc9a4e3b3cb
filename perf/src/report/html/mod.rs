//! The self-contained page: no script, no asset from elsewhere, light and dark.

mod chart;

use std::fmt::Write as _;

use super::{
    case::Point,
    json::{CaseReport, Latency, Report},
};
use crate::{bounce::Bounce, environment::Environment};
use chart::{Chart, Series, XAxis};

const STYLE: &str = include_str!("page.css");

/// Points over time that a plot shows at most; of more, each shows the worst of its neighbours.
const PLOT_POINTS: usize = 300;

/// Renders the page.
pub fn render(report: &Report) -> String {
    let mut page = String::with_capacity(64 << 10);
    let title = title(report);
    let _ = write!(
        page,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n"
    );
    header(&mut page, report, &title);
    tiles(&mut page, report);
    page.push_str("<section>\n<h2>Latency by percentile</h2>\n<p class=\"note\">From the moment a request was due to its answer. Percentiles stand evenly by their nines: each step to the right is ten times rarer.</p>\n");
    spectrum(&mut page, report);
    page.push_str("</section>\n");
    table(&mut page, report);
    page.push_str("<section>\n<h2>Over time</h2>\n");
    for (index, case) in report.cases.iter().enumerate() {
        over_time(&mut page, index, case);
    }
    page.push_str("</section>\n");
    environment(&mut page, &report.environment);
    page.push_str("</main>\n</body>\n</html>\n");
    page
}

fn title(report: &Report) -> String {
    let setup = &report.setup;
    format!("RPC latency over {}, {} loop", escape(&setup.port), escape(&setup.pacing))
}

fn header(page: &mut String, report: &Report, title: &str) {
    let (setup, environment) = (&report.setup, &report.environment);
    let mut facts = vec![
        format!("server {}", setup.peer),
        format!("{} header", setup.header),
        format!("PTP {}", setup.ptp),
        format!("client on CPU {}", setup.cpu),
    ];
    facts.extend(setup.fault.as_ref().map(|fault| format!("faults {fault}")));
    if setup.echo {
        facts.push("echo baseline".into());
    }
    let facts: Vec<_> = facts.iter().map(|fact| format!("<span>{}</span>", escape(fact))).collect();
    let _ = write!(
        page,
        "<header>\n<p class=\"brand\">berth {} perf</p>\n<h1>{title}</h1>\n<p class=\"facts\">{}</p>\n</header>\n",
        escape(&environment.berth),
        facts.join("")
    );
}

/// The first things to know, over all cases.
fn tiles(page: &mut String, report: &Report) {
    let sum = |count: fn(&CaseReport) -> u64| report.cases.iter().map(count).sum::<u64>();
    let wrong = sum(|case| case.counts.wrong + case.counts.malformed);
    let lost = sum(|case| case.counts.lost);
    let best = report.cases.iter().filter(|case| case.latency.n > 0).min_by_key(|case| case.latency.p50);
    let hiccup = report.cases.iter().map(|case| case.hiccups.max_ns).max().unwrap_or(0);
    let p50 = best.map_or("-".into(), |case| duration(case.latency.p50));
    let p99 = best.map_or("-".into(), |case| duration(case.latency.p99));
    let mut tiles = vec![
        ("Verified answers", group(sum(|case| case.counts.answered)), ""),
        ("Wrong answers", group(wrong), if wrong > 0 { "bad" } else { "good" }),
        ("Lost requests", group(lost), if lost > 0 { "warn" } else { "good" }),
        (if report.cases.len() > 1 { "Fastest median" } else { "Median" }, p50, ""),
        ("Its 99th percentile", p99, ""),
        ("Longest client hiccup", duration(hiccup), ""),
    ];
    let predictions = sum(|case| case.counts.predictions);
    if predictions > 0 {
        let share = sum(|case| case.counts.agreements) as f64 / predictions as f64 * 100.0;
        tiles.push(("Agreement with the reference decoder", format!("{share:.3} %"), ""));
        let errors = [sum(|case| case.counts.logical_errors), sum(|case| case.counts.reference_logical_errors)];
        tiles.push(("Logical errors, and the reference's", errors.map(group).join(" / "), ""));
    }
    page.push_str("<dl class=\"tiles\">\n");
    for (label, value, class) in tiles {
        let _ = writeln!(page, "<div class=\"{class}\"><dt>{label}</dt><dd>{value}</dd></div>");
    }
    page.push_str("</dl>\n");
}

fn spectrum(page: &mut String, report: &Report) {
    let series = report.cases.iter().enumerate().map(|(index, case)| Series {
        label: &case.name,
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

fn legend(page: &mut String, series: &[Series<'_>]) {
    page.push_str("<ul class=\"legend\">\n");
    for series in series {
        let _ = writeln!(page, "<li class=\"{}\">{}</li>", series.class, escape(series.label));
    }
    page.push_str("</ul>\n");
}

fn table(page: &mut String, report: &Report) {
    page.push_str(
        "<section>\n<h2>Cases</h2>\n<div class=\"scroll\"><table>\n<thead><tr><th>case</th><th>n</th><th>rate /s</th>\
         <th>min</th><th>p50</th><th>p90</th><th>p99</th><th>p99.9</th><th>p99.99</th><th>max</th><th>lost</th>\
         <th>dup</th><th>reord</th><th>refused</th><th>wrong</th><th>bounce</th><th>hiccups</th></tr></thead>\n<tbody>\n",
    );
    for (index, case) in report.cases.iter().enumerate() {
        let counts = &case.counts;
        let _ = write!(
            page,
            "<tr><th class=\"s{}\">{}</th><td>{}</td>",
            index % 8,
            escape(&case.name),
            group(case.latency.n)
        );
        let _ = write!(page, "<td>{}</td>", group(case.answered_per_s.round() as u64));
        percentiles(page, &case.latency);
        for count in [counts.lost, counts.duplicates, counts.reordered, counts.refused, counts.wrong + counts.malformed]
        {
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
    for case in &report.cases {
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

fn over_time(page: &mut String, index: usize, case: &CaseReport) {
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
    let _ = writeln!(page, "<article>\n<h3 class=\"s{}\">{}</h3>", index % 8, escape(&case.name));
    for (series, unit, log, height) in [(&latency[..], "us", true, 240.0), (&rate[..], "/s", false, 150.0)] {
        Chart { x: XAxis::Seconds(end), log, unit, height, series }.render(page);
        legend(page, series);
    }
    page.push_str("</article>\n");
}

/// At most [`PLOT_POINTS`] points: each stands for neighbours and shows their worst latency and mean rate.
fn thin(timeline: &[Point]) -> Vec<Point> {
    let neighbours = timeline.len().div_ceil(PLOT_POINTS).max(1);
    let worst = |points: &[Point]| {
        let max = |value: fn(&Point) -> u64| points.iter().map(value).max().unwrap_or(0);
        Point {
            at_s: points[0].at_s,
            seconds: points.iter().map(|point| point.seconds).sum(),
            answered: points.iter().map(|point| point.answered).sum(),
            p50_ns: max(|point| point.p50_ns),
            p99_ns: max(|point| point.p99_ns),
            max_ns: max(|point| point.max_ns),
            hiccup_ns: max(|point| point.hiccup_ns),
        }
    };
    timeline.chunks(neighbours).map(worst).collect()
}

fn environment(page: &mut String, here: &Environment) {
    let known = |text: &Option<String>| text.clone().filter(|text| !text.is_empty()).unwrap_or_else(|| "none".into());
    let rows = [
        ("command", here.command.join(" ")),
        ("berth", here.berth.clone()),
        ("host", known(&here.host)),
        ("CPU", format!("{}{}", known(&here.cpu_model), if here.virtual_machine { ", virtual" } else { "" })),
        ("CPUs online", known(&here.cpus_online)),
        ("CPUs isolated", known(&here.cpus_isolated)),
        ("CPUs without a tick", known(&here.cpus_nohz_full)),
        ("governor", known(&here.governor)),
        ("kernel", known(&here.kernel)),
        ("huge pages", here.hugepages.map_or("none".into(), |(count, kb)| format!("{count} of {kb} kB"))),
        ("load before", known(&here.load)),
        ("began", format!("{} s after 1970-01-01 UTC", here.started)),
    ];
    page.push_str("<section>\n<h2>Environment</h2>\n<dl class=\"facts-table\">\n");
    for (name, value) in rows {
        let _ = writeln!(page, "<dt>{name}</dt><dd>{}</dd>", escape(&value));
    }
    page.push_str("</dl>\n</section>\n");
}

/// A duration in the unit that reads best.
fn duration(ns: u64) -> String {
    match ns as f64 {
        ns if ns < 1e3 => format!("{ns:.0} ns"),
        ns if ns < 1e6 => format!("{:.2} µs", ns / 1e3),
        ns if ns < 1e9 => format!("{:.2} ms", ns / 1e6),
        ns => format!("{:.2} s", ns / 1e9),
    }
}

/// Microseconds with as many digits as mean something.
fn micros(ns: u64) -> String {
    match ns as f64 / 1e3 {
        us if us < 100.0 => format!("{us:.2}"),
        us if us < 1000.0 => format!("{us:.1}"),
        us => group(us.round() as u64),
    }
}

/// A number with its thousands apart.
fn group(number: u64) -> String {
    let digits = number.to_string();
    let first = (digits.len() + 2) % 3 + 1;
    let mut text = digits[..first].to_owned();
    for at in (first..digits.len()).step_by(3) {
        text.push('\u{202f}');
        text.push_str(&digits[at..at + 3]);
    }
    text
}

/// Text as HTML and SVG take it.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!(
            [0, 7, 999, 1000, 123_456, 1_234_567].map(group),
            ["0", "7", "999", "1\u{202f}000", "123\u{202f}456", "1\u{202f}234\u{202f}567"]
        );
        assert_eq!([999, 4_380, 1_200_000, 2_000_000_000].map(duration), ["999 ns", "4.38 µs", "1.20 ms", "2.00 s"]);
        assert_eq!([340, 104_250, 36_012_030].map(micros), ["0.34", "104.2", "36\u{202f}012"]);
    }

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
