//! Late answers, to more peers than the neighbour table holds.

use std::net::{IpAddr, SocketAddr};

use berth_net::{Datagram, Host, HostConfig, Interface, NoRoute, Outcome, Verified};
use berth_port::Nanos;
use berth_wire::net::MacAddr;

fn host(addresses: &[IpAddr], mac: MacAddr, neighbour: Option<(IpAddr, MacAddr)>) -> Host {
    Host::new(&HostConfig {
        mac,
        interfaces: addresses
            .iter()
            .map(|&address| Interface { address, prefix: if address.is_ipv4() { 24 } else { 64 } })
            .collect(),
        vlan: None,
        udp_port: 4700,
        udp_checksums: true,
        mtu: 1500,
        neighbours: neighbour.into_iter().collect(),
    })
}

/// A datagram from `peer`, whose link-layer address is `mac`, as `server` receives it.
fn ask(server: &mut Host, to: IpAddr, peer: IpAddr, mac: MacAddr) -> Datagram {
    let mut client = host(&[peer], mac, Some((to, MacAddr([2, 0, 0, 0, 0, 1]))));
    let mut buf = vec![0; 2048];
    let route = client.route(SocketAddr::new(to, 4700), Nanos(1)).unwrap();
    let len = client.seal(&mut buf, &route, 8, false).len;
    match server.rx(&mut buf, len, Verified::default(), Nanos(1)) {
        Outcome::Udp(datagram) => datagram,
        outcome => panic!("{outcome:?}"),
    }
}

#[test]
fn every_late_answer_goes_back_by_the_way_of_its_request() {
    const PEERS: u32 = 10_000;
    for v6 in [false, true] {
        let address = |net: u32, host: u32| {
            if v6 {
                IpAddr::from([0xfd00, net as u16, 0, 0, 0, 0, (host >> 16) as u16, host as u16])
            } else {
                IpAddr::from((net << 24 | host).to_be_bytes())
            }
        };
        // The second address is asked too, and answers itself; the peers are behind a router, on none of our networks.
        let (ours, mac) = ([address(10, 1), address(11, 1)], MacAddr([2, 0, 0, 0, 0, 1]));
        let mut server = host(&ours, mac, None);
        let asked: Vec<_> = (0..PEERS)
            .map(|n| {
                let from = MacAddr([2, 1, 0, 0, (n >> 8) as u8, n as u8]);
                (from, ours[n as usize % 2], ask(&mut server, ours[n as usize % 2], address(12, n + 2), from))
            })
            .collect();
        let forgotten =
            asked.iter().filter(|(.., datagram)| server.route(datagram.peer, Nanos(2)) == Err(NoRoute::OffLink));
        assert!(forgotten.count() > 5000, "the table was to be too small");
        for (from, source, datagram) in &asked {
            let route = server.way_back(datagram.peer, datagram.way).expect("a way back");
            assert!(!route.solicit);
            let mut buf = vec![0; 2048];
            let sealed = server.seal(&mut buf, &route, 4, false);
            let mut client = host(&[datagram.peer.ip()], *from, None);
            match client.rx(&mut buf, sealed.len, Verified::default(), Nanos(3)) {
                Outcome::Udp(answer) => {
                    assert_eq!((answer.peer, answer.payload.len()), (SocketAddr::new(*source, 4700), 4));
                }
                outcome => panic!("{outcome:?}"),
            }
        }
        assert_eq!(server.way_back(asked[0].2.peer, 0), None);
    }
}

#[test]
fn a_link_full_of_peers_is_known() {
    let mut server = host(&[[10, 0, 0, 1].into()], MacAddr([2, 0, 0, 0, 0, 1]), None);
    for n in 0..512u32 {
        ask(
            &mut server,
            [10, 0, 0, 1].into(),
            (0x0a01_0000 + n).to_be_bytes().into(),
            MacAddr([2, 1, 0, 0, 0, n as u8]),
        );
    }
    let known = |n: &u32| server.route(SocketAddr::new((0x0a01_0000 + n).to_be_bytes().into(), 1), Nanos(2)).is_ok();
    assert_eq!((0..512u32).filter(known).count(), 512);
}
