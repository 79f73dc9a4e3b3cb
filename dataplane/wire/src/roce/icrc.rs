//! The invariant CRC (IBTA 7.8.1, annex A17.3.3): the Ethernet polynomial over a packet, from its IP header to its last
//! byte of padding, with all ones in place of what routers may change.

use crc32fast::Hasher;

use super::headers::Bth;
use crate::net::{Ipv4Header, Ipv6Header, UdpHeader};

/// The CRC of the eight bytes of all ones that stand for a local route header.
const AFTER_ROUTE_HEADER: u32 = !0xdebb_20e3;
/// The longest IPv4 header; IPv6 packets have no extension headers here.
const IP_MAX: usize = 60;
/// The longest piece that needs masks.
const MASKED_MAX: usize = IP_MAX + UdpHeader::LEN + Bth::LEN;

/// The bytes of an ICRC on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Icrc(pub [u8; 4]);

impl Icrc {
    /// Bytes.
    pub const LEN: usize = 4;
}

/// The ICRC of `packet`: an IP header of `ip_len` bytes, a UDP header, a [`Bth`] and what follows, without its ICRC.
///
/// # Panics
/// If `packet` is shorter than those headers, or `ip_len` is no IP header's.
#[inline]
pub fn icrc(packet: &[u8], ip_len: usize) -> Icrc {
    let (head, rest) = packet.split_at(ip_len + UdpHeader::LEN + Bth::LEN);
    let mut masked = [0; MASKED_MAX];
    let masked = &mut masked[..head.len()];
    masked.copy_from_slice(head);
    let (ip, transport) = masked.split_at_mut(ip_len);
    if ip[0] >> 4 == 4 {
        // Class of service, hops, header checksum.
        ip[1] = 0xff;
        ip[8] = 0xff;
        ip[10..12].fill(0xff);
        debug_assert!(ip_len >= Ipv4Header::LEN);
    } else {
        // Class of service and flow label, hops.
        ip[0] |= 0x0f;
        ip[1..4].fill(0xff);
        ip[7] = 0xff;
        debug_assert_eq!(ip_len, Ipv6Header::LEN);
    }
    // UDP's checksum.
    transport[6..UdpHeader::LEN].fill(0xff);
    transport[UdpHeader::LEN + Bth::CONGESTION_AT] = 0xff;
    let mut hasher = Hasher::new_with_initial(AFTER_ROUTE_HEADER);
    hasher.update(masked);
    hasher.update(rest);
    Icrc(hasher.finalize().to_le_bytes())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use zerocopy::IntoBytes;

    use super::*;
    use crate::{
        net::{EthernetHeader, IpProtocol},
        roce::{Opcode, P_KEY_DEFAULT, Packet, Psn, Qpn},
    };

    /// Frames of Linux 6.12's soft-RoCE (`rdma_rxe`), captured by a packet socket at one end of a veth cable while
    /// perftest's `ib_send_lat -c UC -s 13` and `ib_write_lat -c UC -s 13` ran over it.
    const SEND_ONLY: &str = "fe152d9c2367c21850d1a26a08004500003ccec94000401157d30a0900020a090001c12112b700280000\
                             2430ffff000000110050b3a94f279b8483ab5969c504c53f5d000000288c47bd";
    const WRITE_ONLY: &str = "c21850d1a26afe152d9c236708004500004cb1ef40004011749d0a0900010a090002c16912b700380000\
                              2a30ffff0000001300098005000055a69839e0000000047c0000000d000000000000000000000000010000006a9d6161";

    fn bytes(hex: &str) -> Vec<u8> {
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
    }

    #[test]
    fn soft_roce_agrees() {
        for (frame, opcode) in [(SEND_ONLY, Opcode::SendOnly), (WRITE_ONLY, Opcode::WriteOnly)] {
            let frame = bytes(frame);
            let (packet, crc) = frame[EthernetHeader::LEN..].split_last_chunk::<4>().unwrap();
            assert_eq!(icrc(packet, Ipv4Header::LEN), Icrc(*crc));
            let read = Packet::parse(&frame[EthernetHeader::LEN + Ipv4Header::LEN + UdpHeader::LEN..]).unwrap();
            assert_eq!((read.opcode, read.p_key, read.payload.len()), (opcode, P_KEY_DEFAULT, 13));
        }
        let write = bytes(WRITE_ONLY);
        let write = Packet::parse(&write[EthernetHeader::LEN + Ipv4Header::LEN + UdpHeader::LEN..]).unwrap();
        assert_eq!((write.destination, write.psn), (Qpn::new(0x13), Psn::new(0x0009_8005)));
        let reth = write.reth.unwrap();
        assert_eq!((reth.address(), reth.rkey(), reth.len()), (0x55a6_9839_e000, 0x47c, 13));
    }

    /// Bit by bit, as the specification describes it.
    fn slow(bytes: &[u8]) -> [u8; 4] {
        let mut crc = u32::MAX;
        for byte in [&[0xff; 8], bytes].concat() {
            crc ^= u32::from(byte);
            for _ in 0..8 {
                crc = crc >> 1 ^ if crc & 1 == 1 { 0xedb8_8320 } else { 0 };
            }
        }
        (!crc).to_le_bytes()
    }

    proptest! {
        #[test]
        fn what_routers_change_does_not_matter_and_the_rest_does(
            v6: bool,
            options in 0_usize..11,
            payload in proptest::collection::vec(any::<u8>(), 0..300),
            flip in any::<proptest::sample::Index>(),
        ) {
            let segment = [&[7; UdpHeader::LEN + Bth::LEN][..], &payload].concat();
            let ip = if v6 {
                let any = std::net::Ipv6Addr::LOCALHOST;
                Ipv6Header::new(any, any, IpProtocol::UDP, segment.len()).as_bytes().to_vec()
            } else {
                let any = std::net::Ipv4Addr::LOCALHOST;
                let mut header = Ipv4Header::new(any, any, IpProtocol::UDP, segment.len()).as_bytes().to_vec();
                header.extend(vec![1; 4 * options]);
                header[0] += options as u8;
                header
            };
            // By the octet: what the annex lists, as bits that count.
            let mut counts = vec![0xff_u8; ip.len() + segment.len()];
            if v6 {
                counts[0] = 0xf0;
                counts[1..4].fill(0);
                counts[7] = 0;
            } else {
                for at in [1, 8, 10, 11] {
                    counts[at] = 0;
                }
            }
            for at in [6, 7, 12] {
                counts[ip.len() + at] = 0;
            }
            let mut packet = [&ip[..], &segment].concat();
            let masked: Vec<u8> = packet.iter().zip(&counts).map(|(byte, mask)| *byte | !*mask).collect();
            let Icrc(before) = icrc(&packet, ip.len());
            prop_assert_eq!(before, slow(&masked));
            let bit = flip.index(8 * packet.len() - 8) + 8;
            packet[bit / 8] ^= 1 << (bit % 8);
            let matters = counts[bit / 8] & 1 << (bit % 8) != 0;
            prop_assert_eq!(icrc(&packet, ip.len()).0 != before, matters);
        }
    }
}
