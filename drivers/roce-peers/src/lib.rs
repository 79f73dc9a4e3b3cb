//! How a software-RoCE [`berth_roce::Endpoint`] and its peers find each other: a [`RoceAcceptor`] takes peers at a
//! rendezvous, and [`connect`] is the client's side.
#![forbid(unsafe_code)]

mod acceptor;
mod client;

use std::net::{IpAddr, Ipv6Addr};

use berth_wire::{rendezvous::ipv4_to_gid, roce::PATH_MTU_MAX};

pub use acceptor::RoceAcceptor;
pub use client::{Agreed, ConnectError, Connection, connect};

/// The IP address that a GID stands for (annex A17.9.1).
fn address_of(gid: [u8; 16]) -> IpAddr {
    Ipv6Addr::from(gid).to_canonical()
}

/// The GID that stands for an IP address (annex A17.9.1).
fn gid_of(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => ipv4_to_gid(v4),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// Checks a path MTU in bytes; `None` if the specification has no such MTU (IBTA 9.4.2).
fn path_mtu(mtu: u16) -> Option<usize> {
    let mtu = usize::from(mtu);
    (mtu.is_power_of_two() && (256..=PATH_MTU_MAX).contains(&mtu)).then_some(mtu)
}

/// 32 random bits from the kernel.
pub fn random() -> u32 {
    getrandom::u32().expect("the kernel has random numbers once it has booted")
}
