//! The command line.

pub(crate) mod hip;
pub(crate) mod lease;
mod load;
pub(crate) mod nvme;
mod rpc;
mod stream;
mod suite;
mod values;

use clap::{Args, Subcommand};

pub use hip::HipArgs;
pub use lease::LeaseArgs;
pub(crate) use load::PortDriver;
pub use load::{LoadArgs, PaceArgs};
pub use nvme::NvmeArgs;
pub use rpc::RpcArgs;
pub use stream::StreamArgs;
pub use suite::{CompareArgs, ReportArgs, SuiteArgs};
pub(crate) use values::FaultArg;

/// Measure: an FPGA emulator with honest latency histograms, and the calibration that belongs to them.
#[derive(Debug, Clone, Args)]
pub struct PerfCommand {
    /// What to do.
    #[command(subcommand)]
    pub action: Action,
}

/// What to do.
#[derive(Debug, Clone, Subcommand)]
pub enum Action {
    /// Emulate an FPGA: send RPC requests, verify every answer, report latency
    Rpc(Box<RpcArgs>),
    /// Read or write a lease with two-sided messages, verify every byte, report latency
    Lease(Box<LeaseArgs>),
    /// Read and write a disk over NVMe/TCP as its host, verify every byte if told to, report latency
    Nvme(Box<NvmeArgs>),
    /// Call a HIP Remote worker as its client, verify every byte, report latency
    Hip(Box<HipArgs>),
    /// Stream the rounds of an experiment to a decoding server, verify its corrections, report how far it is behind
    Stream(Box<StreamArgs>),
    /// Measure how long a cache line takes between two CPUs and back
    Bounce(BounceArgs),
    /// Run a suite: its servers, its cases in turns with their baselines, and the report of all
    Suite(SuiteArgs),
    /// Say which cases of two reports differ, with confidence intervals; exit status 1: a regression
    Compare(CompareArgs),
    /// Make one page of the reports of one or several runs
    Report(ReportArgs),
}

/// `berth perf bounce`.
#[derive(Debug, Clone, Args)]
pub struct BounceArgs {
    /// The two CPUs; by default the first and the last that this process may run on
    #[arg(long, value_name = "A,B", value_delimiter = ',', num_args = 2)]
    pub cpus: Option<Vec<usize>>,
    /// How many calibrations of 20 ms, one after the other
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub repeat: u32,
}
