//! `[[port]]`: where frames come from, on which core, and what answers them.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    num::NonZeroU32,
    path::{Path, PathBuf},
};

use berth_engine::Idle;
use berth_wire::net::MacAddr;

use super::{
    Host, Limits, Roce, Runtime,
    limits::limits,
    name,
    roce::{self, roce},
    rpc::{Rpc, rpc},
    unique,
    verbs::{self, Verbs},
    walk::{At, Table},
};

/// One port: one queue for each of its CPUs, all reached at one address.
#[derive(Debug, Clone, PartialEq)]
pub struct Port {
    /// Unique name.
    pub name: String,
    /// Where its frames come from.
    pub driver: Driver,
    /// The CPUs that poll it, one queue each.
    pub cpus: Vec<usize>,
    /// What those CPUs do while nothing arrives.
    pub idle: Idle,
    /// What answers its frames.
    pub service: Service,
    /// How much of its CPUs' time it gets, relative to other ports of the same ones.
    pub weight: NonZeroU32,
    /// What it takes, and what waits for it.
    pub limits: Limits,
    /// Faults to inject, for tests.
    pub fault: Option<Fault>,
    /// A capture of all frames.
    pub pcap: Option<Pcap>,
}

impl Port {
    /// The RPC service, where the port has it.
    pub fn rpc(&self) -> Option<&Rpc> {
        match &self.service {
            Service::Rpc(rpc) => Some(rpc),
            Service::LeaseIo => None,
        }
    }

    /// What each of its queues admits; nothing where nothing is limited.
    pub fn admission(&self) -> Vec<berth_admission::Admission> {
        self.limits.admission(self.cpus.len())
    }

    /// The longest frame in either direction, in bytes.
    pub fn max_frame(&self) -> usize {
        self.rpc().map_or(MAX_TWO_SIDED, |rpc| rpc.slot_size)
    }
}

/// `port.service` with the keys that belong to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Service {
    /// Calls of functions.
    Rpc(Rpc),
    /// Two-sided access to leases.
    LeaseIo,
}

/// `port.driver` with the keys that belong to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Driver {
    /// Kernel sockets.
    Udp {
        /// The address to bind; port 0 takes a free one.
        bind: SocketAddr,
    },
    /// `io_uring` on kernel sockets.
    Uring {
        /// The address to bind; port 0 takes a free one.
        bind: SocketAddr,
    },
    /// Byte streams, for FBMT.
    Tcp {
        /// The address to bind; port 0 takes a free one.
        bind: SocketAddr,
    },
    /// A DPDK device.
    Dpdk(Dpdk),
    /// An endpoint of libfabric.
    Ofi(Ofi),
    /// Queue pairs of an RDMA device.
    Verbs(Verbs),
    /// Memory, within this process.
    Loopback,
}

/// The keys of `driver = "dpdk"`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dpdk {
    /// A PCI address, or a virtual device with its arguments.
    pub device: String,
    /// Addresses with prefix lengths.
    pub addresses: Vec<(IpAddr, u8)>,
    /// The UDP port that is served.
    pub udp_port: u16,
    /// The VLAN all frames are tagged with.
    pub vlan: Option<u16>,
    /// The longest IP packet, in bytes.
    pub mtu: u16,
    /// Peers whose link-layer address is known without asking.
    pub neighbours: Vec<(IpAddr, MacAddr)>,
    /// What its datagrams carry.
    pub transport: Transport,
}

/// `port.transport`
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Transport {
    /// Frames.
    Udp,
    /// Packets of unreliable connections.
    Roce(Roce),
}

/// The keys of `driver = "ofi"`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ofi {
    /// The libfabric provider.
    pub provider: String,
    /// The fabric's name, where the provider has several.
    pub fabric: Option<String>,
    /// The domain's name, where the fabric has several.
    pub domain: Option<String>,
    /// The address of the endpoint, where the provider has IP addresses; port 0 takes a free one.
    pub bind: Option<SocketAddr>,
    /// Where peers come to be let in, over TCP; port 0 takes a free one.
    pub rendezvous: SocketAddr,
    /// Peers at a time.
    pub max_peers: usize,
}

