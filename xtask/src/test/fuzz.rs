//! The fuzz targets: each from its seeds and from what it found before, for a bounded time.

use std::{
    fs,
    path::Path,
    sync::Mutex,
    thread::{self, available_parallelism},
    time::Duration,
};

use anyhow::{Context, Result};

use super::Count;
use crate::{
    build,
    sh::{cmd, root, run},
};

const FOLDER: &str = "target/fuzz";

/// Builds every target and runs each for this long, as many at once as there are CPUs.
pub(super) fn run_all(time: Duration, count: &mut Count) -> Result<()> {
    run(build::fuzz_targets().env("RUSTC_WORKSPACE_WRAPPER", root().join("fuzz/rustc")))?;
    let targets: Vec<_> = fs::read_dir("fuzz/fuzz_targets")?.flatten().map(|entry| entry.path()).collect();
    let (left, count) = (Mutex::new(targets), Mutex::new(count));
    let run_some = || {
        while let Some(path) = { left.lock().expect("nobody panics").pop() } {
            let (name, result) = run_one(&path, time)?;
            count.lock().expect("nobody panics").one(&format!("fuzz target {name}"), result);
        }
        Ok(())
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..available_parallelism()?.get()).map(|_| scope.spawn(run_some)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("it does not panic"))
    })
}

/// Runs a target by the path of its source; the outer error is none of its own.
fn run_one(path: &Path, time: Duration) -> Result<(String, Result<()>)> {
    let name = path.file_stem().context("a fuzz target without a name")?.to_string_lossy().into_owned();
    let corpus = format!("{FOLDER}/corpus/{name}");
    fs::create_dir_all(&corpus)?;
    let mut fuzzer = cmd(&format!("target/release/{name}"), [corpus]);
    let seeds = format!("fuzz/seeds/{name}");
    if fs::exists(&seeds)? {
        fuzzer.arg(seeds);
    }
    fuzzer.arg(format!("-max_total_time={}", time.as_secs())).arg(format!("-artifact_prefix={FOLDER}/{name}-"));
    fuzzer.args(["-rss_limit_mb=1024", "-timeout=5", "-verbosity=0", "-print_final_stats=0"]);
    Ok((name, run(&mut fuzzer)))
}
