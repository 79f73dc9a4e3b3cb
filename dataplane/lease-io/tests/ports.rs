//! Two-sided messages over real ports and through faults, and revocations of a busy port.

mod common;

use std::{
    net::{SocketAddr, UdpSocket},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use berth_lease::{Entry, State};
use berth_lease_io::{LeaseService, TwoSided};
use berth_port::{Clock, Fault, FaultSpec, Faults, Now, Port, Service, Verdict};
use berth_udp::{UdpConfig, UdpPort};
use berth_uring::UringSocket;
use berth_wire::fabric::data::two_sided::{Opcode, Request, Status};
use common::*;
use zerocopy::IntoBytes;

const PATIENCE: Duration = Duration::from_secs(10);

/// Polls a port and its service until told to stop, then reports what it counted.
fn serve<P: Port>(port: &mut P, service: &mut LeaseService<TwoSided>, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        port.rx(|frame| service.handle(frame, at(NOW)));
        service.poll(port, at(NOW));
        port.tx();
    }
}

struct Client(UdpSocket);

impl Client {
    fn new(server: SocketAddr) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(server).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(socket)
    }

    fn ask(&self, opcode: Opcode, offset: u64, len: u64, data: &[u8]) -> Vec<u8> {
        let header = Request::new(opcode, key(MEMORY).0, GENERATION, offset, len);
        self.0.send(&[header.as_bytes(), data].concat()).unwrap();
        let mut buf = vec![0; 10_000];
        let len = self.0.recv(&mut buf).unwrap();
        buf.truncate(len);
        buf
    }
}

/// Every length that a lease allows goes there and back.
fn every_kind_of_length<P: Port>(port: impl FnOnce(&UdpConfig) -> P + Send) {
    let node = Node::new();
    let mut service = LeaseService::<TwoSided>::new(&node.table, &node.regions, 2);
    let (stop, (address, there)) = (AtomicBool::new(false), std::sync::mpsc::channel());
    thread::scope(|scope| {
        scope.spawn(|| {
            // On this thread: a ring belongs to the one that makes it.
            let mut config = UdpConfig::new("127.0.0.1:0".parse().unwrap());
            config.max_frame = 9000;
            let mut port = port(&config);
            address.send(port.local_addr()).unwrap();
            serve(&mut port, &mut service, &stop);
        });
        let client = Client::new(there.recv().unwrap());
        let mut rng = fastrand::Rng::with_seed(1);
        let mut model = original(0, LEN as usize);
        for round in 0..300 {
            let len = [1, 31, 64, 1472, 4096, 8192][round % 6];
            let offset = rng.usize(0..LEN as usize - len);
            let data: Vec<u8> = std::iter::repeat_with(|| rng.u8(..)).take(len).collect();
            assert_eq!(client.ask(Opcode::Write, offset as u64, len as u64, &data), [0]);
            model[offset..offset + len].copy_from_slice(&data);
            let from = rng.usize(0..LEN as usize - len);
            let read = client.ask(Opcode::Read, from as u64, len as u64, &[]);
            assert_eq!((read[0], &read[1..]), (0, &model[from..from + len]));
        }
        assert_eq!(client.ask(Opcode::Read, LEN, 1, &[]), [Status::OutOfRange as u8]);
        stop.store(true, Ordering::Relaxed);
    });
    assert!(node.canaries_live());
    let counted = events(&service);
    assert_eq!((counted["read"], counted["written"], counted["out_of_range"]), (300, 300, 1));
}

#[test]
fn over_a_kernel_socket() {
    every_kind_of_length(|config| UdpPort::open(config).unwrap());
}

#[test]
fn over_io_uring() {
    every_kind_of_length(|config| UringSocket::bind(config).unwrap().into_port().unwrap());
}

#[derive(Clone)]
struct Still;

impl Clock for Still {
    fn now(&self) -> Now {
        at(NOW)
    }
}

