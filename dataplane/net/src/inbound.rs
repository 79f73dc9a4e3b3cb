//! Reception of frames.

use std::{
    net::{IpAddr, Ipv6Addr, SocketAddr},
    ops::Range,
};

use berth_port::{Nanos, families::RX_DROPPED};
use berth_wire::net::{
    Arp, ArpOperation, EtherType, EthernetHeader, ICMPV4_ECHO_REPLY, ICMPV4_ECHO_REQUEST, ICMPV6_ECHO_REPLY,
    ICMPV6_ECHO_REQUEST, ICMPV6_NEIGHBOUR_ADVERT, ICMPV6_NEIGHBOUR_SOLICIT, IcmpHeader, IpProtocol, Ipv4Header,
    Ipv6Header, LinkLayerOption, MacAddr, Malformed, NDP_HOP_LIMIT, NdpMessage, OPTION_SOURCE_LINK_LAYER,
    OPTION_TARGET_LINK_LAYER, Sum, UdpHeader, VlanTag, link_layer_option, solicited_node,
};
use zerocopy::{FromBytes, IntoBytes};

use crate::{Host, outbound::Way};

/// Classification of a received frame.
///
/// Its tag is a byte of its own. A tag in the niche of an address would make every move take the address apart.
#[derive(Debug, Clone, PartialEq, Eq)]
#[repr(u8)]
pub enum Outcome {
    /// A datagram for the host's port.
    Udp(Datagram),
    /// The buffer now holds an answer of this many bytes, which is to be sent.
    Answer(usize),
    /// Nothing is to be done.
    Drop(Drop),
}

/// Position of a datagram's payload, and what its answer needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Datagram {
    /// Byte range of the payload within the frame.
    pub payload: Range<usize>,
    /// Limit on the payload of an answer in this frame, in bytes, as the MTU sets it.
    pub capacity: usize,
    /// Address of the sender.
    pub peer: SocketAddr,
    /// Offset of the IP header in the frame, in bytes.
    pub ip: usize,
    /// Offset of the UDP header in the frame, in bytes.
    pub udp: usize,
    /// The way back to the peer, for a late answer; see [`Host::way_back`].
    pub way: u128,
    /// Number of the known flow that it belongs to; 0 for none.
    pub(crate) flow: u32,
}

impl Datagram {
    /// The same datagram under another name of its peer, who also gets the answer.
    #[must_use]
    pub fn by(&self, peer: SocketAddr) -> Self {
        Self { peer, ..self.clone() }
    }
}

/// The checksums that the device has already verified.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Verified {
    /// That of the IPv4 header.
    pub ip: bool,
    /// That of UDP.
    pub udp: bool,
}

berth_port::counters! {
    /// Why a frame was dropped.
    pub enum Drop {
        /// A header is truncated or contradicts itself.
        Malformed = rx_malformed: RX_DROPPED { reason: "malformed" },
        /// A checksum does not match.
        Checksum = rx_bad_checksum: RX_DROPPED { reason: "bad_checksum" },
        /// It was sent to another station, or from a group address.
        OtherStation = rx_other_station: RX_DROPPED { reason: "other_station" },
        /// It has a tag of another VLAN, an unexpected tag, or none although one is expected.
        OtherVlan = rx_other_vlan: RX_DROPPED { reason: "other_vlan" },
        /// Its `EtherType` is neither ARP, IPv4 nor IPv6.
        OtherEtherType = rx_other_ether_type: RX_DROPPED { reason: "other_ether_type" },
        /// Its IP or ARP target is not an address of this host.
        OtherAddress = rx_other_address: RX_DROPPED { reason: "other_address" },
        /// Its source cannot be another host: unspecified, multicast, broadcast, loopback, or our own address.
        BadSource = rx_bad_source: RX_DROPPED { reason: "bad_source" },
        /// It is a fragment, which is not reassembled.
        Fragment = rx_fragment: RX_DROPPED { reason: "fragment" },
        /// It has an IPv6 extension header.
        Extension = rx_ipv6_extension: RX_DROPPED { reason: "ipv6_extension" },
        /// It is neither UDP nor ICMP, or an ICMP message that needs no answer.
        OtherProtocol = rx_other_protocol: RX_DROPPED { reason: "other_protocol" },
        /// It is for another UDP port, or from port 0, which cannot be answered.
        OtherPort = rx_other_port: RX_DROPPED { reason: "other_port" },
        /// It only told where a neighbour is, which was noted.
        Consumed = rx_neighbour: "frames that only told where a neighbour is",
    }
}

