//! An acceptor and its peers over loopback TCP.

use std::{
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use berth_net::Transport as _;
use berth_rendezvous::{CallError, Form, Limits, Offer, Rendezvous, Status, call};
use berth_roce::{Config, Endpoint, Registrar, Slots, endpoint};
use berth_roce_peers::{Agreed, ConnectError, Connection, RoceAcceptor, connect};
use berth_wire::{
    rendezvous::{ImmForm, Peer, PeerKind, ipv4_to_gid},
    roce::P_KEY_DEFAULT,
};

const SLOTS: Slots = Slots { count: 16, stride: 256, base: 0, form: ImmForm::Psn20 };
const CONFIG: Config = Config { p_key: P_KEY_DEFAULT, slots: SLOTS, path_mtu: 1024, peers: 2 };
/// Settings of the caller that the form does not carry.
const AGREED: Agreed = Agreed { slots: Slots { count: 4, ..SLOTS }, unit: 64 };

fn address(host: u8) -> IpAddr {
    [10, 0, 0, host].into()
}

fn open(form: Form) -> (Endpoint, Rendezvous) {
    let (endpoint, registrar) = endpoint(CONFIG).unwrap();
    let v6: IpAddr = "fd00::2".parse().unwrap();
    let acceptor = RoceAcceptor::new(registrar, form, vec![address(2), v6]);
    let anywhere = SocketAddr::from(([127, 0, 0, 1], 0));
    (endpoint, Rendezvous::listen(anywhere, form, Limits::default(), acceptor).unwrap())
}

fn come(registrar: &mut Registrar, form: Form, to: &Rendezvous) -> Result<Connection, ConnectError> {
    connect(registrar, address(1), to.local_addr(), form, &AGREED)
}

fn caller() -> (Endpoint, Registrar) {
    endpoint(Config { peers: 8, ..CONFIG }).unwrap()
}

fn count(endpoint: &mut Endpoint, name: &str) -> u64 {
    endpoint.poll();
    let mut found = 0;
    endpoint.counters(&mut |n, value| found += if n == name { value } else { 0 });
    found
}

fn wait_for(endpoint: &mut Endpoint, name: &str, value: u64) {
    let start = Instant::now();
    while count(endpoint, name) != value {
        assert!(start.elapsed() < Duration::from_secs(5), "{name} is {}, not {value}", count(endpoint, name));
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_connection_is_a_peer() {
    let (mut port, rendezvous) = open(Form::Berth);
    let (mut client, mut registrar) = caller();
    let first = come(&mut registrar, Form::Berth, &rendezvous).unwrap();
    let second = come(&mut registrar, Form::Berth, &rendezvous).unwrap();
    assert_eq!((count(&mut port, "peers_joined"), count(&mut client, "peers_joined")), (2, 2));
    assert_eq!((first.remote.address, first.remote.path_mtu), (address(2), 1024));
    let window = first.remote.window.unwrap();
    assert_eq!((window.slots, window.unit), (SLOTS, 64));
    assert!(client.address_of(first.peer).is_some());
    // Nothing of one is known from the other.
    assert_ne!(first.remote.qpn, second.remote.qpn);
    assert_ne!(window.rkey, second.remote.window.unwrap().rkey);
    assert_ne!(first.remote.psn, second.remote.psn);

    let full = come(&mut registrar, Form::Berth, &rendezvous);
    assert!(matches!(full, Err(ConnectError::Call(CallError::Refused(Status::CapacityExceeded)))), "{full:?}");
    drop(first);
    wait_for(&mut port, "peers_left", 1);
    come(&mut registrar, Form::Berth, &rendezvous).unwrap();
    assert!(second.held.is_open());
}

#[test]
fn a_host_api_peer_stays_until_its_successor() {
    let (mut port, rendezvous) = open(Form::HostApi);
    let (_client, mut registrar) = caller();
    for round in 0..5 {
        let Connection { remote, local, .. } = come(&mut registrar, Form::HostApi, &rendezvous).unwrap();
        assert_eq!((remote.psn.get(), local.psn.get(), remote.path_mtu), (0, 0, 4096));
        assert_eq!(remote.window.unwrap().slots, AGREED.slots, "as both were told");
        assert_eq!((count(&mut port, "peers_joined"), count(&mut port, "peers_left")), (round + 1, round));
    }
}

#[test]
fn what_the_endpoint_does_not_speak_is_refused() {
    let (mut port, rendezvous) = open(Form::Berth);
    let peer = Peer::Rdma { qp_num: 2, gid: ipv4_to_gid([10, 0, 0, 1].into()), psn: 0, mtu: 1024 };
    let refused = |kind, peer| match call(rendezvous.local_addr(), Form::Berth, &Offer { kind, peer, window: None }) {
        Err(CallError::Refused(status)) => status,
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(PeerKind::RcSend, peer), Status::UnsupportedOp);
    assert_eq!(refused(PeerKind::Ofi, Peer::Ofi { addr: b"x" }), Status::UnsupportedOp);
    for mtu in [0, 7, 128, 1000, 8192] {
        let Peer::Rdma { qp_num, gid, psn, .. } = peer else { unreachable!() };
        assert_eq!(refused(PeerKind::UcWriteImm, Peer::Rdma { qp_num, gid, psn, mtu }), Status::InvalidParams);
    }
    assert_eq!(count(&mut port, "peers_joined"), 0);
}
