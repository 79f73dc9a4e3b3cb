//! Frames to send: answers in place, frames of our own, and solicitations.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use berth_port::Nanos;
use berth_wire::net::{
    Arp, ArpOperation, EtherType, EthernetHeader, IpProtocol, Ipv4Header, Ipv6Header, LinkLayerOption, MacAddr,
    NDP_HOP_LIMIT, NdpMessage, OPTION_SOURCE_LINK_LAYER, Sum, UdpHeader, VlanTag, solicited_node,
};
use zerocopy::{FromBytes, IntoBytes};

use crate::{Datagram, Host, neighbours::Known};

/// A frame ready to send, with what a device needs to fill in checksums.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sealed {
    /// Length of the frame in bytes.
    pub len: usize,
    /// Length of the Ethernet header with its tag, in bytes.
    pub link_len: usize,
    /// Length of the IP header with its options, in bytes.
    pub ip_len: usize,
    /// Whether it is IPv6 rather than IPv4.
    pub ipv6: bool,
}

/// A destination, from [`Host::route`] or [`Host::way_back`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    mac: MacAddr,
    source: IpAddr,
    peer: SocketAddr,
    link_len: usize,
    /// Whether to send a solicitation, too (see [`Host::solicit`]), as the neighbour has been silent for long.
    pub solicit: bool,
}

/// The way by which a datagram came and by which a late answer goes: the interface that it was sent to, and the
/// link-layer address that it came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Way {
    pub(crate) mac: MacAddr,
    pub(crate) interface: usize,
}

impl Way {
    /// Bit that marks a packed way, because 0 means none.
    const KNOWN: u64 = 1 << 63;

    #[inline]
    pub(crate) fn pack(self) -> u128 {
        let [a, b, c, d, e, f] = self.mac.0;
        let mac = u64::from_be_bytes([0, 0, a, b, c, d, e, f]);
        u128::from(mac | Self::KNOWN) << 64 | self.interface as u128
    }

    #[inline]
    pub(crate) fn unpack(way: u128) -> Option<Self> {
        let mac = (way >> 64) as u64;
        let [_, _, a, b, c, d, e, f] = mac.to_be_bytes();
        (mac & Self::KNOWN != 0).then_some(Self { mac: MacAddr([a, b, c, d, e, f]), interface: way as usize })
    }
}

/// Why a peer cannot be reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoRoute {
    /// It is on our link, but its link-layer address is not known yet.
    #[error("the neighbour's link-layer address is not known yet")]
    Unresolved {
        /// Whether to send a solicitation (see [`Host::solicit`]). False if one is under way, or too many are.
        solicit: bool,
    },
    /// It is in none of our networks, and has not sent us anything.
    #[error("the peer is on none of this host's networks")]
    OffLink,
}

impl Route {
    /// Offset at which the payload starts in the frame, in bytes.
    #[inline]
    pub fn header_len(&self) -> usize {
        self.link_len + ip_len(self.source) + UdpHeader::LEN
    }
}

#[inline]
fn ip_len(address: IpAddr) -> usize {
    if address.is_ipv4() { Ipv4Header::LEN } else { Ipv6Header::LEN }
}

impl Host {
    /// Turns the frame of a received datagram into its answer: `payload_len` bytes, already in the payload's place.
    ///
    /// With `offload`, the UDP checksum field gets the sum of the pseudo-header, which the device completes, unless
    /// there are no UDP checksums (see [`crate::HostConfig::udp_checksums`]).
    ///
    /// # Panics
    /// If the answer exceeds [`Datagram::capacity`], or `buf` is not the datagram's frame.
    #[inline]
    pub fn reply(&self, buf: &mut [u8], datagram: &Datagram, payload_len: usize, offload: bool) -> Sealed {
        assert!(payload_len <= datagram.capacity, "answer longer than its frame's capacity");
        if let Some(sealed) = self.answer_in_flow(buf, datagram, payload_len, offload) {
            return sealed;
        }
        let header = UdpHeader::new(self.udp_port, datagram.peer.port(), payload_len);
        let sealed = Sealed {
            len: datagram.udp + UdpHeader::LEN + payload_len,
            link_len: datagram.ip,
            ip_len: datagram.udp - datagram.ip,
            ipv6: datagram.peer.is_ipv6(),
        };
        self.turn_round(buf, datagram.ip, datagram.udp, UdpHeader::LEN + payload_len);
        self.write_udp(&mut buf[..sealed.len], header, sealed, offload);
        sealed
    }

