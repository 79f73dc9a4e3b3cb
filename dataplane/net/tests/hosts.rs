//! Two hosts joined back to back, and hosts that receive hostile frames.

use std::{
    collections::VecDeque,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use berth_net::{Drop, Host, HostConfig, Interface, NoRoute, Outcome, SharedNeighbours, Verified};
use berth_port::Nanos;
use berth_wire::net::{
    EtherType, EthernetHeader, ICMPV4_ECHO_REQUEST, ICMPV6_ECHO_REQUEST, IcmpHeader, IpProtocol, Ipv4Header,
    Ipv6Header, MacAddr, Sum, UdpHeader,
};
use proptest::prelude::*;
use zerocopy::IntoBytes;

/// Size of the buffer that a frame is received in.
const BUFFER: usize = 2048;

fn config(host: u8, vlan: Option<u16>) -> HostConfig {
    HostConfig {
        mac: MacAddr([2, 0, 0, 0, 0, host]),
        interfaces: vec![
            Interface { address: [10, 0, 0, host].into(), prefix: 24 },
            Interface { address: [0xfd00, 0, 0, 0, 0, 0, 0, u16::from(host)].into(), prefix: 64 },
        ],
        vlan,
        udp_port: 4700,
        udp_checksums: true,
        mtu: 1500,
        neighbours: Vec::new(),
    }
}

fn host(number: u8) -> Host {
    Host::new(&config(number, None))
}

fn v4(host: u8) -> SocketAddr {
    ([10, 0, 0, host], 4700).into()
}

fn v6(host: u8) -> SocketAddr {
    ([0xfd00, 0, 0, 0, 0, 0, 0, u16::from(host)], 4700).into()
}

/// Receives a frame like a port, with the rest of its buffer behind it.
fn rx(host: &mut Host, frame: &[u8]) -> (Outcome, Vec<u8>) {
    let mut buf = frame.to_vec();
    buf.resize(BUFFER.max(frame.len()), 0xee);
    let outcome = host.rx(&mut buf, frame.len(), Verified::default(), Nanos(1));
    (outcome, buf)
}

/// A frame from `from` with `payload`; `from` must know its neighbour already.
fn datagram(from: &mut Host, to: SocketAddr, payload: &[u8]) -> Vec<u8> {
    let route = from.route(to, Nanos(1)).unwrap();
    let mut frame = vec![0; BUFFER];
    frame[route.header_len()..][..payload.len()].copy_from_slice(payload);
    let sealed = from.seal(&mut frame, &route, payload.len(), false);
    frame.truncate(sealed.len);
    frame
}

/// Two hosts that have exchanged addresses.
fn acquainted() -> (Host, Host) {
    let knows = |own, other: u8| {
        let mac = MacAddr([2, 0, 0, 0, 0, other]);
        Host::new(&HostConfig { neighbours: vec![(v4(other).ip(), mac), (v6(other).ip(), mac)], ..config(own, None) })
    };
    (knows(1, 2), knows(2, 1))
}

/// A link that loses frames at random.
struct Link {
    seed: u64,
    loss_percent: u64,
    frames: VecDeque<(usize, Vec<u8>)>,
}

impl Link {
    fn send(&mut self, to: usize, frame: &[u8]) {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        if (self.seed >> 33) % 100 >= self.loss_percent {
            self.frames.push_back((to, frame.to_vec()));
        }
    }
}

/// Host 0 sends `count` numbered datagrams to host 1, one after the other, and repeats those not answered in 10 ms.
fn exchange(loss_percent: u64, seed: u64, vlan: Option<u16>, peer: SocketAddr, count: u64) {
    let mut hosts = [Host::new(&config(1, vlan)), Host::new(&config(2, vlan))];
    let mut link = Link { seed, loss_percent, frames: VecDeque::new() };
    let (mut now, mut answered) = (Nanos(0), 0);
    while answered < count {
        assert!(now < Nanos(3_600_000_000_000), "an hour of simulated time for {answered} answers");
        let mut buf = vec![0; BUFFER];
        let solicit = match hosts[0].route(peer, now) {
            Ok(route) => {
                buf[route.header_len()..][..8].copy_from_slice(&answered.to_le_bytes());
                let sealed = hosts[0].seal(&mut buf, &route, 8, false);
                link.send(1, &buf[..sealed.len]);
                route.solicit
            }
            Err(NoRoute::Unresolved { solicit }) => solicit,
            Err(NoRoute::OffLink) => unreachable!("the peer is on our network"),
        };
        if solicit {
            let len = hosts[0].solicit(&mut buf, peer.ip());
            link.send(1, &buf[..len]);
        }
        while let Some((to, frame)) = link.frames.pop_front() {
            let mut buf = frame.clone();
            buf.resize(BUFFER, 0);
            match hosts[to].rx(&mut buf, frame.len(), Verified::default(), now) {
                Outcome::Udp(datagram) if to == 1 => {
                    buf[datagram.payload.clone()].iter_mut().for_each(|byte| *byte = !*byte);
                    let sealed = hosts[1].reply(&mut buf, &datagram, datagram.payload.len(), false);
                    link.send(0, &buf[..sealed.len]);
                }
                Outcome::Udp(datagram) => {
                    assert_eq!(datagram.peer, peer);
                    let n = !u64::from_le_bytes(buf[datagram.payload].try_into().unwrap());
                    answered += u64::from(n == answered);
                }
                Outcome::Answer(len) => link.send(1 - to, &buf[..len]),
                Outcome::Drop(reason) => assert_eq!(reason, Drop::Consumed),
            }
        }
        now = now + Duration::from_millis(10);
    }
}

#[test]
fn hosts_resolve_each_other_and_exchange_despite_loss() {
    for peer in [v4(2), v6(2)] {
        for vlan in [None, Some(42)] {
            exchange(0, 1, vlan, peer, 100);
            exchange(30, 7, vlan, peer, 10_000);
        }
    }
}

#[test]
fn headers_are_what_another_implementation_expects() {
    let (mut a, _) = acquainted();
    for peer in [v4(2), v6(2)] {
        let frame = datagram(&mut a, peer, b"odd");
        let packet = etherparse::PacketHeaders::from_ethernet_slice(&frame).unwrap();
        let Some(etherparse::TransportHeader::Udp(udp)) = packet.transport else { panic!("{packet:?}") };
        assert_eq!((udp.source_port, udp.destination_port, udp.length), (4700, 4700, 11));
        let checksum = match packet.net.unwrap() {
            etherparse::NetHeaders::Ipv4(ip, _) => {
                assert_eq!(ip.header_checksum, ip.calc_header_checksum());
                udp.calc_checksum_ipv4(&ip, b"odd")
            }
            etherparse::NetHeaders::Ipv6(ip, _) => udp.calc_checksum_ipv6(&ip, b"odd"),
            etherparse::NetHeaders::Arp(_) => panic!("no ARP was sent"),
        };
        assert_eq!(udp.checksum, checksum.unwrap());
    }
}

#[test]
fn pings_are_answered() {
    let mut a = host(1);
    let body = b"\x12\x34\x00\x01 some data of odd length.";
    let message = |kind, pseudo: Sum| {
        let mut header = IcmpHeader::new(kind);
        header.set_checksum(pseudo.bytes(header.as_bytes()).bytes(body).checksum());
        [header.as_bytes(), body].concat()
    };
    let ethernet = |kind| EthernetHeader::new(MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2]), kind);
    let len = body.len() + 4;

    let mut ip = Ipv4Header::new([10, 0, 0, 2].into(), [10, 0, 0, 1].into(), IpProtocol::ICMP, len);
    ip.fill_checksum();
    let icmp = message(ICMPV4_ECHO_REQUEST, Sum::default());
    let frame = [ethernet(EtherType::IPV4).as_bytes(), ip.as_bytes(), &icmp].concat();
    let (outcome, answer) = rx(&mut a, &frame);
    assert_eq!(outcome, Outcome::Answer(frame.len()));
    let (ip, _, reply) = Ipv4Header::parse(&answer[14..frame.len()]).unwrap();
    assert!(ip.checksum_is_valid(&[]) && Sum::default().bytes(reply).is_valid());
    assert_eq!((reply[0], &reply[4..]), (0, &body[..]));

    let (from, to) = (v6(2).ip(), v6(1).ip());
    let (IpAddr::V6(from6), IpAddr::V6(to6)) = (from, to) else { unreachable!() };
    let icmp = message(ICMPV6_ECHO_REQUEST, Sum::pseudo_header(from, to, 58, len as u16));
    let ip = Ipv6Header::new(from6, to6, IpProtocol::ICMPV6, len);
    let frame = [ethernet(EtherType::IPV6).as_bytes(), ip.as_bytes(), &icmp].concat();
    let (outcome, answer) = rx(&mut a, &frame);
    assert_eq!(outcome, Outcome::Answer(frame.len()));
    let (ip, reply) = Ipv6Header::parse(&answer[14..frame.len()]).unwrap();
    assert_eq!((ip.source(), ip.destination()), (to6, from6));
    assert!(Sum::pseudo_header(to, from, 58, len as u16).bytes(reply).is_valid());
    assert_eq!((reply[0], &reply[4..]), (129, &body[..]));
}

