//! One frame.

use berth_engine::Summary;
use ratatui::{
    Frame,
    layout::{Alignment, Constraint, Layout, Rect},
    style::{Color, Style, Stylize as _},
    text::{Line, Span},
    widgets::{Block, Cell, Row, Table},
};

use super::rates::Rates;
use crate::admin::{GpuStatus, HipClass, HipStatus, Nvme, NvmeTarget, Status, family};

/// What is shown: the last reading and the one before.
#[derive(Debug)]
pub(super) struct View {
    now: Status,
    before: Option<Status>,
    /// Why there is no newer reading.
    lost: Option<String>,
}

/// A table: its title, its columns (heads and widths; text is left, numbers are right), its rows.
struct Pane {
    title: String,
    columns: Vec<(&'static str, Constraint)>,
    rows: Vec<Vec<String>>,
    /// Shown where there are no rows.
    none: &'static str,
}

impl Pane {
    /// Its lines, with frame and heads.
    fn height(&self) -> u16 {
        self.rows.len().max(1) as u16 + 3
    }

    fn draw(&self, frame: &mut Frame<'_>, area: Rect) {
        // Heads that begin with a space are of columns of text.
        let cell = |column: usize, text: &str| {
            let is_text = self.columns.get(column).is_none_or(|(head, _)| head.starts_with(' '));
            let alignment = if is_text { Alignment::Left } else { Alignment::Right };
            Cell::new(Line::from(text.to_owned()).alignment(alignment))
        };
        let head = self.columns.iter().enumerate().map(|(column, (head, _))| cell(column, head.trim_start()));
        let mut rows: Vec<Row<'_>> = self
            .rows
            .iter()
            .map(|row| Row::new(row.iter().enumerate().map(|(column, text)| cell(column, text)).collect::<Vec<_>>()))
            .collect();
        if rows.is_empty() {
            rows.push(Row::new([Cell::new(self.none)]).dim());
        }
        let table = Table::new(rows, self.columns.iter().map(|(_, width)| *width))
            .header(Row::new(head.collect::<Vec<_>>()).style(Style::new().fg(Color::Cyan)))
            .column_spacing(1)
            .block(
                Block::bordered()
                    .border_style(Style::new().fg(Color::DarkGray))
                    .title(Span::raw(self.title.as_str()).fg(Color::Reset).bold()),
            );
        frame.render_widget(table, area);
    }
}

impl View {
    pub(super) fn new(now: Status) -> Self {
        Self { now, before: None, lost: None }
    }

    /// A newer reading.
    pub(super) fn update(&mut self, now: Status) {
        self.before = Some(std::mem::replace(&mut self.now, now));
        self.lost = None;
    }

    /// There was no answer.
    pub(super) fn lose(&mut self, why: &anyhow::Error) {
        self.lost = Some(format!("{why:#}"));
    }

    /// Lines that a whole frame takes.
    pub(super) fn height(&self) -> u16 {
        let [ports, stages, threads, losses, leases] = self.panes();
        let more: u16 = [self.gpus(), self.hip(), self.nvme()].iter().flatten().map(Pane::height).sum();
        1 + ports.height() + stages.height() + threads.height().max(losses.height()) + leases.height() + more
    }

