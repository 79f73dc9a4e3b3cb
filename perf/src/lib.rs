//! Load generators, honest latency histograms and their reports.
//!
//! `berth perf rpc` is an FPGA emulator over any port driver, a process of its own; `berth perf lease` is the same
//! machine with leased bytes in place of functions, `berth perf nvme` the same with the blocks of a disk, `berth perf hip`
//! with calls of a GPU:
//!
//! ```text
//! args         the command line
//! rpc, lease,
//! nvme, hip    what to ask, how often, of whom: the cases
//! load         when a request is due (closed or open loop)
//! mix, verify  what it asks and what the answer has to be
//! emulator     the table of requests in flight and the accounting
//! drive        the hot loop: one port, one emulator, one core
//! measure      the threads around it: calibration, cases, progress, collection
//! suite        cases in turns with their baselines, each a process of its own; soak and overload
//! compare      two reports, with confidence intervals
//! books        whether what a server counted adds up
//! report       the table, the JSON document, the histogram log and the HTML page
//! stream       an experiment round by round, to a decoding server
//! decode       files of shots: `berth decode`
//! ```
//!
//! Latency is measured from the moment a request was due, never from a moment that a slow server chose. A histogram of
//! the client's own hiccups and a calibration of the two-core bounce stand beside every result, so that a reader can
//! tell the server's tail from the machine's.
#![forbid(unsafe_code)]

mod args;
pub mod books;
pub mod bounce;
mod calls;
pub mod compare;
pub mod decode;
mod disk;
pub mod drive;
pub mod emulator;
pub mod environment;
pub mod functions;
pub mod hiccup;
mod hip;
mod job;
mod lease;
pub mod load;
mod measure;
pub mod mix;
mod nvme;
#[cfg(feature = "verbs")]
mod one_sided;
mod ports;
pub mod report;
mod rpc;
mod server;
pub mod shots;
mod stream;
pub mod suite;
pub mod tally;
pub mod verify;

use std::process::ExitCode;

pub use args::{
    Action, BounceArgs, CompareArgs, HipArgs, LeaseArgs, LoadArgs, NvmeArgs, PaceArgs, PerfCommand, ReportArgs,
    RpcArgs, StreamArgs, SuiteArgs,
};

/// Runs the command and prints its results to stdout. A failure status means that a request was lost, doubled or answered
/// wrong, that nothing was measured, or that a report is worse than another.
pub fn run(command: &PerfCommand) -> anyhow::Result<ExitCode> {
    match &command.action {
        Action::Rpc(args) => rpc::run(args),
        Action::Lease(args) => lease::run(args),
        Action::Nvme(args) => nvme::run(args),
        Action::Hip(args) => hip::run(args),
        Action::Stream(args) => stream::run(args),
        Action::Bounce(args) => measure::print_bounces(args),
        Action::Suite(args) => suite::run(args),
        Action::Compare(args) => compare::run(args),
        Action::Report(args) => report::run(args),
    }
}
