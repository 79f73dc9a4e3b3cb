//! Format, lints and documentation.

use anyhow::Result;

use crate::{
    build::{self, DRIVERS, FEATURES},
    sh::{cargo, run},
};

/// What `berth` can be built with, beside all of it.
const ALONE: [&str; 5] = ["", "berth/dpdk", "berth/ofi", "berth/verbs", "berth/wasm"];

const DENY: [&str; 3] = ["--", "-D", "warnings"];

/// All there is with all of its features.
pub(super) fn first() -> Result<()> {
    run(&mut cargo(["fmt", "--all", "--check"]))?;
    build::compare()?;
    run(cargo(["clippy", "--release", "--workspace", "--all-targets", "--features", FEATURES]).args(DENY))
}

/// The documentation, and `berth` with fewer features.
pub(super) fn rest() -> Result<()> {
    for features in ALONE {
        let mut clippy = cargo(["clippy", "--release", "-p", "berth", "-p", "berth-perf", "-p", "berth-ports"]);
        clippy.args(["--features", features]).args(DRIVERS);
        // What tests and examples hold for one driver is linted with all of them; without any, all else is.
        let targets = if features.is_empty() { &["--all-targets"][..] } else { &[] };
        run(clippy.args(targets).args(DENY))?;
    }
    run(cargo(["doc", "--release", "--workspace", "--no-deps", "--features", FEATURES, "--quiet"])
        .env("RUSTDOCFLAGS", "-D warnings"))
}
