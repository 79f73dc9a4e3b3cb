//! The kernel's own IP stack as the peer: an independent implementation of ARP, neighbour discovery, ping and UDP.

mod common;
#[path = "common/veth.rs"]
mod veth;

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, UdpSocket},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use berth_dpdk::{DpdkPort, PortConfig, open};
use berth_port::{Port, Verdict};
use common::{child_argument, config, counter, eal, payload, serve_until, spawn, v4, v6};
use socket2::{Domain, Protocol, Socket, Type};
use veth::{Veth, run};

const PATIENCE: Option<Duration> = Some(Duration::from_secs(5));

/// Serves while `client` runs on its own thread.
fn while_serving(port: &mut DpdkPort, client: impl FnOnce() + Send) {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let client = scope.spawn(|| {
            client();
            done.store(true, Ordering::Release);
        });
        serve_until(port, |_| done.load(Ordering::Acquire) || client.is_finished());
        client.join().unwrap();
    });
}

/// Calls until no signal ends it: the tap driver has this process sent one for each frame, and what waits with a time limit
/// is not resumed (signal(7)).
fn uninterrupted<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// Sends a thousand datagrams of all lengths, each of which must be answered with its bytes inverted.
fn ask_by_udp(socket: &UdpSocket, peer: SocketAddr, longest: usize) {
    socket.set_read_timeout(PATIENCE).unwrap();
    for n in 0..1000 {
        let request = payload(n, longest);
        socket.send_to(&request, peer).unwrap();
        let mut answer = vec![0; 2048];
        let (len, from) = uninterrupted(|| socket.recv_from(&mut answer)).unwrap();
        assert_eq!(from, peer);
        answer.truncate(len);
        let answer: Vec<u8> = answer.iter().map(|byte| !byte).collect();
        assert_eq!(answer, request, "datagram {n}");
    }
}

/// A socket for which the kernel writes and checks the ICMP header.
fn ping_socket(peer: SocketAddr) -> Socket {
    let protocol = if peer.is_ipv4() { Protocol::ICMPV4 } else { Protocol::ICMPV6 };
    let socket = Socket::new(Domain::for_address(peer), Type::DGRAM, Some(protocol)).unwrap();
    socket.connect(&SocketAddr::new(peer.ip(), 0).into()).unwrap();
    socket.set_read_timeout(PATIENCE).unwrap();
    socket
}

fn ping(mut socket: Socket, peer: SocketAddr) {
    let (request, reply) = if peer.is_ipv4() { (8, 0) } else { (128, 129) };
    for sequence in 0..20 {
        let mut message = vec![request, 0, 0, 0, 0, 0, 0, sequence];
        message.extend(std::iter::repeat_n(sequence, 1400));
        socket.write_all(&message).unwrap();
        let mut answer = vec![0; 2048];
        let len = socket.read(&mut answer).unwrap();
        // The kernel has put its own identifier and checksum into bytes 2 to 5.
        assert_eq!(answer[0], reply);
        assert_eq!(answer[6..len], message[6..]);
    }
}

/// Runs every kind of exchange over one cable.
fn converses(veth: &Veth, port: &mut DpdkPort) {
    let longest = port.max_frame();
    for (peer, own) in [(v4(2), v4(1)), (v6(2), v6(1))] {
        let socket = veth.at_far_end(|| UdpSocket::bind(own).unwrap());
        // The other way first, so that this side has to find out where the kernel is.
        socket.set_read_timeout(PATIENCE).unwrap();
        let greet = |buf: &mut [u8]| {
            buf[..7].copy_from_slice(b"berth 1");
            7
        };
        while port.post(own.into(), greet).is_err() {
            port.tx();
            port.rx(|_| Verdict::Drop);
        }
        port.tx();
        let mut got = [0; 64];
        assert_eq!(socket.recv_from(&mut got).unwrap(), (7, peer));
        assert_eq!(&got[..7], b"berth 1");

        while_serving(port, || ask_by_udp(&socket, peer, longest));
        let pings = veth.at_far_end(|| ping_socket(peer));
        while_serving(port, || ping(pings, peer));
    }
    assert_eq!(counter(port, "rx_frames"), 2000);
    assert_eq!(counter(port, "tx_solicited"), 2);
    for name in ["rx_bad_checksum", "rx_malformed", "rx_held"] {
        assert_eq!(counter(port, name), 0, "{name}");
    }
}

#[test]
fn af_packet_converses_with_the_kernel() {
    let veth = Veth::new();
    let device = format!("net_af_packet0,iface={}", veth.near);
    let mut port = open(eal(), &config(&device, 2)).unwrap().remove(0);
    converses(&veth, &mut port);
}

/// The second process of the test below, which binds the interface and releases it.
#[test]
fn af_xdp_process() {
    let Some(near) = child_argument() else { return };
    open(eal(), &config(&format!("net_af_xdp0,iface={near}"), 2)).unwrap();
}

#[test]
fn af_xdp_takes_over_from_another_process_and_converses_with_the_kernel() {
    let veth = Veth::new();
    assert!(spawn("af_xdp_process", &veth.near).wait().unwrap().success());
    let mut port = open(eal(), &config(&format!("net_af_xdp0,iface={}", veth.near), 2)).unwrap().remove(0);
    converses(&veth, &mut port);
}

#[test]
fn tap_converses_with_the_kernel() {
    let name = format!("btap{}", std::process::id() % 100_000);
    let address = vec![([10, 79, 0, 2].into(), 24)];
    let tap = PortConfig { addresses: address, ..config(&format!("net_tap0,iface={name}"), 2) };
    let mut port = open(eal(), &tap).unwrap().remove(0);
    run(&format!("ip address add 10.79.0.1/24 dev {name}"));
    run(&format!("ip link set {name} up"));
    let (socket, peer) = (UdpSocket::bind("10.79.0.1:0").unwrap(), port.local_addr());
    while_serving(&mut port, || ask_by_udp(&socket, peer, 1472));
    drop(port);
    // The kernel takes interfaces away in its own time.
    let (gone, start) = (|| !std::path::Path::new("/sys/class/net").join(&name).exists(), Instant::now());
    while !gone() {
        assert!(start.elapsed() < Duration::from_secs(5), "the interface outlives its port");
    }
}
