//! `berth perf hip`: its command line.

use std::{net::SocketAddr, path::PathBuf};

use berth_keys::parse_bytes;
use clap::{Args, ValueEnum};

use super::PaceArgs;

/// `berth perf hip`.
#[derive(Debug, Clone, Args)]
pub struct HipArgs {
    /// Where the worker listens
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:18515")]
    pub to: SocketAddr,
    /// Go through TLS, with the worker's certificate in this PEM file
    #[arg(long, value_name = "FILE", conflicts_with = "echo")]
    pub tls: Option<PathBuf>,
    /// The server is a baseline: it answers whatever wants a reply with success, and keeps nothing
    #[arg(long)]
    pub echo: bool,

    /// What is measured
    #[arg(long, value_enum, default_value = "ping")]
    pub op: HipOp,
    /// Bytes of each copy, or that each MEMSET sets, as 64 or "1 MiB"; each is a case of its own. Without it 64 bytes are
    /// set and 1 MiB is copied
    #[arg(long = "size", value_name = "BYTES", value_delimiter = ',', value_parser = size)]
    pub sizes: Vec<u32>,
    /// Calls without a reply, before one that tells their errors; they are one request of the report
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub batch: u32,
    /// Requests under way, or with --rate at most
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub window: u32,
    /// Sessions beside it that do nothing
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=3000))]
    pub idle_sessions: u32,

    /// Pace, time, reports
    #[command(flatten)]
    pub pace: PaceArgs,
}

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum HipOp {
    /// PING
    Ping,
    /// MEMSETs without a reply; afterwards every byte is read back
    Memset,
    /// Launches of an empty kernel without a reply, then a synchronize
    Launch,
    /// A launch of an empty kernel and a synchronize, both answered
    LaunchSync,
    /// Copies to the device; afterwards every byte is read back
    H2d,
    /// Copies from the device, of which every byte is compared
    D2h,
}

impl HipOp {
    /// Its name in reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ping => "PING",
            Self::Memset => "MEMSET",
            Self::Launch => "launch",
            Self::LaunchSync => "launch and synchronize",
            Self::H2d => "H2D",
            Self::D2h => "D2H",
        }
    }

    /// Bytes where none are given; 0 for operations without a size.
    pub(crate) fn usual(self) -> u32 {
        match self {
            Self::Ping | Self::Launch | Self::LaunchSync => 0,
            Self::Memset => 64,
            Self::H2d | Self::D2h => 1 << 20,
        }
    }
}

fn size(text: &str) -> Result<u32, String> {
    let bytes = parse_bytes(text)?;
    u32::try_from(bytes).ok().filter(|bytes| (1..=1 << 30).contains(bytes)).ok_or_else(|| "1 byte to 1 GiB".into())
}
