//! Ethernet, VLAN, ARP, IPv4, IPv6, UDP, ICMP echo, and the part of NDP that a host needs.
//!
//! Each header is a byte-aligned struct over the frame, read and written in place. The `parse` functions check every
//! length and version that a later access relies on, and bound the payload by the length field, so that link-layer
//! padding never reaches the layer above.

mod arp;
mod checksum;
mod ethernet;
mod icmp;
mod ip;
mod udp;

use core::fmt;

pub use arp::{Arp, ArpOperation};
pub use checksum::Sum;
pub use ethernet::{EtherType, EthernetHeader, MacAddr, VlanTag};
pub use icmp::{
    ICMPV4_ECHO_REPLY, ICMPV4_ECHO_REQUEST, ICMPV6_ECHO_REPLY, ICMPV6_ECHO_REQUEST, ICMPV6_NEIGHBOUR_ADVERT,
    ICMPV6_NEIGHBOUR_SOLICIT, IcmpHeader, LinkLayerOption, NDP_HOP_LIMIT, NdpMessage, OPTION_SOURCE_LINK_LAYER,
    OPTION_TARGET_LINK_LAYER, link_layer_option,
};
pub use ip::{IpProtocol, Ipv4Header, Ipv6Header, solicited_node};
pub use udp::UdpHeader;

/// What is wrong with a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Malformed {
    /// Fewer bytes than the header has, or than a length field promises.
    Truncated,
    /// A version, hardware type or address length that is not the protocol's.
    Version,
    /// A length field smaller than the headers it covers.
    Length,
    /// A checksum that does not match.
    Checksum,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Truncated => "truncated",
            Self::Version => "wrong version or address type",
            Self::Length => "length field smaller than the headers",
            Self::Checksum => "wrong checksum",
        })
    }
}

impl core::error::Error for Malformed {}
