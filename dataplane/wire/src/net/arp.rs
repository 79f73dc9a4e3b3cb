//! ARP for IPv4 over Ethernet (RFC 826).

use core::net::Ipv4Addr;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, network_endian::U16};

use super::{EtherType, MacAddr, Malformed};

/// `OPER`, the operation of an ARP packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArpOperation(pub u16);

impl ArpOperation {
    /// Asks who has the target address.
    pub const REQUEST: Self = Self(1);
    /// Answers with the sender's link-layer address.
    pub const REPLY: Self = Self(2);
}

/// A whole ARP packet for IPv4 over Ethernet, as it lies on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Arp {
    hardware_type: U16,
    protocol_type: U16,
    hardware_len: u8,
    protocol_len: u8,
    operation: U16,
    /// `SHA`, the sender's link-layer address.
    pub sender_mac: MacAddr,
    sender_ip: [u8; 4],
    /// `THA`, the target's link-layer address; zero in a request.
    pub target_mac: MacAddr,
    target_ip: [u8; 4],
}

/// Hardware type 1 (Ethernet), 6-byte addresses; protocol IPv4, 4-byte addresses.
const ETHERNET: u16 = 1;

impl Arp {
    /// Packet size in bytes.
    pub const LEN: usize = 28;

    /// Builds a packet; `sender` and `target` are pairs of a link-layer and an IPv4 address.
    pub fn new(operation: ArpOperation, sender: (MacAddr, Ipv4Addr), target: (MacAddr, Ipv4Addr)) -> Self {
        Self {
            hardware_type: ETHERNET.into(),
            protocol_type: EtherType::IPV4.0.into(),
            hardware_len: 6,
            protocol_len: 4,
            operation: operation.0.into(),
            sender_mac: sender.0,
            sender_ip: sender.1.octets(),
            target_mac: target.0,
            target_ip: target.1.octets(),
        }
    }

    /// Reads a packet, with or without padding behind it. Other hardware and protocol types are refused.
    pub fn parse(bytes: &[u8]) -> Result<&Self, Malformed> {
        let (arp, _padding) = Self::ref_from_prefix(bytes).map_err(|_| Malformed::Truncated)?;
        let shape = (arp.hardware_type.get(), arp.protocol_type.get(), arp.hardware_len, arp.protocol_len);
        if shape == (ETHERNET, EtherType::IPV4.0, 6, 4) { Ok(arp) } else { Err(Malformed::Version) }
    }

    /// Request, reply, or another code of the registry.
    pub fn operation(&self) -> ArpOperation {
        ArpOperation(self.operation.get())
    }

    /// `SPA`, the sender's IPv4 address.
    pub fn sender_ip(&self) -> Ipv4Addr {
        self.sender_ip.into()
    }

    /// `TPA`: the address asked for, or in a reply that of the asker.
    pub fn target_ip(&self) -> Ipv4Addr {
        self.target_ip.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn packets_round_trip(op: u16, sm: [u8; 6], si: u32, tm: [u8; 6], ti: u32, padding in 0usize..20) {
            let arp = Arp::new(ArpOperation(op), (MacAddr(sm), si.into()), (MacAddr(tm), ti.into()));
            let mut bytes = arp.as_bytes().to_vec();
            prop_assert_eq!(bytes.len(), Arp::LEN);
            bytes.resize(Arp::LEN + padding, 0);
            let read = Arp::parse(&bytes).unwrap();
            prop_assert_eq!(read.operation(), ArpOperation(op));
            prop_assert_eq!((read.sender_mac, read.sender_ip()), (MacAddr(sm), si.into()));
            prop_assert_eq!((read.target_mac, read.target_ip()), (MacAddr(tm), ti.into()));
            prop_assert_eq!(Arp::parse(&bytes[..Arp::LEN - 1]), Err(Malformed::Truncated));
            bytes[4] = 8;
            prop_assert_eq!(Arp::parse(&bytes), Err(Malformed::Version));
        }
    }
}
