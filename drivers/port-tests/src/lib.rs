//! What every socket port must do, tested through its public face by `std` sockets as peers.
//!
//! Each function is one test; a driver's `tests/` calls all of them with its own port. Port and peer share the test's
//! thread, so that what is in flight is known exactly.

mod calls;
mod echo;
mod filter;
mod loss;
mod sleeper;

use std::{
    net::{SocketAddr, UdpSocket},
    time::{Duration, Instant},
};

use berth_port::{Port, Verdict};

pub use calls::publications_call_nobody;
pub use echo::*;
pub use filter::with_failing;
pub use loss::*;
pub use sleeper::*;

/// No answer on the host's own network takes this long.
const PATIENCE: Duration = Duration::from_secs(10);

/// A peer's socket, bound to the loopback address of `to`'s family; its calls fail after a few seconds.
pub fn peer_of(to: SocketAddr) -> UdpSocket {
    let loopback = if to.is_ipv4() { "127.0.0.1:0" } else { "[::1]:0" };
    let peer = UdpSocket::bind(loopback).expect("a loopback address");
    peer.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    peer
}

/// Polls `port` with a handler that returns every frame, until `frames` were received.
pub fn echo<P: Port>(port: &mut P, frames: usize) {
    let deadline = Instant::now() + PATIENCE;
    let mut seen = 0;
    while seen < frames {
        seen += port.rx(|_| Verdict::Reply);
        port.tx();
        assert!(Instant::now() < deadline, "{seen} of {frames} frames arrived");
    }
    assert_eq!(seen, frames);
}

/// Polls `port` for a while and expects no frame.
pub fn expect_nothing<P: Port>(port: &mut P) {
    let until = Instant::now() + Duration::from_millis(20);
    while Instant::now() < until {
        assert_eq!(port.rx(|frame| panic!("unexpected frame {:?}", frame.data())), 0);
        port.tx();
    }
}

/// The value of one counter, the port's or the kernel's.
pub fn counter<P: Port>(port: &P, name: &str) -> u64 {
    let mut found = None;
    let mut visit = |counter: &str, value| {
        if counter == name {
            found = Some(value);
        }
    };
    port.counters(&mut visit);
    if let Some(mut device) = port.device() {
        device.read(&mut visit);
    }
    found.unwrap_or_else(|| panic!("no counter {name}"))
}

/// Repeats `holds`, which polls the port, until it does.
pub fn eventually<P: Port>(port: &mut P, mut holds: impl FnMut(&mut P) -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds(port) {
        assert!(Instant::now() < deadline, "it never came to pass");
    }
}
