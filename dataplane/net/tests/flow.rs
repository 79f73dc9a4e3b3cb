//! A host that knows a flow behaves exactly like one that reads every header.

use std::net::{IpAddr, SocketAddr};

use berth_net::{Host, HostConfig, Interface, Outcome, Verified};
use berth_port::Nanos;
use berth_wire::net::MacAddr;
use proptest::{prelude::*, sample::Index};

const BUFFER: usize = 2048;

#[derive(Debug, Clone, Copy)]
struct Link {
    v6: bool,
    vlan: Option<u16>,
    udp_checksums: bool,
}

impl Link {
    fn address(self, number: u8) -> IpAddr {
        if self.v6 { [0xfd00, 0, 0, 0, 0, 0, 0, u16::from(number)].into() } else { [10, 0, 0, number].into() }
    }

    fn host(self, number: u8, udp_port: u16) -> Host {
        let mac = |number| MacAddr([2, 0, 0, 0, 0, number]);
        let prefix = if self.v6 { 64 } else { 24 };
        Host::new(&HostConfig {
            mac: mac(number),
            interfaces: vec![Interface { address: self.address(number), prefix }],
            vlan: self.vlan,
            udp_port,
            udp_checksums: self.udp_checksums,
            mtu: 1500,
            neighbours: (1..=2).map(|other| (self.address(other), mac(other))).collect(),
        })
    }

    /// A frame to port 4700 of host 2.
    fn frame(self, from_port: u16, payload: &[u8]) -> Vec<u8> {
        let mut sender = self.host(1, from_port);
        let to = SocketAddr::new(self.address(2), 4700);
        let route = sender.route(to, Nanos(1)).expect("a neighbour");
        let mut frame = vec![0; BUFFER];
        frame[route.header_len()..][..payload.len()].copy_from_slice(payload);
        let sealed = sender.seal(&mut frame, &route, payload.len(), false);
        frame.truncate(sealed.len);
        frame
    }
}

/// A host's reading of a frame, and its answer of `answer` bytes if they fit.
fn makes(host: &mut Host, frame: &[u8], verified: Verified, answer: usize, offload: bool) -> (String, Vec<u8>) {
    let mut buf = frame.to_vec();
    buf.resize(BUFFER, 0xee);
    match host.rx(&mut buf, frame.len(), verified, Nanos(1)) {
        Outcome::Udp(datagram) => {
            let payload = datagram.payload.clone();
            let said = format!(
                "{payload:?} {} {} {} {} {}",
                datagram.capacity, datagram.peer, datagram.ip, datagram.udp, datagram.way
            );
            let len = answer.min(datagram.capacity);
            buf[payload.start..][..len].fill(0x5a);
            let sealed = host.reply(&mut buf, &datagram, len, offload);
            buf.truncate(sealed.len);
            (format!("{said} {sealed:?}"), buf)
        }
        other => (format!("{other:?}"), Vec::new()),
    }
}

fn links() -> impl Strategy<Value = Link> {
    (any::<bool>(), prop_oneof![Just(None), Just(Some(7))], any::<bool>()).prop_map(|(v6, vlan, udp_checksums)| Link {
        v6,
        vlan,
        udp_checksums,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Frames of the flow with other payloads, cut short, and with arbitrary bytes of the headers changed.
    #[test]
    fn a_known_flow_is_read_and_answered_like_any_other(
        link in links(),
        payload in proptest::collection::vec(any::<u8>(), 0..200),
        changes in proptest::collection::vec((any::<Index>(), any::<u8>()), 0..3),
        unsummed: bool,
        cut in prop_oneof![4 => Just(0), 1 => 1usize..80],
        verified in (any::<bool>(), any::<bool>()).prop_map(|(ip, udp)| Verified { ip, udp }),
        answer in 0usize..1600,
        offload: bool,
    ) {
        let (mut knows, mut reads) = (link.host(2, 4700), link.host(2, 4700));
        for _ in 0..3 {
            makes(&mut knows, &link.frame(40_000, b"earlier"), Verified::default(), 7, false);
        }
        let mut frame = link.frame(40_000, &payload);
        if unsummed {
            let checksum = frame.len() - payload.len() - 2;
            frame[checksum..][..2].fill(0);
        }
        for (at, byte) in changes {
            let at = at.index(frame.len().min(80));
            frame[at] = byte;
        }
        frame.truncate(frame.len() - cut.min(frame.len()));
        let known = makes(&mut knows, &frame, verified, answer, offload);
        prop_assert_eq!(known, makes(&mut reads, &frame, verified, answer, offload));
    }
}

#[test]
fn an_answer_goes_to_whom_it_is_given() {
    let link = Link { v6: false, vlan: None, udp_checksums: true };
    let mut host = link.host(2, 4700);
    let frame = link.frame(40_000, b"a request");
    for round in 0..4 {
        let mut buf = frame.clone();
        buf.resize(BUFFER, 0);
        let Outcome::Udp(datagram) = host.rx(&mut buf, frame.len(), Verified::default(), Nanos(round)) else {
            panic!("a datagram")
        };
        let peer = SocketAddr::new(datagram.peer.ip(), 4791);
        host.reply(&mut buf, &datagram.by(peer), 4, false);
        assert_eq!(buf[36..38], 4791_u16.to_be_bytes(), "round {round}");
    }
}

#[test]
fn peers_that_take_turns_are_each_answered() {
    let link = Link { v6: true, vlan: None, udp_checksums: true };
    let (mut knows, mut reads) = (link.host(2, 4700), link.host(2, 4700));
    for round in 0..40_u16 {
        // First one alone, so that it is known, then three in turn, then pairs.
        let from = 40_000 + [0, round % 3, round / 2 % 3][usize::from(round / 14)];
        let frame = link.frame(from, &round.to_be_bytes());
        let known = makes(&mut knows, &frame, Verified::default(), 30, false);
        let port = from.to_be_bytes();
        assert_eq!(known.1[56..58], port, "round {round}: to {from}");
        // One that has seen nothing before knows no flow.
        assert_eq!(known, makes(&mut reads, &frame, Verified::default(), 30, false), "round {round}");
        reads = link.host(2, 4700);
    }
}