/// Changes a valid IPv4 frame, repairs its header checksum, and returns why it is dropped.
fn refused(change: impl FnOnce(&mut [u8])) -> Drop {
    let (mut a, mut b) = acquainted();
    let mut frame = datagram(&mut a, v4(2), b"hello");
    change(&mut frame);
    frame[24..26].fill(0);
    let checksum = Sum::default().bytes(&frame[14..34]).checksum();
    frame[24..26].copy_from_slice(&checksum.to_be_bytes());
    match rx(&mut b, &frame).0 {
        Outcome::Drop(reason) => reason,
        other => panic!("accepted: {other:?}"),
    }
}

#[test]
fn every_reason_to_drop() {
    assert_eq!(refused(|f| f[0] = 4), Drop::OtherStation);
    assert_eq!(refused(|f| f[6] |= 1), Drop::OtherStation);
    assert_eq!(refused(|f| f[..6].fill(0xff)), Drop::OtherStation);
    assert_eq!(refused(|f| f[12] = 9), Drop::OtherEtherType);
    assert_eq!(refused(|f| f[12..18].copy_from_slice(&[0x81, 0, 0, 7, 8, 0])), Drop::OtherVlan);
    assert_eq!(refused(|f| f[14] = 0x55), Drop::Malformed);
    assert_eq!(refused(|f| f[16] = 9), Drop::Malformed);
    assert_eq!(refused(|f| f[20] = 0x20), Drop::Fragment);
    assert_eq!(refused(|f| f[21] = 1), Drop::Fragment);
    assert_eq!(refused(|f| f[23] = 6), Drop::OtherProtocol);
    assert_eq!(refused(|f| f[33] = 9), Drop::OtherAddress);
    for source in [[0, 0, 0, 0], [127, 0, 0, 1], [224, 0, 0, 1], [255; 4], [10, 0, 0, 255], [10, 0, 0, 2]] {
        assert_eq!(refused(|f| f[26..30].copy_from_slice(&source)), Drop::BadSource, "{source:?}");
    }
    assert_eq!(refused(|f| f[39] = 0), Drop::Malformed);
    assert_eq!(refused(|f| f[42] ^= 1), Drop::Checksum);
    let no_checksum = |f: &mut [u8]| f[40..42].fill(0);
    assert_eq!(
        refused(|f| {
            f[36] ^= 1;
            no_checksum(f);
        }),
        Drop::OtherPort
    );
    assert_eq!(
        refused(|f| {
            f[34..36].fill(0);
            no_checksum(f);
        }),
        Drop::OtherPort
    );
}

