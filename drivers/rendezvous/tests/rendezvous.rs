//! The rendezvous over loopback: both forms, peers that come and go, and hostile ones.

use std::{
    collections::BTreeSet,
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use berth_rendezvous::{Acceptor, Answer, CallError, Form, Limits, Offer, PeerId, Rendezvous, Status, call};
use berth_wire::rendezvous::{HostApi, ImmForm, Peer, PeerKind, RdmaSide, Slots, ipv4_to_gid};

/// What the acceptor was told, and what it is to do.
#[derive(Default)]
struct Book {
    here: BTreeSet<PeerId>,
    qps: Vec<u32>,
    gone: usize,
    refuse: Option<Status>,
    end: Option<PeerId>,
}

struct Port(Arc<Mutex<Book>>);

const SIDE: RdmaSide = RdmaSide {
    qp_num: 0x55,
    gid: [0; 16],
    psn: 77,
    rkey: 0x1234,
    addr: 0,
    slots: Some(Slots { count: 64, stride: 256, form: ImmForm::Psn20 }),
    mtu: 1024,
};

fn side() -> RdmaSide {
    RdmaSide { gid: ipv4_to_gid(Ipv4Addr::new(10, 0, 0, 9)), ..SIDE }
}

impl Acceptor for Port {
    fn offer(&mut self, peer: PeerId, from: SocketAddr, offer: &Offer<'_>, answer: &mut Answer) -> Result<(), Status> {
        assert!(from.ip().is_loopback());
        let mut book = self.0.lock().unwrap();
        if let Some(status) = book.refuse {
            return Err(status);
        }
        let Peer::Rdma { qp_num, .. } = offer.peer else { return Err(Status::UnsupportedOp) };
        assert!(book.here.insert(peer));
        book.qps.push(qp_num);
        answer.push_rdma(&side());
        Ok(())
    }

    fn gone(&mut self, peer: PeerId) {
        let mut book = self.0.lock().unwrap();
        assert!(book.here.remove(&peer), "{peer:?} was not here");
        book.gone += 1;
    }

    fn tick(&mut self, end: &mut dyn FnMut(PeerId)) {
        let mut book = self.0.lock().unwrap();
        if let Some(peer) = book.end.take() {
            book.here.remove(&peer);
            end(peer);
        }
    }
}

fn listen(form: Form, limits: Limits) -> (Rendezvous, Arc<Mutex<Book>>) {
    let book = Arc::<Mutex<Book>>::default();
    (Rendezvous::listen(any(), form, limits, Port(book.clone())).unwrap(), book)
}

fn any() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}

fn offer(qp_num: u32) -> Offer<'static> {
    let gid = ipv4_to_gid(Ipv4Addr::new(10, 0, 0, 1));
    Offer { kind: PeerKind::UcWriteImm, peer: Peer::Rdma { qp_num, gid, psn: 3, mtu: 1024 }, window: None }
}

