//! The command line.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use berth_wire::rpc::{HeaderForm, PtpEncoding};
use clap::{Args, Subcommand, ValueEnum};

use crate::{
    functions::{Function, Weighted},
    load::{Limit, Pacing},
};

/// Measure: an FPGA emulator with honest latency histograms, and the calibration that belongs to them.
#[derive(Debug, Clone, Args)]
pub struct PerfCommand {
    /// What to measure.
    #[command(subcommand)]
    pub suite: Suite,
}

/// What to measure.
#[derive(Debug, Clone, Subcommand)]
pub enum Suite {
    /// Emulate an FPGA: send RPC requests, verify every answer, report latency
    Rpc(Box<RpcArgs>),
    /// Measure how long a cache line takes between two CPUs and back
    Bounce(BounceArgs),
}

/// Port drivers the emulator can send from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PortDriver {
    /// Spinning non-blocking kernel sockets
    Udp,
}

/// Header forms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Header {
    /// 24 bytes, with the PTP time
    V24,
    /// 16 bytes, without it
    V16,
}

/// Encodings of the send time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Ptp {
    /// Nanoseconds since the PTP epoch
    Ns,
    /// Seconds in the upper, nanoseconds in the lower 32 bits
    #[value(name = "sec_nsec")]
    SecNsec,
    /// 0: unused
    Off,
}

impl Ptp {
    /// The value on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ns => "ns",
            Self::SecNsec => "sec_nsec",
            Self::Off => "off",
        }
    }
}

/// `berth perf rpc`.
#[derive(Debug, Clone, Args)]
pub struct RpcArgs {
    /// The driver to send from
    #[arg(long, value_enum, default_value = "udp")]
    pub port: PortDriver,
    /// The server's address
    #[arg(long, value_name = "ADDR:PORT")]
    pub peer: SocketAddr,
    /// The address to send from; by default any address and a port that the kernel chooses
    #[arg(long, value_name = "ADDR:PORT")]
    pub bind: Option<SocketAddr>,
    /// The CPU to spin on
    #[arg(long, value_name = "N")]
    pub cpu: Option<usize>,
    /// The other CPU of the bounce: the server's; by default the highest one that is not the client's
    #[arg(long, value_name = "N")]
    pub bounce_cpu: Option<usize>,

    /// The header form of the server's port
    #[arg(long, value_enum, default_value = "v24")]
    pub header: Header,
    /// How the send time is stamped into the 24-byte header
    #[arg(long, value_enum, default_value = "ns")]
    pub ptp: Ptp,
    /// `rpc_increment`, `qec_decode` or `decoding_server`, with its share of the calls; repeat it for a mix
    #[arg(long = "function", value_name = "NAME[:WEIGHT]", default_value = "rpc_increment")]
    pub functions: Vec<Weighted>,
    /// Payload bytes of `rpc_increment`; each is a case of its own
    #[arg(long = "payload", value_name = "BYTES", value_delimiter = ',', default_value = "32")]
    pub payloads: Vec<usize>,
    /// Syndrome data: the common prefix of PREFIX.dets.b8, PREFIX.obs.b8 and PREFIX.pymatching.b8
    #[arg(long, value_name = "PREFIX")]
    pub shots: Option<String>,
    /// Detectors per shot, where that is fewer than the bits of a shot's bytes
    #[arg(long, value_name = "N", requires = "shots")]
    pub detectors: Option<usize>,
    /// Observables per shot
    #[arg(long, value_name = "K", default_value_t = 1)]
    pub observables: usize,
    /// The decoder that `decoding_server` addresses, by its place in the server's configuration
    #[arg(long, value_name = "ID", default_value_t = 0)]
    pub decoder: u64,
    /// The server sends requests back unchanged (a baseline); verify that
    #[arg(long)]
    pub echo: bool,

