//! A fast path for one known flow, as most ports get nearly all of their datagrams from one.
//!
//! The headers of a datagram are compared with those of an earlier one of the flow that passed all checks, except for
//! the fields that differ from one datagram to the next: lengths, identification and checksums. The other fields need
//! no second check. The headers of answers are kept ready in the same way.

use std::{net::SocketAddr, ops::Range};

use berth_port::Nanos;
use berth_wire::net::{EthernetHeader, IpProtocol, Ipv4Header, Ipv6Header, Sum, UdpHeader};

use crate::{
    Datagram, Host, Sealed, Verified,
    outbound::{Way, sent},
};

/// Limit on the headers that are kept, in bytes. IPv6 in a VLAN has more.
const HEAD: usize = 64;
const WORDS: usize = HEAD / 8;

/// Length of the headers of IPv4 outside any VLAN, in bytes.
const PLAIN_V4: usize = EthernetHeader::LEN + Ipv4Header::LEN + UdpHeader::LEN;

/// Offsets of the length, identification and checksum in the IPv4 header, and of their counterparts in the UDP header.
const V4_LEN: usize = 2;
const V4_ID: usize = 4;
const V4_CHECKSUM: usize = 10;
const V6_LEN: usize = 4;
const UDP_LEN: usize = 4;
const UDP_CHECKSUM: usize = 6;

/// The known flow, and what is needed to find the next one.
#[derive(Debug, Default)]
pub(crate) struct Flows {
    known: Option<Flow>,
    /// Sender of the last datagram that was not of the known flow.
    other: Option<SocketAddr>,
    /// Number of flows that were known so far.
    number: u32,
}

impl Flows {
    #[inline]
    pub(crate) fn known(&self) -> Option<&Datagram> {
        self.known.as_ref().map(|flow| &flow.datagram)
    }
}

#[derive(Debug)]
struct Flow {
    /// The flow's last datagram, except for its payload.
    datagram: Datagram,
    /// The headers under `mask`.
    head: [u64; WORDS],
    mask: [u64; WORDS],
    /// Headers of an answer; the fields that change are zero.
    answer: [u8; HEAD],
    /// Checksums over the constant part of the IPv4 header, and over that of an answer's.
    ip_sum: Sum,
    answer_ip_sum: Sum,
    /// Checksums over the pseudo-header without its length, which is the same both ways, and over that with the ports.
    pseudo_sum: Sum,
    udp_sum: Sum,
    /// When the neighbour was last confirmed to be reachable.
    heard: Nanos,
}

impl Flow {
    #[inline]
    fn is_ipv6(&self) -> bool {
        self.datagram.peer.is_ipv6()
    }

    /// Offset of the payload in the frame.
    #[inline]
    fn start(&self) -> usize {
        self.datagram.udp + UdpHeader::LEN
    }

    /// Range of the payload in the frame at the front of `buf`, if that is a valid datagram of this flow.
    #[inline]
    fn payload(&self, buf: &[u8], len: usize, verified: Verified, udp_checksums: bool) -> Option<Range<usize>> {
        let head = buf.first_chunk::<HEAD>()?;
        let words = head.as_chunks::<8>().0.iter().zip(&self.head).zip(&self.mask);
        if words.fold(0, |differs, ((word, known), mask)| differs | (u64::from_ne_bytes(*word) ^ known) & mask) != 0 {
            return None;
        }
        let (start, v6) = (self.start(), self.is_ipv6());
        let Datagram { ip, udp, .. } = self.datagram;
        let ip_len = word(head, ip + if v6 { V6_LEN } else { V4_LEN });
        let udp_len = word(head, udp + UDP_LEN);
        let packet_end = usize::from(ip_len) + if v6 { udp } else { ip };
        let end = udp + usize::from(udp_len);
        if end < start || end > packet_end || packet_end > len {
            return None;
        }
        if !(v6 || verified.ip) {
            let (id, checksum) = (word(head, ip + V4_ID), word(head, ip + V4_CHECKSUM));
            if !self.ip_sum.word(ip_len).word(id).word(checksum).is_valid() {
                return None;
            }
        }
        let is_right = match word(head, udp + UDP_CHECKSUM) {
            0 => !(v6 && udp_checksums),
            _ if verified.udp => true,
            checksum => self.udp_sum.word(udp_len).word(udp_len).word(checksum).bytes(&buf[start..end]).is_valid(),
        };
        is_right.then_some(start..end)
    }
}

