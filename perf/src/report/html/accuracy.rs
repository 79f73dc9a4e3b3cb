//! How often decoders are wrong, against how long they take.

use std::fmt::Write as _;

use super::{
    super::json::{CaseReport, Report},
    chart::{BOTTOM, LEFT, RIGHT, TOP, WIDTH, axis, gridlines},
    duration, escape, group,
};
use crate::decode::Rate;

const HEIGHT: f64 = 420.0;

/// A case with its name and what it got wrong.
struct Point<'a> {
    name: String,
    case: &'a CaseReport,
    rate: Rate,
}

impl Point<'_> {
    /// Where it is drawn: without an error half of one.
    fn share(&self) -> f64 {
        self.rate.share().max(0.5 / self.rate.shots as f64)
    }

    /// p50, p99 and p99.99 in nanoseconds.
    fn latencies(&self) -> [u64; 3] {
        [self.case.latency.p50, self.case.latency.p99, self.case.latency.p99_99].map(|ns| ns.max(1))
    }
}

/// Appends the chart and its table, if there were shots to decode.
pub(super) fn render(page: &mut String, reports: &[(&str, &Report)]) {
    let points = reports.iter().flat_map(|(report, facts)| {
        let prefix = if reports.len() > 1 { format!("{report}: ") } else { String::new() };
        facts.cases.iter().filter(|case| case.latency.n > 0).filter_map(move |case| {
            let rate = case.logical_errors()?;
            Some(Point { name: format!("{prefix}{}", case.name), case, rate })
        })
    });
    let points: Vec<_> = points.collect();
    if points.is_empty() {
        return;
    }
    page.push_str(
        "<section>\n<h2>Accuracy and latency</h2>\n<p class=\"note\">Logical errors of the shots, with Wilson's intervals of 95 %, \
         against the round trip: dots at p50, p99 and p99.99. Less is better in both directions.</p>\n",
    );
    chart(page, &points);
    page.push_str(
        "<div class=\"scroll\"><table>\n<thead><tr><th>case</th><th>shots</th><th>logical errors</th><th>of 95 %</th>\
         <th>p50</th><th>p99</th><th>p99.99</th></tr></thead>\n<tbody>\n",
    );
    for (index, point) in points.iter().enumerate() {
        let [low, high] = point.rate.wilson().map(|end| end * 100.0);
        let [p50, p99, p99_99] = point.latencies().map(duration);
        let _ = writeln!(
            page,
            "<tr><th class=\"s{}\">{}</th><td>{}</td><td>{:.3} %</td><td>{low:.3} to {high:.3} %</td><td>{p50}</td><td>{p99}</td>\
             <td>{p99_99}</td></tr>",
            index % 8,
            escape(&point.name),
            group(point.rate.shots),
            point.rate.share() * 100.0
        );
    }
    page.push_str("</tbody>\n</table></div>\n</section>\n");
}

/// Both axes are logarithmic.
fn chart(page: &mut String, points: &[Point<'_>]) {
    let times = || points.iter().flat_map(Point::latencies).map(|ns| ns as f64);
    let shares = || points.iter().flat_map(|point| [point.rate.wilson()[1], point.share()]);
    let (left, right) = axis(times());
    let (low, high) = axis(shares());
    let place = |value: f64, low: f64, high: f64| (value.clamp(low, high) / low).ln() / (high / low).ln();
    let x = |ns: f64| LEFT + place(ns, left, right) * (WIDTH - LEFT - RIGHT);
    let y = |share: f64| HEIGHT - BOTTOM - place(share, low, high) * (HEIGHT - BOTTOM - TOP);
    let _ = writeln!(page, "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">");
    for share in gridlines(low, high) {
        let (at, percent) = (y(share), share * 100.0);
        let _ = writeln!(
            page,
            "<path class=\"grid\" d=\"M{LEFT} {at:.1}H{}\"/><text class=\"y\" x=\"{}\" y=\"{:.1}\">{percent} %</text>",
            WIDTH - RIGHT,
            LEFT - 8.0,
            at + 4.0
        );
    }
    for ns in gridlines(left, right) {
        let at = x(ns);
        let _ = writeln!(
            page,
            "<path class=\"grid\" d=\"M{at:.1} {TOP}V{}\"/><text class=\"x\" x=\"{at:.1}\" y=\"{}\">{}</text>",
            HEIGHT - BOTTOM,
            HEIGHT - BOTTOM + 26.0,
            duration(ns.round() as u64)
        );
    }
    for (index, point) in points.iter().enumerate() {
        let (at, latencies) = (y(point.share()), point.latencies());
        let [p50, _, last] = latencies.map(|ns| x(ns as f64));
        let [bottom, top] = point.rate.wilson().map(&y);
        let name = escape(&point.name);
        let _ = write!(
            page,
            "<g class=\"s{}\"><title>{name}</title><path class=\"line\" d=\"M{p50:.1} {at:.1}H{last:.1}M{p50:.1} {bottom:.1}V{top:.1}\"/>",
            index % 8
        );
        for (quantile, ns) in ["p50", "p99", "p99.99"].into_iter().zip(latencies) {
            let _ = write!(
                page,
                "<circle class=\"dot\" cx=\"{:.1}\" cy=\"{at:.1}\" r=\"4\"><title>{name}, {quantile}: {}</title></circle>",
                x(ns as f64),
                duration(ns)
            );
        }
        page.push_str("</g>\n");
    }
    page.push_str("</svg>\n");
}