/// Damaged, repeated and reordered messages: what is answered was served, and nothing leaves the lease.
#[test]
fn through_faults() {
    let node = Node::new();
    let mut service = LeaseService::<TwoSided>::new(&node.table, &node.regions, 2);
    let addresses = [1, 2].map(|host| SocketAddr::from(([127, 0, 0, host], 1)));
    let (mut ours, theirs) = berth_port::Loopback::pair(addresses, 64, 9000);
    let faults = Faults { drop: 0.05, corrupt: 0.3, duplicate: 0.1, reorder: 0.1, ..Faults::default() };
    let mut theirs = Fault::new(theirs, FaultSpec { seed: 4, rx: faults, tx: faults }, Still);
    let mut rng = fastrand::Rng::with_seed(2);
    let mut answers = 0;
    for _ in 0..20_000 {
        let (write, offset, len) = (rng.bool(), rng.u64(0..LEN), rng.u64(1..64));
        let header =
            Request::new(if write { Opcode::Write } else { Opcode::Read }, key(MEMORY).0, GENERATION, offset, len);
        let payload = if write { vec![rng.u8(..); len as usize] } else { Vec::new() };
        let message = [header.as_bytes(), &payload].concat();
        let _ = ours.post(addresses[1].into(), |buf| {
            buf[..message.len()].copy_from_slice(&message);
            message.len()
        });
        ours.tx();
        theirs.rx(|frame| service.handle(frame, at(NOW)));
        theirs.tx();
        ours.rx(|_| {
            answers += 1;
            Verdict::Drop
        });
    }
    assert!(answers > 15_000, "{answers}");
    assert!(node.canaries_live());
    let counted = events(&service);
    assert!(counted["unknown_lease"] > 100 && counted["stale_generation"] > 100, "{counted:?}");
}

/// A core serves as fast as it can while another revokes, again and again: nothing is served to a generation once the
/// writer knows that nobody acts on it any more, and the first refusal comes within a millisecond.
#[test]
fn nothing_is_served_after_a_revocation_is_quiet() {
    let mut node = Node::new();
    let (stop, refusals) = (AtomicBool::new(false), AtomicU64::new(0));
    let heap = node.heap.clone();
    let mut service = LeaseService::<TwoSided>::new(&node.table, &node.regions, 2);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut buf = vec![0; 128];
            for counter in 0_u64.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                // A write by the holder: it must not appear once the revocation is quiet.
                let header = Request::new(Opcode::Write, key(MEMORY).0, GENERATION, 0, 8);
                buf[..32].copy_from_slice(header.as_bytes());
                buf[32..40].copy_from_slice(&(counter | 1 << 63).to_be_bytes());
                let mut frame = berth_port::Frame::new(&mut buf, 40, 40, peer());
                assert_eq!(service.handle(&mut frame, at(NOW)), Verdict::Reply);
                match Status::from_code(frame.data()[0]).unwrap() {
                    Status::Ok => {}
                    Status::LeaseRevoked => {
                        refusals.fetch_add(1, Ordering::Relaxed);
                    }
                    other => panic!("{other:?}"),
                }
            }
        });
        let until = Instant::now() + Duration::from_millis(1500);
        let mut revocations = 0;
        while Instant::now() < until {
            let seen = refusals.load(Ordering::Relaxed);
            node.set(Entry { state: State::Revoked, ..memory() });
            node.writer.quiesce();
            // The bytes are the node's own again: what it writes must stay.
            let ours: Vec<u8> = vec![revocations as u8 & 0x7F; 8];
            berth_lease::Bytes::write(&*heap, BASE, &ours);
            while refusals.load(Ordering::Relaxed) < seen + 3 {
                std::hint::spin_loop();
            }
            assert_eq!(heap.bytes()[BASE as usize..][..8], ours[..]);
            revocations += 1;
            node.set(memory());
        }
        stop.store(true, Ordering::Relaxed);
        assert!(revocations > 20, "{revocations}");
    });
}

/// The same over a socket: from the revocation's quiescence on, every answer to a message sent later is a refusal.
#[test]
fn a_busy_port_refuses_at_once() {
    let mut node = Node::new();
    let mut service = LeaseService::<TwoSided>::new(&node.table, &node.regions, 2);
    let mut port = UdpPort::open(&UdpConfig::new("127.0.0.1:0".parse().unwrap())).unwrap();
    let (stop, address) = (AtomicBool::new(false), port.local_addr());
    let (quit, served) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        scope.spawn(|| serve(&mut port, &mut service, &stop));
        let (served, quit) = (&served, &quit);
        let busy = scope.spawn(move || {
            let client = Client::new(address);
            while !quit.load(Ordering::Relaxed) {
                client.ask(Opcode::Read, 0, 64, &[]);
                served.fetch_add(1, Ordering::Relaxed);
            }
        });
        let client = Client::new(address);
        for _ in 0..50 {
            // The other client is at work in every round.
            let before = served.load(Ordering::Relaxed);
            while served.load(Ordering::Relaxed) == before {
                thread::yield_now();
            }
            assert_eq!(client.ask(Opcode::Read, 0, 64, &[])[0], Status::Ok as u8);
            node.set(Entry { state: State::Revoked, ..memory() });
            node.writer.quiesce();
            assert_eq!(client.ask(Opcode::Read, 0, 64, &[]), [Status::LeaseRevoked as u8]);
            node.set(memory());
        }
        quit.store(true, Ordering::Relaxed);
        busy.join().unwrap();
        stop.store(true, Ordering::Relaxed);
    });
}