impl Driver {
    /// Whether its datagrams are frames, as they are to everybody who speaks UDP.
    pub fn speaks_udp(&self) -> bool {
        !matches!(
            self,
            Self::Tcp { .. } | Self::Dpdk(Dpdk { transport: Transport::Roce(_), .. }) | Self::Ofi(_) | Self::Verbs(_)
        )
    }

    /// The word in the configuration and in the ready line.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Udp { .. } => "udp",
            Self::Uring { .. } => "uring",
            Self::Tcp { .. } => "tcp",
            Self::Dpdk(_) => "dpdk",
            Self::Ofi(_) => "ofi",
            Self::Verbs(_) => "verbs",
            Self::Loopback => "loopback",
        }
    }
}

/// `[port.fault]`: probabilities per frame, in both directions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fault {
    /// Equal seeds give equal faults.
    pub seed: u64,
    /// The frame is lost.
    pub drop: f64,
    /// The frame comes twice.
    pub duplicate: f64,
    /// The frame comes after the next one.
    pub reorder: f64,
    /// One bit of the frame is flipped.
    pub corrupt: f64,
    /// Every frame comes this much later, in microseconds.
    pub delay_us: u32,
}

/// `[port.pcap]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pcap {
    /// The file to write.
    pub file: PathBuf,
    /// Where the capture ends, in bytes of the file.
    pub max_bytes: u64,
}

/// The longest UDP datagram: two-sided messages are as long as the port can carry.
const MAX_TWO_SIDED: usize = 65507;

/// Who binds which UDP address.
pub(super) type Binds = BTreeMap<SocketAddr, String>;

/// Reads the ports. `leases` says whether there is a control plane that grants any: without it at least one port is
/// wanted.
pub(super) fn read_all(
    root: &mut Table<'_, '_>,
    folder: &Path,
    runtime: &Runtime,
    host: &Host,
    leases: bool,
    binds: &mut Binds,
) -> Vec<Port> {
    let mut names = Vec::new();
    let mut ports = Vec::new();
    let mut idles: BTreeMap<usize, (Idle, String)> = BTreeMap::new();
    let tables = root.tables("port");
    let tables = if leases { tables } else { root.require("port", tables, "[[port]] with a name and a driver") };
    for mut t in tables.into_iter().flatten() {
        let name = name(&mut t, "fpga0");
        let label = name.as_ref().map_or_else(|| t.path().to_string(), |name| name.value.clone());
        let driver = driver(&mut t, &label, binds, host);
        let cpus = cpus(&mut t, runtime, host);
        if let Some(Driver::Dpdk(Dpdk { transport: Transport::Roce(_), .. })) = &driver
            && cpus.len() > 1
        {
            t.refuse(&["cpus"], "a connection's packets all come to one queue; give transport = \"roce\" one `cpu`");
        }
        if matches!(driver, Some(Driver::Ofi(_))) && cpus.len() > 1 {
            t.refuse(
                &["cpus"],
                "a libfabric port has one endpoint; give it one `cpu`, and other CPUs ports of their own",
            );
        }
        let at = t.place("idle");
        let idle = t.chosen("idle", &[("spin", Idle::Spin), ("adaptive", Idle::Adaptive), ("wait", Idle::Wait)]);
        for cpu in &cpus {
            let (first, owner) = idles.entry(*cpu).or_insert_with(|| (idle, label.clone()));
            if *first != idle {
                let message =
                    format_args!("CPU {cpu} idles as port \"{owner}\" says; give ports of one CPU the same idle");
                t.sink().mistake(at.clone(), &format!("{}.idle", t.path()), message);
            }
        }
        let is_rdma = match &driver {
            Some(Driver::Verbs(_)) => true,
            Some(Driver::Dpdk(dpdk)) => matches!(dpdk.transport, Transport::Roce(_)),
            _ => false,
        };
        let service = service(&mut t, leases, is_rdma, host);
        if matches!(driver, Some(Driver::Tcp { .. })) {
            t.refuse(&["limits", "fault", "pcap"], "it is about frames, and driver = \"tcp\" has none");
            if cpus.len() > 1 {
                t.refuse(&["cpus"], "connections all come to one CPU; give others ports of their own");
            }
            if service != Service::LeaseIo {
                let message = "driver = \"tcp\" serves leases; set service = \"lease-io\"";
                t.sink().mistake(t.place("service"), &format!("{}.service", t.path()), message);
            }
        }
        let weight = NonZeroU32::new(t.number("weight") as u32).unwrap_or(NonZeroU32::MIN);
        let limits = t.table("limits").map_or_else(Limits::default, |t| limits(t, driver.as_ref()));
        let fault = t.table("fault").map(fault);
        let pcap = t.table("pcap").and_then(|t| pcap(t, folder));
        t.finish();
        names.extend(name.clone());
        if let (Some(name), Some(driver)) = (name, driver) {
            ports.push(Port { name: name.value, driver, cpus, idle, service, weight, limits, fault, pcap });
        }
    }
    unique(root.sink(), names.iter());
    ports
}