#[inline]
fn word(head: &[u8; HEAD], at: usize) -> u16 {
    u16::from_be_bytes([head[at], head[at + 1]])
}

#[inline]
fn set_word(buf: &mut [u8], at: usize, word: u16) {
    buf[at..at + 2].copy_from_slice(&word.to_be_bytes());
}

impl Host {
    /// The datagram in `buf`, if it is a valid one of the known flow. `None` does not mean that it is invalid.
    #[inline]
    pub(crate) fn of_known_flow(
        &mut self,
        buf: &[u8],
        len: usize,
        verified: Verified,
        now: Nanos,
    ) -> Option<Range<usize>> {
        let flow = self.flows.known.as_mut()?;
        let payload = flow.payload(buf, len, verified, self.udp_checksums)?;
        if flow.heard != now {
            flow.heard = now;
            if let Some(way) = Way::unpack(flow.datagram.way) {
                self.neighbours.heard(flow.datagram.peer.ip(), way.mac, now);
            }
        }
        Some(payload)
    }

    /// Notes a valid datagram that is not of the known flow. The second in a row from one peer makes its flow the known
    /// one. Peers that take turns would all gain nothing.
    #[inline]
    pub(crate) fn of_other_flow(&mut self, buf: &[u8], datagram: &Datagram, now: Nanos) {
        if self.flows.other.replace(datagram.peer) == Some(datagram.peer) {
            self.learn(buf, datagram, now);
        }
    }

    #[inline(never)]
    fn learn(&mut self, buf: &[u8], datagram: &Datagram, now: Nanos) {
        let Datagram { ip, udp, peer, .. } = *datagram;
        let v6 = peer.is_ipv6();
        let start = udp + UdpHeader::LEN;
        let plain = udp - ip == if v6 { Ipv6Header::LEN } else { Ipv4Header::LEN };
        let Some(head) = buf.first_chunk::<HEAD>().filter(|_| plain && start <= HEAD) else { return };
        let mut mask = [0; HEAD];
        mask[..start].fill(0xff);
        let of_ip = if v6 { [V6_LEN; 3] } else { [V4_LEN, V4_ID, V4_CHECKSUM] };
        let changing = of_ip.map(|at| ip + at).into_iter().chain([udp + UDP_LEN, udp + UDP_CHECKSUM]);
        let mut answer = *head;
        self.turn_round(&mut answer, ip, udp, 0);
        set_word(&mut answer, udp, self.udp_port);
        set_word(&mut answer, udp + 2, peer.port());
        for at in changing {
            set_word(&mut mask, at, 0);
            set_word(&mut answer, at, 0);
        }
        let masked: [u8; HEAD] = std::array::from_fn(|at| head[at] & mask[at]);
        let addresses = if v6 { ip + 8..ip + 40 } else { ip + 12..ip + 20 };
        let pseudo_sum = Sum::default().word(u16::from(IpProtocol::UDP.0)).bytes(&head[addresses]);
        let words = |bytes: [u8; HEAD]| std::array::from_fn(|at| u64::from_ne_bytes(bytes.as_chunks().0[at]));
        self.flows.number = self.flows.number.wrapping_add(1).max(1);
        self.flows.known = Some(Flow {
            datagram: Datagram { flow: self.flows.number, ..datagram.clone() },
            head: words(masked),
            mask: words(mask),
            ip_sum: Sum::default().bytes(&masked[ip..udp]),
            answer_ip_sum: Sum::default().bytes(&answer[ip..udp]),
            answer,
            pseudo_sum,
            udp_sum: pseudo_sum.bytes(&head[udp..udp + UDP_LEN]),
            heard: now,
        });
    }

