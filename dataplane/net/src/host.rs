//! The host: its own addresses, and its knowledge of others.

use std::net::{IpAddr, SocketAddr};

use berth_wire::net::{EthernetHeader, Ipv4Header, Ipv6Header, MacAddr, UdpHeader, VlanTag};

use crate::{
    flow::Flows,
    neighbours::{Neighbours, SharedNeighbours},
};

/// An address with the length of its network prefix in bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interface {
    /// The host's own address.
    pub address: IpAddr,
    /// Prefix length, at most 32 or 128.
    pub prefix: u8,
}

impl Interface {
    /// Whether `peer` is on the same link.
    pub fn covers(&self, peer: IpAddr) -> bool {
        match (self.address, peer) {
            (IpAddr::V4(a), IpAddr::V4(b)) => {
                (a.to_bits() ^ b.to_bits()).checked_shr(32 - u32::from(self.prefix.min(32))).unwrap_or(0) == 0
            }
            (IpAddr::V6(a), IpAddr::V6(b)) => {
                (a.to_bits() ^ b.to_bits()).checked_shr(128 - u32::from(self.prefix.min(128))).unwrap_or(0) == 0
            }
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
        }
    }

    /// Whether `address` is the broadcast address of this network.
    pub(crate) fn is_broadcast(&self, address: IpAddr) -> bool {
        let (IpAddr::V4(own), IpAddr::V4(other)) = (self.address, address) else { return false };
        let hosts = u32::MAX.checked_shr(u32::from(self.prefix)).unwrap_or(0);
        self.prefix < 31 && other.to_bits() == own.to_bits() | hosts
    }
}

/// Addresses and limits of a host.
#[derive(Debug, Clone)]
pub struct HostConfig {
    /// Link-layer address that it sends from and answers to.
    pub mac: MacAddr,
    /// IP addresses with their networks; [`Host::local_addr`] is the first.
    pub interfaces: Vec<Interface>,
    /// The 802.1Q VLAN that it is in; `None` takes only untagged and priority-tagged frames.
    pub vlan: Option<u16>,
    /// UDP port that it serves and sends from.
    pub udp_port: u16,
    /// Whether datagrams carry UDP checksums. A protocol with its own check can do without (RFC 6936): then none is
    /// sent, and datagrams without one are accepted over IPv6, too. A checksum that is present is always verified.
    pub udp_checksums: bool,
    /// Limit on IP packets, in bytes.
    pub mtu: usize,
    /// Neighbours with fixed addresses, which are never solicited.
    pub neighbours: Vec<(IpAddr, MacAddr)>,
}

/// One IP host on one link.
#[derive(Debug)]
pub struct Host {
    pub(crate) mac: MacAddr,
    pub(crate) interfaces: Vec<Interface>,
    pub(crate) vlan: Option<u16>,
    pub(crate) udp_port: u16,
    pub(crate) udp_checksums: bool,
    pub(crate) mtu: usize,
    pub(crate) neighbours: Neighbours,
    pub(crate) flows: Flows,
}

impl Host {
    /// Makes a host that knows only its static neighbours.
    pub fn new(config: &HostConfig) -> Self {
        Self::sharing(config, &SharedNeighbours::default())
    }

    /// Makes a host for one more queue of the same device. What one queue learns by ARP or NDP, the others can look up.
    pub fn sharing(config: &HostConfig, shared: &SharedNeighbours) -> Self {
        Self {
            mac: config.mac,
            interfaces: config.interfaces.clone(),
            vlan: config.vlan,
            udp_port: config.udp_port,
            udp_checksums: config.udp_checksums,
            mtu: config.mtu,
            neighbours: Neighbours::new(&config.neighbours, shared.clone()),
            flows: Flows::default(),
        }
    }

    /// The address at which peers reach this host; the unspecified address if it has none.
    pub fn local_addr(&self) -> SocketAddr {
        let address = self.interfaces.first().map_or(IpAddr::from([0, 0, 0, 0]), |i| i.address);
        SocketAddr::new(address, self.udp_port)
    }

    /// Limit on IP packets, in bytes.
    pub fn mtu(&self) -> usize {
        self.mtu
    }

    /// Limit on a UDP payload in bytes, so that it fits the MTU in either address family of the host.
    pub fn max_payload(&self) -> usize {
        let v6 = self.interfaces.iter().any(|i| i.address.is_ipv6());
        self.mtu.saturating_sub(if v6 { Ipv6Header::LEN } else { Ipv4Header::LEN } + UdpHeader::LEN)
    }

    /// Length of the link-layer header of frames that this host originates, in bytes.
    pub(crate) fn link_len(&self) -> usize {
        EthernetHeader::LEN + if self.vlan.is_some() { VlanTag::LEN } else { 0 }
    }

    #[inline]
    pub(crate) fn owns(&self, address: IpAddr) -> bool {
        self.interfaces.iter().any(|i| i.address == address)
    }

    /// Whether a packet may have this source address: that of a single host other than this one.
    #[inline]
    pub(crate) fn is_proper_source(&self, source: IpAddr) -> bool {
        let broadcast = matches!(source, IpAddr::V4(a) if a.is_broadcast())
            || self.interfaces.iter().any(|i| i.is_broadcast(source));
        let special = source.is_unspecified() || source.is_multicast() || source.is_loopback();
        !(special || broadcast || self.owns(source))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_cover_their_networks() {
        let covers = |own: &str, prefix, peer: &str| {
            Interface { address: own.parse().unwrap(), prefix }.covers(peer.parse().unwrap())
        };
        assert!(covers("10.0.0.1", 24, "10.0.0.255"));
        assert!(!covers("10.0.0.1", 24, "10.0.1.1"));
        assert!(covers("10.0.0.1", 32, "10.0.0.1"));
        assert!(!covers("10.0.0.1", 32, "10.0.0.0"));
        assert!(covers("10.0.0.1", 0, "192.0.2.1"));
        assert!(covers("fd00::1", 64, "fd00::2"));
        assert!(!covers("fd00::1", 64, "fd00:0:0:1::2"));
        assert!(!covers("fd00::1", 0, "10.0.0.1"));
    }

    #[test]
    fn broadcast_addresses() {
        let broadcast = |prefix, other: &str| {
            Interface { address: "10.0.0.1".parse().unwrap(), prefix }.is_broadcast(other.parse().unwrap())
        };
        assert!(broadcast(24, "10.0.0.255"));
        assert!(!broadcast(24, "10.0.0.254"));
        assert!(broadcast(16, "10.0.255.255"));
        assert!(!broadcast(31, "10.0.0.1"));
    }
}
