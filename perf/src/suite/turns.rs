//! Cases in turns with their baselines, so that all of them see the same moods of the machine.

use std::{collections::BTreeMap, sync::atomic::Ordering::Relaxed, time::Duration};

use anyhow::Context as _;
use berth_process::Finished;
use regex_lite::Regex;
use serde_json::Value;

use super::{
    bench::{Bench, Measure, asking_baseline, lacking},
    file::{Baseline, Case, Figure as Printed, Server, Suite},
    library::Library,
    merge,
};
use crate::{
    compare::{CONFIDENCE, FEWEST, Figure, Pairing, RESAMPLES, Ratios},
    report::{
        json::{CaseReport, Setup},
        suite::{Contest, Missing, Program, Turn},
    },
};

/// How long a program with a client of its own may take.
const PROGRAM: Duration = Duration::from_mins(1);

/// What a suite's turns came to.
#[derive(Default)]
pub(super) struct Outcome {
    pub(super) cases: Vec<CaseReport>,
    pub(super) contests: Vec<Contest>,
    pub(super) programs: Vec<Program>,
    pub(super) missing: Vec<Missing>,
    /// Turns that could not be taken, and why.
    pub(super) failures: Vec<String>,
}

/// One run of a client.
pub(super) struct Taken {
    pub(super) at_s: f64,
    pub(super) report: CaseReport,
    pub(super) setup: Option<Setup>,
}

/// Who answers a case, turn by turn.
struct Entry<'a> {
    case: &'a Case,
    /// `None` is us.
    baseline: Option<String>,
    turns: BTreeMap<u32, Taken>,
}

/// A server of ours, or none for loopbacks, with the cases that ask it and the baselines of these.
struct Group<'a> {
    server: Option<&'a Server>,
    cases: Vec<&'a Case>,
    baselines: Vec<(String, Baseline)>,
}

/// Takes every turn of every case.
pub(super) fn take(bench: &mut Bench, suite: &Suite, library: &Library<'_>, turns: u32) -> anyhow::Result<Outcome> {
    let mut outcome = Outcome::default();
    let groups = groups(bench, suite, library, &mut outcome)?;
    let mut entries: Vec<Entry<'_>> = Vec::new();
    for case in groups.iter().flat_map(|group| &group.cases) {
        entries.push(Entry { case, baseline: None, turns: BTreeMap::new() });
        for name in &case.baselines {
            entries.push(Entry { case, baseline: Some(name.clone()), turns: BTreeMap::new() });
        }
    }
    let mut figures: BTreeMap<(String, String), Vec<f64>> = BTreeMap::new();
    for turn in 0..turns {
        for group in &groups {
            if bench.stop.load(Relaxed) {
                anyhow::bail!("stopped by a signal");
            }
            // Who goes first changes, for the second finds a warmer machine.
            let ours_first = turn % 2 == 0;
            if ours_first {
                our_turn(bench, suite, group, turn, &mut entries, &mut outcome);
            }
            for (name, baseline) in &group.baselines {
                let asking = group.cases.iter().filter(|case| case.baselines.contains(name));
                let asking: Vec<_> = asking.copied().collect();
                if let Err(error) =
                    baseline_turn(bench, suite, (name, baseline), &asking, turn, &mut entries, &mut figures)
                {
                    outcome.failures.push(format!("{name}, turn {}: {error:#}", turn + 1));
                }
            }
            if !ours_first {
                our_turn(bench, suite, group, turn, &mut entries, &mut outcome);
            }
        }
        eprintln!("turn {} of {turns} taken after {:.0} s", turn + 1, bench.started.elapsed().as_secs_f64());
    }
    outcome.contests = contests(&entries);
    for ((name, case), figures) in figures {
        let printed = library.baseline(&name)?.figure.context("only baselines with a figure have figures")?;
        outcome.programs.push(Program { baseline: name, what: printed.what, unit: printed.unit, case, figures });
    }
    outcome.cases = entries.into_iter().filter(|entry| !entry.turns.is_empty()).map(Entry::merged).collect();
    Ok(outcome)
}