    /// Requests to measure per case
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), conflicts_with = "duration")]
    pub count: Option<u64>,
    /// Seconds to measure per case
    #[arg(long, value_name = "S", value_parser = seconds, default_value = "5")]
    pub duration: Duration,
    /// Closed loop: requests outstanding at most
    #[arg(long, value_name = "W", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65536), conflicts_with = "rate")]
    pub window: u32,
    /// Open loop: requests per second, on a schedule that waits for no answer
    #[arg(long, value_name = "R", value_parser = rate)]
    pub rate: Option<f64>,
    /// Open loop: requests sent back to back at each tick of the schedule
    #[arg(long, value_name = "B", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65536), requires = "rate")]
    pub burst: u32,
    /// Seconds before anything is measured
    #[arg(long, value_name = "S", value_parser = seconds_or_none, default_value = "0.5")]
    pub warmup: Duration,
    /// Milliseconds until a request without an answer counts as lost
    #[arg(long, value_name = "MS", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=60_000))]
    pub timeout: u64,
    /// Milliseconds per interval of the histogram log and the plots over time
    #[arg(long, value_name = "MS", default_value_t = 100, value_parser = clap::value_parser!(u64).range(10..=60_000))]
    pub interval: u64,

    /// Write the results as a JSON document
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write every interval's histograms as a `HdrHistogram` V2 log
    #[arg(long, value_name = "FILE")]
    pub hlog: Option<PathBuf>,
    /// Write a self-contained page with percentile plots
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Show no progress bar
    #[arg(long)]
    pub no_progress: bool,
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

impl RpcArgs {
    /// The address to send from, of the peer's family.
    pub(crate) fn bind(&self) -> SocketAddr {
        let any = if self.peer.is_ipv4() { IpAddr::V4(Ipv4Addr::UNSPECIFIED) } else { Ipv6Addr::UNSPECIFIED.into() };
        self.bind.unwrap_or(SocketAddr::new(any, 0))
    }

    /// The header form on the wire.
    pub(crate) fn header(&self) -> HeaderForm {
        match self.header {
            Header::V24 => HeaderForm::V24,
            Header::V16 => HeaderForm::V16,
        }
    }

    /// The encoding of the send time; `None` where it stays 0.
    pub(crate) fn ptp(&self) -> Option<PtpEncoding> {
        match self.ptp {
            Ptp::Ns => Some(PtpEncoding::Ns),
            Ptp::SecNsec => Some(PtpEncoding::SecNsec),
            Ptp::Off => None,
        }
    }

    /// How requests are paced.
    pub(crate) fn pacing(&self) -> Pacing {
        match self.rate {
            Some(rate) => Pacing::Open { rate, burst: self.burst },
            None => Pacing::Closed { window: self.window as usize },
        }
    }

    /// When a case ends.
    pub(crate) fn limit(&self) -> Limit {
        self.count.map_or(Limit::Duration(self.duration), Limit::Count)
    }

    /// The payload sizes to sweep: one case each, or a single case where no function of the mix has a choice.
    pub(crate) fn sweep(&self) -> &[usize] {
        let sized = self.functions.iter().any(|weighted| weighted.function.is_sized());
        if sized { &self.payloads } else { &self.payloads[..1] }
    }

    /// Whether a function of the mix needs syndrome data.
    pub(crate) fn needs_shots(&self) -> bool {
        self.functions.iter().any(|weighted| Function::needs_shots(weighted.function))
    }
}

fn seconds_or_none(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().map_err(|_| format!("{text} is no number of seconds"))?;
    if !(0.0..=86_400.0).contains(&seconds) {
        return Err("choose at most a day, 86400 seconds".into());
    }
    Ok(Duration::from_secs_f64(seconds))
}

fn seconds(text: &str) -> Result<Duration, String> {
    seconds_or_none(text)
        .and_then(|time| if time.is_zero() { Err("choose more than 0 seconds".into()) } else { Ok(time) })
}

fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().map_err(|_| format!("{text} is no number of requests per second"))?;
    if (0.01..=1e9).contains(&rate) { Ok(rate) } else { Err("choose from 0.01 to 1e9 requests per second".into()) }
}