impl From<Malformed> for Drop {
    fn from(error: Malformed) -> Self {
        if error == Malformed::Checksum { Self::Checksum } else { Self::Malformed }
    }
}

/// State passed along the handlers of one frame.
struct Inbound {
    /// Offset of the IP or ARP header.
    at: usize,
    destination: MacAddr,
    source: MacAddr,
    now: Nanos,
}

impl Host {
    /// Reads the `len` bytes received at the front of `buf`. The rest of `buf` is room for a longer answer.
    ///
    /// # Panics
    /// If `len` exceeds the buffer.
    #[inline]
    pub fn rx(&mut self, buf: &mut [u8], len: usize, verified: Verified, now: Nanos) -> Outcome {
        assert!(len <= buf.len(), "frame length beyond its buffer");
        if let Some(payload) = self.of_known_flow(buf, len, verified, now)
            && let Some(known) = self.flows.known()
        {
            let capacity = self.capacity(buf, known.ip, payload.start);
            return Outcome::Udp(Datagram { payload, capacity, ..known.clone() });
        }
        self.receive(buf, len, verified, now).unwrap_or_else(Outcome::Drop)
    }

    fn receive(&mut self, buf: &mut [u8], len: usize, verified: Verified, now: Nanos) -> Result<Outcome, Drop> {
        let (ethernet, rest) = EthernetHeader::parse(&buf[..len])?;
        let (destination, source) = (ethernet.destination, ethernet.source);
        if source.is_group() || !(destination == self.mac || destination.is_group()) {
            return Err(Drop::OtherStation);
        }
        let (vlan, ether_type, at) = if ethernet.ether_type() == EtherType::VLAN {
            let (tag, _) = VlanTag::parse(rest)?;
            (Some(tag.id()).filter(|&id| id != 0), tag.ether_type(), EthernetHeader::LEN + VlanTag::LEN)
        } else {
            (None, ethernet.ether_type(), EthernetHeader::LEN)
        };
        if vlan != self.vlan {
            return Err(Drop::OtherVlan);
        }
        let inbound = Inbound { at, destination, source, now };
        match ether_type {
            EtherType::IPV4 => self.ipv4(buf, len, verified, &inbound),
            EtherType::IPV6 => self.ipv6(buf, len, verified, &inbound),
            EtherType::ARP => self.arp(buf, len, &inbound),
            _ => Err(Drop::OtherEtherType),
        }
    }

    #[inline]
    fn ipv4(&mut self, buf: &mut [u8], len: usize, verified: Verified, inbound: &Inbound) -> Result<Outcome, Drop> {
        let (header, options, body) = Ipv4Header::parse(&buf[inbound.at..len])?;
        if !verified.ip && !header.checksum_is_valid(options) {
            return Err(Drop::Checksum);
        }
        if header.is_fragment() {
            return Err(Drop::Fragment);
        }
        let (source, destination) = (IpAddr::V4(header.source()), IpAddr::V4(header.destination()));
        let body_at = inbound.at + header.header_len();
        let interface = self.accept(source, destination, inbound)?;
        match header.protocol {
            IpProtocol::UDP => {
                let body = body_at..body_at + body.len();
                self.udp(buf, body, verified, (source, destination), interface, inbound)
            }
            IpProtocol::ICMP => {
                if !Sum::default().bytes(body).is_valid() {
                    return Err(Drop::Checksum);
                }
                let body = body_at..body_at + body.len();
                self.echo(buf, body, ICMPV4_ECHO_REQUEST, (source, destination), inbound)
            }
            _ => Err(Drop::OtherProtocol),
        }
    }

    #[inline]
    fn ipv6(&mut self, buf: &mut [u8], len: usize, verified: Verified, inbound: &Inbound) -> Result<Outcome, Drop> {
        let (header, body) = Ipv6Header::parse(&buf[inbound.at..len])?;
        let (source, destination) = (header.source(), header.destination());
        let body_at = inbound.at + Ipv6Header::LEN;
        let body_range = body_at..body_at + body.len();
        let addresses = (IpAddr::V6(source), IpAddr::V6(destination));
        match header.next_header {
            IpProtocol::UDP => {
                let interface = self.accept(addresses.0, addresses.1, inbound)?;
                self.udp(buf, body_range, verified, addresses, interface, inbound)
            }
            IpProtocol::ICMPV6 => {
                let pseudo = Sum::pseudo_header(addresses.0, addresses.1, IpProtocol::ICMPV6.0, body.len() as u16);
                if !pseudo.bytes(body).is_valid() {
                    return Err(Drop::Checksum);
                }
                let (icmp, _) = IcmpHeader::parse(body)?;
                match icmp.kind {
                    ICMPV6_NEIGHBOUR_SOLICIT | ICMPV6_NEIGHBOUR_ADVERT => {
                        if header.hop_limit() != NDP_HOP_LIMIT || icmp.code != 0 {
                            return Err(Drop::Malformed);
                        }
                        self.neighbour_discovery(buf, body_range, (source, destination), inbound)
                    }
                    _ => {
                        self.accept(addresses.0, addresses.1, inbound)?;
                        self.echo(buf, body_range, ICMPV6_ECHO_REQUEST, addresses, inbound)
                    }
                }
            }
            other if other.is_ipv6_extension() => Err(Drop::Extension),
            _ => Err(Drop::OtherProtocol),
        }
    }