/// What can run here; what cannot is said to be missing, with the reason.
fn groups<'a>(
    bench: &mut Bench,
    suite: &'a Suite,
    library: &Library<'_>,
    outcome: &mut Outcome,
) -> anyhow::Result<Vec<Group<'a>>> {
    let mut groups: Vec<Group<'a>> = Vec::new();
    for case in &suite.case {
        let server = suite.server.iter().find(|server| Some(&server.name) == case.server.as_ref());
        if let Some(why) = server.and_then(|server| server.needs.iter().find_map(|need| lacking(*need))) {
            outcome.missing.push(Missing { what: case.name.clone(), why });
            continue;
        }
        let place = groups.iter().position(|group| group.server == server);
        let place = place.unwrap_or_else(|| {
            groups.push(Group { server, cases: Vec::new(), baselines: Vec::new() });
            groups.len() - 1
        });
        groups[place].cases.push(case);
        for name in &case.baselines {
            let baseline = library.baseline(name)?;
            if let Err(why) = bench.prepare(name, &baseline) {
                let missing = Missing { what: format!("baseline {name}"), why };
                if !outcome.missing.contains(&missing) {
                    outcome.missing.push(missing);
                }
            } else if !groups[place].baselines.iter().any(|(known, _)| known == name) {
                groups[place].baselines.push((name.clone(), baseline));
            }
        }
    }
    Ok(groups)
}

fn measure(suite: &Suite, case: &Case) -> Measure {
    Measure { seconds: suite.seconds, warmup: suite.warmup, expect_losses: case.expect_losses }
}

