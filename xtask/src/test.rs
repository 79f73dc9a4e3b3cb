//! `cargo xtask test`: what CI runs, in the order in which a failure is cheapest.

use std::{
    io::{BufRead, BufReader},
    process::{Command, Stdio},
    time::Instant,
};

use anyhow::{Context, Result, bail};

use crate::{
    lab,
    package::FEATURES,
    setup,
    sh::{cargo, cmd, line, run},
};

/// How long each fuzz target runs.
const FUZZ_SECONDS: u32 = 5;

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
    let tests =
        ["test", "--release", "--workspace", "--exclude", "berth-fuzz", "--no-fail-fast", "--features", FEATURES];
    count.cargo_test(cargo(tests).env("BERTH_SIM_SEEDS", SIM_SEEDS))?;
    for package in ["berth-ring", "berth-lease"] {
        let models = ["test", "--release", "-p", package, "--test", "loom", "--target-dir", "target/loom"];
        count.cargo_test(cargo(models).env("RUSTFLAGS", "--cfg loom"))?;
    }
    fuzz(&mut count)?;
    let suites = lab::run_all()?;
    count.passed += suites.passed;
    count.failed += suites.failed;
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
}

impl Count {
    /// Runs `cargo test`, shows what it prints and adds up its summary lines.
    fn cargo_test(&mut self, cmd: &mut Command) -> Result<()> {
        eprintln!("+ {}", line(cmd));
        let mut child = cmd.stdout(Stdio::piped()).spawn().with_context(|| format!("cannot start {}", line(cmd)))?;
        let failed_before = self.failed;
        for text in BufReader::new(child.stdout.take().expect("stdout is piped")).lines() {
            let text = text?;
            println!("{text}");
            if let Some(counts) = text.strip_prefix("test result: ") {
                self.passed += number_before(counts, " passed");
                self.failed += number_before(counts, " failed");
            }
        }
        let status = child.wait()?;
        if !status.success() && self.failed == failed_before {
            bail!("{} ended with {status}", line(cmd));
        }
        Ok(())
    }
}

/// The number that stands before `word` in `text`.
fn number_before(text: &str, word: &str) -> u32 {
    let digits = text.split(word).next().unwrap_or_default();
    digits.rsplit(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0)
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
                eprintln!("fuzz target {name}: {error}");
                count.failed += 1;
            }
        }
    }
    Ok(())
}
