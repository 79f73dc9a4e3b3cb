//! IPv4 (RFC 791) and the fixed header of IPv6 (RFC 8200).

use core::net::{Ipv4Addr, Ipv6Addr};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, network_endian::U16};

use super::{Malformed, Sum};

/// A protocol number (IPv4) or next-header value (IPv6).
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct IpProtocol(pub u8);

impl IpProtocol {
    /// ICMP for IPv4.
    pub const ICMP: Self = Self(1);
    /// UDP (RFC 768).
    pub const UDP: Self = Self(17);
    /// ICMP for IPv6.
    pub const ICMPV6: Self = Self(58);

    /// Whether an IPv6 next-header value is an extension header (RFC 8200 section 4).
    #[inline]
    pub fn is_ipv6_extension(self) -> bool {
        matches!(self.0, 0 | 43 | 44 | 50 | 51 | 60 | 135 | 139 | 140)
    }
}

/// Don't fragment (RFC 791 section 3.1).
const DONT_FRAGMENT: u16 = 0x4000;
/// More fragments, or a fragment offset.
const FRAGMENT: u16 = 0x3fff;
/// The hop limit of packets that this host sends (RFC 1700).
const HOPS: u8 = 64;
/// The two explicit-congestion bits of the traffic class (RFC 3168).
const ECN: u8 = 0x03;

/// The fixed part of an IPv4 header; options may follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Ipv4Header {
    version_ihl: u8,
    traffic_class: u8,
    total_len: U16,
    id: U16,
    fragment: U16,
    hops: u8,
    /// The protocol of the payload.
    pub protocol: IpProtocol,
    checksum: U16,
    source: [u8; 4],
    destination: [u8; 4],
}

impl Ipv4Header {
    /// Header size in bytes, without options.
    pub const LEN: usize = 20;

    /// Builds a header without options for `payload_len` bytes: Don't Fragment set, checksum zero.
    ///
    /// The identification is zero, which is right for a datagram that must not be fragmented (RFC 6864 section 4.1).
    #[inline]
    pub fn new(source: Ipv4Addr, destination: Ipv4Addr, protocol: IpProtocol, payload_len: usize) -> Self {
        Self {
            version_ihl: 0x45,
            traffic_class: 0,
            total_len: ((Self::LEN + payload_len) as u16).into(),
            id: 0.into(),
            fragment: DONT_FRAGMENT.into(),
            hops: HOPS,
            protocol,
            checksum: 0.into(),
            source: source.octets(),
            destination: destination.octets(),
        }
    }

    /// Splits a packet into header, options and payload. Bytes beyond the total length are cut off.
    ///
    /// The header checksum is not checked here: see [`Ipv4Header::checksum_is_valid`].
    #[inline]
    pub fn parse(packet: &[u8]) -> Result<(&Self, &[u8], &[u8]), Malformed> {
        let (header, _) = Self::ref_from_prefix(packet).map_err(|_| Malformed::Truncated)?;
        if header.version_ihl >> 4 != 4 {
            return Err(Malformed::Version);
        }
        let (header_len, total_len) = (header.header_len(), usize::from(header.total_len.get()));
        if header_len < Self::LEN || total_len < header_len {
            return Err(Malformed::Length);
        }
        let packet = packet.get(..total_len).ok_or(Malformed::Truncated)?;
        Ok((header, &packet[Self::LEN..header_len], &packet[header_len..]))
    }

    /// The length of the header with its options, in bytes.
    #[inline]
    pub fn header_len(&self) -> usize {
        usize::from(self.version_ihl & 0xf) * 4
    }

    /// Whether the header checksum holds, over the options too.
    #[inline]
    pub fn checksum_is_valid(&self, options: &[u8]) -> bool {
        Sum::default().bytes(self.as_bytes()).bytes(options).is_valid()
    }

    /// Whether the packet is a fragment, the first one included.
    #[inline]
    pub fn is_fragment(&self) -> bool {
        self.fragment.get() & FRAGMENT != 0
    }

    /// The sender's address.
    #[inline]
    pub fn source(&self) -> Ipv4Addr {
        self.source.into()
    }

    /// The receiver's address, which may be a broadcast or multicast one.
    #[inline]
    pub fn destination(&self) -> Ipv4Addr {
        self.destination.into()
    }

    /// Turns the header into that of an answer with `payload_len` bytes. Its length, the room of its options (which the
    /// caller clears) and its class of service stay. Its checksum is set to zero.
    #[inline]
    pub fn answer(&mut self, payload_len: usize) {
        let (source, destination) = (self.destination, self.source);
        *self = Self {
            version_ihl: self.version_ihl,
            traffic_class: self.traffic_class & !ECN,
            total_len: ((self.header_len() + payload_len) as u16).into(),
            source,
            destination,
            ..Self::new(Ipv4Addr::UNSPECIFIED, Ipv4Addr::UNSPECIFIED, self.protocol, 0)
        };
    }

    /// Fills in the checksum of a header whose options are all zero or absent.
    #[inline]
    pub fn fill_checksum(&mut self) {
        self.checksum = 0.into();
        self.checksum = Sum::default().bytes(self.as_bytes()).checksum().into();
    }
}

/// The fixed IPv6 header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Ipv6Header {
    version_class_flow: [u8; 4],
    payload_len: U16,
    /// The protocol of the payload, or the first extension header.
    pub next_header: IpProtocol,
    hops: u8,
    source: [u8; 16],
    destination: [u8; 16],
}