fn counter(rendezvous: &Rendezvous, name: &str) -> u64 {
    let mut found = None;
    rendezvous.counters(&mut |counter, value| {
        if counter == name {
            found = Some(value);
        }
    });
    found.unwrap()
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !holds() {
        assert!(Instant::now() < deadline, "{what} never came to pass");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Numbers of peers that are gone and that are present.
fn present(book: &Mutex<Book>) -> (usize, usize) {
    let book = book.lock().unwrap();
    (book.gone, book.here.len())
}

/// Everything that the other side sends until it closes.
fn to_the_end(stream: &mut TcpStream) -> Vec<u8> {
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
    rest
}

#[test]
fn a_peer_lives_as_long_as_its_connection() {
    let (port, book) = listen(Form::Berth, Limits::default());
    let (answer, held) = call(port.local_addr(), Form::Berth, &offer(0x11)).unwrap();
    assert_eq!(answer.rdma(), Some(side()));
    assert!(held.is_open());
    let (_, second) = call(port.local_addr(), Form::Berth, &offer(0x12)).unwrap();
    assert_eq!(book.lock().unwrap().qps, [0x11, 0x12]);
    assert_eq!(book.lock().unwrap().here.len(), 2);
    drop(held);
    eventually("the farewell", || book.lock().unwrap().gone == 1);
    assert!(second.is_open());
    assert_eq!(book.lock().unwrap().here.len(), 1);
    assert_eq!((counter(&port, "rendezvous_peers"), counter(&port, "rendezvous_gone")), (2, 1));
}

#[test]
fn a_word_too_many_ends_the_peer() {
    let (port, book) = listen(Form::Berth, Limits::default());
    let mut stream = TcpStream::connect(port.local_addr()).unwrap();
    let mut bytes = Vec::new();
    offer(1).write(&mut bytes);
    stream.write_all(&bytes).unwrap();
    eventually("the welcome", || book.lock().unwrap().here.len() == 1);
    stream.write_all(&[0]).unwrap();
    eventually("the end", || book.lock().unwrap().gone == 1);
    to_the_end(&mut stream);
}

#[test]
fn the_port_ends_a_peer_by_its_connection() {
    let (port, book) = listen(Form::Berth, Limits::default());
    let (_, held) = call(port.local_addr(), Form::Berth, &offer(1)).unwrap();
    let peer = *book.lock().unwrap().here.first().unwrap();
    book.lock().unwrap().end = Some(peer);
    eventually("the end", || !held.is_open());
    assert_eq!(book.lock().unwrap().gone, 0);
    assert_eq!(counter(&port, "rendezvous_gone"), 1);
}

#[test]
fn the_host_api_form_outlives_its_connection_and_has_one_successor() {
    let (port, book) = listen(Form::HostApi, Limits::default());
    let greet = |qp_num: u32, addr| {
        let mut stream = TcpStream::connect(port.local_addr()).unwrap();
        stream.write_all(&HostApi { qp_num, rkey: 1, addr }.to_bytes()).unwrap();
        let mut answer = [0; HostApi::LEN];
        stream.read_exact(&mut answer).unwrap();
        HostApi::parse(&answer)
    };
    let [one, other] = [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)];
    let expected = HostApi { qp_num: 0x55, rkey: 0x1234, addr: Ipv4Addr::new(10, 0, 0, 9) };
    assert_eq!(greet(0x21, one), expected);
    assert_eq!(greet(0x22, other), expected);
    // Long enough for a farewell, if the closed connections were one.
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(present(&book), (0, 2));
    assert_eq!(greet(0x23, one), expected);
    assert_eq!(present(&book), (1, 2));
    assert!(!book.lock().unwrap().here.contains(&PeerId(0)));
    let (answer, _) = call(port.local_addr(), Form::HostApi, &offer(0x24)).unwrap();
    assert_eq!(HostApi::of_answer(&answer), Some(expected));
    assert_eq!(book.lock().unwrap().gone, 2);
}

#[test]
fn refusals_say_why_and_count() {
    let (port, book) = listen(Form::Berth, Limits::default());
    book.lock().unwrap().refuse = Some(Status::ResourceFenced);
    let refused = call(port.local_addr(), Form::Berth, &offer(1)).unwrap_err();
    assert!(matches!(refused, CallError::Refused(Status::ResourceFenced)), "{refused}");
    assert_eq!(counter(&port, "rendezvous_refused"), 1);
    book.lock().unwrap().refuse = None;
    assert!(call(port.local_addr(), Form::Berth, &offer(1)).is_ok());
}

#[test]
fn peers_are_capped_and_a_place_comes_free() {
    let (port, book) = listen(Form::Berth, Limits { peers: 2, ..Limits::default() });
    let _one = call(port.local_addr(), Form::Berth, &offer(1)).unwrap();
    let two = call(port.local_addr(), Form::Berth, &offer(2)).unwrap();
    let refused = call(port.local_addr(), Form::Berth, &offer(3)).unwrap_err();
    assert!(matches!(refused, CallError::Refused(Status::CapacityExceeded)), "{refused}");
    assert_eq!(counter(&port, "rendezvous_full"), 1);
    drop(two);
    eventually("the farewell", || book.lock().unwrap().gone == 1);
    assert!(call(port.local_addr(), Form::Berth, &offer(3)).is_ok());
}

#[test]
fn slow_requests_time_out_and_block_nobody() {
    let limits = Limits { request_within: Duration::from_millis(200), ..Limits::default() };
    let (port, book) = listen(Form::Berth, limits);
    let mut slow: Vec<_> = (0..8).map(|_| TcpStream::connect(port.local_addr()).unwrap()).collect();
    slow[0].write_all(&[0, 0]).unwrap();
    let (_, held) = call(port.local_addr(), Form::Berth, &offer(1)).unwrap();
    for stream in &mut slow {
        assert_eq!(to_the_end(stream), []);
    }
    assert_eq!(counter(&port, "rendezvous_timed_out"), 8);
    assert!(held.is_open());
    assert_eq!(book.lock().unwrap().here.len(), 1);
}

#[test]
fn silent_connections_give_way_to_new_ones_so_that_who_speaks_is_served() {
    let limits = Limits { request_within: Duration::from_millis(500), ..Limits::default() };
    let (port, _book) = listen(Form::Berth, limits);
    let mut silent: Vec<_> = (0..80).map(|_| TcpStream::connect(port.local_addr()).unwrap()).collect();
    eventually("the displacement", || counter(&port, "rendezvous_displaced") == 16);
    assert!(call(port.local_addr(), Form::Berth, &offer(1)).is_ok());
    for stream in &mut silent {
        assert_eq!(to_the_end(stream), []);
    }
    assert_eq!((counter(&port, "rendezvous_displaced"), counter(&port, "rendezvous_timed_out")), (17, 63));
}

#[test]
fn oversize_and_malformed_requests_are_refused() {
    let (port, book) = listen(Form::Berth, Limits::default());
    let long = (4097_u32).to_be_bytes();
    let short = [&4_u32.to_be_bytes()[..], &[0, 0, 0, 9]].concat();
    let endless = u32::MAX.to_be_bytes();
    for request in [&long[..], &short, &endless] {
        let mut stream = TcpStream::connect(port.local_addr()).unwrap();
        stream.write_all(request).unwrap();
        assert_eq!(to_the_end(&mut stream), Answer::refusal(Status::InvalidParams));
    }
    assert_eq!(counter(&port, "rendezvous_malformed"), 3);
    assert_eq!(book.lock().unwrap().qps, []);
}

#[test]
fn ending_the_rendezvous_closes_what_is_open() {
    let (port, book) = listen(Form::Berth, Limits::default());
    let addr = port.local_addr();
    let (_, held) = call(addr, Form::Berth, &offer(1)).unwrap();
    drop(port);
    eventually("the close", || !held.is_open());
    assert_eq!(Arc::strong_count(&book), 1, "the acceptor was dropped");
    assert!(matches!(call(addr, Form::Berth, &offer(1)), Err(CallError::Io(..))));
}
