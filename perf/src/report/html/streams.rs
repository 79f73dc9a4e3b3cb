//! Streams: the backlog over time, and the largest distance that a core sustains.

use std::fmt::Write as _;

use super::{
    cases::legend,
    chart::{Chart, Series, XAxis},
    duration, escape, group,
};
use crate::report::{
    Report,
    stream::{Pace, RULE},
};

pub(super) fn render(page: &mut String, heading: &str, report: &Report) {
    let paces = Pace::all(&report.cases);
    if paces.is_empty() {
        return;
    }
    let _ = writeln!(
        page,
        "<section>\n<h2>{heading}Streams</h2>\n<p class=\"note\">Rounds that were due and not answered, over time; of several turns the \
         usual one. Behind the last round that was due they drain. Latencies count from the moment a round was due. By this page {}.</p>",
        escape(RULE)
    );
    for pace in paces {
        let _ = writeln!(page, "<article>\n<h3>A round each {}</h3>", duration(pace.offered_ns as u64));
        if let Some(sustained) = pace.sustained() {
            let _ = writeln!(page, "<p>{}</p>", escape(&sustained));
        }
        let series = pace.cases.iter().enumerate().map(|(index, (case, stream))| Series {
            label: &case.name,
            class: format!("s{}", index % 8),
            dots: false,
            // A logarithmic axis has no 0.
            points: stream.parts.iter().map(|part| (part.at_ns as f64 / 1e9, part.backlog.max(1) as f64)).collect(),
        });
        let series: Vec<_> = series.collect();
        let end = series.iter().flat_map(|series| &series.points).map(|point| point.0).fold(0.0, f64::max);
        Chart { x: XAxis::Seconds(end), log: true, unit: "", height: 320.0, series: &series }.render(page);
        legend(page, &series);
        page.push_str(
            "<div class=\"scroll\"><table>\n<thead><tr><th>case</th><th>rounds</th><th>of a window</th><th>a round took</th>\
             <th>p50</th><th>p99</th><th>p99.99</th><th>behind at most</th><th>in the last quarter</th><th>keeps up</th>\
             <th>logical errors</th></tr></thead>\n<tbody>\n",
        );
        for (index, (case, stream)) in pace.cases.iter().enumerate() {
            let latency = &case.latency;
            let errors = case.streams.iter().filter(|stream| stream.logical_error).count();
            let _ = writeln!(
                page,
                "<tr><th class=\"s{}\">{}</th><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td>\
                 <td>{}</td><td>{errors} of {}</td></tr>",
                index % 8,
                escape(&case.name),
                group(stream.rounds),
                group(stream.window_rounds),
                duration(stream.round_ns as u64),
                duration(latency.p50),
                duration(latency.p99),
                duration(latency.p99_99),
                group(stream.backlog_most()),
                group(stream.backlog_late()),
                if stream.keeps_up() { "yes" } else { "no" },
                case.streams.len()
            );
        }
        page.push_str("</tbody>\n</table></div>\n</article>\n");
    }
    page.push_str("</section>\n");
}