/// Starts our server, asks it every case, stops it.
fn our_turn(
    bench: &Bench,
    suite: &Suite,
    group: &Group<'_>,
    turn: u32,
    entries: &mut [Entry<'_>],
    outcome: &mut Outcome,
) {
    let served = group.server.map(|server| bench.serve(server)).transpose();
    let (process, vars) = match served {
        Ok(Some((process, vars))) => (Some(process), vars),
        Ok(None) => (None, bench.vars.clone()),
        Err(error) => return outcome.failures.push(format!("turn {}: {error:#}", turn + 1)),
    };
    for case in &group.cases {
        let asked =
            vars.words(&case.client).map_err(Into::into).and_then(|words| bench.ask(&words, measure(suite, case)));
        match asked {
            Ok((report, setup)) => keep(bench, entries, case, None, turn, report, setup),
            Err(error) => outcome.failures.push(format!("{}, turn {}: {error:#}", case.name, turn + 1)),
        }
    }
    if let Some(Err(error)) = process.map(|process| process.terminate().and_then(Finished::check)) {
        outcome.failures.push(format!("turn {}: {error:#}", turn + 1));
    }
}

/// Starts a baseline's server; asks it every case, or has its own client ask it once.
fn baseline_turn(
    bench: &Bench,
    suite: &Suite,
    (name, baseline): (&str, &Baseline),
    cases: &[&Case],
    turn: u32,
    entries: &mut [Entry<'_>],
    figures: &mut BTreeMap<(String, String), Vec<f64>>,
) -> anyhow::Result<()> {
    let (server, vars) = bench.serve_baseline(baseline)?;
    if let Some(whom) = &baseline.client {
        for case in cases {
            let words = asking_baseline(&vars, &case.client, whom)?;
            let (report, setup) = bench.ask(&words, measure(suite, case))?;
            keep(bench, entries, case, Some(name), turn, report, setup);
        }
    } else if let (Some(run), Some(printed)) = (&baseline.run, &baseline.figure) {
        let client = bench.program(&vars.words(run)?)?;
        let text = client.finish(PROGRAM)?.check()?.lines.join("\n");
        let figure = figure(printed, &text).with_context(|| format!("its output has no figure:\n{text}"))?;
        eprintln!("  {name}: {} {figure:.2} {}", printed.what, printed.unit);
        for case in cases {
            figures.entry((name.to_owned(), case.name.clone())).or_default().push(figure);
        }
    }
    // Some end when their client has gone.
    drop(server);
    Ok(())
}

/// The figure in what a program printed.
fn figure(printed: &Printed, text: &str) -> Option<f64> {
    let number: f64 = if let Some(regex) = &printed.regex {
        Regex::new(regex).ok()?.captures(text)?.get(1)?.as_str().parse().ok()?
    } else {
        serde_json::from_str::<Value>(text).ok()?.pointer(printed.pointer.as_ref()?)?.as_f64()?
    };
    Some(number * printed.scale)
}

fn keep(
    bench: &Bench,
    entries: &mut [Entry<'_>],
    case: &Case,
    baseline: Option<&str>,
    turn: u32,
    report: CaseReport,
    setup: Option<Setup>,
) {
    let who = baseline.unwrap_or("berth");
    eprintln!("  {}, {who}: p50 {:.2} us, {:.0}/s", case.name, report.latency.p50 as f64 / 1e3, report.answered_per_s);
    let entry = entries.iter_mut().find(|entry| entry.case.name == case.name && entry.baseline.as_deref() == baseline);
    let at_s = bench.started.elapsed().as_secs_f64() - report.seconds;
    entry.expect("every case has its entries").turns.insert(turn, Taken { at_s, report, setup });
}

impl Entry<'_> {
    /// All turns as one case.
    fn merged(self) -> CaseReport {
        let name = match &self.baseline {
            Some(baseline) => format!("{}: {baseline}", self.case.name),
            None => self.case.name.clone(),
        };
        let mut report = merge::turns(name, self.turns.into_values());
        report.baseline_of = self.baseline.as_ref().map(|_| self.case.name.clone());
        report.contestant = Some(self.baseline.unwrap_or_else(|| "berth".into()));
        report.client = Some(self.case.client.clone());
        report.server.clone_from(&self.case.server);
        report.distance = self.case.distance;
        report
    }
}

/// Each case over each of its baselines, by neighbours that ran in the same state.
fn contests(entries: &[Entry<'_>]) -> Vec<Contest> {
    let mut contests = Vec::new();
    for theirs in entries {
        let Some(baseline) = &theirs.baseline else { continue };
        let ours = entries.iter().find(|entry| entry.baseline.is_none() && entry.case.name == theirs.case.name);
        let Some(ours) = ours else { continue };
        let pairs: Vec<(Turn, Turn)> = ours
            .turns
            .iter()
            .filter_map(|(turn, ours)| Some((merge::turn(ours), merge::turn(theirs.turns.get(turn)?))))
            .collect();
        for state in ["near", "far", "-"] {
            let alike: Vec<_> =
                pairs.iter().filter(|(ours, theirs)| ours.state() == state && theirs.state() == state).collect();
            if alike.is_empty() {
                continue;
            }
            let (new, base): (Vec<_>, Vec<_>) = alike.iter().map(|(ours, theirs)| (ours, theirs)).unzip();
            let ratios = (alike.len() >= FEWEST).then(|| Ratios::of(&base, &new, Pairing::Neighbours, RESAMPLES));
            let estimate = |figure| ratios.as_ref()?.estimate(figure, CONFIDENCE, alike.len());
            contests.push(Contest {
                case: ours.case.name.clone(),
                baseline: baseline.clone(),
                state: state.into(),
                pairs: alike.len(),
                p50: estimate(Figure::P50),
                p99: estimate(Figure::P99),
                rate: estimate(Figure::Rate),
            });
        }
    }
    contests
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_found_in_what_programs_print() {
        let printed = |regex: Option<&str>, pointer: Option<&str>| Printed {
            what: "p50".into(),
            unit: "us".into(),
            regex: regex.map(Into::into),
            pointer: pointer.map(Into::into),
            scale: 2.0,
        };
        let text = "bytes #sent usec/xfer\n64    20000   1.25\n";
        assert_eq!(figure(&printed(Some(r"(?m)^64\s+\d+\s+([\d.]+)"), None), text), Some(2.5));
        assert_eq!(figure(&printed(None, Some("/end/x")), "{\"end\":{\"x\":4}}"), Some(8.0));
        assert_eq!(figure(&printed(None, Some("/end/x")), "no JSON"), None);
    }
}