    pub(super) fn draw(&self, frame: &mut Frame<'_>) {
        let [ports, stages, threads, losses, leases] = self.panes();
        let beside = threads.height().max(losses.height());
        let more = [self.gpus(), self.hip(), self.nvme()];
        let [of_gpus, of_hip, of_nvme] = more.each_ref().map(|pane| pane.as_ref().map_or(0, Pane::height));
        let heights = [1, ports.height(), stages.height(), beside, leases.height(), of_gpus, of_hip, of_nvme];
        let areas = Layout::vertical(heights.map(Constraint::Length)).areas(frame.area());
        let [head, top, middle, low, bottom, gpus, hip, last] = areas;
        let state = match &self.lost {
            Some(why) => Span::raw(why.as_str()).red(),
            None if self.now.ready && self.now.stuck.is_empty() => Span::raw(self.now.state()).green(),
            None => Span::raw(self.now.state()).red(),
        };
        let head_line = Line::from(vec![
            Span::raw(format!("berth {} ", self.now.version)).bold(),
            state.bold(),
            Span::raw(format!(", up {:.0} s", self.now.uptime_s)),
        ]);
        frame.render_widget(head_line, head);
        frame.render_widget(Line::from("q quits ").right_aligned().dim(), head);
        ports.draw(frame, top);
        stages.draw(frame, middle);
        let [left, right] = Layout::horizontal([Constraint::Fill(13), Constraint::Fill(17)]).areas(low);
        threads.draw(frame, left);
        losses.draw(frame, right);
        leases.draw(frame, bottom);
        for (pane, area) in more.iter().zip([gpus, hip, last]) {
            if let Some(pane) = pane {
                pane.draw(frame, area);
            }
        }
    }

    fn panes(&self) -> [Pane; 5] {
        let rates = Rates::new(&self.now, self.before.as_ref());
        [self.ports(&rates), self.stages(), self.threads(&rates), self.losses(&rates), self.leases()]
    }

    fn ports(&self, rates: &Rates<'_>) -> Pane {
        let lanes = self.now.snapshot.lcores.iter().flat_map(|lcore| lcore.lanes.iter().map(move |lane| (lcore, lane)));
        let rows = lanes.map(|(lcore, lane)| {
            let rate = |counter| number(rates.lane(&lcore.name, lane, counter));
            let mut row = vec![lane.name.clone(), lcore.name.clone(), rate("frames_rx"), rate("frames_replied")];
            row.extend(percentiles(rates.recent(&lcore.name, &lane.name, "service_time")));
            row
        });
        Pane {
            title: format!(" Ports: service time of {:.1} s ", self.now.window_s),
            columns: columns(&[(" port", 16), (" lcore", 8), ("received/s", 11), ("answered/s", 11)], &LATENCY),
            rows: rows.collect(),
            none: "none",
        }
    }

    fn stages(&self) -> Pane {
        let timed = self.now.recent.iter().filter(|one| one.stage != "hiccup" && one.summary.count > 0);
        let rows = timed.map(|one| {
            let port = one.port.clone().unwrap_or_default();
            // A ring kernel's by its name.
            let stage = family(&one.stage).1.map_or_else(|| one.stage.replace('_', " "), str::to_owned);
            let mut row = vec![stage, port, one.thread.clone(), number(one.summary.count as f64)];
            row.extend(percentiles(Some(&one.summary)));
            row
        });
        Pane {
            title: " Latency by stage ".into(),
            columns: columns(&[(" stage", 20), (" port", 12), (" thread", 8), ("samples", 9)], &LATENCY),
            rows: rows.collect(),
            none: "nothing was timed",
        }
    }

    fn threads(&self, rates: &Rates<'_>) -> Pane {
        let snapshot = &self.now.snapshot;
        let lcores = snapshot.lcores.iter().map(|lcore| {
            let ports: Vec<_> = lcore.lanes.iter().map(|lane| lane.name.as_str()).collect();
            let longest = if lcore.hiccups.count > 0 { time(lcore.hiccups.max) } else { "-".into() };
            let busy = rates.busy(lcore);
            vec![lcore.name.clone(), bar(busy), percent(busy), ports.join(" "), number(rates.hiccups(lcore)), longest]
        });
        let workers = snapshot.workers.iter().map(|worker| {
            let busy = rates.worker_busy(worker);
            vec![worker.name.clone(), bar(busy), percent(busy), worker.port.clone()]
        });
        Pane {
            title: " Lcores and workers ".into(),
            columns: vec![
                (" thread", Constraint::Length(8)),
                (" ", Constraint::Length(6)),
                ("busy", Constraint::Length(6)),
                (" serves", Constraint::Fill(1)),
                ("hiccups/s", Constraint::Length(9)),
                ("longest", Constraint::Length(8)),
            ],
            rows: lcores.chain(workers).collect(),
            none: "none",
        }
    }