    /// The way back to `peer`, from [`Datagram::way`] of one of its datagrams; `None` if that is 0. It needs no table,
    /// which may have forgotten a peer that was heard only a moment ago.
    #[inline]
    pub fn way_back(&self, peer: SocketAddr, way: u128) -> Option<Route> {
        let Way { mac, interface } = Way::unpack(way)?;
        let source = self.interfaces.get(interface)?.address;
        let route = Route { mac, source, peer, link_len: self.link_len(), solicit: false };
        (source.is_ipv4() == peer.is_ipv4()).then_some(route)
    }

    /// Finds the way to `peer`.
    #[inline]
    pub fn route(&mut self, peer: SocketAddr, now: Nanos) -> Result<Route, NoRoute> {
        let interface = |i: &&crate::Interface| i.address.is_ipv4() == peer.is_ipv4();
        let on_link = self.interfaces.iter().filter(interface).find(|i| i.covers(peer.ip()));
        let source = on_link.or_else(|| self.interfaces.iter().find(interface)).ok_or(NoRoute::OffLink)?.address;
        let on_link = on_link.is_some();
        let (mac, solicit) = match self.neighbours.find(peer.ip(), now) {
            Known::At(mac) => (mac, false),
            Known::Stale(mac) => (mac, on_link && self.neighbours.may_solicit(peer.ip(), now)),
            Known::No if on_link => {
                return Err(NoRoute::Unresolved { solicit: self.neighbours.may_solicit(peer.ip(), now) });
            }
            Known::No => return Err(NoRoute::OffLink),
        };
        Ok(Route { mac, source, peer, link_len: self.link_len(), solicit })
    }

    /// Writes the headers of a datagram whose `payload_len` bytes of payload are at [`Route::header_len`] of `buf`.
    ///
    /// # Panics
    /// If the frame exceeds `buf`.
    #[inline]
    pub fn seal(&self, buf: &mut [u8], route: &Route, payload_len: usize, offload: bool) -> Sealed {
        let ip_len = ip_len(route.source);
        let udp = route.link_len + ip_len;
        let ipv6 = route.source.is_ipv6();
        let sealed = Sealed { len: udp + UdpHeader::LEN + payload_len, link_len: route.link_len, ip_len, ipv6 };
        self.write_link(buf, route.mac, if ipv6 { EtherType::IPV6 } else { EtherType::IPV4 });
        let (protocol, body_len) = (IpProtocol::UDP, UdpHeader::LEN + payload_len);
        match (route.source, route.peer.ip()) {
            (IpAddr::V4(source), IpAddr::V4(peer)) => {
                let mut header = Ipv4Header::new(source, peer, protocol, body_len);
                header.fill_checksum();
                buf[route.link_len..udp].copy_from_slice(header.as_bytes());
            }
            (IpAddr::V6(source), IpAddr::V6(peer)) => {
                let header = Ipv6Header::new(source, peer, protocol, body_len);
                buf[route.link_len..udp].copy_from_slice(header.as_bytes());
            }
            // `route` only pairs addresses of one family.
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => {}
        }
        let header = UdpHeader::new(self.udp_port, route.peer.port(), payload_len);
        self.write_udp(&mut buf[..sealed.len], header, sealed, offload);
        sealed
    }

    /// Builds an ARP request or neighbour solicitation for `target`; returns the frame's length. 0 if this host has no
    /// address of the target's family, or `buf` is too short (90 bytes are always enough).
    pub fn solicit(&self, buf: &mut [u8], target: IpAddr) -> usize {
        let at = self.link_len();
        let source = self.interfaces.iter().map(|i| i.address).find(|a| a.is_ipv4() == target.is_ipv4());
        match (source, target) {
            (Some(IpAddr::V4(source)), IpAddr::V4(target)) if buf.len() >= at + Arp::LEN => {
                self.write_link(buf, MacAddr::BROADCAST, EtherType::ARP);
                let arp = Arp::new(ArpOperation::REQUEST, (self.mac, source), (MacAddr::ZERO, target));
                buf[at..at + Arp::LEN].copy_from_slice(arp.as_bytes());
                at + Arp::LEN
            }
            (Some(IpAddr::V6(source)), IpAddr::V6(target)) if buf.len() >= at + SOLICITATION => {
                let group = solicited_node(target);
                self.write_link(buf, MacAddr::of_ipv6_multicast(group), EtherType::IPV6);
                let packet = &mut buf[at..at + SOLICITATION];
                self.write_ndp(packet, NdpMessage::solicitation(target), OPTION_SOURCE_LINK_LAYER, source, group);
                at + SOLICITATION
            }
            _ => 0,
        }
    }

