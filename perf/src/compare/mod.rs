//! `berth perf compare A B`: which cases of two reports differ, and whether that is a regression.
//!
//! Only like is compared with like: the same case, asked in the same way, on the same CPU and kernel, in turns in which
//! the two cores stood alike. What cannot be compared is said, not skipped.

mod bootstrap;

use std::{fmt::Write as _, process::ExitCode};

use serde::Serialize;

pub use bootstrap::{CONFIDENCE, FEWEST, Figure, Pairing, RESAMPLES, Ratios};

use crate::{
    args::CompareArgs,
    environment::Environment,
    report::{
        self, Report,
        json::CaseReport,
        suite::{Estimate, Turn},
    },
};

/// What is said of one case, in one state of the cores.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// The case's name.
    pub case: String,
    /// `near`, `far`, or `-` where the bounce is unknown.
    pub state: String,
    /// Turns of base and new in this state.
    pub turns: [usize; 2],
    /// Figure by figure; empty where the case is not comparable.
    pub findings: Vec<Finding>,
    /// Why it is not comparable.
    pub not_comparable: Option<String>,
}

/// What is said of one figure.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Finding {
    /// The figure that is compared.
    pub figure: Figure,
    /// New over base.
    pub estimate: Estimate,
    /// What the interval of `estimate` says of a difference.
    pub verdict: Verdict,
    /// Whether it is worse by more than the threshold, and that with an interval wide enough for all figures together.
    pub regression: bool,
}

/// What an interval means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It lies on the worse side of 1.
    Slower,
    /// It lies on the better side of 1.
    Faster,
    /// It contains 1.
    NoDifferenceSeen,
}

impl Verdict {
    fn of(figure: Figure, Estimate { low, high, .. }: Estimate) -> Self {
        match (low > 1.0, high < 1.0) {
            (true, _) if figure.is_latency() => Self::Slower,
            (_, true) if !figure.is_latency() => Self::Slower,
            (true, _) | (_, true) => Self::Faster,
            _ => Self::NoDifferenceSeen,
        }
    }

    fn words(self) -> &'static str {
        match self {
            Self::Slower => "slower",
            Self::Faster => "faster",
            Self::NoDifferenceSeen => "no difference seen",
        }
    }
}

/// Runs the command. 0: no regression; 1: a regression; 2: nothing could be compared.
pub(crate) fn run(args: &CompareArgs) -> anyhow::Result<ExitCode> {
    let (base, new) = (report::read(&args.base)?, report::read(&args.new)?);
    let rows = compare(&base, &new, args.threshold / 100.0, RESAMPLES);
    if args.json {
        println!("{}", serde_json::to_string_pretty(&rows)?);
    } else {
        print!("{}", render(&rows, args.threshold));
    }
    let findings = || rows.iter().flat_map(|row| &row.findings);
    Ok(match (findings().next(), findings().any(|finding| finding.regression)) {
        (None, _) => ExitCode::from(2),
        (_, true) => ExitCode::FAILURE,
        (_, false) => ExitCode::SUCCESS,
    })
}

/// Compares every case of `new` with that of `base`. `threshold` is the part by which worse is a regression.
pub fn compare(base: &Report, new: &Report, threshold: f64, resamples: usize) -> Vec<Row> {
    let elsewhere = elsewhere(&base.environment, &new.environment);
    let ours = |report: &'_ Report| -> Vec<String> {
        report.cases.iter().filter(|case| case.baseline_of.is_none()).map(|case| case.name.clone()).collect()
    };
    let mut rows = Vec::new();
    let mut judged = Vec::new();
    for name in ours(new) {
        let find =
            |report: &'_ Report| report.cases.iter().position(|case| case.baseline_of.is_none() && case.name == name);
        let not = |why: String| Row {
            case: name.clone(),
            state: "-".into(),
            turns: [0; 2],
            findings: Vec::new(),
            not_comparable: Some(why),
        };
        let Some((of_base, of_new)) = find(base).zip(find(new)) else {
            rows.push(not("only B has it".into()));
            continue;
        };
        let (of_base, of_new) = (&base.cases[of_base], &new.cases[of_new]);
        if let Some(why) = elsewhere.clone().or_else(|| otherwise(of_base, of_new)) {
            rows.push(not(why));
            continue;
        }
        let states = common_states(of_base, of_new);
        if states.is_empty() {
            rows.push(not(no_common_state(of_base, of_new)));
        }
        for state in states {
            let (base, new) = (of_state(of_base, state), of_state(of_new, state));
            let turns = [base.len(), new.len()];
            judged.push((rows.len(), Ratios::of(&base, &new, Pairing::Independent, resamples)));
            rows.push(Row {
                case: name.clone(),
                state: state.into(),
                turns,
                findings: Vec::new(),
                not_comparable: None,
            });
        }
    }
    for name in ours(base).into_iter().filter(|name| !ours(new).contains(name)) {
        rows.push(Row {
            case: name,
            state: "-".into(),
            turns: [0; 2],
            findings: Vec::new(),
            not_comparable: Some("only A has it".into()),
        });
    }
    // With many intervals some exclude 1 by chance: what fails a build has to be sure of all of them together.
    let strict = 1.0 - (1.0 - CONFIDENCE) / (judged.len().max(1) * Figure::ALL.len()) as f64;
    for (row, ratios) in judged {
        let row = &mut rows[row];
        let turns = row.turns[0].min(row.turns[1]);
        row.findings.extend(Figure::ALL.into_iter().filter_map(|figure| {
            let estimate = ratios.estimate(figure, CONFIDENCE, turns)?;
            let surely = Verdict::of(figure, ratios.estimate(figure, strict, turns)?) == Verdict::Slower;
            let worse = if figure.is_latency() { estimate.ratio - 1.0 } else { 1.0 / estimate.ratio - 1.0 };
            Some(Finding {
                figure,
                estimate,
                verdict: Verdict::of(figure, estimate),
                regression: surely && worse > threshold,
            })
        }));
    }
    rows
}