#[test]
fn ipv6_refuses_what_only_ipv4_allows_and_extensions() {
    let (mut a, mut b) = acquainted();
    let mut frame = datagram(&mut a, v6(2), b"hello");
    frame[60..62].fill(0);
    assert_eq!(rx(&mut b, &frame).0, Outcome::Drop(Drop::Checksum));
    frame[20] = 44;
    assert_eq!(rx(&mut b, &frame).0, Outcome::Drop(Drop::Extension));
}

#[test]
fn options_are_skipped_and_not_returned() {
    let (mut a, mut b) = acquainted();
    let plain = datagram(&mut a, v4(2), b"hello");
    let mut frame = [&plain[..34], &[0x83, 3, 4, 1], &plain[34..]].concat();
    frame[14] = 0x46;
    frame[16..18].copy_from_slice(&37u16.to_be_bytes());
    frame[24..26].fill(0);
    let checksum = Sum::default().bytes(&frame[14..38]).checksum();
    frame[24..26].copy_from_slice(&checksum.to_be_bytes());
    let (outcome, mut buf) = rx(&mut b, &frame);
    let Outcome::Udp(datagram) = outcome else { panic!("{outcome:?}") };
    assert_eq!(&buf[datagram.payload.clone()], b"hello");
    let sealed = b.reply(&mut buf, &datagram, 5, false);
    assert_eq!((sealed.len, sealed.ip_len), (frame.len(), 24));
    assert_eq!(buf[34..38], [0; 4]);
    assert!(matches!(rx(&mut a, &buf[..sealed.len]).0, Outcome::Udp(_)));
}

