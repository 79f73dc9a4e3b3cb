//! Processor time of both sides for a round trip of 56 bytes, over UDP and over an unreliable connection.
//!
//! `cargo run --release -p berth-roce --example cost`

use std::{
    net::{IpAddr, SocketAddr},
    time::Instant,
};

use berth_net::{Answer, Host, HostConfig, Interface, Outcome, Transport, Udp, Verified};
use berth_port::{Nanos, Peer, Verdict};
use berth_roce::{Config, Remote, Slots, Window, endpoint};
use berth_wire::{
    net::MacAddr,
    rendezvous::ImmForm,
    roce::{P_KEY_DEFAULT, Psn, Qpn, UDP_PORT},
};

const BUFFER: usize = 2048;
const MESSAGE: [u8; 56] = [7; 56];
const ROUNDS: usize = 20_000;
const TRIES: usize = 200;

fn address(host: u8) -> IpAddr {
    [10, 0, 0, host].into()
}

fn host<T: Transport>(number: u8) -> Host {
    let other = 3 - number;
    Host::new(&HostConfig {
        mac: MacAddr([2, 0, 0, 0, 0, number]),
        interfaces: vec![Interface { address: address(number), prefix: 24 }],
        vlan: None,
        udp_port: UDP_PORT,
        udp_checksums: T::UDP_CHECKSUMS,
        mtu: 1500,
        neighbours: vec![(address(other), MacAddr([2, 0, 0, 0, 0, other]))],
    })
}

/// Nanoseconds of the fastest of many round trips.
fn round_trip<T: Transport>(mut client: T, mut port: T, peer: Peer) -> f64 {
    let (mut client_host, mut port_host) = (host::<T>(1), host::<T>(2));
    client.poll();
    port.poll();
    let mut buf = vec![0; BUFFER];
    let mut best = f64::MAX;
    for _ in 0..TRIES {
        let start = Instant::now();
        for _ in 0..ROUNDS / TRIES {
            let to = client.address_of(peer).expect("a known peer");
            let route = client_host.route(to, Nanos(1)).expect("a known neighbour");
            let fill = |payload: &mut [u8]| {
                payload[..MESSAGE.len()].copy_from_slice(&MESSAGE);
                MESSAGE.len()
            };
            let sent = client.post(&client_host, &mut buf, &route, peer, false, fill).expect("short enough");
            let Outcome::Udp(datagram) = port_host.rx(&mut buf, sent.len, Verified::default(), Nanos(1)) else {
                unreachable!("a datagram")
            };
            let taken = port.rx(&port_host, &mut buf, &datagram, false, |frame| {
                let len = frame.len();
                frame.buf_mut()[..len].iter_mut().for_each(|byte| *byte = byte.wrapping_add(1));
                Verdict::Reply
            });
            let Answer::Sealed(answer) = taken.answer else { unreachable!("an answer") };
            let Outcome::Udp(datagram) = client_host.rx(&mut buf, answer.len, Verified::default(), Nanos(1)) else {
                unreachable!("a datagram")
            };
            let taken = client.rx(&client_host, &mut buf, &datagram, false, |frame| {
                assert_eq!(frame.data()[0], 8);
                Verdict::Drop
            });
            assert_eq!(taken.lent, Some(MESSAGE.len()));
        }
        best = best.min(start.elapsed().as_nanos() as f64 / (ROUNDS / TRIES) as f64);
    }
    best
}

fn main() {
    let slots = Slots { count: 64, stride: 2048, base: 0, form: ImmForm::Psn20 };
    let config = Config { p_key: P_KEY_DEFAULT, slots, path_mtu: 1024, peers: 1 };
    let (client, mut at_client) = endpoint(config).expect("a good configuration");
    let (port, mut at_port) = endpoint(config).expect("a good configuration");
    let mut numbers = 0x1234_u32..;
    let mut random = || numbers.next().unwrap_or(0);
    let ours = at_client.reserve(Psn::new(0), &mut random).expect("room");
    let remote =
        |host, qpn: Qpn| Remote { address: address(host), qpn, psn: Psn::new(0), path_mtu: 1024, window: None };
    let theirs = at_port.add(&remote(1, ours.qpn), Psn::new(0), &mut random).expect("room");
    let window = Some(Window { rkey: theirs.rkey, slots, unit: 1 });
    at_client.connect(&ours, &Remote { window, ..remote(2, theirs.qpn) }).expect("room");
    let peer = berth_roce::Registrar::peer(address(2), &ours);

    let udp = round_trip(Udp, Udp, SocketAddr::new(address(2), UDP_PORT).into());
    let roce = round_trip(client, port, peer);
    println!("UDP {udp:.0} ns, RoCE {roce:.0} ns, {:.0} ns more", roce - udp);
}
