//! Joined ports, virtual time and counters.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::{cell::Cell, net::SocketAddr, rc::Rc, time::Duration};

use berth_port::{Clock, Loopback, Now, Port};

pub(crate) const A: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1)), 1);
pub(crate) const B: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2)), 2);

pub(crate) fn pair(depth: usize) -> (Loopback, Loopback) {
    Loopback::pair([A, B], depth, 64)
}

/// A clock that moves when told to.
#[derive(Clone, Default)]
pub(crate) struct Virtual(Rc<Cell<Now>>);

impl Virtual {
    pub(crate) fn advance(&self, by: Duration) {
        self.0.set(self.0.get().after(by));
    }
}

impl Clock for Virtual {
    fn now(&self) -> Now {
        self.0.get()
    }
}

pub(crate) fn counter(port: &impl Port, name: &str) -> u64 {
    let mut found = None;
    port.counters(&mut |counter, value| {
        if counter == name {
            assert_eq!(found.replace(value), None, "{name} is reported twice");
        }
    });
    found.unwrap_or_else(|| panic!("no counter {name}"))
}

/// Writes a number to the front of a buffer; returns its length as a frame.
pub(crate) fn number(number: u64) -> impl FnOnce(&mut [u8]) -> usize {
    move |buf| {
        buf[..8].copy_from_slice(&number.to_le_bytes());
        8
    }
}

pub(crate) fn number_of(data: &[u8]) -> u64 {
    u64::from_le_bytes(data.try_into().expect("eight bytes"))
}