fn service(t: &mut Table<'_, '_>, leases: bool, is_rdma: bool, host: &Host) -> Service {
    let at = t.place("service");
    let lease_io = t.chosen("service", &[("rpc", false), ("lease-io", true)]);
    let rpc = rpc(t.table_or_empty("rpc"), is_rdma, host);
    if !lease_io {
        return Service::Rpc(rpc);
    }
    t.refuse(&["rpc"], "only service = \"rpc\" has it");
    if !leases {
        let message = "\"lease-io\" serves leases, and nothing grants any; add [control]";
        t.sink().mistake(at, &format!("{}.service", t.path()), message);
    }
    Service::LeaseIo
}

fn driver(t: &mut Table<'_, '_>, label: &str, binds: &mut Binds, host: &Host) -> Option<Driver> {
    #[derive(Clone, Copy, PartialEq)]
    enum Kind {
        Udp,
        Uring,
        Tcp,
        Dpdk,
        Ofi,
        Verbs,
        Loopback,
    }
    const BIND: &[&str] = &["bind"];
    const DEVICE: &[&str] = &["device"];
    const DPDK: &[&str] = &["address", "udp_port", "vlan", "mtu", "neighbours", "transport"];
    const OFI: &[&str] = &["provider", "fabric", "domain", "max_peers"];

    let words = [
        ("udp", Kind::Udp),
        ("uring", Kind::Uring),
        ("tcp", Kind::Tcp),
        ("dpdk", Kind::Dpdk),
        ("ofi", Kind::Ofi),
        ("verbs", Kind::Verbs),
        ("loopback", Kind::Loopback),
    ];
    let kind = t.choice("driver", &words);
    let wanted = "driver = \"udp\", \"uring\", \"tcp\", \"dpdk\", \"ofi\", \"verbs\" or \"loopback\"";
    let kind = t.require("driver", kind, wanted);
    let bind = t.text("bind");
    let device = t.text("device").map(|at| at.map(str::to_string));
    let addresses = t.texts("address");
    let udp_port = t.integer("udp_port");
    let transport = t.choice("transport", &[("udp", false), ("roce", true)]);
    let vlan = t.integer("vlan");
    let mtu = t.number("mtu") as u16;
    let neighbours = t.texts("neighbours");
    let [provider, fabric, domain] =
        ["provider", "fabric", "domain"].map(|key| t.text(key).map(|at| at.value.to_string()));
    let max_peers = t.number("max_peers") as usize;
    let transport = transport.is_some_and(|at| at.value).then(|| roce(t, mtu).map(Transport::Roce));
    let kind = kind?;
    let (ofi, verbs) = (kind.value == Kind::Ofi, kind.value == Kind::Verbs);
    if transport.is_none() {
        t.refuse(roce::ALONE, "only transport = \"roce\" has it");
    }
    if transport.is_none() && !verbs {
        t.refuse(&["rendezvous_form"], "only transport = \"roce\" and driver = \"verbs\" have it");
    }
    if transport.is_none() && !verbs && !ofi {
        t.refuse(&["rendezvous"], "only transport = \"roce\", driver = \"verbs\" and driver = \"ofi\" have it");
    }
    if !ofi {
        t.refuse(OFI, "only driver = \"ofi\" has it");
    }
    if !verbs {
        t.refuse(verbs::KEYS, "only driver = \"verbs\" has it");
    }
    match kind.value {
        Kind::Udp | Kind::Uring | Kind::Tcp => {
            t.refuse(DEVICE, "kernel sockets have `bind`");
            t.refuse(DPDK, "only driver = \"dpdk\" has it, kernel sockets have `bind`");
            let at = t.require("bind", bind, "bind = \"127.0.0.1:0\"")?;
            let bind = address(t, &at)?;
            claim(t, binds, &at, bind, format!("port \"{label}\""));
            Some(match kind.value {
                Kind::Udp => Driver::Udp { bind },
                Kind::Uring => Driver::Uring { bind },
                _ => Driver::Tcp { bind },
            })
        }
        Kind::Dpdk => {
            t.refuse(BIND, "a DPDK port has `address` and `udp_port`");
            if !host.dpdk {
                let message =
                    "this berth was built without DPDK; build it with `cargo build --release --features dpdk`";
                t.sink().wrong(&kind, message);
            }
            let device = t.require(
                "device",
                device,
                "device = \"0000:3b:00.0\" or \"net_memif0,role=server,socket=/run/berth/fpga0.sock\"",
            );
            let addresses = t.require("address", addresses, "address = \"10.0.0.2/24\"");
            // The port of RoCEv2 is known.
            let known = transport.as_ref().map(|_| u64::from(berth_wire::roce::UDP_PORT));
            let udp_port = udp_port.map(|at| at.value).or(known);
            let udp_port = t.require("udp_port", udp_port, "udp_port = 4700");
            let neighbours = neighbours.map_or_else(Vec::new, |at| at.value);
            let neighbours: Vec<_> = neighbours.iter().filter_map(|at| neighbour(t, at)).collect();
            let addresses: Vec<_> = addresses?.value.iter().filter_map(|at| network(t, at)).collect();
            let vlan = vlan.map(|at| at.value as u16);
            Some(Driver::Dpdk(Dpdk {
                device: device?.value,
                addresses,
                udp_port: udp_port? as u16,
                vlan,
                mtu,
                neighbours,
                transport: transport.unwrap_or(Some(Transport::Udp))?,
            }))
        }
        Kind::Ofi => {
            t.refuse(DEVICE, "an OFI port has `provider`");
            t.refuse(DPDK, "only driver = \"dpdk\" has it");
            if !host.ofi {
                let message =
                    "this berth was built without libfabric; build it with `cargo build --release --features ofi`";
                t.sink().wrong(&kind, message);
            }
            let wanted = "provider = \"tcp\", or another one that `berth doctor` lists with FI_EP_RDM";
            let provider = t.require("provider", provider, wanted);
            let rendezvous = t.text("rendezvous");
            let rendezvous = t.require("rendezvous", rendezvous, "rendezvous = \"127.0.0.1:0\"");
            let bind = match bind {
                Some(at) => Some(address(t, &at)?),
                None => None,
            };
            let at = rendezvous?;
            let rendezvous = address(t, &at)?;
            Some(Driver::Ofi(Ofi { provider: provider?, fabric, domain, bind, rendezvous, max_peers }))
        }
        Kind::Verbs => {
            t.refuse(BIND, "an RDMA port has `device` and `rendezvous`");
            t.refuse(DPDK, "an RDMA port has `device` and `rendezvous`");
            if !host.verbs {
                let message =
                    "this berth was built without RDMA; build it with `cargo build --release --features verbs`";
                t.sink().wrong(&kind, message);
            }
            verbs::verbs(t, device).map(Driver::Verbs)
        }
        Kind::Loopback => {
            t.refuse(DEVICE, "a loopback port is reached within the process only");
            t.refuse(BIND, "a loopback port is reached within the process only");
            t.refuse(DPDK, "a loopback port is reached within the process only");
            Some(Driver::Loopback)
        }
    }
}

