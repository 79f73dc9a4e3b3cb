//! `cargo xtask test`: what CI runs, in the order in which a failure is cheapest.

mod cargo_test;

use std::{process::Command, time::Instant};

use anyhow::{Context, Result, bail};

use cargo_test::TestRun;

use crate::{
    lab,
    package::FEATURES,
    setup,
    sh::{cargo, cmd, run},
};

/// How long each fuzz target runs.
const FUZZ_SECONDS: u32 = 5;

/// How many of the longest programs and suites are told at the end.
const LONGEST: usize = 12;

/// Seeds of each simulation of the lease plane: tens of seconds on two cores.
const SIM_SEEDS: &str = "10000";

pub(crate) fn run_all() -> Result<()> {
    setup::test()?;
    let start = Instant::now();
    let mut count = Count::default();
    run(&mut cargo(["fmt", "--all", "--check"]))?;
    let lint = ["clippy", "--release", "--workspace", "--all-targets", "--features", FEATURES, "--", "-D", "warnings"];
    run(&mut cargo(lint))?;
    run(cargo(["doc", "--release", "--workspace", "--no-deps", "--features", FEATURES, "--quiet"])
        .env("RUSTDOCFLAGS", "-D warnings"))?;
    count.stage("lints", start);
    let tests =
        ["test", "--release", "--workspace", "--exclude", "berth-fuzz", "--no-fail-fast", "--features", FEATURES];
    let begun = Instant::now();
    count.cargo_test(cargo(tests).env("BERTH_SIM_SEEDS", SIM_SEEDS))?;
    count.stage("tests, built and run", begun);
    let begun = Instant::now();
    for package in ["berth-ring", "berth-lease"] {
        let models = ["test", "--release", "-p", package, "--test", "loom", "--target-dir", "target/loom"];
        count.cargo_test(cargo(models).env("RUSTFLAGS", "--cfg loom"))?;
    }
    count.stage("models", begun);
    let begun = Instant::now();
    fuzz(&mut count)?;
    count.stage("fuzz targets", begun);
    let begun = Instant::now();
    let suites = lab::run_all()?;
    count.passed += suites.passed;
    count.failed += suites.failed;
    count.told.extend(suites.told);
    count.times.extend(suites.times);
    count.stage("lab", begun);
    count.tell_times();
    for told in &count.told {
        println!("\n{told}");
    }
    println!("\n{:.0} s", start.elapsed().as_secs_f64());
    println!("{} passed, {} failed", count.passed, count.failed);
    if count.failed > 0 {
        bail!("{} tests failed", count.failed);
    }
    Ok(())
}

/// Tests seen to pass and to fail.
#[derive(Default)]
struct Count {
    passed: u32,
    failed: u32,
    /// What failed, also what passed when it ran again: said at the end, where one looks.
    told: Vec<String>,
    /// How long each stage took, in seconds, and each program and suite.
    stages: Vec<(f64, &'static str)>,
    times: Vec<(f64, String)>,
}

impl Count {
    /// A stage has ended.
    fn stage(&mut self, name: &'static str, begun: Instant) {
        self.stages.push((begun.elapsed().as_secs_f64(), name));
    }

    /// Says where the time went.
    fn tell_times(&mut self) {
        println!();
        for (seconds, name) in &self.stages {
            println!("{:6.1} min  {name}", seconds / 60.0);
        }
        println!("the longest of them:");
        self.times.sort_by(|(one, _), (other, _)| other.total_cmp(one));
        for (seconds, name) in self.times.iter().take(LONGEST) {
            println!("{seconds:6.1} s    {name}");
        }
    }

    /// Runs `cargo test` and adds up what it says. A test that fails runs once more, alone: on a host that takes its CPUs
    /// away for half a second at a time, what waits for an answer fails by that alone, though not twice.
    fn cargo_test(&mut self, cmd: &mut Command) -> Result<()> {
        let run = TestRun::of(cmd)?;
        self.passed += run.passed;
        self.failed += run.failed;
        self.times.extend(run.times);
        for failure in run.failures {
            let again = TestRun::of(&mut failure.again(cmd))?;
            // Other packages may have one of the same name.
            let passes = again.passed > 0 && again.succeeded;
            if passes {
                self.passed += 1;
                self.failed -= 1;
            }
            let what = if passes { "failed, and passed when it ran again" } else { "failed twice" };
            self.told.push(format!("{what}: {} {}\n{}", failure.program, failure.name, failure.output.join("\n")));
        }
        for program in run.unfinished {
            self.failed += 1;
            self.told.push(format!("ended before its tests: {program}"));
        }
        Ok(())
    }
}

/// Builds every fuzz target with coverage instrumentation, which the pinned stable compiler has, and runs each for a
/// bounded time from its seeds.
fn fuzz(count: &mut Count) -> Result<()> {
    let flags = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
                 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
                 -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1 -Cdebug-assertions -Coverflow-checks";
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let dir = "target/fuzz";
    // Cargo applies RUSTFLAGS to build scripts too unless a target is named.
    let build = ["build", "--release", "-p", "berth-fuzz", "--bins", "--target", &target, "--target-dir", dir];
    run(cargo(build).env("RUSTFLAGS", flags))?;
    for entry in std::fs::read_dir("fuzz/fuzz_targets")? {
        let path = entry?.path();
        let name = path.file_stem().context("a fuzz target without a name")?.to_string_lossy().into_owned();
        let corpus = format!("{dir}/corpus/{name}");
        std::fs::create_dir_all(&corpus)?;
        let mut fuzzer = cmd(&format!("{dir}/{target}/release/{name}"), [corpus]);
        let seeds = format!("fuzz/seeds/{name}");
        if std::fs::exists(&seeds)? {
            fuzzer.arg(seeds);
        }
        fuzzer.arg(format!("-max_total_time={FUZZ_SECONDS}")).args([
            "-rss_limit_mb=1024",
            "-timeout=5",
            "-verbosity=0",
        ]);
        fuzzer.args(["-print_final_stats=0", &format!("-artifact_prefix={dir}/{name}-")]);
        match run(&mut fuzzer) {
            Ok(()) => count.passed += 1,
            Err(error) => {
                count.told.push(format!("fuzz target {name}: {error}"));
                count.failed += 1;
            }
        }
    }
    Ok(())
}
