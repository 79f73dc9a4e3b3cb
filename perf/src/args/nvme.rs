//! `berth perf nvme`: its command line.

use std::{net::SocketAddr, path::PathBuf, str::FromStr};

use berth_keys::parse_bytes;
use berth_wire::nvme::pdu::{DATA_DIGEST, HEADER_DIGEST};
use clap::{ArgGroup, Args, ValueEnum};

use super::PaceArgs;

/// `berth perf nvme`.
#[derive(Debug, Clone, Args)]
#[command(group(ArgGroup::new("disk").required(true).args(["to", "control"])))]
pub struct NvmeArgs {
    /// Where the controller listens; the disk is --nqn's
    #[arg(long, value_name = "ADDR:PORT")]
    pub to: Option<SocketAddr>,
    /// The subsystem's name, as `berth lease bind` prints it
    #[arg(long, value_name = "NQN", requires = "to", required_unless_present_any = ["control", "echo"])]
    pub nqn: Option<String>,
    /// Our own name
    #[arg(long, value_name = "NQN", default_value = "nqn.2014-08.org.nvmexpress:uuid:6265-7274-682d-7065-7266")]
    pub host_nqn: String,
    /// Lease blocks for this run from the node whose QUIC control is here, bind them to our name, and free them afterwards
    #[arg(long, value_name = "ADDR:PORT", requires = "identity")]
    pub control: Option<SocketAddr>,
    /// The key file of whom the node leases to: it is enrolled, and has read, write and alloc by policy
    #[arg(long, value_name = "FILE", requires = "control")]
    pub identity: Option<PathBuf>,
    /// The server answers each 72 bytes with --size and 48 bytes more, as long as a read is and its answer (a baseline)
    #[arg(long, requires = "to", conflicts_with_all = ["control", "nqn", "verify", "digests"])]
    pub echo: bool,

    /// I/O queues, each a connection; one core polls them all
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub queues: u16,
    /// Commands of a queue at once: as many as are kept under way, or with --rate at most
    #[arg(long, value_name = "D", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub depth: u16,
    /// What the commands are, by their shares
    #[arg(long, value_name = "read=N,write=N", default_value = "read=100")]
    pub mix: MixArg,
    /// Bytes of each command, as 4096 or "4 KiB"; each is a case of its own
    #[arg(long = "size", value_name = "BYTES", value_delimiter = ',', default_value = "4 KiB", value_parser = size)]
    pub sizes: Vec<u32>,
    /// One place after the other; without it places are drawn evenly
    #[arg(long)]
    pub sequential: bool,
    /// CRC-32C of these parts of PDUs
    #[arg(long, value_enum, value_name = "PART", value_delimiter = ',')]
    pub digests: Vec<DigestArg>,
    /// Write before reading, read back what was written, and compare every byte; otherwise nobody looks at the data
    #[arg(long)]
    pub verify: bool,
    /// Bytes of the disk that are used, from its first; they are overwritten by writes. By default all of them, and of a
    /// lease of this run's own 64 MiB
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub len: Option<u64>,

    /// How fast, how long, and where results go.
    #[command(flatten)]
    pub pace: PaceArgs,
}

/// How many of a hundred commands, or of any other number, are of which kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MixArg {
    /// Share of reads, in parts of `read + write`, which is not 0.
    pub read: u32,
    /// Share of writes, likewise.
    pub write: u32,
}

impl FromStr for MixArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut mix = Self { read: 0, write: 0 };
        for part in text.split(',') {
            let (kind, share) = part.split_once('=').ok_or_else(|| format!("{part:?} is not of the form read=70"))?;
            let share: u32 =
                share.parse().ok().filter(|n| *n <= 1000).ok_or_else(|| format!("{part}: a share up to 1000"))?;
            match kind {
                "read" => mix.read += share,
                "write" => mix.write += share,
                _ => return Err(format!("{kind} is none of read, write")),
            }
        }
        if mix.read + mix.write == 0 { Err("no command has a share".into()) } else { Ok(mix) }
    }
}

/// Parts of PDUs that have digests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DigestArg {
    /// Headers
    Header,
    /// Data
    Data,
}

impl NvmeArgs {
    /// DGST: the bits of the digests that are asked for; 0 is none.
    pub(crate) fn digests(&self) -> u8 {
        let bit = |digest: &DigestArg| match digest {
            DigestArg::Header => HEADER_DIGEST,
            DigestArg::Data => DATA_DIGEST,
        };
        self.digests.iter().map(bit).fold(0, |all, bit| all | bit)
    }
}

/// Up to what one command transfers at most: 65,536 blocks of 512 bytes.
fn size(text: &str) -> Result<u32, String> {
    let bytes = parse_bytes(text)?;
    u32::try_from(bytes).ok().filter(|bytes| *bytes <= 32 << 20).ok_or_else(|| "at most 32 MiB".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_and_sizes_are_read() {
        assert_eq!("read=70,write=30".parse(), Ok(MixArg { read: 70, write: 30 }));
        assert_eq!("write=1".parse(), Ok(MixArg { read: 0, write: 1 }));
        for bad in ["read", "read=0", "trim=1", "read=x", "read=1001", ""] {
            assert!(bad.parse::<MixArg>().is_err(), "{bad}");
        }
        assert_eq!((size("4 KiB"), size("512")), (Ok(4096), Ok(512)));
        assert!(["0", "33 MiB", "x", "-1"].iter().all(|bad| size(bad).is_err()));
    }
}
