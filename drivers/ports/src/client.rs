//! The client's side: ports that send requests to a server's port.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
};

use anyhow::Context as _;
use berth_port::{Peer, Port};
use berth_rendezvous::Form;
use berth_roce::Slots;
use berth_wire::{net::MacAddr, rendezvous::PeerKind};

use crate::Runtime;

/// How a client's port is opened.
pub trait Connect {
    /// Opens and connects a port on the calling thread, and passes it to `user`.
    fn connect<U: PortUser>(client: &Client<'_>, user: U) -> anyhow::Result<()>;
}

/// The use of a client's port, whatever its type.
pub trait PortUser {
    /// Uses the port to send requests to `peer`, on the thread that opened it.
    fn run<P: Port>(self, port: P, peer: Peer);
}

/// Exchanges the address of our endpoint for that of the server's, both as the provider encodes them.
pub type Meet = dyn Fn(&[u8]) -> anyhow::Result<Vec<u8>> + Send + Sync;

/// Settings of a client's port. Each driver takes what it needs.
pub struct Client<'a> {
    /// Address of the server.
    pub peer: SocketAddr,
    /// Local address to send from; `None` for any.
    pub bind: Option<SocketAddr>,
    /// Name of the DPDK or RDMA device.
    pub device: Option<&'a str>,
    /// Our address, with its prefix length.
    pub address: Option<(IpAddr, u8)>,
    /// Peers with fixed link-layer addresses, which need not be resolved.
    pub neighbours: &'a [(IpAddr, MacAddr)],
    /// Address of the server's rendezvous.
    pub rendezvous: Option<SocketAddr>,
    /// Messages of the rendezvous.
    pub form: Form,
    /// Index of our address in the GID table of the device's port 1.
    pub gid_index: u8,
    /// How requests are sent to an RDMA server.
    pub requests: PeerKind,
    /// Layout of the server's slots, if its rendezvous does not tell.
    pub slots: Slots,
    /// Requests into slots are padded to a multiple of this many bytes.
    pub unit: usize,
    /// Name of the libfabric provider.
    pub provider: Option<&'a str>,
    /// Name of the provider's fabric; `None` for any.
    pub fabric: Option<&'a str>,
    /// Name of the fabric's domain; `None` for any.
    pub domain: Option<&'a str>,
    /// Longest frame that the port must support, in bytes.
    pub max_frame: usize,
    /// Longest frame that will be sent, in bytes.
    pub longest: usize,
    /// Finds the server's endpoint, given our own; if `None`, the rendezvous does.
    pub meet: Option<&'a Meet>,
    /// Settings that all ports share.
    pub runtime: &'a Runtime,
}

impl Client<'_> {
    /// The device's name; an error if it is missing.
    pub fn device(&self) -> anyhow::Result<String> {
        Ok(self.device.context("this port needs --device")?.to_owned())
    }

    /// The rendezvous's address; an error if it is missing.
    pub fn rendezvous(&self) -> anyhow::Result<SocketAddr> {
        self.rendezvous.context("this port needs --rendezvous")
    }
}

impl fmt::Debug for Client<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Client({})", self.peer)
    }
}