impl Ipv6Header {
    /// Header size in bytes.
    pub const LEN: usize = 40;

    /// Builds a header for `payload_len` bytes of payload.
    #[inline]
    pub fn new(source: Ipv6Addr, destination: Ipv6Addr, next_header: IpProtocol, payload_len: usize) -> Self {
        Self {
            version_class_flow: [0x60, 0, 0, 0],
            payload_len: (payload_len as u16).into(),
            next_header,
            hops: HOPS,
            source: source.octets(),
            destination: destination.octets(),
        }
    }

    /// The same header with a hop limit of `hops`.
    #[must_use]
    pub fn with_hop_limit(self, hops: u8) -> Self {
        Self { hops, ..self }
    }

    /// Splits a packet into header and payload. Bytes beyond the payload length are cut off.
    #[inline]
    pub fn parse(packet: &[u8]) -> Result<(&Self, &[u8]), Malformed> {
        let (header, rest) = Self::ref_from_prefix(packet).map_err(|_| Malformed::Truncated)?;
        if header.version_class_flow[0] >> 4 != 6 {
            return Err(Malformed::Version);
        }
        let payload = rest.get(..usize::from(header.payload_len.get())).ok_or(Malformed::Truncated)?;
        Ok((header, payload))
    }

    /// Routers that the packet may still cross; 255 proves that it crossed none.
    #[inline]
    pub fn hop_limit(&self) -> u8 {
        self.hops
    }

    /// The sender's address.
    #[inline]
    pub fn source(&self) -> Ipv6Addr {
        self.source.into()
    }

    /// The receiver's address, which may be a multicast one.
    #[inline]
    pub fn destination(&self) -> Ipv6Addr {
        self.destination.into()
    }

    /// Turns the header into that of an answer with `payload_len` bytes. Class of service and flow label stay.
    #[inline]
    pub fn answer(&mut self, payload_len: usize) {
        core::mem::swap(&mut self.source, &mut self.destination);
        self.version_class_flow[1] &= !(ECN << 4);
        self.payload_len = (payload_len as u16).into();
        self.hops = HOPS;
    }
}

/// The multicast group that every host with `address` listens to (RFC 4291 section 2.7.1).
pub fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = address.octets();
    Ipv6Addr::from([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, a, b, c])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ipv4_round_trips(s: u32, d: u32, p: u8, payload in proptest::collection::vec(any::<u8>(), 0..100), pad in 0usize..9) {
            let mut header = Ipv4Header::new(s.into(), d.into(), IpProtocol(p), payload.len());
            header.fill_checksum();
            let packet = [header.as_bytes(), &payload, &vec![0; pad]].concat();
            let (h, options, body) = Ipv4Header::parse(&packet).unwrap();
            prop_assert_eq!((h.source(), h.destination(), h.protocol), (s.into(), d.into(), IpProtocol(p)));
            prop_assert_eq!((options.len(), body), (0, &payload[..]));
            prop_assert!(h.checksum_is_valid(options) && !h.is_fragment());
            let mut answer = *h;
            answer.answer(7);
            answer.fill_checksum();
            prop_assert_eq!((answer.source(), answer.destination()), (d.into(), s.into()));
            prop_assert!(answer.checksum_is_valid(&[]));
            for cut in 0..packet.len() - pad {
                prop_assert_eq!(Ipv4Header::parse(&packet[..cut]), Err(Malformed::Truncated));
            }
        }

        #[test]
        fn ipv6_round_trips(s: u128, d: u128, p: u8, payload in proptest::collection::vec(any::<u8>(), 0..100), pad in 0usize..9) {
            let header = Ipv6Header::new(s.into(), d.into(), IpProtocol(p), payload.len());
            let packet = [header.as_bytes(), &payload, &vec![0; pad]].concat();
            let (h, body) = Ipv6Header::parse(&packet).unwrap();
            prop_assert_eq!((h.source(), h.destination(), h.next_header), (s.into(), d.into(), IpProtocol(p)));
            prop_assert_eq!(body, &payload[..]);
            for cut in 0..packet.len() - pad {
                prop_assert_eq!(Ipv6Header::parse(&packet[..cut]), Err(Malformed::Truncated));
            }
        }
    }

    #[test]
    fn inconsistent_ipv4_lengths_are_refused() {
        let header = Ipv4Header::new(Ipv4Addr::LOCALHOST, Ipv4Addr::LOCALHOST, IpProtocol::UDP, 0);
        let with = |version_ihl: u8, total_len: u16| {
            let bytes = Ipv4Header { version_ihl, total_len: total_len.into(), ..header };
            Ipv4Header::parse(bytes.as_bytes()).map(|_| ())
        };
        assert_eq!(with(0x45, 20), Ok(()));
        assert_eq!(with(0x65, 20), Err(Malformed::Version));
        assert_eq!(with(0x44, 20), Err(Malformed::Length));
        assert_eq!(with(0x46, 20), Err(Malformed::Length));
        assert_eq!(with(0x45, 19), Err(Malformed::Length));
        assert_eq!(with(0x45, 21), Err(Malformed::Truncated));
    }

    #[test]
    fn solicited_node_groups() {
        assert_eq!(
            solicited_node("4037::01:800:200e:8c6c".parse().unwrap()),
            "ff02::1:ff0e:8c6c".parse::<Ipv6Addr>().unwrap()
        );
    }
}