/// The address that the schema says holds without a key.
pub(super) fn default_address(t: &Table<'_, '_>, key: &str) -> SocketAddr {
    t.default_text(key).parse().expect("an address in the schema")
}

/// The address and port in `at`.
pub(super) fn address(t: &Table<'_, '_>, at: &At<&str>) -> Option<SocketAddr> {
    let parsed = at.value.parse().ok();
    if parsed.is_none() {
        let message =
            format_args!("\"{}\" is not an address; write one like \"127.0.0.1:4700\" or \"[::1]:4700\"", at.value);
        t.sink().wrong(at, message);
    }
    parsed
}

/// Notes who binds an address, or that two do.
pub(super) fn claim(t: &Table<'_, '_>, binds: &mut Binds, at: &At<&str>, bind: SocketAddr, owner: String) {
    if bind.port() != 0
        && let Some(other) = binds.insert(bind, owner)
    {
        t.sink().wrong(at, format_args!("{other} binds {bind} too; give each port its own address"));
    }
}

/// An address with a prefix length, such as `10.0.0.2/24`.
fn network(t: &Table<'_, '_>, at: &At<&str>) -> Option<(IpAddr, u8)> {
    let parsed = at.value.split_once('/').and_then(|(ip, prefix)| {
        let (ip, prefix) = (ip.parse::<IpAddr>().ok()?, prefix.parse::<u8>().ok()?);
        (prefix <= if ip.is_ipv4() { 32 } else { 128 }).then_some((ip, prefix))
    });
    if parsed.is_none() {
        t.sink().wrong(
            at,
            format_args!("\"{}\" is not an address with a prefix; write one like \"10.0.0.2/24\"", at.value),
        );
    }
    parsed
}

