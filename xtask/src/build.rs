//! With which packages and features everything is built.
//!
//! Cargo gives a crate the features that the selected packages want of it, so two selections may build it, and all that
//! stand on it, twice. These do not: `test lint` compares them.

use std::{collections::BTreeSet, process::Command};

use anyhow::{Result, ensure};

use crate::sh::{bundle, cargo, output, root, run};

/// Every driver.
pub(crate) const FEATURES: &str = "berth/dpdk,berth/ofi,berth/verbs,berth/wasm";

/// The crates of the drivers. Beside a berth without its features they keep the crates below as they are.
pub(crate) const DRIVERS: [&str; 8] = ["-p", "berth-dpdk", "-p", "berth-ofi", "-p", "berth-verbs", "-p", "berth-wasm"];

/// The fuzz targets.
const FUZZ: [&str; 2] = ["-p", "berth-fuzz"];

/// All packages but the fuzz targets, which are built with flags of their own.
pub(crate) const ALL: [&str; 6] = ["--release", "--workspace", "--exclude", "berth-fuzz", "--features", FEATURES];

/// `cargo WORD` for [`ALL`].
pub(crate) fn all(word: &str) -> Command {
    cargo([&[word], &ALL[..]].concat())
}

/// Builds `target/release/berth`.
pub(crate) fn berth() -> Result<()> {
    run(&mut cargo(["build", "--release", "-p", "berth", "--features", FEATURES]))
}

/// Builds `target/release/examples/NAME` for each of `names`.
pub(crate) fn examples(names: &[String]) -> Result<()> {
    run(all("build").args(names.iter().flat_map(|name| ["--example", name])))
}

/// Builds one example, where there is something to build it of, and returns its path.
pub(crate) fn example(package: &str, name: &str) -> Result<String> {
    let built = format!("target/release/examples/{name}");
    if bundle().is_some() {
        return Ok(built);
    }
    run(&mut cargo(["build", "--release", "--quiet", "-p", package, "--example", name]))?;
    Ok(built)
}

/// Builds these fuzz targets, each as `target/release/NAME`. Programs of the drivers, which lack libFuzzer, are not built.
pub(crate) fn fuzz_targets(names: &[String]) -> Command {
    let mut build = cargo([&["build", "--release"], &FUZZ[..], &DRIVERS].concat());
    build.args(names.iter().flat_map(|name| ["--bin", name]));
    build
}

/// Runs the models of what is shared without locks.
pub(crate) fn models() -> Command {
    let mut test = all("test");
    test.args(["--test", "models"]).env("RUSTC_WORKSPACE_WRAPPER", root().join("dataplane/models/rustc"));
    test
}

/// That no crate is built twice for the programs, the tests, the fuzz targets and the packages, but for those of this
/// workspace that fuzz targets have instrumented.
pub(crate) fn compare() -> Result<()> {
    let tests = units(&[&ALL[1..], &["--edges", "normal,dev"]].concat())?;
    let programs = units(&["-p", "berth", "--features", FEATURES])?;
    let plain = units(&[&["-p", "berth"], &DRIVERS[..]].concat())?;
    // These are what has the features.
    let differ = |unit: &&String| !["berth v", "berth-perf v", "berth-ports v"].iter().any(|own| unit.starts_with(own));
    let fuzz = units(&[&FUZZ, &DRIVERS[..]].concat())?;
    let not_fuzzed =
        |unit: &&String| !["berth", "libfuzzer-sys v", "arbitrary v"].iter().any(|own| unit.starts_with(own));
    let twice: Vec<_> = programs
        .difference(&tests)
        .chain(plain.difference(&tests).filter(differ))
        .chain(fuzz.difference(&tests).filter(not_fuzzed))
        .collect();
    ensure!(twice.is_empty(), "built once for tests and once more for programs:\n{twice:#?}");
    Ok(())
}

/// The crates that a selection builds, each with its features. Without those of build scripts: they are built for the
/// host, where another selection adds none, and would hide that a program's crate of the same name has others.
fn units(selection: &[&str]) -> Result<BTreeSet<String>> {
    let mut tree = cargo(["tree", "--quiet", "--edges", "normal", "--prefix", "none", "--format", "{p} [{f}]"]);
    let text = output(tree.args(selection))?;
    Ok(text.lines().map(|line| line.trim_end_matches(" (*)").to_owned()).collect())
}
