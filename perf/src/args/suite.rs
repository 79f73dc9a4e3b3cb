//! `berth perf suite`, and what is made of its reports: their command lines.

use std::{path::PathBuf, time::Duration};

use clap::Args;

use super::values::{percent, seconds};

/// `berth perf suite`.
#[derive(Debug, Clone, Args)]
pub struct SuiteArgs {
    /// smoke, rpc, lease, nvme, hip, qec, overload, soak; or a suite file of your own
    #[arg(value_name = "NAME|FILE", required_unless_present = "list")]
    pub suite: Option<String>,
    /// Say which suites and baselines there are, and what this host lacks for them
    #[arg(long, conflicts_with_all = ["suite", "out", "turns", "duration"])]
    pub list: bool,
    /// A folder with suites and baselines that are taken in place of those built in: DIR/suites/NAME.toml, DIR/baselines/NAME.toml
    #[arg(long, value_name = "DIR")]
    pub from: Option<PathBuf>,
    /// Where the report goes; by default berth-perf-NAME here
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Turns of each case, in place of what the suite says
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub turns: Option<u32>,
    /// Seconds of a soak, in place of what the suite says
    #[arg(long, value_name = "S", value_parser = seconds)]
    pub duration: Option<Duration>,
    /// The client's CPU; by default the first that this process may run on
    #[arg(long, value_name = "N")]
    pub cpu: Option<usize>,
    /// The servers' CPU; by default the last
    #[arg(long, value_name = "N")]
    pub server_cpu: Option<usize>,
}

/// `berth perf compare`.
#[derive(Debug, Clone, Args)]
pub struct CompareArgs {
    /// The report to compare with: report.json, or the folder it lies in
    #[arg(value_name = "A")]
    pub base: PathBuf,
    /// The report that is judged
    #[arg(value_name = "B")]
    pub new: PathBuf,
    /// How much slower is a regression, in per cent
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0, value_parser = percent)]
    pub threshold: f64,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `berth perf report`.
#[derive(Debug, Clone, Args)]
pub struct ReportArgs {
    /// Reports: report.json files, or the folders they lie in
    #[arg(value_name = "REPORT", required = true)]
    pub reports: Vec<PathBuf>,
    /// The page to write
    #[arg(long, value_name = "FILE")]
    pub html: PathBuf,
}