/// A peer's two addresses, such as `10.0.0.1 02:00:00:00:00:01`.
fn neighbour(t: &Table<'_, '_>, at: &At<&str>) -> Option<(IpAddr, MacAddr)> {
    let parsed =
        at.value.split_once(' ').and_then(|(ip, mac)| Some((ip.parse::<IpAddr>().ok()?, mac.parse::<MacAddr>().ok()?)));
    if parsed.is_none() {
        let message =
            format_args!("\"{}\" is not a neighbour; write one like \"10.0.0.1 02:00:00:00:00:01\"", at.value);
        t.sink().wrong(at, message);
    }
    parsed
}

/// `cpu` or `cpus`; without either the first CPU that is not for housekeeping.
fn cpus(t: &mut Table<'_, '_>, runtime: &Runtime, host: &Host) -> Vec<usize> {
    let one = t.integer("cpu");
    let several = cpu_list(t, "cpus", host);
    if one.is_some() && several.is_some() {
        t.refuse(&["cpu"], "`cpus` is given too, keep one of them");
    }
    match (one, several) {
        (_, Some(cpus)) => cpus,
        (Some(at), None) => cpu(t, &at, host).into_iter().collect(),
        (None, None) => {
            let free = host.cpus.iter().find(|cpu| !runtime.housekeeping_cpus.contains(cpu));
            free.or(host.cpus.last()).copied().into_iter().collect()
        }
    }
}

/// A list of distinct CPUs that exist, at least one.
pub(super) fn cpu_list(t: &mut Table<'_, '_>, key: &'static str, host: &Host) -> Option<Vec<usize>> {
    let list = t.cpus(key)?;
    if list.value.is_empty() {
        t.sink().wrong(&list, "is empty; name at least one CPU");
    }
    let mut cpus = Vec::new();
    for at in &list.value {
        if let Some(cpu) = cpu(t, at, host) {
            if cpus.contains(&cpu) {
                t.sink().wrong(at, format_args!("CPU {cpu} is listed twice; name each CPU once"));
            }
            cpus.push(cpu);
        }
    }
    Some(cpus)
}

fn cpu(t: &Table<'_, '_>, at: &At<u64>, host: &Host) -> Option<usize> {
    let cpu = at.value as usize;
    if !host.cpus.contains(&cpu) {
        let all: Vec<_> = host.cpus.iter().map(ToString::to_string).collect();
        t.sink().wrong(
            at,
            format_args!("CPU {cpu} does not exist or is not allowed; this process may use: {}", all.join(", ")),
        );
        return None;
    }
    Some(cpu)
}

fn fault(mut t: Table<'_, '_>) -> Fault {
    let fault = Fault {
        seed: t.number("seed"),
        drop: t.probability("drop"),
        duplicate: t.probability("duplicate"),
        reorder: t.probability("reorder"),
        corrupt: t.probability("corrupt"),
        delay_us: t.number("delay_us") as u32,
    };
    t.finish();
    fault
}

fn pcap(mut t: Table<'_, '_>, folder: &Path) -> Option<Pcap> {
    let file = t.text("file");
    let file = t.require("file", file, "file = \"fpga0.pcap\"");
    let max_bytes = t.number("max_bytes");
    t.finish();
    Some(Pcap { file: folder.join(file?.value), max_bytes })
}
