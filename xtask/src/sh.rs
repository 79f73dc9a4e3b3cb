//! Running other programs, with their names in the error when they fail.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};
use berth_process::Stop;
pub(crate) use berth_process::{Process, line};
use serde_json::Value;

/// The program that [`crate::build::berth`] makes.
pub(crate) const BERTH: &str = "target/release/berth";

/// The root of the repository, or of [`bundle`].
pub(crate) fn root() -> PathBuf {
    let here = || Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the repository").to_path_buf();
    bundle().unwrap_or_else(here)
}

/// The folder that `cargo xtask gpu` made, if this is its program: it has no sources, and all is built.
pub(crate) fn bundle() -> Option<PathBuf> {
    std::env::var_os("BERTH_BUNDLE").map(PathBuf::from)
}

/// A command whose output goes where ours goes.
pub(crate) fn cmd<S: AsRef<OsStr>>(program: &str, args: impl IntoIterator<Item = S>) -> Command {
    let mut cmd = Command::new(program);
    cmd.args(args);
    cmd
}

/// `cargo` as it was called, without what it tells of the package of this program: build scripts that look at it would
/// run again, and half of all crates after them, whenever somebody calls Cargo without us in between.
pub(crate) fn cargo<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    let mut cargo = cmd(&std::env::var("CARGO").unwrap_or_else(|_| "cargo".into()), args);
    let ours = |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
    for (name, _) in std::env::vars().filter(|(name, _)| ours(name)) {
        cargo.env_remove(name);
    }
    cargo
}

/// Runs to the end; any other exit status than 0 is an error.
pub(crate) fn run(cmd: &mut Command) -> Result<()> {
    eprintln!("+ {}", line(cmd));
    let status = cmd.status().with_context(|| format!("cannot start {}", line(cmd)))?;
    if !status.success() {
        bail!("{} ended with {status}", line(cmd));
    }
    Ok(())
}

/// From now on this thread, and what it starts, has the CPUs only while nobody else wants them.
pub(crate) fn yield_cpus() -> Result<()> {
    let task = std::fs::read_link("/proc/thread-self")?;
    let id = task.file_name().context("/proc/thread-self names no thread")?;
    run(cmd("chrt", ["--idle", "--pid", "0"]).arg(id))
}

/// Runs to the end and returns what it printed on stdout.
pub(crate) fn output(cmd: &mut Command) -> Result<String> {
    let out = cmd.stderr(Stdio::inherit()).output().with_context(|| format!("cannot start {}", line(cmd)))?;
    if !out.status.success() {
        bail!("{} ended with {}", line(cmd), out.status);
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// Starts a server and waits for the line on its stdout that begins with `ready`; returns the rest of that line too.
pub(crate) fn server(cmd: &mut Command, ready: &str) -> Result<(Process, String)> {
    eprintln!("+ {} &", line(cmd));
    let mut server = Process::start(cmd, &Stop::default())?;
    let rest = server.expect(ready)?;
    Ok((server, rest))
}

/// Starts `berth run` and returns its ready line.
pub(crate) fn berth(config: &str) -> Result<(Process, Value)> {
    berth_of(BERTH, config)
}

/// The same of another build.
pub(crate) fn berth_of(binary: &str, config: &str) -> Result<(Process, Value)> {
    let mut berth = cmd(binary, ["run", "--config", config]);
    eprintln!("+ {} &", line(&berth));
    Process::berth(&mut berth, &Stop::default())
}
