//! The fuzz targets: each from its seeds and from what it found before, for a bounded time.

use std::{fs, time::Duration};

use anyhow::Result;

use super::Count;
use crate::{
    build,
    sh::{cmd, root, run},
    together,
};

const FOLDER: &str = "target/fuzz";

/// Builds every target, and returns their names.
pub(super) fn build() -> Result<Vec<String>> {
    let sources = fs::read_dir("fuzz/fuzz_targets")?.flatten().map(|entry| entry.path());
    let targets: Vec<_> = sources.filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned())).collect();
    run(build::fuzz_targets(&targets).env("RUSTC_WORKSPACE_WRAPPER", root().join("fuzz/rustc")))?;
    Ok(targets)
}

/// Runs each target for this long, as many at once as there are CPUs.
pub(super) fn run_all(time: Duration, count: &mut Count) -> Result<()> {
    let targets = build()?;
    for (name, result) in targets.iter().zip(together::all(&targets, |name| run_one(name, time))?) {
        count.one(&format!("fuzz target {name}"), result);
    }
    Ok(())
}

/// Runs a target; the outer error is none of its own.
fn run_one(name: &str, time: Duration) -> Result<Result<()>> {
    let corpus = format!("{FOLDER}/corpus/{name}");
    fs::create_dir_all(&corpus)?;
    let mut fuzzer = cmd(&format!("target/release/{name}"), [corpus]);
    let seeds = format!("fuzz/seeds/{name}");
    if fs::exists(&seeds)? {
        fuzzer.arg(seeds);
    }
    fuzzer.arg(format!("-max_total_time={}", time.as_secs())).arg(format!("-artifact_prefix={FOLDER}/{name}-"));
    fuzzer.args(["-rss_limit_mb=1024", "-timeout=5", "-verbosity=0", "-print_final_stats=0"]);
    if name == "ptx" {
        // What a text is slow by may be long; without this none is longer than the seeds.
        fuzzer.arg("-max_len=1048576");
    }
    Ok(run(&mut fuzzer))
}
