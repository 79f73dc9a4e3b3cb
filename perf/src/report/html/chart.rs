//! A line chart as inline SVG.

use std::fmt::Write as _;

use super::escape;

/// One chart.
pub(super) struct Chart<'a> {
    /// What the horizontal axis is.
    pub(super) x: XAxis,
    /// Whether values are on a logarithmic axis; a linear one starts at 0.
    pub(super) log: bool,
    /// The unit of the values.
    pub(super) unit: &'a str,
    /// Height in pixels of a chart 1000 pixels wide.
    pub(super) height: f64,
    /// The lines, drawn in this order.
    pub(super) series: &'a [Series<'a>],
}

/// The horizontal axis.
pub(super) enum XAxis {
    /// Percentiles, evenly by their nines, up to so many.
    Nines(f64),
    /// Seconds, up to so many.
    Seconds(f64),
    /// Events per second, up to so many.
    PerSecond(f64),
}

/// One line.
pub(super) struct Series<'a> {
    /// Its name.
    pub(super) label: &'a str,
    /// Its CSS class.
    pub(super) class: String,
    /// Points instead of a line.
    pub(super) dots: bool,
    /// Positions on the axis with their values, which are positive.
    pub(super) points: Vec<(f64, f64)>,
}

pub(super) const WIDTH: f64 = 1000.0;
pub(super) const LEFT: f64 = 78.0;
pub(super) const RIGHT: f64 = 18.0;
pub(super) const TOP: f64 = 12.0;
pub(super) const BOTTOM: f64 = 40.0;

impl Chart<'_> {
    /// Appends the chart to `page`.
    pub(super) fn render(&self, page: &mut String) {
        // A report may come from anywhere: what cannot be drawn is left out.
        let drawable = |point: &&(f64, f64)| (0.0..1e15).contains(&point.0) && (1e-9..1e15).contains(&point.1);
        let kept: Vec<Series<'_>> = self
            .series
            .iter()
            .map(|series| Series {
                points: series.points.iter().filter(drawable).copied().collect(),
                class: series.class.clone(),
                ..*series
            })
            .collect();
        let values = || kept.iter().flat_map(|series| &series.points).map(|point| point.1);
        if values().next().is_none() {
            page.push_str("<p class=\"note\">Nothing was answered.</p>\n");
            return;
        }
        let (least, most) = (values().fold(f64::MAX, f64::min), values().fold(0.0, f64::max));
        let (low, high) = if self.log { bounds(least, most) } else { (0.0, bounds(most, most).1) };
        let y = |value: f64| {
            let share = if self.log { (value / low).ln() / (high / low).ln() } else { value / high };
            self.height - BOTTOM - share * (self.height - BOTTOM - TOP)
        };
        let _ = writeln!(page, "<svg viewBox=\"0 0 {WIDTH} {}\" role=\"img\">", self.height);
        let lines = if self.log { gridlines(low, high) } else { [0.0, 0.5, 1.0].map(|share| share * high).into() };
        for value in lines {
            let at = y(value);
            let _ = write!(page, "<path class=\"grid\" d=\"M{LEFT} {at:.1}H{}\"/>", WIDTH - RIGHT);
            let _ = writeln!(
                page,
                "<text class=\"y\" x=\"{}\" y=\"{:.1}\">{}</text>",
                LEFT - 8.0,
                at + 4.0,
                self.value(value)
            );
        }
        for (at, label) in self.ticks() {
            let at = self.x(at);
            let _ = write!(page, "<path class=\"grid\" d=\"M{at:.1} {TOP}V{}\"/>", self.height - BOTTOM);
            let _ =
                writeln!(page, "<text class=\"x\" x=\"{at:.1}\" y=\"{}\">{label}</text>", self.height - BOTTOM + 26.0);
        }
        for series in &kept {
            self.line(page, series, y);
        }
        page.push_str("</svg>\n");
    }

    fn line(&self, page: &mut String, series: &Series<'_>, y: impl Fn(f64) -> f64) {
        let _ = write!(page, "<g class=\"{}\"><title>{}</title>", series.class, escape(series.label));
        if !series.dots {
            page.push_str("<path class=\"line\" d=\"");
            for (i, point) in series.points.iter().enumerate() {
                let _ = write!(page, "{}{:.1} {:.1}", if i == 0 { 'M' } else { 'L' }, self.x(point.0), y(point.1));
            }
            page.push_str("\"/>");
        }
        for (at, value) in &series.points {
            let class = if series.dots { "dot" } else { "touch" };
            let _ =
                write!(page, "<circle class=\"{class}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"2.5\">", self.x(*at), y(*value));
            let _ = write!(
                page,
                "<title>{} {}: {}</title></circle>",
                escape(series.label),
                self.position(*at),
                self.value(*value)
            );
        }
        page.push_str("</g>\n");
    }

    fn x(&self, at: f64) -> f64 {
        let (XAxis::Nines(end) | XAxis::Seconds(end) | XAxis::PerSecond(end)) = self.x;
        LEFT + (at / end.max(1e-9)).clamp(0.0, 1.0) * (WIDTH - LEFT - RIGHT)
    }

    fn ticks(&self) -> Vec<(f64, String)> {
        match self.x {
            XAxis::Nines(end) => {
                let half = (0.5_f64.log10().abs(), "50 %".to_owned());
                let nines = (1..=end.floor() as i32).map(|nines| (f64::from(nines), percent(f64::from(nines))));
                [(0.0, "0 %".to_owned()), half].into_iter().chain(nines).collect()
            }
            XAxis::PerSecond(end) => {
                let step = nice_step(end / 6.0);
                let count = (end / step).floor() as u32;
                (0..=count).map(|i| (f64::from(i) * step, per_second(f64::from(i) * step))).collect()
            }
            XAxis::Seconds(end) => {
                let step = nice_step(end / 8.0);
                let count = (end / step).floor() as u32;
                (0..=count).map(|i| (f64::from(i) * step, format!("{} s", trim(f64::from(i) * step)))).collect()
            }
        }
    }

    fn position(&self, at: f64) -> String {
        match self.x {
            XAxis::Nines(_) => percent(at),
            XAxis::Seconds(_) => format!("at {at:.2} s"),
            XAxis::PerSecond(_) => format!("at {}", per_second(at)),
        }
    }

    fn value(&self, value: f64) -> String {
        match (self.unit, value) {
            ("us", us) if us >= 1e6 => format!("{} s", trim(us / 1e6)),
            ("us", us) if us >= 1e3 => format!("{} ms", trim(us / 1e3)),
            ("us", us) => format!("{} µs", trim(us)),
            (unit, value) if value >= 1e6 => format!("{} M{unit}", trim(value / 1e6)),
            (unit, value) if value >= 1e3 => format!("{} k{unit}", trim(value / 1e3)),
            (unit, value) => format!("{} {unit}", trim(value)),
        }
    }
}

