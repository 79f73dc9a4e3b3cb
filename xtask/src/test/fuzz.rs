//! The fuzz targets: each from its seeds and from what it found before, for a bounded time.

use std::{fs, time::Duration};

use anyhow::{Context, Result};

use super::Count;
use crate::sh::{cargo, cmd, run};

const FOLDER: &str = "target/fuzz";

/// Coverage instrumentation, which the pinned stable compiler has.
const FLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
                     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
                     -Cllvm-args=-sanitizer-coverage-trace-compares";

/// Builds every target and runs each for this long.
pub(super) fn run_all(time: Duration, count: &mut Count) -> Result<()> {
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    // Cargo applies RUSTFLAGS to build scripts too unless a target is named.
    let build =
        ["build", "--profile", "fuzz", "-p", "berth-fuzz", "--bins", "--target", &target, "--target-dir", FOLDER];
    run(cargo(build).env("RUSTFLAGS", FLAGS))?;
    for entry in fs::read_dir("fuzz/fuzz_targets")? {
        let path = entry?.path();
        let name = path.file_stem().context("a fuzz target without a name")?.to_string_lossy().into_owned();
        let corpus = format!("{FOLDER}/corpus/{name}");
        fs::create_dir_all(&corpus)?;
        let mut fuzzer = cmd(&format!("{FOLDER}/{target}/fuzz/{name}"), [corpus]);
        let seeds = format!("fuzz/seeds/{name}");
        if fs::exists(&seeds)? {
            fuzzer.arg(seeds);
        }
        fuzzer.arg(format!("-max_total_time={}", time.as_secs())).arg(format!("-artifact_prefix={FOLDER}/{name}-"));
        fuzzer.args(["-rss_limit_mb=1024", "-timeout=5", "-verbosity=0", "-print_final_stats=0"]);
        count.one(&format!("fuzz target {name}"), run(&mut fuzzer));
    }
    Ok(())
}
