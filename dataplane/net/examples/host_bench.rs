//! The cost of a datagram's headers on one core: Ethernet, IPv4 and UDP are read, checked, and rewritten for the
//! answer.
//!
//! Prints one JSON line per block, in nanoseconds per operation: `udp_ns` from frame in to frame out, `memcpy_ns` for a
//! copy of the frame. They take turns.

use std::{hint::black_box, net::IpAddr, time::Instant};

use berth_net::{Host, HostConfig, Interface, Outcome, Verified};
use berth_port::Nanos;
use berth_wire::net::MacAddr;
use etherparse::PacketBuilder;

const BLOCKS: usize = 100;
const PER_BLOCK: u32 = 20_000;
const PAYLOAD: usize = 56;

fn main() {
    let (ours, theirs) = ([2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1]);
    let address = IpAddr::from([10, 0, 0, 2]);
    let mut host = Host::new(&HostConfig {
        mac: MacAddr(ours),
        interfaces: vec![Interface { address, prefix: 24 }],
        vlan: None,
        udp_port: 4700,
        udp_checksums: true,
        mtu: 1500,
        neighbours: Vec::new(),
    });
    let mut request = Vec::new();
    let packet = PacketBuilder::ethernet2(theirs, ours).ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64).udp(40_000, 4700);
    packet.write(&mut request, &[7; PAYLOAD]).expect("a vector takes everything");
    let (mut buf, mut copy) = (vec![0; 2048], vec![0; request.len()]);
    for _ in 0..BLOCKS {
        let udp_ns = per_operation(|| {
            // The answer overwrote the request: renewing it is part of the price.
            buf[..request.len()].copy_from_slice(&request);
            let Outcome::Udp(datagram) = host.rx(black_box(&mut buf), request.len(), Verified::default(), Nanos(1))
            else {
                panic!("a datagram is taken")
            };
            let sealed = host.reply(black_box(&mut buf), &datagram, PAYLOAD, false);
            black_box(sealed);
        });
        let memcpy_ns = per_operation(|| black_box(&mut copy).copy_from_slice(black_box(&request)));
        println!("{{\"udp_ns\": {udp_ns:.2}, \"memcpy_ns\": {memcpy_ns:.2}}}");
    }
}

/// Nanoseconds per operation, averaged over a block.
fn per_operation(mut operation: impl FnMut()) -> f64 {
    let start = Instant::now();
    for _ in 0..PER_BLOCK {
        operation();
    }
    start.elapsed().as_nanos() as f64 / f64::from(PER_BLOCK)
}