    fn losses(&self, rates: &Rates<'_>) -> Pane {
        let rows = self.now.losses.iter().map(|loss| {
            let [what, reason] = [&loss.what, &loss.reason].map(|text| text.replace('_', " "));
            vec![loss.place.clone(), what, reason, number(rates.loss(loss)), number(loss.count as f64)]
        });
        Pane {
            title: " Refused and dropped ".into(),
            columns: vec![
                (" where", Constraint::Length(10)),
                (" what", Constraint::Length(14)),
                (" reason", Constraint::Fill(1)),
                ("per s", Constraint::Length(7)),
                ("total", Constraint::Length(8)),
            ],
            rows: rows.collect(),
            none: "none so far",
        }
    }

    fn leases(&self) -> Pane {
        let count = |name: &str| self.now.control.get(name).copied().unwrap_or(0);
        let names =
            self.now.control.keys().filter_map(|name| name.strip_prefix("region_")?.strip_suffix("_size_bytes"));
        let rows = names.map(|name| {
            let size = count(&format!("region_{name}_size_bytes"));
            let leased = size.saturating_sub(count(&format!("region_{name}_free_bytes")));
            let share = leased as f64 / size.max(1) as f64;
            vec![name.to_owned(), bar(share), percent(share), bytes(leased), bytes(size)]
        });
        let title = match self.now.control.get("leases") {
            Some(leases) => format!(" Leases: {leases} of {} ", bytes(count("leased_bytes"))),
            None => " Leases ".into(),
        };
        let columns = [(" region", 20), (" ", 6), ("leased", 7), ("", 10), ("size", 10)];
        Pane { title, columns: columns_of(&columns), rows: rows.collect(), none: "no regions" }
    }
}

/// What only some configurations have: GPUs, HIP Remote, and leases over NVMe.
impl View {
    fn gpus(&self) -> Option<Pane> {
        let rows = self.now.gpus.iter().map(|gpu| {
            let trouble = GpuStatus::TROUBLE.map(|(name, _)| number(gpu.count(name) as f64));
            let front = [gpu.name.clone(), gpu.device.clone(), gpu.state().to_owned(), gpu.worker()];
            [front.to_vec(), trouble.to_vec()].concat()
        });
        let trouble = GpuStatus::TROUBLE.map(|(_, head)| (head, 9));
        let columns = columns(&[(" gpu", 16), (" device", 16), (" state", 7), ("worker", 9)], &trouble);
        let rows: Vec<_> = rows.collect();
        (!rows.is_empty()).then(|| Pane { title: " GPUs ".into(), columns, rows, none: "none" })
    }

    fn hip(&self) -> Option<Pane> {
        let HipStatus { devices, sessions, busiest: _, classes } = self.now.hip.as_ref()?;
        let rates = Rates::new(&self.now, self.before.as_ref());
        let rows = classes.iter().map(|class| {
            let rate = |of: fn(&HipClass) -> u64| rates.hip(class, of);
            vec![
                class.name.clone(),
                number(rate(HipClass::requests)),
                number(rate(|class| class.failed + class.deferred)),
                bytes(rate(|class| class.bytes_in) as u64),
                bytes(rate(|class| class.bytes_out) as u64),
                number(class.requests() as f64),
                number((class.failed + class.deferred) as f64),
            ]
        });
        let [used, total] = [0, 1].map(|at| devices.iter().map(|of| [of.used, of.total][at]).sum());
        let columns = [
            (" class", 12),
            ("requests/s", 11),
            ("errors/s", 9),
            ("in /s", 10),
            ("out /s", 10),
            ("requests", 10),
            ("errors", 10),
        ];
        let title = format!(" HIP: {sessions} sessions, {} of {} ", bytes(used), bytes(total));
        Some(Pane { title, columns: columns_of(&columns), rows: rows.collect(), none: "no requests so far" })
    }

