//! Format, lints and documentation.

use anyhow::Result;

use crate::{
    build::{self, DRIVERS, FEATURES},
    sh::{cargo, run},
};

/// What `berth` can be built with, beside all of it.
const ALONE: [&str; 5] = ["", "berth/dpdk", "berth/ofi", "berth/verbs", "berth/wasm"];

pub(super) fn run_all() -> Result<()> {
    run(&mut cargo(["fmt", "--all", "--check"]))?;
    build::compare()?;
    let deny = ["--all-targets", "--", "-D", "warnings"];
    run(cargo(["clippy", "--release", "--workspace", "--features", FEATURES]).args(deny))?;
    for features in ALONE {
        let mut clippy = cargo([
            "clippy",
            "--release",
            "-p",
            "berth",
            "-p",
            "berth-perf",
            "-p",
            "berth-ports",
            "--features",
            features,
        ]);
        run(clippy.args(DRIVERS).args(deny))?;
    }
    run(cargo(["doc", "--release", "--workspace", "--no-deps", "--features", FEATURES, "--quiet"])
        .env("RUSTDOCFLAGS", "-D warnings"))
}