#[test]
fn link_layer_padding_is_not_payload() {
    let (mut a, mut b) = acquainted();
    let mut frame = datagram(&mut a, v4(2), b"hi");
    frame.resize(60, 0xaa);
    let (Outcome::Udp(datagram), buf) = rx(&mut b, &frame) else { panic!("refused") };
    assert_eq!(&buf[datagram.payload], b"hi");
}

#[test]
fn what_the_device_verified_is_not_summed_again() {
    let (mut a, mut b) = acquainted();
    let mut frame = datagram(&mut a, v4(2), b"hello");
    frame[42] ^= 1;
    frame[25] ^= 1;
    let verified = |ip, udp| Verified { ip, udp };
    let len = frame.len();
    for (verified, accepted) in
        [(verified(true, true), true), (verified(true, false), false), (verified(false, true), false)]
    {
        let outcome = b.rx(&mut frame, len, verified, Nanos(0));
        assert_eq!(matches!(outcome, Outcome::Udp(_)), accepted, "{verified:?}");
    }
}

#[test]
fn a_device_completes_the_sum_of_the_pseudo_header() {
    let (mut a, _) = acquainted();
    for peer in [v4(2), v6(2)] {
        let complete = datagram(&mut a, peer, b"hello");
        let route = a.route(peer, Nanos(1)).unwrap();
        let mut frame = complete.clone();
        let sealed = a.seal(&mut frame, &route, 5, true);
        // What the device does: sum the segment, with the field as it is, and store the complement there.
        let udp = sealed.link_len + sealed.ip_len;
        let checksum = Sum::default().bytes(&frame[udp..]).checksum();
        frame[udp + 6..udp + 8].copy_from_slice(&checksum.to_be_bytes());
        assert_eq!(frame, complete);
    }
}

#[test]
fn duplicate_address_detection_hears_that_an_address_is_taken() {
    let mut a = host(1);
    let IpAddr::V6(target) = v6(1).ip() else { unreachable!() };
    let group = berth_wire::net::solicited_node(target);
    let mut message = berth_wire::net::NdpMessage::solicitation(target);
    let pseudo = Sum::pseudo_header(IpAddr::from([0u16; 8]), group.into(), 58, 24);
    message.header.set_checksum(pseudo.bytes(message.as_bytes()).checksum());
    let ip = Ipv6Header::new([0u16; 8].into(), group, IpProtocol::ICMPV6, 24).with_hop_limit(255);
    let mac = MacAddr([2, 0, 0, 0, 0, 9]);
    let ethernet = EthernetHeader::new(MacAddr::of_ipv6_multicast(group), mac, EtherType::IPV6);
    let frame = [ethernet.as_bytes(), ip.as_bytes(), message.as_bytes()].concat();
    let (outcome, answer) = rx(&mut a, &frame);
    assert_eq!(outcome, Outcome::Answer(14 + 40 + 32));
    assert_eq!(answer[..6], [0x33, 0x33, 0, 0, 0, 1]);
    // Unsolicited, override.
    assert_eq!(answer[14 + 40 + 4], 0x20);
    // One router further, it would not be neighbour discovery.
    let mut routed = frame.clone();
    routed[14 + 7] = 254;
    assert_eq!(rx(&mut a, &routed).0, Outcome::Drop(Drop::Malformed));
}

#[test]
fn queues_of_one_device_share_resolutions() {
    let shared = SharedNeighbours::default();
    let mut queues = [0, 1].map(|_| Host::sharing(&config(1, None), &shared));
    let mut buf = vec![0; BUFFER];
    let len = queues[0].solicit(&mut buf, v4(2).ip());
    let Outcome::Answer(len) = host(2).rx(&mut buf, len, Verified::default(), Nanos(0)) else { panic!("no answer") };
    assert_eq!(queues[0].rx(&mut buf, len, Verified::default(), Nanos(0)), Outcome::Drop(Drop::Consumed));
    assert!(queues[1].route(v4(2), Nanos(0)).is_ok());
}

fn valid_frames() -> Vec<Vec<u8>> {
    let (mut a, _) = acquainted();
    let mut frames = vec![datagram(&mut a, v4(2), b"hello, four"), datagram(&mut a, v6(2), b"hello, six")];
    for target in [v4(2), v6(2)] {
        let mut buf = vec![0; BUFFER];
        let len = a.solicit(&mut buf, target.ip());
        let request = buf[..len].to_vec();
        let (Outcome::Answer(len), answer) = rx(&mut host(2), &request) else { panic!("no answer") };
        frames.extend([request, answer[..len].to_vec()]);
    }
    frames
}