    fn nvme(&self) -> Option<Pane> {
        let Nvme { berth, kernel_leases } = Nvme::of(&self.now.control)?;
        let rates = Rates::new(&self.now, self.before.as_ref());
        let berth = berth.map(|NvmeTarget { leases, hosts, controllers, queues, io: _ }| {
            let [reads, writes, read, written] = NvmeTarget::IO.map(|counter| rates.control(counter));
            let present = [leases, hosts, controllers, queues].map(|count| count.to_string());
            let rates = [number(reads), number(writes), bytes(read as u64), bytes(written as u64)];
            [vec!["berth".to_owned()], present.to_vec(), rates.to_vec()].concat()
        });
        let kernel = kernel_leases.map(|leases| vec!["kernel".to_owned(), leases.to_string()]);
        let columns = [
            (" NVMe by", 8),
            ("leases", 7),
            ("hosts", 7),
            ("controllers", 11),
            ("queues", 7),
            ("reads/s", 10),
            ("writes/s", 10),
            ("read /s", 10),
            ("written /s", 10),
        ];
        let rows = berth.into_iter().chain(kernel).collect();
        Some(Pane { title: " NVMe ".into(), columns: columns_of(&columns), rows, none: "none" })
    }
}

const LATENCY: [(&str, u16); 5] = [("p50", 9), ("p90", 9), ("p99", 9), ("p99.9", 9), ("max", 9)];

fn columns(first: &[(&'static str, u16)], then: &[(&'static str, u16)]) -> Vec<(&'static str, Constraint)> {
    columns_of(&[first, then].concat())
}

fn columns_of(columns: &[(&'static str, u16)]) -> Vec<(&'static str, Constraint)> {
    columns.iter().map(|(head, width)| (*head, Constraint::Length(*width))).collect()
}

fn percentiles(summary: Option<&Summary>) -> [String; 5] {
    match summary {
        Some(s) => [s.p50, s.p90, s.p99, s.p999, s.max].map(time),
        None => std::array::from_fn(|_| "-".into()),
    }
}

/// A bar of six cells.
fn bar(share: f64) -> String {
    let filled = (share.clamp(0.0, 1.0) * 6.0).round() as usize;
    format!("{}{}", "█".repeat(filled), "░".repeat(6 - filled))
}

fn percent(share: f64) -> String {
    format!("{:.1}%", share.min(1.0) * 100.0)
}

fn number(value: f64) -> String {
    match value {
        1e6.. => format!("{:.2} M", value / 1e6),
        1e4.. => format!("{:.1} k", value / 1e3),
        _ if value.fract() == 0.0 || value >= 100.0 => format!("{value:.0}"),
        _ => format!("{value:.1}"),
    }
}

fn time(nanos: u64) -> String {
    match nanos {
        1_000_000_000.. => format!("{:.2} s", nanos as f64 / 1e9),
        1_000_000.. => format!("{:.2} ms", nanos as f64 / 1e6),
        1_000.. => format!("{:.2} us", nanos as f64 / 1e3),
        _ => format!("{nanos} ns"),
    }
}

fn bytes(value: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let unit = value.max(1).ilog2() as usize / 10;
    let scaled = value as f64 / (1_u64 << (10 * unit)) as f64;
    if scaled.fract() == 0.0 { format!("{scaled:.0} {}", units[unit]) } else { format!("{scaled:.1} {}", units[unit]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_short() {
        assert_eq!([0.0, 0.25, 99.0, 12_345.6, 4.2e6].map(number), ["0", "0.2", "99", "12.3 k", "4.20 M"]);
        assert_eq!(
            [0, 999, 1_500, 2_000_000, 3_000_000_000].map(time),
            ["0 ns", "999 ns", "1.50 us", "2.00 ms", "3.00 s"]
        );
        assert_eq!([0, 4096, 64 << 20, 3 << 29, u64::MAX].map(bytes), ["0 B", "4 KiB", "64 MiB", "1.5 GiB", "16 EiB"]);
        assert_eq!((bar(0.5), bar(7.0)), ("███░░░".into(), "██████".into()));
    }
}