    /// Checks that a packet is unicast, from a valid host and to us. Returns the index of the interface.
    #[inline]
    fn accept(&self, source: IpAddr, destination: IpAddr, inbound: &Inbound) -> Result<usize, Drop> {
        let interface = self.interfaces.iter().position(|i| i.address == destination).ok_or(Drop::OtherAddress)?;
        if inbound.destination != self.mac {
            return Err(Drop::OtherStation);
        }
        if self.is_proper_source(source) { Ok(interface) } else { Err(Drop::BadSource) }
    }

    #[inline]
    fn udp(
        &mut self,
        buf: &[u8],
        body: Range<usize>,
        verified: Verified,
        (source, destination): (IpAddr, IpAddr),
        interface: usize,
        inbound: &Inbound,
    ) -> Result<Outcome, Drop> {
        let (header, payload) = UdpHeader::parse(&buf[body.clone()])?;
        let segment = &buf[body.start..body.start + usize::from(header.len())];
        match header.checksum() {
            // RFC 768: the sender computed none. RFC 8200 section 8.1 forbids that over IPv6 to most protocols.
            0 if source.is_ipv4() || !self.udp_checksums => {}
            0 => return Err(Drop::Checksum),
            _ if verified.udp => {}
            _ => {
                let pseudo = Sum::pseudo_header(source, destination, IpProtocol::UDP.0, header.len());
                if !pseudo.bytes(segment).is_valid() {
                    return Err(Drop::Checksum);
                }
            }
        }
        if header.destination_port() != self.udp_port || header.source_port() == 0 {
            return Err(Drop::OtherPort);
        }
        let start = body.start + UdpHeader::LEN;
        let datagram = Datagram {
            payload: start..start + payload.len(),
            capacity: self.capacity(buf, inbound.at, start),
            peer: SocketAddr::new(source, header.source_port()),
            ip: inbound.at,
            udp: body.start,
            way: Way { mac: inbound.source, interface }.pack(),
            flow: 0,
        };
        self.neighbours.heard(source, inbound.source, inbound.now);
        self.of_other_flow(buf, &datagram, inbound.now);
        Ok(Outcome::Udp(datagram))
    }

    /// Limit on the payload of an answer whose IP header starts at `ip` and whose payload starts at `start`.
    #[inline]
    pub(crate) fn capacity(&self, buf: &[u8], ip: usize, start: usize) -> usize {
        (buf.len() - start).min(self.mtu.saturating_sub(start - ip))
    }

    /// Answers a ping in place. `request` is the echo request of the family; the message's checksum was verified.
    fn echo(
        &mut self,
        buf: &mut [u8],
        body: Range<usize>,
        request: u8,
        (source, destination): (IpAddr, IpAddr),
        inbound: &Inbound,
    ) -> Result<Outcome, Drop> {
        let (end, body_len) = (body.end, body.len());
        let (icmp, _) = IcmpHeader::parse_mut(&mut buf[body.clone()])?;
        if (icmp.kind, icmp.code) != (request, 0) {
            return Err(Drop::OtherProtocol);
        }
        let v4 = request == ICMPV4_ECHO_REQUEST;
        icmp.kind = if v4 { ICMPV4_ECHO_REPLY } else { ICMPV6_ECHO_REPLY };
        icmp.set_checksum(0);
        let pseudo = if v4 {
            Sum::default()
        } else {
            Sum::pseudo_header(destination, source, IpProtocol::ICMPV6.0, body_len as u16)
        };
        let checksum = pseudo.bytes(&buf[body.clone()]).checksum();
        IcmpHeader::parse_mut(&mut buf[body.clone()])?.0.set_checksum(checksum);
        self.neighbours.heard(source, inbound.source, inbound.now);
        self.turn_round(buf, inbound.at, body.start, body_len);
        Ok(Outcome::Answer(end))
    }

