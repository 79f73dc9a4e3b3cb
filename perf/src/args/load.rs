//! What load generators have in common: whom to ask and from where, how fast, how long.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use berth_ports::{Client, ClientDriver, Meet, Runtime};
use berth_rendezvous::Form;
use berth_roce::Slots;
use berth_wire::{
    net::MacAddr,
    rendezvous::{ImmForm, PeerKind},
};
use clap::{
    Args, ValueEnum,
    builder::{PossibleValue, PossibleValuesParser, TypedValueParser},
};

use super::values::{FaultArg, cidr, neighbour, rate, seconds, seconds_or_none};
use crate::load::{Limit, Pacing};

/// What the emulator sends from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortDriver {
    /// A port of this driver.
    Driver(ClientDriver),
    /// One-sided READs and WRITEs of a lease, which a binding leads to.
    OneSided,
    /// Memory: the server is a second core of this process.
    Loopback,
}

impl PortDriver {
    /// As the report has it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Driver(driver) => driver.word(),
            Self::OneSided => "onesided",
            Self::Loopback => LOOPBACK.0,
        }
    }
}

/// The word of [`PortDriver::Loopback`], and what it is.
const LOOPBACK: (&str, &str) = ("loopback", "memory: the server is a second core of this process");

/// The words of `--port`.
fn port_driver() -> impl TypedValueParser<Value = PortDriver> {
    let drivers = ClientDriver::ALL.iter().map(|(driver, doc)| (driver.word(), *doc));
    let words = drivers.chain([LOOPBACK]).map(|(word, doc)| PossibleValue::new(word).help(doc));
    PossibleValuesParser::new(words).map(|given| {
        let driver = ClientDriver::ALL.iter().find(|(driver, _)| driver.word() == given);
        driver.map_or(PortDriver::Loopback, |(driver, _)| PortDriver::Driver(*driver))
    })
}

/// How a sender of slots behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Style {
    /// Requests as long as they are, PTP as `--ptp` says
    Plain,
    /// A Holoscan Sensor Bridge: requests filled up to 64 bytes, PTP as seconds and nanoseconds in bytes 16 to 23
    Hsb,
}

/// How requests reach an RDMA port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Requests {
    /// SENDs over a reliable connection
    RcSend,
    /// SENDs over an unreliable connection
    UcSend,
    /// RDMA WRITEs with immediate over a reliable connection
    RcWriteImm,
    /// RDMA WRITEs with immediate over an unreliable connection
    UcWriteImm,
}

impl Requests {
    /// As the rendezvous knows it.
    pub(crate) fn kind(self) -> PeerKind {
        match self {
            Self::RcSend => PeerKind::RcSend,
            Self::UcSend => PeerKind::UcSend,
            Self::RcWriteImm => PeerKind::RcWriteImm,
            Self::UcWriteImm => PeerKind::UcWriteImm,
        }
    }
}

/// Forms of the rendezvous.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RendezvousForm {
    /// Berth's own
    Berth,
    /// The 12 bytes of the CUDA-Q host API
    HostApi,
}

impl RendezvousForm {
    /// As the rendezvous knows it.
    pub(crate) fn form(self) -> Form {
        match self {
            Self::Berth => Form::Berth,
            Self::HostApi => Form::HostApi,
        }
    }
}

/// Forms of the immediate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Immediate {
    /// 20 bits of sequence number, 12 of slot
    Psn20,
    /// 24 bits of sequence number, 2 of slot
    Psn24,
}

impl Immediate {
    /// As it is on the wire.
    pub(crate) fn form(self) -> ImmForm {
        match self {
            Self::Psn20 => ImmForm::Psn20,
            Self::Psn24 => ImmForm::Psn24,
        }
    }
}

