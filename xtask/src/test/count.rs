//! Tests seen to pass and to fail, and how long all of it took.

use std::{fs, process::Command, time::Instant};

use anyhow::{Context, Result, bail};

use super::programs::{Outcome, Program};
use crate::{lab::Tally, together};

/// How many of the longest programs and suites are told at the end.
const LONGEST: usize = 12;

/// How the kernel counts the time of processes: in hundredths of a second on every Linux.
const TICKS: f64 = 100.0;

pub(super) struct Count {
    passed: u32,
    failed: u32,
    /// What failed, also what passed when it ran again: said at the end, where one looks.
    told: Vec<String>,
    /// Of each stage: its minutes, and the minutes of CPU.
    stages: Vec<(f64, f64, &'static str)>,
    /// How long each program and suite took, in seconds.
    times: Vec<(f64, String)>,
    start: Instant,
    /// When the stage under way began, and what had been used of CPUs before, in seconds.
    stage: (Instant, f64),
}

impl Default for Count {
    fn default() -> Self {
        let start = Instant::now();
        let (told, stages, times) = (Vec::new(), Vec::new(), Vec::new());
        Self { passed: 0, failed: 0, told, stages, times, start, stage: (start, cpu_seconds().unwrap_or(0.0)) }
    }
}

impl Count {
    /// Runs these programs side by side, with this in their environment. A test that fails runs once more, alone: on a host
    /// that takes its CPUs away for half a second at a time, what waits for an answer fails by that alone, though not twice.
    pub(super) fn programs(&mut self, programs: &[Program], environment: &[(&str, &str)]) -> Result<()> {
        let run = |program: &Program, arguments: &[&str]| {
            let mut command = program.command();
            Outcome::of(&program.name, command.envs(environment.iter().copied()).args(arguments))
        };
        let outcomes = together::all(programs, |program| run(program, &[]))?;
        for (program, mut outcome) in programs.iter().zip(outcomes) {
            for failure in std::mem::take(&mut outcome.failures) {
                let again = run(program, &["--exact", &failure.name])?;
                let passes = again.passed > 0 && again.finished();
                if passes {
                    outcome.passed += 1;
                    outcome.failed -= 1;
                }
                let what = if passes { "failed, and passed when it ran again" } else { "failed twice" };
                self.told.push(format!("{what}: {} {}\n{}", program.name, failure.name, failure.output.join("\n")));
            }
            self.add(&program.name, &outcome);
        }
        Ok(())
    }

    /// Runs a `cargo test`.
    pub(super) fn run(&mut self, name: &str, cargo_test: &mut Command) -> Result<()> {
        let outcome = Outcome::of(name, cargo_test)?;
        for failure in &outcome.failures {
            self.told.push(format!("failed: {name} {}\n{}", failure.name, failure.output.join("\n")));
        }
        self.add(name, &outcome);
        Ok(())
    }

    fn add(&mut self, name: &str, outcome: &Outcome) {
        self.passed += outcome.passed;
        self.failed += outcome.failed;
        if !outcome.finished() {
            self.failed += 1;
            self.told.push(format!("ended before its tests: {name}"));
        }
        self.times.push((outcome.seconds, name.to_owned()));
    }

    /// Runs what passes or fails as one, and once more if it fails.
    pub(super) fn demo(&mut self, name: &str, demo: impl Fn() -> Result<()>) {
        let result = demo().or_else(|error| {
            self.told.push(format!("failed, and runs again: {name}: {error}"));
            demo()
        });
        self.one(name, result);
    }

    /// Counts what passes or fails as one.
    pub(super) fn one(&mut self, name: &str, result: Result<()>) {
        match result {
            Ok(()) => self.passed += 1,
            Err(error) => {
                self.failed += 1;
                self.told.push(format!("{name}: {error}"));
            }
        }
    }

    /// Adds what the lab found.
    pub(super) fn lab(&mut self, tally: Tally) {
        self.passed += tally.passed;
        self.failed += tally.failed;
        self.told.extend(tally.told);
        self.times.extend(tally.times);
    }

    /// Adds what another one counted.
    pub(super) fn join(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.told.extend(other.told);
        self.times.extend(other.times);
    }

    /// A stage has ended, and the next one begins.
    pub(super) fn ended(&mut self, name: &'static str) -> Result<()> {
        let now = (Instant::now(), cpu_seconds()?);
        let (begun, used) = std::mem::replace(&mut self.stage, now);
        self.stages.push(((now.0 - begun).as_secs_f64() / 60.0, (now.1 - used) / 60.0, name));
        Ok(())
    }

    /// Says all of it; what failed is an error.
    pub(super) fn finish(mut self) -> Result<()> {
        println!("\n   min    CPU min");
        for (minutes, cpu, name) in &self.stages {
            println!("{minutes:6.1}    {cpu:7.1}  {name}");
        }
        println!("the longest programs and suites:");
        self.times.sort_by(|(one, _), (other, _)| other.total_cmp(one));
        for (seconds, name) in self.times.iter().take(LONGEST) {
            println!("{seconds:6.1} s  {name}");
        }
        for told in &self.told {
            println!("\n{told}");
        }
        println!("\n{:.0} s", self.start.elapsed().as_secs_f64());
        println!("{} passed, {} failed", self.passed, self.failed);
        if self.failed > 0 {
            bail!("{} tests failed", self.failed);
        }
        Ok(())
    }
}

/// What this program's children have used of CPUs, with theirs, those that have ended.
fn cpu_seconds() -> Result<f64> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    let fields = stat.rsplit_once(')').context("no name in /proc/self/stat")?.1;
    // Fields 16 and 17 of proc(5); the first here is field 3.
    let ticks = fields.split_whitespace().skip(13).take(2).map(str::parse::<f64>).sum::<Result<f64, _>>()?;
    Ok(ticks / TICKS)
}
