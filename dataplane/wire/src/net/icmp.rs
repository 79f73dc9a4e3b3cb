//! ICMP echo (RFC 792), ICMPv6 echo (RFC 4443) and neighbour discovery (RFC 4861).

use core::net::Ipv6Addr;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, network_endian::U16};

use super::{MacAddr, Malformed};

/// ICMP echo reply (RFC 792).
pub const ICMPV4_ECHO_REPLY: u8 = 0;
/// ICMP echo request (RFC 792).
pub const ICMPV4_ECHO_REQUEST: u8 = 8;
/// ICMPv6 echo request (RFC 4443 section 4.1).
pub const ICMPV6_ECHO_REQUEST: u8 = 128;
/// ICMPv6 echo reply (RFC 4443 section 4.2).
pub const ICMPV6_ECHO_REPLY: u8 = 129;
/// Neighbour solicitation (RFC 4861 section 4.3).
pub const ICMPV6_NEIGHBOUR_SOLICIT: u8 = 135;
/// Neighbour advertisement (RFC 4861 section 4.4).
pub const ICMPV6_NEIGHBOUR_ADVERT: u8 = 136;
/// The option that carries the sender's link-layer address (RFC 4861 section 4.6.1).
pub const OPTION_SOURCE_LINK_LAYER: u8 = 1;
/// The option that carries the target's link-layer address (RFC 4861 section 4.6.1).
pub const OPTION_TARGET_LINK_LAYER: u8 = 2;
/// Neighbour discovery is only valid when it crossed no router (RFC 4861 section 7.1).
pub const NDP_HOP_LIMIT: u8 = 255;

/// The four bytes that every ICMP and ICMPv6 message starts with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct IcmpHeader {
    /// The type: one of the `ICMPV4_` and `ICMPV6_` constants, or another.
    pub kind: u8,
    /// Refines the type; 0 for all messages named here.
    pub code: u8,
    checksum: U16,
}

impl IcmpHeader {
    /// A header of code 0 whose checksum is still zero.
    pub fn new(kind: u8) -> Self {
        Self { kind, code: 0, checksum: 0.into() }
    }

    /// Splits a message into header and body.
    pub fn parse(message: &[u8]) -> Result<(&Self, &[u8]), Malformed> {
        Self::ref_from_prefix(message).map_err(|_| Malformed::Truncated)
    }

    /// As [`IcmpHeader::parse`], for writing.
    pub fn parse_mut(message: &mut [u8]) -> Result<(&mut Self, &mut [u8]), Malformed> {
        Self::mut_from_prefix(message).map_err(|_| Malformed::Truncated)
    }

    /// Stores a checksum computed by [`super::Sum`].
    pub fn set_checksum(&mut self, checksum: u16) {
        self.checksum = checksum.into();
    }
}

/// A neighbour solicitation or advertisement without its options: header, flags and target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct NdpMessage {
    /// Type, code and checksum.
    pub header: IcmpHeader,
    flags: u8,
    reserved: [u8; 3],
    target: [u8; 16],
}

/// The answer to a solicitation; may replace a known link-layer address (RFC 4861 section 4.4).
const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;

impl NdpMessage {
    /// Size in bytes, without options.
    pub const LEN: usize = 24;

    /// Asks which host has `target`.
    pub fn solicitation(target: Ipv6Addr) -> Self {
        let header = IcmpHeader::new(ICMPV6_NEIGHBOUR_SOLICIT);
        Self { header, flags: 0, reserved: [0; 3], target: target.octets() }
    }

    /// Says that the sender has `target`. `solicited` is false if the probe had no source address.
    pub fn advertisement(target: Ipv6Addr, solicited: bool) -> Self {
        let header = IcmpHeader::new(ICMPV6_NEIGHBOUR_ADVERT);
        let flags = OVERRIDE | if solicited { SOLICITED } else { 0 };
        Self { header, flags, reserved: [0; 3], target: target.octets() }
    }

    /// Splits a message into its fixed part and its options.
    pub fn parse(message: &[u8]) -> Result<(&Self, &[u8]), Malformed> {
        Self::ref_from_prefix(message).map_err(|_| Malformed::Truncated)
    }

    /// The address asked for or announced.
    pub fn target(&self) -> Ipv6Addr {
        self.target.into()
    }
}

/// A source or target link-layer address option for Ethernet (RFC 4861 section 4.6.1; RFC 2464 section 6).
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct LinkLayerOption {
    kind: u8,
    /// Length of the option in units of 8 bytes; 1.
    len: u8,
    address: MacAddr,
}

impl LinkLayerOption {
    /// Option size in bytes.
    pub const LEN: usize = 8;

    /// `kind` is one of the `OPTION_` constants.
    pub fn new(kind: u8, address: MacAddr) -> Self {
        Self { kind, len: 1, address }
    }
}

/// Finds a link-layer address option; an option of length zero or beyond the message makes it malformed
/// (RFC 4861 section 4.6).
pub fn link_layer_option(mut options: &[u8], kind: u8) -> Result<Option<MacAddr>, Malformed> {
    let mut found = None;
    while let [this, units, ..] = *options {
        let len = usize::from(units) * 8;
        if len == 0 {
            return Err(Malformed::Length);
        }
        let option = options.get(..len).ok_or(Malformed::Truncated)?;
        if this == kind
            && let Ok(option) = LinkLayerOption::ref_from_bytes(option)
        {
            found = found.or(Some(option.address));
        }
        options = &options[len..];
    }
    if options.is_empty() { Ok(found) } else { Err(Malformed::Truncated) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ndp_round_trips(target: u128, mac: [u8; 6], solicited: bool) {
            let option = LinkLayerOption::new(OPTION_TARGET_LINK_LAYER, MacAddr(mac));
            let message = [NdpMessage::advertisement(target.into(), solicited).as_bytes(), option.as_bytes()].concat();
            let (advert, options) = NdpMessage::parse(&message).unwrap();
            prop_assert_eq!(advert.target(), Ipv6Addr::from(target));
            prop_assert_eq!(advert.header.kind, ICMPV6_NEIGHBOUR_ADVERT);
            prop_assert_eq!(link_layer_option(options, OPTION_TARGET_LINK_LAYER), Ok(Some(MacAddr(mac))));
            prop_assert_eq!(link_layer_option(options, OPTION_SOURCE_LINK_LAYER), Ok(None));
        }

        #[test]
        fn options_never_panic(bytes: Vec<u8>, kind: u8) {
            let _ = link_layer_option(&bytes, kind);
        }
    }

    #[test]
    fn malformed_options_are_refused() {
        assert_eq!(link_layer_option(&[1, 0, 0, 0, 0, 0, 0, 0], 1), Err(Malformed::Length));
        assert_eq!(link_layer_option(&[1, 2, 0, 0, 0, 0, 0, 0], 1), Err(Malformed::Truncated));
        assert_eq!(link_layer_option(&[1], 1), Err(Malformed::Truncated));
    }
}