    /// Turns a received packet into the start of its answer: link-layer and IP headers, to be followed by `body_len`
    /// bytes.
    #[inline]
    pub(crate) fn turn_round(&self, buf: &mut [u8], ip: usize, body: usize, body_len: usize) {
        if let Ok((ethernet, _)) = EthernetHeader::mut_from_prefix(buf) {
            (ethernet.destination, ethernet.source) = (ethernet.source, self.mac);
        }
        let header = &mut buf[ip..body];
        // The version nibble was checked when the frame was received.
        if header[0] >> 4 == 4 {
            if let Ok((header, options)) = Ipv4Header::mut_from_prefix(header) {
                header.answer(body_len);
                options.fill(0);
                header.fill_checksum();
            }
        } else if let Ok((header, _)) = Ipv6Header::mut_from_prefix(header) {
            header.answer(body_len);
        }
    }

    fn write_link(&self, buf: &mut [u8], to: MacAddr, ether_type: EtherType) {
        let outer = if self.vlan.is_some() { EtherType::VLAN } else { ether_type };
        buf[..EthernetHeader::LEN].copy_from_slice(EthernetHeader::new(to, self.mac, outer).as_bytes());
        if let Some(id) = self.vlan {
            let at = EthernetHeader::LEN;
            buf[at..at + VlanTag::LEN].copy_from_slice(VlanTag::new(id, ether_type).as_bytes());
        }
    }

    /// Writes an NDP packet of [`SOLICITATION`] bytes, with our link-layer address as its option.
    pub(crate) fn write_ndp(&self, packet: &mut [u8], message: NdpMessage, option: u8, from: Ipv6Addr, to: Ipv6Addr) {
        let body_len = packet.len() - Ipv6Header::LEN;
        let header = Ipv6Header::new(from, to, IpProtocol::ICMPV6, body_len).with_hop_limit(NDP_HOP_LIMIT);
        let (head, body) = packet.split_at_mut(Ipv6Header::LEN);
        head.copy_from_slice(header.as_bytes());
        let (fixed, options) = body.split_at_mut(NdpMessage::LEN);
        options.copy_from_slice(LinkLayerOption::new(option, self.mac).as_bytes());
        let mut message = message;
        let pseudo = Sum::pseudo_header(from.into(), to.into(), IpProtocol::ICMPV6.0, body_len as u16);
        message.header.set_checksum(pseudo.bytes(message.as_bytes()).bytes(options).checksum());
        fixed.copy_from_slice(message.as_bytes());
    }

    /// Writes the UDP header with its checksum into a frame that already has its IP header.
    #[inline]
    fn write_udp(&self, frame: &mut [u8], mut header: UdpHeader, sealed: Sealed, offload: bool) {
        let (ip, udp) = (sealed.link_len, sealed.link_len + sealed.ip_len);
        if self.udp_checksums {
            // Source and destination lie side by side: RFC 791 section 3.1, RFC 8200 section 3.
            let addresses = if sealed.ipv6 { ip + 8..ip + 40 } else { ip + 12..ip + 20 };
            let pseudo = Sum::default().word(u16::from(IpProtocol::UDP.0)).word(header.len()).bytes(&frame[addresses]);
            header.set_checksum(if offload {
                pseudo.folded()
            } else {
                sent(pseudo.bytes(header.as_bytes()).bytes(&frame[udp + UdpHeader::LEN..]))
            });
        }
        frame[udp..udp + UdpHeader::LEN].copy_from_slice(header.as_bytes());
    }
}

/// The checksum field for this sum. A computed checksum of zero is sent as all ones (RFC 768).
#[inline]
pub(crate) fn sent(sum: Sum) -> u16 {
    match sum.checksum() {
        0 => 0xffff,
        checksum => checksum,
    }
}

/// Size of an NDP packet with one link-layer option, in bytes.
const SOLICITATION: usize = Ipv6Header::LEN + NdpMessage::LEN + LinkLayerOption::LEN;
