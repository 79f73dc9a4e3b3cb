//! Runs alone in its process, whose threads it counts.

use berth_ofi::{OfiAcceptor, OfiPort, Peers, Place};
use berth_rendezvous::{Form, Limits, Rendezvous};

#[test]
fn providers_start_no_threads() {
    let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
    let loopback = "127.0.0.1:0".parse().unwrap();
    for provider in ["tcp", "shm", "udp;ofi_rxd"] {
        let peers = Peers::new(1);
        let acceptor = OfiAcceptor::new(peers.clone());
        let rendezvous = Rendezvous::listen(loopback, Form::Berth, Limits::default(), acceptor).unwrap();
        let before = threads();
        let bind = (provider != "shm").then_some(loopback);
        let place = Place { provider: provider.into(), bind, ..Place::default() };
        let _port = OfiPort::open(&place, 2048, rendezvous, peers).unwrap();
        assert_eq!(threads(), before, "{provider}");
    }
}
