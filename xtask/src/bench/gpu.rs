//! `cargo xtask bench gpu`: the GPU in software, and one of NVIDIA's where there is one, in turns with what knows nothing of Berth.

mod card;
mod sides;
mod soft;

use std::{
    fmt::Write as _,
    fs,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};

pub(super) use card::Card;

use super::{Reach, in_turn, median, network::OUT};
use crate::{
    bundle,
    sh::{self, cmd, run},
};

/// How much is measured.
struct Scale {
    /// Turns of each side.
    turns: usize,
    /// Round trips of a ring or of a kernel; answers of a full ring.
    trips: &'static str,
    answers: &'static str,
    /// Launches, copies, and what tenants ask for.
    calls: &'static str,
    /// Seconds of each turn over UDP, and before it.
    udp: [&'static str; 2],
    /// Shots one at a time; how many at once, and for how many milliseconds; turns of decoders.
    shots: &'static str,
    many: [&'static str; 2],
    decoders: usize,
    /// Times that a worker is killed.
    kills: usize,
}

/// On a GPU in hardware. Each turn is a process that opens the driver, which takes a second, or several where there are many GPUs.
const ON_CARD: Scale = Scale {
    turns: 3,
    trips: "50000",
    answers: "300000",
    calls: "2000",
    udp: ["1", "0.3"],
    shots: "1000",
    many: ["4096", "1000"],
    decoders: 2,
    kills: 7,
};

/// On the one in software.
const IN_SOFTWARE: Scale = Scale { turns: 5, trips: "30000", answers: "30000", udp: ["2", "0.3"], ..ON_CARD };

/// Whether everything runs; its figures mean nothing.
const QUICK: Scale = Scale {
    turns: 1,
    trips: "20",
    answers: "200",
    calls: "20",
    udp: ["0.3", "0"],
    shots: "2",
    many: ["4", "1"],
    decoders: 1,
    kills: 1,
};

/// A row of the table that is not measured yet.
struct Case {
    name: &'static str,
    measure: fn(&'static str, &Scale) -> Result<Line>,
}

/// A row of the table: percentiles in `unit`, of so many samples; what it is beside; and how it is judged.
struct Line {
    case: &'static str,
    unit: &'static str,
    figures: Figures,
    beside: String,
    reach: String,
    met: Option<bool>,
}

/// What was measured.
#[derive(Clone, Copy)]
struct Figures {
    /// The median, and the 99th and 99.9th percentiles; NaN where there are too few samples.
    at: [f64; 3],
    count: u64,
    /// Times that the measuring loop did not run for over 100 us; `None` where nobody looked.
    hiccups: Option<u64>,
}

/// What a row is beside.
struct Beside {
    name: &'static str,
    unit: &'static str,
    reach: Reach,
}

impl Figures {
    /// A figure alone.
    fn one(figure: f64, count: u64, hiccups: Option<u64>) -> Self {
        Self { at: [figure, f64::NAN, f64::NAN], count, hiccups }
    }

    /// The medians of all.
    fn of(all: &[Self]) -> Self {
        let hiccups = all.iter().map(|one| one.hiccups).sum();
        let at = [0, 1, 2].map(|at| median(all.iter().map(|one| one.at[at])));
        Self { at, count: all.iter().map(|one| one.count).sum(), hiccups }
    }

    /// In another unit.
    fn map(self, f: impl Fn(f64) -> f64) -> Self {
        Self { at: self.at.map(f), ..self }
    }

    /// One after the other, as far as percentiles add up.
    fn plus(self, other: Self) -> Self {
        Self { at: [0, 1, 2].map(|at| self.at[at] + other.at[at]), ..self }
    }
}

/// Turns of ours and of what it is beside.
fn contest(
    case: &'static str,
    beside: Beside,
    turns: usize,
    ours: impl Fn() -> Result<Figures>,
    theirs: impl Fn() -> Result<Figures>,
) -> Result<Line> {
    let pairs = (0..turns).map(|turn| in_turn(turn, &ours, &theirs)).collect::<Result<Vec<_>>>()?;
    Ok(judged(case, beside, &pairs))
}

/// Ours and theirs of each turn. The ratio is the median of those of neighbours.
fn judged(case: &'static str, beside: Beside, pairs: &[(Figures, Figures)]) -> Line {
    let Beside { name, unit, reach } = beside;
    let all = |side: fn(&(Figures, Figures)) -> Figures| Figures::of(&pairs.iter().map(side).collect::<Vec<_>>());
    let (figures, theirs) = (all(|pair| pair.0), all(|pair| pair.1));
    let over = |f: fn(f64, f64) -> f64| median(pairs.iter().map(|pair| f(pair.0.at[0], pair.1.at[0])));
    let (ratio, added) = (over(|ours, theirs| ours / theirs), over(|ours, theirs| ours - theirs));
    let [p50, p99, _] = theirs.at.map(|figure| said(figure, unit));
    let mut text = format!("{name} {p50}");
    if !p99.is_empty() {
        let _ = write!(text, ", p99 {p99}");
    }
    let _ = write!(text, ": {ratio:.2}x");
    let (reach, met) = match reach {
        Reach::AtMost(most) => (format!("<= {most:.2}x"), Some(ratio <= most)),
        Reach::AtLeast(least) => (format!(">= {least:.2}x"), Some(ratio >= least)),
        Reach::Added(most) => {
            let _ = write!(text, ", {added:.1} {unit} added");
            (format!("< {most} {unit} added"), Some(added < most))
        }
        Reach::Other(reach, met) => (reach, Some(met)),
        Reach::Capacity(..) | Reach::Printed => ("printed".into(), None),
    };
    Line { case, unit, figures, beside: text, reach, met }
}

fn said(figure: f64, unit: &str) -> String {
    if figure.is_nan() { String::new() } else { format!("{figure:.1} {unit}") }
}

pub(super) fn run_all() -> Result<()> {
    let table = Table::measure(Instant::now() + MOST)?;
    println!("\n{}", table.text);
    fs::write(format!("{OUT}/gpu.md"), &table.text)?;
    println!("written to {OUT}/gpu.md");
    ensure!(table.failed == 0, "{} rows failed", table.failed);
    Ok(())
}

/// How long `bench gpu` goes on.
const MOST: Duration = Duration::from_mins(15);

/// The rows of the GPU in software, and of a GPU, if there is one.
pub(crate) struct Table {
    pub(crate) text: String,
    /// Rows that have no figures because something went wrong, which they tell.
    pub(crate) failed: usize,
}

impl Table {
    /// Measures all, and begins no row later than `until`.
    pub(super) fn measure(until: Instant) -> Result<Self> {
        fs::create_dir_all(OUT)?;
        let soft = all(&soft::CASES, &IN_SOFTWARE, until);
        let card = Card::find()?;
        let on_card = card.as_ref().map(|card| (card, all(&card::CASES, &ON_CARD, until)));
        Ok(Self::of(&soft, on_card.as_ref().map(|(card, lines)| (*card, &lines[..]))))
    }

    /// A GPU's have the name that its driver has for it.
    fn of(soft: &[Measured], on_card: Option<(&Card, &[Measured])>) -> Self {
        let text = String::from(
            "| case, on the GPU in software | p50 | p99 | p99.9 | samples | hiccups | beside | reach | |\n\
             |---|---|---|---|---|---|---|---|---|\n",
        );
        let mut table = Self { text, failed: 0 };
        table.add(soft, "");
        if let Some((card, lines)) = on_card {
            table.add(lines, &format!("on {}: ", card.name));
        } else {
            for case in &card::CASES {
                let _ = writeln!(table.text, "| on a GPU: {} | not measured | | | | | | | |", case.name);
            }
        }
        table
    }

    fn add(&mut self, lines: &[Measured], place: &str) {
        for (case, measured) in lines {
            match measured {
                Ok(line) => line.write(&mut self.text, place),
                Err(why) => {
                    self.failed += 1;
                    let why = format!("{why:#}").replace(['|', '\n'], " ");
                    let _ = writeln!(self.text, "| {place}{case} | failed | | | | | {why} | | |");
                }
            }
        }
    }
}

/// A row, or why it has no figures.
type Measured = (&'static str, Result<Line>);

/// Measures these, whatever becomes of one of them. None is begun later than `until`: a GPU may be slow, or never answer.
fn all(cases: &[Case], scale: &Scale, until: Instant) -> Vec<Measured> {
    let measured = |case: &Case| {
        ensure!(Instant::now() < until, "no time was left");
        (case.measure)(case.name, scale)
    };
    cases.iter().map(|case| (case.name, measured(case))).collect()
}

impl Line {
    fn write(&self, text: &mut String, place: &str) {
        let Self { case, unit, figures: Figures { at, count, hiccups }, beside, reach, met } = self;
        let [p50, p99, p999] = at.map(|figure| said(figure, unit));
        let hiccups = hiccups.map_or_else(String::new, |hiccups| hiccups.to_string());
        let met = met.map_or("", |met| if met { "met" } else { "short" });
        let _ = writeln!(
            text,
            "| {place}{case} | {p50} | {p99} | {p999} | {count} | {hiccups} | {beside} | {reach} | {met} |"
        );
    }
}

/// Each row of a GPU once, with little of everything, over NVIDIA's driver in software: whether it has figures, which mean
/// nothing and are not told.
pub(super) fn quick() -> Result<()> {
    let driver = bundle::place()?;
    // All is built, as in the folder for other machines.
    run(rows_over(&driver).env("BERTH_BUNDLE", sh::root()))
}

/// Has [`each_row`] run with the driver of this folder.
pub(crate) fn rows_over(folder: &Path) -> Command {
    // This program, also where a build has put another one in its place.
    let mut rows = cmd("/proc/self/exe", ["gpu", "rows"]);
    rows.env("LD_LIBRARY_PATH", folder);
    rows
}

/// What [`quick`] runs.
pub(crate) fn each_row() -> Result<()> {
    fs::create_dir_all(OUT)?;
    let card = Card::find()?.context("no driver of NVIDIA's has a GPU")?;
    for case in &card::CASES {
        let line = (case.measure)(case.name, &QUICK)?;
        let [figure, ..] = line.figures.at;
        ensure!(figure.is_finite() && figure > 0.0 && line.figures.count > 0, "{} has no figure", case.name);
        println!("{}: measured, on {}", case.name, card.name);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(ours: f64, theirs: f64) -> (Figures, Figures) {
        (
            Figures::one(ours, 10, Some(1)),
            Figures { at: [theirs, 2.0 * theirs, 3.0 * theirs], count: 10, hiccups: None },
        )
    }

    #[test]
    fn a_row_is_judged_by_the_median_of_the_ratios_of_neighbours() {
        let judged = |reach| {
            let beside = Beside { name: "theirs", unit: "us", reach };
            judged("a case", beside, &[pair(11.0, 10.0), pair(30.0, 10.0), pair(5.0, 5.0)])
        };
        let line = judged(Reach::AtMost(1.1));
        assert_eq!((line.beside.as_str(), line.reach.as_str()), ("theirs 10.0 us, p99 20.0 us: 1.10x", "<= 1.10x"));
        assert_eq!((line.met, line.figures.count, line.figures.hiccups), (Some(true), 30, Some(3)));
        assert_eq!(judged(Reach::AtLeast(1.2)).met, Some(false));
        assert_eq!(judged(Reach::Added(1.0)).met, Some(false), "exactly so much");
        assert_eq!(judged(Reach::Printed).met, None);
        let mut text = String::new();
        line.write(&mut text, "on X: ");
        let cells = "| on X: a case | 11.0 us |  |  | 30 | 3 | theirs 10.0 us, p99 20.0 us: 1.10x | <= 1.10x | met |\n";
        assert_eq!(text, cells);
    }

    #[test]
    fn rows_of_a_gpu_have_its_name_and_those_without_figures_say_why() {
        let text = Table::of(&[], None).text;
        let missing = text.lines().filter(|line| line.starts_with("| on a GPU: ") && line.contains("| not measured |"));
        assert_eq!(missing.count(), card::CASES.len());
        let beside = Beside { name: "theirs", unit: "us", reach: Reach::Printed };
        let lines = [("one", Ok(judged("one", beside, &[pair(1.0, 1.0)]))), ("two", Err(anyhow::anyhow!("a|b\nc")))];
        let table = Table::of(&[], Some((&Card { name: "GPU in software".into() }, &lines)));
        assert!(!table.text.contains("on a GPU"));
        assert!(table.text.contains("| on GPU in software: one | 1.0 us |"));
        assert!(table.text.contains("| on GPU in software: two | failed | | | | | a b c | | |"));
        assert_eq!(table.failed, 1);
    }
}
