//! An unreliable connection under hostile packets: nothing panics, and every answer is one that its reader takes.
#![no_main]

use berth_net::{Answer, Host, HostConfig, Interface, Outcome, Transport as _, Verified};
use berth_port::{Nanos, Verdict};
use berth_roce::{Config, Remote, Slots, endpoint};
use berth_wire::{
    net::{EthernetHeader, Ipv4Header, MacAddr, UdpHeader},
    rendezvous::ImmForm,
    roce::{P_KEY_DEFAULT, Packet, Psn, Qpn, UDP_PORT, icrc},
};

/// The queue pair's number and key: what a peer knows, a fuzzer shall not have to guess.
const NUMBERS: [u32; 2] = [0x11_2233, 0x4455_6677];

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let slots = Slots { count: 4, stride: 128, base: 0, form: ImmForm::Psn24 };
    let (mut endpoint, mut registrar) =
        endpoint(Config { p_key: P_KEY_DEFAULT, slots, path_mtu: 256, peers: 1 }).unwrap();
    let mac = |host| MacAddr([2, 0, 0, 0, 0, host]);
    let address = |host| [10, 0, 0, host].into();
    let host = |number| {
        Host::new(&HostConfig {
            mac: mac(number),
            interfaces: vec![Interface { address: address(number), prefix: 24 }],
            vlan: None,
            udp_port: UDP_PORT,
            udp_checksums: false,
            mtu: 1500,
            neighbours: vec![(address(3 - number), mac(3 - number))],
        })
    };
    let (mut port, mut peer) = (host(2), host(1));
    let mut numbers = NUMBERS.into_iter();
    let remote = Remote { address: address(1), qpn: Qpn::new(2), psn: Psn::new(0), path_mtu: 4096, window: None };
    registrar.add(&remote, Psn::new(0), || numbers.next().unwrap_or(0)).unwrap();
    endpoint.poll();
    // One length byte and a datagram each, whose ICRC is made right: checking it first, a port sees nothing else.
    let mut rest = input;
    while let Some((&len, more)) = rest.split_first() {
        let (bytes, more) = more.split_at(usize::from(len).min(more.len()));
        rest = more;
        let route = peer.route((address(2), UDP_PORT).into(), Nanos(0)).unwrap();
        let mut frame = vec![0; route.header_len()];
        frame.extend(bytes);
        let sealed = peer.seal(&mut frame, &route, bytes.len(), false);
        if bytes.len() >= 16 {
            let (packet, crc) = frame[sealed.link_len..].split_last_chunk_mut::<4>().unwrap();
            *crc = icrc(packet, sealed.ip_len).0;
        }
        let len = frame.len();
        frame.resize(2048, 0);
        let Outcome::Udp(datagram) = port.rx(&mut frame, len, Verified::default(), Nanos(0)) else { unreachable!() };
        let taken = endpoint.rx(&port, &mut frame, &datagram, false, |frame| {
            assert!(frame.len() <= frame.capacity());
            Verdict::Reply
        });
        if let Answer::Sealed(sealed) = taken.answer {
            let (packet, crc) = frame[sealed.link_len..sealed.len].split_last_chunk().unwrap();
            assert_eq!(*crc, icrc(packet, sealed.ip_len).0);
            let at = EthernetHeader::LEN + Ipv4Header::LEN + UdpHeader::LEN;
            let answer = Packet::parse(&frame[at..sealed.len]).unwrap();
            assert_eq!((answer.destination, answer.payload.len()), (Qpn::new(2), taken.lent.unwrap()));
        }
    }
});
