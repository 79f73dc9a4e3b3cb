//! The self-contained page: no script, no asset from elsewhere, light and dark; of one report, or of several side by side.

mod accuracy;
mod cases;
mod chart;
mod findings;
mod streams;

use std::{collections::BTreeSet, fmt::Write as _};

use super::json::{CaseReport, Report};
use crate::tally::Counts;

const STYLE: &str = include_str!("page.css");

/// Renders the page of one report or of several, each with what it is called.
pub fn render(reports: &[(&str, &Report)]) -> String {
    let mut page = String::with_capacity(64 << 10);
    let title = title(reports);
    let _ = write!(
        page,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n"
    );
    header(&mut page, reports, &title);
    if let [(_, report)] = reports {
        tiles(&mut page, report);
    }
    for (name, report) in reports {
        let heading = if reports.len() > 1 { format!("{}: ", escape(name)) } else { String::new() };
        findings::render(&mut page, &heading, report);
        streams::render(&mut page, &heading, report);
    }
    let groups = cases::groups(reports);
    cases::render(&mut page, reports, &groups);
    accuracy::render(&mut page, reports);
    environment(&mut page, reports);
    page.push_str("</main>\n</body>\n</html>\n");
    page
}

fn title(reports: &[(&str, &Report)]) -> String {
    if let [(_, report)] = reports {
        return match (&report.suite, &report.setup) {
            (Some(suite), _) => format!("Suite {}", escape(&suite.name)),
            (None, Some(setup)) => format!("RPC latency over {}, {} loop", escape(&setup.port), escape(&setup.pacing)),
            (None, None) => escape(report.name()),
        };
    }
    let names: Vec<_> = reports.iter().map(|(name, _)| escape(name)).collect();
    format!("{} side by side", names.join(", "))
}

fn header(page: &mut String, reports: &[(&str, &Report)], title: &str) {
    let mut facts = Vec::new();
    for (name, report) in reports {
        if let Some(suite) = &report.suite {
            let name = if reports.len() > 1 { format!("{name}: ") } else { String::new() };
            facts.extend([format!("{name}{}", suite.about), format!("{:.0} s", suite.seconds)]);
        }
    }
    if let [(_, report)] = reports
        && let Some(setup) = &report.setup
    {
        facts.push(format!("server {}", setup.peer));
        facts.push(format!("{} header", setup.header));
        facts.push(format!("PTP {}", setup.ptp));
        facts.push(format!("client on CPU {}", setup.cpu));
        facts.extend(setup.fault.as_ref().map(|fault| format!("faults {fault}")));
        facts.extend(setup.echo.then(|| "echo baseline".to_owned()));
    }
    let facts: Vec<_> = facts.iter().map(|fact| format!("<span>{}</span>", escape(fact))).collect();
    let versions: BTreeSet<_> = reports.iter().map(|(_, report)| escape(&report.environment.berth)).collect();
    let _ = write!(
        page,
        "<header>\n<p class=\"brand\">berth {} perf</p>\n<h1>{title}</h1>\n<p class=\"facts\">{}</p>\n</header>\n",
        versions.into_iter().collect::<Vec<_>>().join(", "),
        facts.join("")
    );
}

/// The first things to know, over all cases that are ours.
fn tiles(page: &mut String, report: &Report) {
    let ours = || report.cases.iter().filter(|case| case.baseline_of.is_none());
    let sum = |count: fn(&CaseReport) -> u64| ours().map(count).fold(0, u64::saturating_add);
    let wrong = sum(|case| case.counts.bad());
    let lost = sum(|case| case.counts.lost);
    let best = ours().filter(|case| case.latency.n > 0).min_by_key(|case| case.latency.p50);
    let hiccup = ours().map(|case| case.hiccups.max_ns).max().unwrap_or(0);
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
    let compared = sum(|case| case.counts.compared());
    if compared > 0 {
        let share = sum(|case| case.counts.agreements) as f64 / compared as f64 * 100.0;
        tiles.push(("Agreement with the reference decoder", format!("{share:.3} %"), ""));
        let with = |count: fn(&Counts) -> u64| {
            let cases = ours().filter(|case| case.counts.compared() > 0);
            cases.map(|case| count(&case.counts)).fold(0, u64::saturating_add)
        };
        let errors = [with(|counts| counts.logical_errors), with(|counts| counts.reference_logical_errors)];
        tiles.push(("Logical errors, and the reference's", errors.map(group).join(" / "), ""));
    }
    page.push_str("<dl class=\"tiles\">\n");
    for (label, value, class) in tiles {
        let _ = writeln!(page, "<div class=\"{class}\"><dt>{label}</dt><dd>{value}</dd></div>");
    }
    page.push_str("</dl>\n");
}

/// Where each report was measured, a column each; what differs stands out.
fn environment(page: &mut String, reports: &[(&str, &Report)]) {
    let facts: Vec<_> = reports.iter().map(|(_, report)| report.environment.facts()).collect();
    let Some(first) = facts.first() else { return };
    page.push_str("<section>\n<h2>Environment</h2>\n<div class=\"scroll\"><table class=\"facts-table\">\n");
    if reports.len() > 1 {
        let names: Vec<_> = reports.iter().map(|(name, _)| format!("<th>{}</th>", escape(name))).collect();
        let _ = writeln!(page, "<thead><tr><th></th>{}</tr></thead>", names.concat());
    }
    page.push_str("<tbody>\n");
    for (row, (name, value)) in first.iter().enumerate() {
        let values: Vec<&str> = facts.iter().map(|facts| facts[row].1.as_str()).collect();
        let differs =
            values.iter().any(|other| other != value) && !matches!(*name, "command" | "began" | "load before");
        let cells: Vec<_> = values.iter().map(|value| format!("<td>{}</td>", escape(value))).collect();
        let class = if differs { " class=\"differs\"" } else { "" };
        let _ = writeln!(page, "<tr{class}><th>{name}</th>{}</tr>", cells.concat());
    }
    page.push_str("</tbody>\n</table></div>\n</section>\n");
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
}
