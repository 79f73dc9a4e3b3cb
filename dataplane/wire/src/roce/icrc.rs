//! The invariant CRC (IBTA 7.8.1, annex A17.3.3): the Ethernet polynomial over a packet, from its IP header to its last
//! byte of padding, with all ones in place of what routers may change.

use crc32fast::Hasher;

use super::headers::Bth;
use crate::net::{Ipv4Header, Ipv6Header, UdpHeader};

/// The CRC of the eight bytes of all ones that stand for a local route header.
const AFTER_ROUTE_HEADER: u32 = !0xdebb_20e3;
/// From the start of the UDP header to the last byte that routers may change.
const MASKED_TAIL: usize = UdpHeader::LEN + Bth::CONGESTION_AT + 1;
/// The bytes of an IPv4 packet without options, and of an IPv6 packet, up to there.
const MASKED_V4: usize = Ipv4Header::LEN + MASKED_TAIL;
const MASKED_V6: usize = Ipv6Header::LEN + MASKED_TAIL;

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
pub fn icrc(packet: &[u8], ip_len: usize) -> Icrc {
    IcrcMemo::default().icrc(packet, ip_len)
}

/// Makes ICRCs of packets of one sender, quickly where a packet's first bytes are those of the one before, but for what
/// routers may change: then their CRC is known.
#[derive(Debug, Default)]
pub struct IcrcMemo {
    v4: Prefix<MASKED_V4>,
    v6: Prefix<MASKED_V6>,
}

impl IcrcMemo {
    /// As [`icrc`].
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

/// All that is masked of a packet, and its CRC.
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

/// Ones where a packet's bits may change on its way: class of service, hops and header checksum of IPv4.
const MASK_V4: [u8; MASKED_V4] = mask(&[(1, 0xff), (8, 0xff), (10, 0xff), (11, 0xff)], Ipv4Header::LEN);
/// Class of service, flow label and hops of IPv6.
const MASK_V6: [u8; MASKED_V6] = mask(&[(0, 0x0f), (1, 0xff), (2, 0xff), (3, 0xff), (7, 0xff)], Ipv6Header::LEN);

/// `ip`, and behind an IP header of `ip_len` bytes UDP's checksum and the byte of congestion bits.
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

/// The ICRC of an IPv4 packet with options, which nobody should send.
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