/// What load generators are told that send from a port: whom to ask and from where, and what all are told.
#[derive(Debug, Clone, Args)]
pub struct LoadArgs {
    /// The driver to send from
    #[arg(long, value_name = "PORT", value_parser = port_driver(), default_value = "udp")]
    pub port: PortDriver,
    /// The server's address, where it is not the usual one on this host
    #[arg(long, value_name = "ADDR:PORT")]
    pub peer: Option<SocketAddr>,
    /// udp, uring, ofi: the address to send from; by default any address and a port that the kernel chooses
    #[arg(long, value_name = "ADDR:PORT")]
    pub bind: Option<SocketAddr>,
    /// dpdk, roce: a PCI address or a software device with its arguments, as `net_memif0,role=client,socket=/run/m.sock`;
    /// verbs: a device's name, as `mlx5_0`
    #[arg(long, value_name = "DEVARGS", required_if_eq_any([("port", "dpdk"), ("port", "roce"), ("port", "verbs")]))]
    pub device: Option<String>,
    /// dpdk, roce: our address with its prefix length
    #[arg(long, value_name = "CIDR", value_parser = cidr, required_if_eq_any([("port", "dpdk"), ("port", "roce")]))]
    pub address: Option<(IpAddr, u8)>,
    /// dpdk, roce: a neighbour that need not be asked for by ARP or NDP
    #[arg(long = "neighbour", value_name = "IP=MAC", value_parser = neighbour)]
    pub neighbours: Vec<(IpAddr, MacAddr)>,
    /// roce, ofi, verbs: where the port's peers come, over TCP
    #[arg(long, value_name = "ADDR:PORT", required_if_eq_any([("port", "roce"), ("port", "verbs")]))]
    pub rendezvous: Option<SocketAddr>,
    /// verbs: the place of our address in the GID table of the device's port 1
    #[arg(long, value_name = "INDEX", default_value_t = 1)]
    pub gid_index: u8,
    /// verbs: how requests are sent; in the form of the host API, `uc-write-imm`
    #[arg(long, value_enum, default_value = "rc-send")]
    pub requests: Requests,
    /// roce, verbs: what is spoken at the rendezvous
    #[arg(long, value_enum, default_value = "berth")]
    pub rendezvous_form: RendezvousForm,
    /// roce, verbs: the slots to write into, where the rendezvous does not tell (host-api)
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub slots: u32,
    /// roce, verbs: bytes from one slot to the next, where the rendezvous does not tell
    #[arg(long, value_name = "BYTES", default_value_t = 2048, value_parser = clap::value_parser!(u32).range(128..))]
    pub stride: u32,
    /// roce: the virtual address of the first slot, where the rendezvous does not tell
    #[arg(long, value_name = "ADDRESS", default_value_t = 0)]
    pub base: u64,
    /// roce, verbs: how immediates name slots, where the rendezvous does not tell
    #[arg(long, value_enum, default_value = "psn20")]
    pub immediate: Immediate,
    /// roce: how requests are written
    #[arg(long, value_enum, default_value = "plain")]
    pub style: Style,
    /// ofi: the libfabric provider, that of the server
    #[arg(long, value_name = "NAME", required_if_eq("port", "ofi"))]
    pub provider: Option<String>,
    /// ofi: the fabric's name, where the provider has several
    #[arg(long, value_name = "NAME")]
    pub fabric: Option<String>,
    /// ofi: the domain's name, where the fabric has several
    #[arg(long, value_name = "NAME")]
    pub domain: Option<String>,
    /// Faults to inject between the emulator and its port, both ways or after `rx.` or `tx.` one way:
    /// drop, corrupt, duplicate, reorder, delay (probabilities), delay_us=SHORTEST-LONGEST, seed
    #[arg(long, value_name = "FAULT=P,..")]
    pub fault: Option<FaultArg>,
    /// Closed loop: requests outstanding at most
    #[arg(long, value_name = "W", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65536), conflicts_with = "rate")]
    pub window: u32,
    /// How fast, how long, and where results go.
    #[command(flatten)]
    pub pace: PaceArgs,
}

/// How fast requests are sent, how long, and where results go.
#[derive(Debug, Clone, Args)]
pub struct PaceArgs {
    /// The CPU to spin on
    #[arg(long, value_name = "N")]
    pub cpu: Option<usize>,
    /// The other CPU of the bounce: the server's; by default the highest one that is not the client's
    #[arg(long, value_name = "N")]
    pub bounce_cpu: Option<usize>,

    /// Requests to measure per case
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), conflicts_with = "duration")]
    pub count: Option<u64>,
    /// Seconds to measure per case
    #[arg(long, value_name = "S", value_parser = seconds, default_value = "5")]
    pub duration: Duration,
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
    /// Lost and doubled requests are part of the measurement: they do not make the exit status a failure
    #[arg(long)]
    pub expect_losses: bool,
}

/// What the Holoscan Sensor Bridge's player fills its windows up to a multiple of, in bytes.
const HSB_WINDOW: usize = 64;

/// Where RPC is served unless somebody chose otherwise.
const RPC_PORT: u16 = 4700;

impl LoadArgs {
    /// The server's address: `--peer`, else port 4700 of 127.0.0.1.
    pub(crate) fn peer(&self) -> SocketAddr {
        self.peer.unwrap_or(SocketAddr::from((Ipv4Addr::LOCALHOST, RPC_PORT)))
    }

    /// What the port is opened with.
    pub(crate) fn client<'a>(
        &'a self,
        runtime: &'a Runtime,
        max_frame: usize,
        longest: usize,
        meet: Option<&'a Meet>,
    ) -> Client<'a> {
        let (count, stride) = (self.slots as usize, self.stride as usize);
        Client {
            peer: self.peer(),
            bind: self.bind,
            device: self.device.as_deref(),
            address: self.address,
            neighbours: &self.neighbours,
            rendezvous: self.rendezvous,
            form: self.rendezvous_form.form(),
            gid_index: self.gid_index,
            requests: self.requests.kind(),
            slots: Slots { count, stride, base: self.base, form: self.immediate.form() },
            unit: match self.style {
                Style::Plain => 1,
                Style::Hsb => HSB_WINDOW,
            },
            provider: self.provider.as_deref(),
            fabric: self.fabric.as_deref(),
            domain: self.domain.as_deref(),
            max_frame,
            longest,
            meet,
            runtime,
        }
    }

    /// How requests are paced.
    pub(crate) fn pacing(&self) -> Pacing {
        self.pace.pacing(self.window as usize)
    }
}

impl PaceArgs {
    /// How requests are paced, with so many outstanding at most in a closed loop.
    pub(crate) fn pacing(&self, window: usize) -> Pacing {
        match self.rate {
            Some(rate) => Pacing::Open { rate, burst: self.burst },
            None => Pacing::Closed { window },
        }
    }

    /// When a case ends: after `--count` requests if they are given, else after `--duration`.
    pub(crate) fn limit(&self) -> Limit {
        self.count.map_or(Limit::Duration(self.duration), Limit::Count)
    }
}