fn per_second(rate: f64) -> String {
    match rate {
        rate if rate >= 1e6 => format!("{} M/s", trim(rate / 1e6)),
        rate if rate >= 1e3 => format!("{} k/s", trim(rate / 1e3)),
        rate => format!("{} /s", trim(rate)),
    }
}

/// The percentile that lies so many nines from the top.
fn percent(nines: f64) -> String {
    let beyond = 100.0 * 10_f64.powf(-nines);
    // As many digits as there are nines behind the point, and one more between two nines.
    let digits = (nines - 2.001).ceil().max(0.0) as usize;
    let between = (nines - nines.round()).abs() > 0.001 && nines > 0.302;
    format!("{:.*} %", digits + usize::from(between), 100.0 - beyond)
}

/// Three significant digits, without trailing zeros.
fn trim(value: f64) -> String {
    let digits = (2 - value.abs().max(1e-9).log10().floor() as i32).clamp(0, 3) as usize;
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// Bounds of a logarithmic axis on which these positive values are.
pub(super) fn axis(values: impl Iterator<Item = f64> + Clone) -> (f64, f64) {
    bounds(values.clone().fold(f64::MAX, f64::min), values.fold(0.0, f64::max))
}

/// Axis bounds around the values: 1, 2 or 5 times a power of ten, at least a factor of 2.5 apart.
fn bounds(low: f64, high: f64) -> (f64, f64) {
    let below = |value: f64| {
        let power = 10_f64.powf(value.log10().floor());
        [5.0, 2.0, 1.0].map(|step| step * power).into_iter().find(|step| *step <= value * 1.000_001).unwrap_or(power)
    };
    let above = |value: f64| {
        let power = 10_f64.powf(value.log10().floor());
        [1.0, 2.0, 5.0].map(|step| step * power).into_iter().find(|step| *step >= value).unwrap_or(10.0 * power)
    };
    let low = below(low);
    (low, above(high).max(low * 2.5))
}

/// Where lines are drawn across: each power of ten with its double and its half, or the powers alone over a wide range.
pub(super) fn gridlines(low: f64, high: f64) -> Vec<f64> {
    let steps: &[f64] = if high / low > 2_000.0 { &[1.0] } else { &[1.0, 2.0, 5.0] };
    let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
    let lines = (first..=last).flat_map(|power| steps.iter().map(move |step| step * 10_f64.powi(power)));
    lines.filter(|value| (low * 0.999..=high * 1.001).contains(value)).collect()
}

/// 1, 2 or 5 times a power of ten, at least `step`.
fn nice_step(step: f64) -> f64 {
    let power = 10_f64.powf(step.max(1e-6).log10().floor());
    [1.0, 2.0, 5.0].map(|nice| nice * power).into_iter().find(|nice| *nice >= step).unwrap_or(10.0 * power)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_have_round_bounds_and_lines() {
        assert_eq!(bounds(4.3, 4.4), (2.0, 5.0));
        assert_eq!(bounds(4.3, 180.0), (2.0, 200.0));
        assert_eq!(gridlines(2.0, 50.0), [2.0, 5.0, 10.0, 20.0, 50.0]);
        assert_eq!(gridlines(1.0, 10_000.0), [1.0, 10.0, 100.0, 1000.0, 10_000.0]);
        assert_eq!([0.3, 0.11, 7.0].map(|step| trim(nice_step(step))), ["0.5", "0.2", "10"]);
    }

    #[test]
    fn percentiles_show_their_nines() {
        assert_eq!([0.0, 1.0, 2.0, 3.0, 5.0].map(percent), ["0 %", "90 %", "99 %", "99.9 %", "99.999 %"]);
        assert_eq!([0.5, 0.25, 0.004].map(|beyond: f64| percent(-beyond.log10())), ["50 %", "75.0 %", "99.60 %"]);
        assert_eq!([0.25, 4.0, 12.5, 123.0, 1500.0].map(trim), ["0.25", "4", "12.5", "123", "1500"]);
    }
}