/// Answers whatever can be answered, with the longest possible payload.
fn provoke(host: &mut Host, frame: &[u8]) {
    let (outcome, mut buf) = rx(host, frame);
    match outcome {
        Outcome::Udp(datagram) => {
            assert!(datagram.payload.end <= frame.len());
            for len in [0, datagram.capacity] {
                assert!(host.reply(&mut buf, &datagram, len, false).len <= buf.len());
            }
        }
        Outcome::Answer(len) => assert!(len <= buf.len()),
        Outcome::Drop(_) => {}
    }
}

proptest! {
    #[test]
    fn datagrams_round_trip(payload in proptest::collection::vec(any::<u8>(), 0..1453), six: bool, answer in 0usize..1453) {
        let (mut a, mut b) = acquainted();
        let (to, from) = if six { (v6(2), v6(1)) } else { (v4(2), v4(1)) };
        let (outcome, mut buf) = rx(&mut b, &datagram(&mut a, to, &payload));
        let Outcome::Udp(datagram) = outcome else { panic!("{outcome:?}") };
        prop_assert_eq!(&buf[datagram.payload.clone()], &payload[..]);
        prop_assert_eq!(datagram.peer, from);
        prop_assert_eq!(datagram.capacity, if six { 1452 } else { 1472 });
        buf[datagram.payload.start..][..answer].fill(0x5a);
        let sealed = b.reply(&mut buf, &datagram, answer, false);
        let (outcome, buf) = rx(&mut a, &buf[..sealed.len]);
        let Outcome::Udp(datagram) = outcome else { panic!("{outcome:?}") };
        prop_assert_eq!(datagram.peer, to);
        prop_assert_eq!(&buf[datagram.payload], &vec![0x5a; answer][..]);
    }

    #[test]
    fn one_flipped_bit_is_never_a_datagram(six: bool, bit: usize) {
        let (mut a, mut b) = acquainted();
        let mut frame = datagram(&mut a, if six { v6(2) } else { v4(2) }, b"payload");
        // Behind the Ethernet header, everything that matters is summed: for IPv6 all but its first word and hop limit.
        let bit = bit % ((frame.len() - 14) * 8);
        let byte = 14 + bit / 8;
        prop_assume!(!six || !(byte < 18 || byte == 21));
        frame[byte] ^= 1 << (bit % 8);
        let dropped = matches!(rx(&mut b, &frame).0, Outcome::Drop(_));
        // Cleared by the flip, the field of an IPv4 checksum would mean that there is none.
        prop_assert!(dropped || frame[40..42] == [0, 0]);
    }

    #[test]
    fn mutated_frames_never_panic(
        which in 0usize..6,
        flips in proptest::collection::vec((any::<usize>(), any::<u8>()), 0..8),
        cut: usize,
    ) {
        let mut frame = valid_frames().swap_remove(which);
        for (at, byte) in flips {
            let at = at % frame.len();
            frame[at] = byte;
        }
        frame.truncate(cut % (frame.len() * 4) + 1);
        provoke(&mut host(2), &frame);
    }

    #[test]
    fn random_frames_never_panic(frame in proptest::collection::vec(any::<u8>(), 0..200)) {
        provoke(&mut host(2), &frame);
        let mut addressed = frame;
        for (at, byte) in [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0].into_iter().enumerate() {
            if let Some(slot) = addressed.get_mut(at) {
                *slot = byte;
            }
        }
        provoke(&mut host(2), &addressed);
    }

    #[test]
    fn headers_without_an_ip_packet_never_panic(udp_len: u16, payload in proptest::collection::vec(any::<u8>(), 0..64)) {
        let mut udp = UdpHeader::new(1, 4700, 0);
        udp.set_checksum(0);
        let mut segment = [udp.as_bytes(), &payload].concat();
        segment[4..6].copy_from_slice(&udp_len.to_be_bytes());
        let mut ip = Ipv4Header::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), IpProtocol::UDP, segment.len());
        ip.fill_checksum();
        let ethernet = EthernetHeader::new(MacAddr([2, 0, 0, 0, 0, 2]), MacAddr([2, 0, 0, 0, 0, 1]), EtherType::IPV4);
        provoke(&mut host(2), &[ethernet.as_bytes(), ip.as_bytes(), &segment].concat());
    }
}