    /// The receiver's side of RFC 826.
    fn arp(&mut self, buf: &mut [u8], len: usize, inbound: &Inbound) -> Result<Outcome, Drop> {
        let arp = *Arp::parse(&buf[inbound.at..len])?;
        let (sender, target) = (arp.sender_ip(), arp.target_ip());
        if arp.sender_mac != inbound.source {
            return Err(Drop::Malformed);
        }
        if !self.owns(target.into()) {
            return Err(Drop::OtherAddress);
        }
        // A probe for a free address has no sender address (RFC 5227 section 2.1.1); it is answered, not learned.
        let probe = sender.is_unspecified();
        if !probe && !self.is_proper_source(sender.into()) {
            return Err(Drop::BadSource);
        }
        match arp.operation() {
            ArpOperation::REQUEST => {
                if !probe {
                    self.neighbours.told(sender.into(), arp.sender_mac, inbound.now);
                }
                let answer = Arp::new(ArpOperation::REPLY, (self.mac, target), (arp.sender_mac, sender));
                buf[inbound.at..inbound.at + Arp::LEN].copy_from_slice(answer.as_bytes());
                self.address_to(buf, inbound.source);
                Ok(Outcome::Answer(inbound.at + Arp::LEN))
            }
            ArpOperation::REPLY if inbound.destination == self.mac && !probe => {
                self.neighbours.told(sender.into(), arp.sender_mac, inbound.now);
                Err(Drop::Consumed)
            }
            _ => Err(Drop::OtherProtocol),
        }
    }

    /// RFC 4861 sections 7.1 and 7.2, for a message whose checksum, code and hop limit were verified.
    fn neighbour_discovery(
        &mut self,
        buf: &mut [u8],
        body: Range<usize>,
        (source, destination): (Ipv6Addr, Ipv6Addr),
        inbound: &Inbound,
    ) -> Result<Outcome, Drop> {
        let (message, options) = NdpMessage::parse(&buf[body.clone()])?;
        let (kind, target) = (message.header.kind, message.target());
        if target.is_multicast() {
            return Err(Drop::Malformed);
        }
        if kind == ICMPV6_NEIGHBOUR_ADVERT {
            let mac = link_layer_option(options, OPTION_TARGET_LINK_LAYER)?.unwrap_or(inbound.source);
            if !self.owns(destination.into()) {
                return Err(Drop::OtherAddress);
            }
            if mac.is_group() || !self.is_proper_source(target.into()) {
                return Err(Drop::BadSource);
            }
            self.neighbours.told(target.into(), mac, inbound.now);
            return Err(Drop::Consumed);
        }
        let sender = link_layer_option(options, OPTION_SOURCE_LINK_LAYER)?;
        if !self.owns(target.into()) || !(destination == target || destination == solicited_node(target)) {
            return Err(Drop::OtherAddress);
        }
        let answer_to = if source.is_unspecified() {
            // Duplicate address detection (RFC 4862 section 5.4.3): everyone shall hear that the address is taken.
            if sender.is_some() || destination == target {
                return Err(Drop::Malformed);
            }
            ALL_NODES
        } else {
            if !self.is_proper_source(source.into()) || sender.is_some_and(MacAddr::is_group) {
                return Err(Drop::BadSource);
            }
            self.neighbours.told(source.into(), sender.unwrap_or(inbound.source), inbound.now);
            source
        };
        let length = NdpMessage::LEN + LinkLayerOption::LEN;
        let end = body.start + length;
        if end > buf.len() {
            return Err(Drop::Malformed);
        }
        let advert = NdpMessage::advertisement(target, !source.is_unspecified());
        let mac =
            if answer_to == source { sender.unwrap_or(inbound.source) } else { MacAddr::of_ipv6_multicast(ALL_NODES) };
        self.write_ndp(&mut buf[inbound.at..end], advert, OPTION_TARGET_LINK_LAYER, target, answer_to);
        self.address_to(buf, mac);
        Ok(Outcome::Answer(end))
    }

    /// Addresses the frame in `buf` to `mac`; its type and tag stay.
    #[inline]
    pub(crate) fn address_to(&self, buf: &mut [u8], mac: MacAddr) {
        if let Ok((ethernet, _)) = EthernetHeader::mut_from_prefix(buf) {
            (ethernet.destination, ethernet.source) = (mac, self.mac);
        }
    }
}

/// The multicast address of all nodes on the link (RFC 4291 section 2.7.1).
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
