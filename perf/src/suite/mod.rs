//! `berth perf suite`: servers and clients as processes of their own, turn by turn, and one report of all.
//!
//! ```text
//! file, vars   what a suite file says, every mistake with its place, and what is filled in
//! library      the suites and baselines that are built in
//! process      programs beside us
//! bench        the place: folder, CPUs, servers, clients
//! turns        cases in turns with their baselines
//! overload     load from below to beyond saturation
//! soak         mixed load for a long time: memory, descriptors, books
//! output       the files
//! ```

mod bench;
mod books;
mod file;
mod library;
mod merge;
mod output;
mod overload;
mod soak;
mod turns;
mod vars;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

use anyhow::Context as _;
use berth_process::Stop;

pub use file::{Baseline, Mistake, Mistakes, Suite};
pub use library::{BASELINES, BuiltIn, SUITES, built_in};

use self::{
    bench::{Bench, lacking},
    library::Library,
};
use crate::{
    args::SuiteArgs,
    environment::Environment,
    ports::Cpus,
    report::{
        Report,
        json::SCHEMA_VERSION,
        suite::{Missing, SuiteFacts, Verdict},
    },
};

/// Runs the command. Failure: a judgement did not hold, or nothing was measured.
pub(crate) fn run(args: &SuiteArgs) -> anyhow::Result<ExitCode> {
    let library = Library { folder: args.from.as_deref() };
    let Some(wanted) = &args.suite else { return list(&library) };
    let (name, suite) = library.suite(wanted)?;
    let out = args.out.clone().unwrap_or_else(|| PathBuf::from(format!("berth-perf-{name}")));
    std::fs::create_dir_all(&out).with_context(|| format!("cannot make {}", out.display()))?;
    let stop = Stop::default();
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    let cpus = Cpus::choose(args.cpu, args.server_cpu)?;
    let environment = Environment::read_whole([Some(cpus.client), cpus.other]);
    let mut bench = Bench::open(&out, cpus, stop)?;
    let report = measure(&mut bench, &name, &suite, &library, args, environment)?;
    output::write(&out, &report)?;
    print!("{}", output::render(&report));
    println!("report: {}", out.join("report.html").display());
    let facts = report.suite.as_ref().context("a suite's report has its facts")?;
    let passed = facts.verdicts.iter().all(|verdict| verdict.passed) && !report.cases.is_empty();
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn measure(
    bench: &mut Bench,
    name: &str,
    suite: &Suite,
    library: &Library<'_>,
    args: &SuiteArgs,
    environment: Environment,
) -> anyhow::Result<Report> {
    let turns = args.turns.unwrap_or(suite.turns);
    let mut outcome = match suite.case[..] {
        [] => turns::Outcome::default(),
        _ => turns::take(bench, suite, library, turns)?,
    };
    let mut verdicts = Vec::new();
    let lacks = |server: &str| {
        let server = suite.server.iter().find(|known| known.name == server);
        server.and_then(|server| server.needs.iter().find_map(|need| lacking(*need)))
    };
    let mut overload = None;
    if let Some(wanted) = &suite.overload {
        if let Some(why) = lacks(&wanted.server) {
            outcome.missing.push(Missing { what: "overload".into(), why });
        } else {
            let ran = overload::run(bench, suite, wanted, turns)?;
            outcome.cases.extend(ran.cases);
            verdicts.extend(ran.verdicts);
            overload = Some(ran.report);
        }
    }
    let mut soak = None;
    if let Some(wanted) = &suite.soak {
        if let Some(why) = lacks(&wanted.server) {
            outcome.missing.push(Missing { what: "soak".into(), why });
        } else {
            let ran = soak::run(bench, suite, wanted, args.duration)?;
            outcome.missing.extend(ran.missing);
            outcome.cases.extend(ran.cases);
            verdicts.extend(ran.verdicts);
            soak = Some(ran.report);
        }
    }
    judge_answers(suite, &outcome, &mut verdicts);
    let facts = SuiteFacts {
        name: name.to_owned(),
        about: suite.about.clone(),
        seconds: bench.started.elapsed().as_secs_f64(),
        missing: outcome.missing,
        verdicts,
        contests: outcome.contests,
        programs: outcome.programs,
        overload,
        soak,
    };
    Ok(Report { schema_version: SCHEMA_VERSION, environment, setup: None, cases: outcome.cases, suite: Some(facts) })
}

/// What holds for every suite: all turns ran, every answer was right, nothing was lost or doubled.
fn judge_answers(suite: &Suite, outcome: &turns::Outcome, verdicts: &mut Vec<Verdict>) {
    let ours = || outcome.cases.iter().filter(|case| case.baseline_of.is_none());
    let sum = |count: fn(&crate::tally::Counts) -> u64| ours().map(|case| count(&case.counts)).sum::<u64>();
    let answered = sum(|counts| counts.answered);
    let wrong = sum(crate::tally::Counts::bad);
    let mistakes: Vec<_> = outcome
        .cases
        .iter()
        .filter_map(|case| Some(format!("; {}: {}", case.name, case.first_mistake.as_ref()?)))
        .collect();
    verdicts.push(Verdict {
        what: "every answer is right".into(),
        passed: wrong == 0 && answered > 0,
        detail: format!("{answered} right, {wrong} wrong{}", mistakes.concat()),
    });
    if suite.overload.is_none() {
        let expected = |name: &str| suite.case.iter().any(|case| case.name == name && case.expect_losses);
        let (mut lost, mut doubled) = (0, 0);
        for case in ours().filter(|case| !expected(&case.name)) {
            lost += case.counts.lost;
            doubled += case.counts.duplicates + case.counts.stale;
        }
        verdicts.push(Verdict {
            what: "no request is lost or doubled".into(),
            passed: lost + doubled == 0,
            detail: format!("{lost} lost, {doubled} doubled"),
        });
    }
    if !suite.case.is_empty() {
        verdicts.push(Verdict {
            what: "every turn was taken".into(),
            passed: outcome.failures.is_empty(),
            detail: if outcome.failures.is_empty() { "all were".into() } else { outcome.failures.join("; ") },
        });
    }
}

/// What there is, and what this host lacks for it.
fn list(library: &Library<'_>) -> anyhow::Result<ExitCode> {
    println!("suites");
    for (file, _) in SUITES {
        let (name, suite) =
            library.suite(Path::new(file).file_stem().and_then(|stem| stem.to_str()).unwrap_or(file))?;
        println!("  {name:<12} {}", suite.about);
        for server in &suite.server {
            for why in server.needs.iter().filter_map(|need| lacking(*need)) {
                println!("  {:<12} {}: {why}", "", server.name);
            }
        }
    }
    println!("baselines");
    for (file, _) in BASELINES {
        let name = file.trim_end_matches(".toml");
        let baseline = library.baseline(name)?;
        let missing =
            (!bench::installed(&baseline.program)).then(|| format!("not installed: apt install {}", baseline.package));
        let lacks = missing.or_else(|| baseline.needs.iter().find_map(|need| lacking(*need)));
        println!("  {name:<12} {}{}", baseline.about, lacks.map_or(String::new(), |why| format!(" ({why})")));
    }
    Ok(ExitCode::SUCCESS)
}
