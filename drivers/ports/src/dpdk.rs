//! `driver = "dpdk"`: a DPDK device.

#[cfg(feature = "dpdk")]
pub(crate) mod open;

use std::{fmt, net::IpAddr};

use berth_keys::{At, Kind, Owned, Table, key};
use berth_wire::net::MacAddr;

use crate::{Reading, Roce, Settings, Traits, common, of_driver, roce};

/// Values of the keys of `driver = "dpdk"`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dpdk {
    /// A PCI address, or a virtual device with its arguments.
    pub device: String,
    /// The port's addresses with their prefix lengths in bits.
    pub addresses: Vec<(IpAddr, u8)>,
    /// UDP port to serve.
    pub udp_port: u16,
    /// VLAN of all frames, 1 to 4094; `None` for untagged ones.
    pub vlan: Option<u16>,
    /// Longest IP packet in bytes.
    pub mtu: u16,
    /// Peers with fixed link-layer addresses, which need not be resolved.
    pub neighbours: Vec<(IpAddr, MacAddr)>,
    /// The protocol over UDP.
    pub transport: Transport,
}

/// Values of `port.transport`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Transport {
    /// Each datagram is a frame.
    Udp,
    /// Datagrams are packets of unreliable RoCE connections.
    Roce(Roce),
}

impl Settings for Dpdk {
    const WORD: &'static str = "dpdk";
    const DOC: &'static str = "a NIC or virtual device of DPDK; needs a build with --features dpdk";
    const LIBRARY: &'static str = "DPDK";
    const KEYS: &'static [Owned] = &[
        of_driver(
            Self::WORD,
            &[
                common::DEVICE,
                key("address", Kind::Texts, "its addresses with prefix lengths, IPv4 or IPv6")
                    .required()
                    .example("\"10.0.0.2/24\""),
                key("udp_port", Kind::Integer(1, 65535), "the UDP port that is served")
                    .required()
                    .example("4700")
                    .more("4791 unless given with transport = \"roce\"."),
                key("vlan", Kind::Integer(1, 4094), "the VLAN that all frames are tagged with")
                    .otherwise("none")
                    .example("100"),
                key("mtu", Kind::Integer(1280, 65535), "the longest IP packet, in bytes").default("1500"),
                key("neighbours", Kind::Texts, "peers that need no ARP or NDP: address and MAC address")
                    .default("[]")
                    .example("[\"10.0.0.1 02:00:00:00:00:01\"]"),
                key(
                    "transport",
                    Kind::Choice(&[
                        ("udp", "frames"),
                        (
                            "roce",
                            "packets of unreliable connections (RoCEv2 in software): peers write requests into slots, or \
                             send them; one CPU",
                        ),
                    ]),
                    "what its datagrams carry; see docs/rdma.md",
                )
                .default("\"udp\""),
            ],
        ),
        Owned { by: roce::OWNER, keys: roce::KEYS },
    ];
    const LIMITS: &'static [Owned] = &[of_driver(Self::WORD, &[common::QUEUE])];

    fn read(t: &mut Table<'_, '_>, _: &mut Reading<'_>) -> Option<Self> {
        let device = t.text("device").map(|at| at.value.to_string());
        let wanted = "device = \"0000:3b:00.0\" or \"net_memif0,role=server,socket=/run/berth/fpga0.sock\"";
        let device = t.require("device", device, wanted);
        let addresses = t.texts("address");
        let addresses = t.require("address", addresses, "address = \"10.0.0.2/24\"");
        let addresses = addresses.map(|all| all.value.iter().filter_map(|at| network(t, at)).collect());
        let neighbours = t.texts("neighbours").map_or_else(Vec::new, |at| at.value);
        let neighbours = neighbours.iter().filter_map(|at| neighbour(t, at)).collect();
        let vlan = t.integer("vlan").map(|at| at.value as u16);
        let mtu = t.number("mtu") as u16;
        let is_roce = t.chosen("transport", &[("udp", false), ("roce", true)]);
        let transport = if is_roce { roce::read(t, mtu).map(Transport::Roce) } else { Some(Transport::Udp) };
        // The port of RoCEv2 is known.
        let known = is_roce.then_some(u64::from(berth_wire::roce::UDP_PORT));
        let udp_port = t.integer("udp_port").map(|at| at.value).or(known);
        let udp_port = t.require("udp_port", udp_port, "udp_port = 4700")? as u16;
        let (device, addresses, transport) = (device?, addresses?, transport?);
        Some(Self { device, addresses, udp_port, vlan, mtu, neighbours, transport })
    }

    fn traits(&self) -> Traits {
        match self.transport {
            Transport::Udp => Traits::default(),
            Transport::Roce(_) => Traits {
                one_cpu: Some("a connection's packets all come to one queue; give transport = \"roce\" one `cpu`"),
                has_slots: true,
                speaks_udp: false,
                ..Traits::default()
            },
        }
    }
}

impl fmt::Display for Dpdk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, udp_port, transport, .. } = self;
        match transport {
            Transport::Udp => write!(f, "{device} udp port {udp_port}"),
            Transport::Roce(roce) => write!(f, "{device} roce port {udp_port}, {roce}"),
        }
    }
}

/// Parses an address with a prefix length, such as `10.0.0.2/24`.
fn network(t: &Table<'_, '_>, at: &At<&str>) -> Option<(IpAddr, u8)> {
    let parsed = at.value.split_once('/').and_then(|(ip, prefix)| {
        let (ip, prefix) = (ip.parse::<IpAddr>().ok()?, prefix.parse::<u8>().ok()?);
        (prefix <= if ip.is_ipv4() { 32 } else { 128 }).then_some((ip, prefix))
    });
    if parsed.is_none() {
        let message = format_args!("\"{}\" is not an address with a prefix; write one like \"10.0.0.2/24\"", at.value);
        t.sink().wrong(at, message);
    }
    parsed
}

/// Parses a peer's two addresses, such as `10.0.0.1 02:00:00:00:00:01`.
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
