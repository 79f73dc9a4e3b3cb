//! Runs the command as its users do.

use std::{process::ExitCode, thread};

use berth_perf::{PerfCommand, report::Report};
use clap::Parser;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    perf: PerfCommand,
}

/// Runs `berth perf rpc` with `args`, without a warm-up, and returns its exit code and its JSON document.
pub(crate) fn run(args: &str) -> (ExitCode, Report) {
    run_suite("rpc", args).unwrap()
}

/// The same for any suite, which may fail.
pub(crate) fn run_suite(suite: &str, args: &str) -> anyhow::Result<(ExitCode, Report)> {
    let dir = tempfile::tempdir().unwrap();
    let json = dir.path().join("report.json");
    let code = try_suite(suite, &format!("--json {} {args}", json.display()))?;
    Ok((code, serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap()))
}

/// Runs `berth perf rpc`, which may fail.
pub(crate) fn try_run(args: &str) -> anyhow::Result<ExitCode> {
    try_suite("rpc", args)
}

pub(crate) fn try_suite(suite: &str, args: &str) -> anyhow::Result<ExitCode> {
    let command = format!("perf {suite} --no-progress --warmup 0 {args}");
    let cli = Cli::try_parse_from(command.split_whitespace()).unwrap();
    // It stays on the CPU that it takes, where a second command would have no other one.
    thread::scope(|scope| scope.spawn(|| berth_perf::run(&cli.perf)).join()).unwrap()
}
