//! The invariant CRC (IBTA 7.8.1, annex A17.3.3): the Ethernet polynomial over a packet, from its IP header to its last
//! byte of padding. Fields that routers may change count as all ones.

use crc32fast::Hasher;

use super::headers::Bth;
use crate::net::{Ipv4Header, Ipv6Header, UdpHeader};

/// CRC of eight bytes of all ones, which stand for the local route header.
const AFTER_ROUTE_HEADER: u32 = !0xdebb_20e3;
/// From the start of the UDP header to the last byte that routers may change.
const MASKED_TAIL: usize = UdpHeader::LEN + Bth::CONGESTION_AT + 1;
/// Bytes that need masking: up to the end of that tail, for IPv4 without options and for IPv6.
const MASKED_V4: usize = Ipv4Header::LEN + MASKED_TAIL;
const MASKED_V6: usize = Ipv6Header::LEN + MASKED_TAIL;

/// An ICRC in wire order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Icrc(pub [u8; 4]);

impl Icrc {
    /// Size in bytes.
    pub const LEN: usize = 4;
}

/// Computes the ICRC of `packet`: an IP header of `ip_len` bytes, a UDP header, a [`Bth`] and the rest, without the
/// ICRC.
///
/// # Panics
/// If `packet` is shorter than those headers, or `ip_len` is not the length of an IP header.
pub fn icrc(packet: &[u8], ip_len: usize) -> Icrc {
    IcrcMemo::default().icrc(packet, ip_len)
}

/// Computes ICRCs of one sender's packets. It keeps the CRC of the last packet's first bytes, and reuses it while only
/// fields that routers may change differ.
#[derive(Debug, Default)]
pub struct IcrcMemo {
    v4: Prefix<MASKED_V4>,
    v6: Prefix<MASKED_V6>,
}

impl IcrcMemo {
    /// Same result as [`icrc`].
    #[inline]
    pub fn icrc(&mut self, packet: &[u8], ip_len: usize) -> Icrc {
        let hasher = match (packet[0] >> 4, ip_len) {
            (4, Ipv4Header::LEN) => self.v4.hasher(packet, &MASK_V4),
            (4, _) => return with_options(packet, ip_len),
            _ => self.v6.hasher(packet, &MASK_V6),
        };
        finish(hasher, &packet[ip_len + MASKED_TAIL..])
    }
}

/// The masked first bytes of a packet, and their CRC.
#[derive(Debug)]
struct Prefix<const N: usize> {
    masked: [u8; N],
    hasher: Hasher,
}

impl<const N: usize> Default for Prefix<N> {
    fn default() -> Self {
        // No packet: its version is 0.
        Self { masked: [0; N], hasher: Hasher::new() }
    }
}

impl<const N: usize> Prefix<N> {
    /// The CRC of the first bytes of `packet`.
    #[inline]
    fn hasher(&mut self, packet: &[u8], mask: &[u8; N]) -> Hasher {
        let head = packet.first_chunk::<N>().expect("a packet with its headers");
        let masked: [u8; N] = std::array::from_fn(|at| head[at] | mask[at]);
        // Not `!=`, which calls the C library for so odd a number of bytes.
        let differs = masked.iter().zip(&self.masked).fold(0, |differs, (new, old)| differs | (new ^ old));
        if differs != 0 {
            self.masked = masked;
            self.hasher = Hasher::new_with_initial(AFTER_ROUTE_HEADER);
            self.hasher.update(&masked);
        }
        self.hasher.clone()
    }
}

/// Ones over the bits of an IPv4 header that routers may change: class of service, hops and header checksum.
const MASK_V4: [u8; MASKED_V4] = mask(&[(1, 0xff), (8, 0xff), (10, 0xff), (11, 0xff)], Ipv4Header::LEN);
/// The same for IPv6: class of service, flow label and hops.
const MASK_V6: [u8; MASKED_V6] = mask(&[(0, 0x0f), (1, 0xff), (2, 0xff), (3, 0xff), (7, 0xff)], Ipv6Header::LEN);

/// Adds to `ip` what is masked behind an IP header of `ip_len` bytes: UDP's checksum and the byte of congestion bits.
const fn mask<const N: usize>(ip: &[(usize, u8)], ip_len: usize) -> [u8; N] {
    let mut mask = [0; N];
    let mut at = 0;
    while at < ip.len() {
        mask[ip[at].0] = ip[at].1;
        at += 1;
    }
    mask[ip_len + 6] = 0xff;
    mask[ip_len + 7] = 0xff;
    mask[ip_len + UdpHeader::LEN + Bth::CONGESTION_AT] = 0xff;
    mask
}

/// ICRC of an IPv4 packet with options. Nobody should send one.
#[cold]
fn with_options(packet: &[u8], ip_len: usize) -> Icrc {
    let (fixed, options) = packet[..ip_len].split_at(Ipv4Header::LEN);
    let mut hasher = Hasher::new_with_initial(AFTER_ROUTE_HEADER);
    let (ip_mask, tail_mask) = MASK_V4.split_at(Ipv4Header::LEN);
    for (bytes, mask) in [(fixed, ip_mask), (options, &[0; 40][..]), (&packet[ip_len..ip_len + MASKED_TAIL], tail_mask)]
    {
        for (byte, mask) in bytes.iter().zip(mask) {
            hasher.update(&[byte | mask]);
        }
    }
    finish(hasher, &packet[ip_len + MASKED_TAIL..])
}

#[inline]
fn finish(mut hasher: Hasher, rest: &[u8]) -> Icrc {
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

    /// Frames of Linux 6.12's soft-RoCE (`rdma_rxe`), captured at one end of a veth pair while perftest's
    /// `ib_send_lat -c UC -s 13` and `ib_write_lat -c UC -s 13` ran over it.
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

    /// The CRC bit by bit, as the specification describes it.
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
            let mut memo = IcrcMemo::default();
            let Icrc(before) = memo.icrc(&packet, ip.len());
            prop_assert_eq!(before, slow(&masked));
            prop_assert_eq!(icrc(&packet, ip.len()).0, before);
            let bit = flip.index(8 * packet.len() - 8) + 8;
            packet[bit / 8] ^= 1 << (bit % 8);
            let matters = counts[bit / 8] & 1 << (bit % 8) != 0;
            // Also with the other packet's first bytes in mind.
            prop_assert_eq!(memo.icrc(&packet, ip.len()).0 != before, matters);
            prop_assert_eq!(icrc(&packet, ip.len()), memo.icrc(&packet, ip.len()));
        }
    }
}
