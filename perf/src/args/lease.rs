//! `berth perf lease`: its command line.

use std::{net::SocketAddr, path::PathBuf};

use berth_lease::LeaseId;
use clap::{Args, ValueEnum};

use super::LoadArgs;

/// `berth perf lease`.
#[derive(Debug, Clone, Args)]
pub struct LeaseArgs {
    /// Whom to ask, how fast, how long.
    #[command(flatten)]
    pub load: LoadArgs,

    /// What is measured
    #[arg(long, value_enum, default_value = "read")]
    pub op: OpArg,
    /// Bytes of each read or write; each is a case of its own
    #[arg(long = "size", value_name = "BYTES", value_delimiter = ',', default_value = "64", value_parser = clap::value_parser!(u32).range(1..=65_000))]
    pub sizes: Vec<u32>,
    /// The lease's key: the low 16 of the 32 hex digits of its id, or all of them
    #[arg(long, value_name = "HEX", value_parser = key, required_unless_present = "control", conflicts_with = "control")]
    pub key: Option<u64>,
    /// The lease's generation
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "control")]
    pub generation: u64,
    /// Lease memory for this run from the node whose QUIC control is here; the peer is where it serves the lease,
    /// unless one is named
    #[arg(long, value_name = "ADDR:PORT", requires = "identity")]
    pub control: Option<SocketAddr>,
    /// The key file of whom the node leases to: it is enrolled, and has read, write and alloc by policy
    #[arg(long, value_name = "FILE", requires = "control")]
    pub identity: Option<PathBuf>,
    /// How the lease is reached, by default by datagrams to where its bindings say; ofi: the node is told of our endpoint by
    /// `LEASE_BIND`, and --port is ofi; rdma: by one-sided READs and WRITEs from --device
    #[arg(long, value_enum, requires = "control", conflicts_with_all = ["peer", "port", "rendezvous"])]
    pub binding: Option<BindingArg>,
    /// Bytes of the lease that are used, from its first; they are overwritten
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 20, value_parser = clap::value_parser!(u64).range(1..))]
    pub len: u64,
}

/// Transports of their own that a lease is connected to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BindingArg {
    /// Two-sided messages between libfabric endpoints
    Ofi,
    /// One-sided READs and WRITEs
    Rdma,
}

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OpArg {
    /// Reads of what was written before
    Read,
    /// Writes, whose bytes are read back afterwards
    Write,
}

fn key(text: &str) -> Result<u64, String> {
    let id = u128::from_str_radix(text, 16).ok().filter(|_| text.len() <= 32);
    id.map(|id| LeaseId(id).key().0).ok_or_else(|| "up to 32 hex digits, as `berth lease alloc` prints them".into())
}
