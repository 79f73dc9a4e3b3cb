//! Ethernet II and IEEE 802.1Q.

use core::{fmt, str::FromStr};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Ref, Unaligned, network_endian::U16};

use super::Malformed;

/// An EUI-48 address.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct MacAddr(pub [u8; 6]);

impl MacAddr {
    /// The broadcast address, which every station receives.
    pub const BROADCAST: Self = Self([0xff; 6]);
    /// All zeros; some software devices carry it until they are given another.
    pub const ZERO: Self = Self([0; 6]);

    /// Whether the group bit is set: multicast and broadcast.
    #[inline]
    pub fn is_group(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// Whether it can be the address of one station: neither a group's nor [`MacAddr::ZERO`].
    #[inline]
    pub fn is_station(self) -> bool {
        !self.is_group() && self != Self::ZERO
    }

    /// The address to which an IPv6 multicast packet is sent (RFC 2464 section 7).
    #[inline]
    pub fn of_ipv6_multicast(address: core::net::Ipv6Addr) -> Self {
        let [.., a, b, c, d] = address.octets();
        Self([0x33, 0x33, a, b, c, d])
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text is not six two-digit hexadecimal bytes joined by colons.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MacAddrError;

impl fmt::Display for MacAddrError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a MAC address is six hexadecimal bytes joined by colons, such as 02:00:00:00:00:01")
    }
}

impl core::error::Error for MacAddrError {}

impl FromStr for MacAddr {
    type Err = MacAddrError;
    fn from_str(text: &str) -> Result<Self, MacAddrError> {
        let mut bytes = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            let part = parts.next().filter(|p| p.len() == 2 && p.bytes().all(|b| b.is_ascii_hexdigit()));
            *byte = part.and_then(|p| u8::from_str_radix(p, 16).ok()).ok_or(MacAddrError)?;
        }
        if parts.next().is_some() { Err(MacAddrError) } else { Ok(Self(bytes)) }
    }
}

/// The `EtherType` field: the protocol of a frame's payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EtherType(pub u16);

impl EtherType {
    /// IPv4 (RFC 894).
    pub const IPV4: Self = Self(0x0800);
    /// ARP (RFC 826).
    pub const ARP: Self = Self(0x0806);
    /// An IEEE 802.1Q customer tag.
    pub const VLAN: Self = Self(0x8100);
    /// IPv6 (RFC 2464).
    pub const IPV6: Self = Self(0x86dd);
}

/// The header of an Ethernet II frame, as it lies on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct EthernetHeader {
    /// Offset 0; may be a group address.
    pub destination: MacAddr,
    /// Offset 6; a group address is not valid here.
    pub source: MacAddr,
    ether_type: U16,
}

impl EthernetHeader {
    /// Header size in bytes.
    pub const LEN: usize = 14;

    /// Builds a header; the `EtherType` is stored big-endian.
    pub fn new(destination: MacAddr, source: MacAddr, ether_type: EtherType) -> Self {
        Self { destination, source, ether_type: ether_type.0.into() }
    }

    /// Splits a frame into its header and the rest.
    #[inline]
    pub fn parse(frame: &[u8]) -> Result<(&Self, &[u8]), Malformed> {
        Self::ref_from_prefix(frame).map_err(|_| Malformed::Truncated)
    }

    /// As [`EthernetHeader::parse`], for writing.
    #[inline]
    pub fn parse_mut(frame: &mut [u8]) -> Result<(&mut Self, &mut [u8]), Malformed> {
        Self::mut_from_prefix(frame).map_err(|_| Malformed::Truncated)
    }

    /// The protocol of the payload, or [`EtherType::VLAN`] if a tag follows.
    #[inline]
    pub fn ether_type(&self) -> EtherType {
        EtherType(self.ether_type.get())
    }
}

/// An IEEE 802.1Q tag, as it follows [`EtherType::VLAN`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct VlanTag {
    control: U16,
    ether_type: U16,
}

impl VlanTag {
    /// Tag size in bytes.
    pub const LEN: usize = 4;

    /// Builds a tag of priority 0.
    pub fn new(id: u16, ether_type: EtherType) -> Self {
        Self { control: (id & 0xfff).into(), ether_type: ether_type.0.into() }
    }

    /// Splits what follows the Ethernet header into the tag and the rest.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<(&Self, &[u8]), Malformed> {
        let (tag, rest) = Ref::<_, Self>::from_prefix(bytes).map_err(|_| Malformed::Truncated)?;
        Ok((Ref::into_ref(tag), rest))
    }

    /// The VLAN identifier, 12 bits; 0 is a priority tag without a VLAN (IEEE 802.1Q-2022 section 9.6).
    #[inline]
    pub fn id(&self) -> u16 {
        self.control.get() & 0xfff
    }

    /// The protocol of the payload behind the tag.
    #[inline]
    pub fn ether_type(&self) -> EtherType {
        EtherType(self.ether_type.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn mac_addresses_round_trip(bytes: [u8; 6]) {
            let mac = MacAddr(bytes);
            prop_assert_eq!(mac.to_string().parse(), Ok(mac));
        }

        #[test]
        fn headers_round_trip(d: [u8; 6], s: [u8; 6], t: u16, id in 0u16..4096, rest: Vec<u8>) {
            let header = EthernetHeader::new(MacAddr(d), MacAddr(s), EtherType::VLAN);
            let tag = VlanTag::new(id, EtherType(t));
            let frame = [header.as_bytes(), tag.as_bytes(), &rest].concat();
            let (h, after) = EthernetHeader::parse(&frame).unwrap();
            prop_assert_eq!((h.destination, h.source, h.ether_type()), (MacAddr(d), MacAddr(s), EtherType::VLAN));
            let (v, payload) = VlanTag::parse(after).unwrap();
            prop_assert_eq!((v.id(), v.ether_type(), payload), (id, EtherType(t), &rest[..]));
        }
    }

    #[test]
    fn wrong_mac_texts_are_refused() {
        for text in
            ["", "02:00:00:00:00", "02:00:00:00:00:00:00", "2:0:0:0:0:0", "+2:00:00:00:00:00", "0g:00:00:00:00:00"]
        {
            assert_eq!(text.parse::<MacAddr>(), Err(MacAddrError), "{text}");
        }
    }
}
