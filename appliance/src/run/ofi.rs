//! Ports over libfabric: the rendezvous is opened, and its thread runs, where housekeeping does; the endpoint belongs to the
//! thread of its lcore.

use std::net::SocketAddr;

use anyhow::Context as _;
use berth_ofi::{Error, OfiAcceptor, OfiBinding, OfiPort, Peers, Place};
use berth_ports::Ofi;
use berth_rendezvous::{Form, Limits, Rendezvous};

/// A port that its thread is to open.
pub(super) struct Endpoint {
    place: Place,
    rendezvous: Rendezvous,
    peers: Peers,
}

impl Endpoint {
    /// Opens the rendezvous; who comes before the endpoint is open is told to come again.
    pub(super) fn new(ofi: &Ofi) -> anyhow::Result<Self> {
        let Ofi { provider, fabric, domain, bind, rendezvous, max_peers } = ofi;
        let peers = Peers::new(*max_peers);
        let limits = Limits { peers: *max_peers, ..Limits::default() };
        let opened = Rendezvous::listen(*rendezvous, Form::Berth, limits, OfiAcceptor::new(peers.clone()));
        let opened = opened.with_context(|| format!("rendezvous = \"{rendezvous}\""))?;
        let place = Place { provider: provider.clone(), fabric: fabric.clone(), domain: domain.clone(), bind: *bind };
        Ok(Self { place, rendezvous: opened, peers })
    }

    /// Where peers come to be let in.
    pub(super) fn rendezvous(&self) -> SocketAddr {
        self.rendezvous.local_addr()
    }

    /// What connects leases to the port.
    pub(super) fn binding(&self, port: &str) -> OfiBinding {
        OfiBinding::new(port.to_owned(), self.peers.clone())
    }

    /// Opens the endpoint, on the thread that will poll it.
    pub(super) fn open(self, max_frame: usize) -> Result<OfiPort, Error> {
        OfiPort::open(&self.place, max_frame, self.rendezvous, self.peers)
    }
}