/// Why nothing of two environments can be compared.
fn elsewhere(base: &Environment, new: &Environment) -> Option<String> {
    let differs = |what: &str, a: &Option<String>, b: &Option<String>| {
        let name = |value: &Option<String>| value.clone().unwrap_or_else(|| "unknown".into());
        (a != b).then(|| format!("{what}: {} and {}", name(a), name(b)))
    };
    differs("different CPUs", &base.cpu_model, &new.cpu_model)
        .or_else(|| differs("different kernels", &base.kernel, &new.kernel))
        .or_else(|| differs("different governors", &base.governor, &new.governor))
        .or_else(|| differs("different isolated CPUs", &base.cpus_isolated, &new.cpus_isolated))
}

/// Why two cases of one name cannot be compared.
fn otherwise(base: &CaseReport, new: &CaseReport) -> Option<String> {
    if base.turns.is_empty() || new.turns.is_empty() {
        return Some(
            "a run without turns: `berth perf suite` takes several, and only they tell noise from a difference".into(),
        );
    }
    (base.client != new.client).then(|| "it was asked otherwise".into())
}

fn of_state<'a>(case: &'a CaseReport, state: &str) -> Vec<&'a Turn> {
    case.turns.iter().filter(|turn| turn.state() == state && turn.latency.n > 0).collect()
}

/// The states of which both have turns enough.
fn common_states(base: &CaseReport, new: &CaseReport) -> Vec<&'static str> {
    let enough = |case, state| of_state(case, state).len() >= FEWEST;
    ["near", "far", "-"].into_iter().filter(|state| enough(base, state) && enough(new, state)).collect()
}

fn no_common_state(base: &CaseReport, new: &CaseReport) -> String {
    let turns = |case: &CaseReport| {
        let states = ["near", "far", "mixed", "-"].map(|state| (state, of_state(case, state).len()));
        let states: Vec<_> =
            states.iter().filter(|(_, count)| *count > 0).map(|(state, count)| format!("{count} {state}")).collect();
        states.join(", ")
    };
    format!("fewer than {FEWEST} turns of one bounce state in both: A has {}; B has {}", turns(base), turns(new))
}

/// The table for people.
pub fn render(rows: &[Row], threshold: f64) -> String {
    let mut text = format!(
        "B over A with {:.0} % confidence intervals, by {RESAMPLES} resamples of whole turns\n",
        CONFIDENCE * 100.0
    );
    let width = rows.iter().map(|row| row.case.chars().count()).max().unwrap_or(0);
    let mut figures = 0;
    for row in rows {
        if let Some(why) = &row.not_comparable {
            let _ = writeln!(text, "{:width$}  not comparable: {why}", row.case);
        }
        for finding in &row.findings {
            figures += 1;
            let Estimate { ratio, low, high } = finding.estimate;
            let _ = writeln!(
                text,
                "{:width$}  {:<5} {:>2}+{:<2} turns  {:<5} {ratio:>6.3}x [{low:.3}, {high:.3}]  {}{}",
                row.case,
                row.state,
                row.turns[0],
                row.turns[1],
                finding.figure.name(),
                finding.verdict.words(),
                if finding.regression { ": REGRESSION" } else { "" }
            );
        }
    }
    let regressions = rows.iter().flat_map(|row| &row.findings).filter(|finding| finding.regression).count();
    let _ = writeln!(
        text,
        "{figures} figures, of which about {:.0} are expected beyond their interval by chance; {regressions} worse by more than \
         {threshold} % with all of them considered together",
        figures as f64 * (1.0 - CONFIDENCE)
    );
    text
}
