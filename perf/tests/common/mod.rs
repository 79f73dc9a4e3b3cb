//! Runs the command as its users do.

use std::process::ExitCode;

use berth_perf::{PerfCommand, report::Report};
use clap::Parser;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    perf: PerfCommand,
}

/// Runs `berth perf rpc` with `args`, without a warm-up, and returns its exit code and its JSON document.
pub(crate) fn run(args: &str) -> (ExitCode, Report) {
    let dir = tempfile::tempdir().unwrap();
    let json = dir.path().join("report.json");
    let command = format!("perf rpc --no-progress --warmup 0 --json {} {args}", json.display());
    let cli = Cli::try_parse_from(command.split_whitespace()).unwrap();
    let code = berth_perf::run(&cli.perf).unwrap();
    (code, serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap())
}
