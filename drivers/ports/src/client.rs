//! The client's side: ports from which requests are sent to a server's.

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
    /// Opens a port on the calling thread, connects it, and hands it to `user`.
    fn connect<U: PortUser>(client: &Client<'_>, user: U) -> anyhow::Result<()>;
}

/// What is done with a client's port, whatever its type.
pub trait PortUser {
    /// Uses the port on the calling thread, which is the one that opened it, to ask `peer`.
    fn run<P: Port>(self, port: P, peer: Peer);
}

/// Exchanges how our endpoint is reached for how the server's is.
pub type Meet = dyn Fn(&[u8]) -> anyhow::Result<Vec<u8>> + Send + Sync;

/// What a client's port is opened with. Each driver takes what it needs.
pub struct Client<'a> {
    /// The server's address.
    pub peer: SocketAddr,
    /// The address to send from.
    pub bind: Option<SocketAddr>,
    /// A device of DPDK or RDMA.
    pub device: Option<&'a str>,
    /// Our address, with its prefix length.
    pub address: Option<(IpAddr, u8)>,
    /// Peers whose link-layer address is known without asking.
    pub neighbours: &'a [(IpAddr, MacAddr)],
    /// Where the server's peers come.
    pub rendezvous: Option<SocketAddr>,
    /// What is spoken there.
    pub form: Form,
    /// The place of our address in the GID table of the device's port 1.
    pub gid_index: u8,
    /// How requests are sent.
    pub requests: PeerKind,
    /// The server's slots, where its rendezvous does not tell.
    pub slots: Slots,
    /// What requests into slots are filled up to a multiple of, in bytes.
    pub unit: usize,
    /// The libfabric provider.
    pub provider: Option<&'a str>,
    /// The fabric's name.
    pub fabric: Option<&'a str>,
    /// The domain's name.
    pub domain: Option<&'a str>,
    /// The longest frame that the port is opened for, in bytes.
    pub max_frame: usize,
    /// The longest frame that will be sent, in bytes.
    pub longest: usize,
    /// Finds the server's endpoint, given our own; without it the rendezvous does.
    pub meet: Option<&'a Meet>,
    /// What all ports share.
    pub runtime: &'a Runtime,
}

impl Client<'_> {
    /// The device, which the driver needs.
    pub fn device(&self) -> anyhow::Result<String> {
        Ok(self.device.context("this port needs --device")?.to_owned())
    }

    /// The rendezvous, which the driver needs.
    pub fn rendezvous(&self) -> anyhow::Result<SocketAddr> {
        self.rendezvous.context("this port needs --rendezvous")
    }
}

impl fmt::Debug for Client<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Client({})", self.peer)
    }
}
