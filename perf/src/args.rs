//! The command line.

pub(crate) mod lease;
pub(crate) mod nvme;
mod values;

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use anyhow::{Context, bail};
use berth_ports::{Client, ClientDriver, Meet, Runtime};
use berth_qec::{dem::DetectorErrorModel, mock::SyndromeFile};
use berth_rendezvous::Form;
use berth_roce::Slots;
use berth_wire::{
    net::MacAddr,
    rendezvous::{ImmForm, PeerKind},
    rpc::{HeaderForm, PtpEncoding},
};
use clap::{
    Args, Subcommand, ValueEnum,
    builder::{PossibleValue, PossibleValuesParser, TypedValueParser},
};

pub use lease::LeaseArgs;
pub use nvme::NvmeArgs;
pub(crate) use values::FaultArg;
use values::{cidr, neighbour, percent, rate, seconds, seconds_or_none};

use crate::{
    functions::{Data, Weighted},
    load::{Limit, Pacing},
    shots::Shots,
    verify::Protocol,
};

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
    /// Measure how long a cache line takes between two CPUs and back
    Bounce(BounceArgs),
    /// Run a suite: its servers, its cases in turns with their baselines, and the report of all
    Suite(SuiteArgs),
    /// Say which cases of two reports differ, with confidence intervals; exit status 1: a regression
    Compare(CompareArgs),
    /// Make one page of the reports of one or several runs
    Report(ReportArgs),
}

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

/// `berth perf suite`.
#[derive(Debug, Clone, Args)]
pub struct SuiteArgs {
    /// smoke, rpc, lease, nvme, soak, overload; or a suite file of your own
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

/// `berth perf rpc`.
#[derive(Debug, Clone, Args)]
pub struct RpcArgs {
    /// Whom to ask, how fast, how long.
    #[command(flatten)]
    pub load: LoadArgs,

    /// The header form of the server's port
    #[arg(long, value_enum, default_value = "v24")]
    pub header: Header,
    /// How the send time is stamped into the 24-byte header; by default ns, with `--style hsb` in seconds and nanoseconds
    #[arg(long, value_enum)]
    pub ptp: Option<Ptp>,
    /// `rpc_increment`, `mock_decode`, `qec_decode` or `decoding_server`, with its share of the calls; repeat it for a mix
    #[arg(long = "function", value_name = "NAME[:WEIGHT]", default_value = "rpc_increment")]
    pub functions: Vec<Weighted>,
    /// Payload bytes of `rpc_increment`; each is a case of its own
    #[arg(long = "payload", value_name = "BYTES", value_delimiter = ',', default_value = "32")]
    pub payloads: Vec<usize>,
    /// Syndrome data: the common prefix of PREFIX.dets.b8, PREFIX.obs.b8 and PREFIX.pymatching.b8
    #[arg(long, value_name = "PREFIX")]
    pub shots: Option<String>,
    /// The shots' detector error model; without it a shot has one observable, and a detector per bit of its bytes
    #[arg(long, value_name = "DEM")]
    pub model: Option<PathBuf>,
    /// Recorded measurements and corrections for `mock_decode`: a syndrome text file
    #[arg(long, value_name = "FILE")]
    pub syndromes: Option<PathBuf>,
    /// The decoder that `decoding_server` addresses, by its place in the server's configuration
    #[arg(long, value_name = "ID", default_value_t = 0)]
    pub decoder: u64,
    /// The server sends requests back unchanged (a baseline); verify that
    #[arg(long)]
    pub echo: bool,
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

/// What the Holoscan Sensor Bridge's player fills its windows up to a multiple of, in bytes.
const HSB_WINDOW: usize = 64;

/// Where RPC is served unless somebody chose otherwise.
const RPC_PORT: u16 = 4700;

impl LoadArgs {
    /// The server's address.
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

    /// When a case ends.
    pub(crate) fn limit(&self) -> Limit {
        self.count.map_or(Limit::Duration(self.duration), Limit::Count)
    }
}

impl RpcArgs {
    /// What the server's port speaks.
    pub(crate) fn protocol(&self) -> Protocol {
        Protocol::Rpc { header: self.header(), ptp: self.ptp(), echo: self.echo }
    }

    /// The header form on the wire.
    pub(crate) fn header(&self) -> HeaderForm {
        match self.header {
            Header::V24 => HeaderForm::V24,
            Header::V16 => HeaderForm::V16,
        }
    }

    /// How the send time is stamped.
    pub(crate) fn stamp(&self) -> Ptp {
        self.ptp.unwrap_or(match self.load.style {
            Style::Plain => Ptp::Ns,
            Style::Hsb => Ptp::SecNsec,
        })
    }

    /// The encoding of the send time; `None` where it stays 0.
    pub(crate) fn ptp(&self) -> Option<PtpEncoding> {
        match self.stamp() {
            Ptp::Ns => Some(PtpEncoding::Ns),
            Ptp::SecNsec => Some(PtpEncoding::SecNsec),
            Ptp::Off => None,
        }
    }

    /// The payload sizes to sweep: one case each, or a single case where no function of the mix has a choice.
    pub(crate) fn sweep(&self) -> &[usize] {
        let sized = self.functions.iter().any(|weighted| weighted.function.is_sized());
        if sized { &self.payloads } else { &self.payloads[..1] }
    }

    /// What the functions are called with. Every function has the data it needs.
    pub(crate) fn data(&self) -> anyhow::Result<Data> {
        let read = |path: &PathBuf| fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()));
        let model = match &self.model {
            Some(path) => {
                let model = DetectorErrorModel::parse(&read(path)?).with_context(|| path.display().to_string())?;
                Some((model.num_detectors(), model.num_observables()))
            }
            None => None,
        };
        let shots = self.shots.as_ref().map(|prefix| Shots::load(prefix, model)).transpose()?;
        let syndromes = match &self.syndromes {
            Some(path) => Some(SyndromeFile::parse(&read(path)?).with_context(|| path.display().to_string())?),
            None => None,
        };
        let data = Data { shots, syndromes, decoder_id: self.decoder };
        for Weighted { function, .. } in &self.functions {
            if let (false, Some(option)) = (data.serves(*function), function.needs()) {
                bail!("{} needs {option}", function.name());
            }
        }
        Ok(data)
    }
}