    /// Writes the headers of an answer of `payload_len` bytes to a datagram of the known flow. `None` if the datagram
    /// is not, or no longer, of that flow.
    #[inline]
    pub(crate) fn answer_in_flow(
        &self,
        buf: &mut [u8],
        datagram: &Datagram,
        payload_len: usize,
        offload: bool,
    ) -> Option<Sealed> {
        let flow = self.flows.known.as_ref()?;
        if flow.datagram.flow != datagram.flow || flow.datagram.peer != datagram.peer {
            return None;
        }
        let Datagram { ip, udp, .. } = *datagram;
        let (start, ipv6) = (flow.start(), flow.is_ipv6());
        let len = start + payload_len;
        let frame = &mut buf[..len];
        // A copy of a known length takes a few instructions, another one a call.
        if start == PLAIN_V4 {
            frame[..PLAIN_V4].copy_from_slice(&flow.answer[..PLAIN_V4]);
        } else {
            frame[..start].copy_from_slice(&flow.answer[..start]);
        }
        let udp_len = (UdpHeader::LEN + payload_len) as u16;
        if ipv6 {
            set_word(frame, ip + V6_LEN, udp_len);
        } else {
            let ip_len = Ipv4Header::LEN as u16 + udp_len;
            set_word(frame, ip + V4_LEN, ip_len);
            set_word(frame, ip + V4_CHECKSUM, flow.answer_ip_sum.word(ip_len).checksum());
        }
        set_word(frame, udp + UDP_LEN, udp_len);
        if self.udp_checksums {
            let checksum = if offload {
                flow.pseudo_sum.word(udp_len).folded()
            } else {
                sent(flow.udp_sum.word(udp_len).word(udp_len).bytes(&frame[start..]))
            };
            set_word(frame, udp + UDP_CHECKSUM, checksum);
        }
        Some(Sealed { len, link_len: ip, ip_len: udp - ip, ipv6 })
    }
}

#[cfg(test)]
mod tests {
    use berth_wire::net::{EtherType, MacAddr};
    use zerocopy::IntoBytes;

    use super::*;
    use crate::{HostConfig, Interface, Outcome};

    /// A datagram with this many bytes of payload and no checksum.
    fn frame(id: u16, payload: usize) -> Vec<u8> {
        let [ours, theirs] = [2, 1].map(|number| MacAddr([2, 0, 0, 0, 0, number]));
        let ip_len = UdpHeader::LEN + payload;
        let header = Ipv4Header::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), IpProtocol::UDP, ip_len);
        let mut ip = header.as_bytes().to_vec();
        ip[V4_ID..][..2].copy_from_slice(&id.to_be_bytes());
        let checksum = Sum::default().bytes(&ip).checksum();
        ip[V4_CHECKSUM..][..2].copy_from_slice(&checksum.to_be_bytes());
        let ethernet = EthernetHeader::new(ours, theirs, EtherType::IPV4);
        [ethernet.as_bytes(), &ip, UdpHeader::new(9, 4700, payload).as_bytes(), &vec![0; payload]].concat()
    }

    #[test]
    fn what_changes_from_one_datagram_to_the_next_leaves_the_flow_known() {
        let mut host = Host::new(&HostConfig {
            mac: MacAddr([2, 0, 0, 0, 0, 2]),
            interfaces: vec![Interface { address: [10, 0, 0, 2].into(), prefix: 24 }],
            vlan: None,
            udp_port: 4700,
            udp_checksums: true,
            mtu: 1500,
            neighbours: Vec::new(),
        });
        let mut flow = |id, payload| {
            let mut buf = frame(id, payload);
            let len = buf.len();
            buf.resize(2048, 0);
            match host.rx(&mut buf, len, Verified::default(), Nanos(1)) {
                Outcome::Udp(datagram) => datagram.flow,
                other => panic!("a datagram, not {other:?}"),
            }
        };
        assert_eq!([flow(0, 10), flow(1, 10), flow(2, 10), flow(3, 20), flow(3, 0)], [0, 0, 1, 1, 1]);
    }
}
