//! Ports over libfabric. The rendezvous is opened, and its thread runs, on the housekeeping CPUs; the endpoint belongs
//! to the thread of its lcore.

use anyhow::{Context as _, anyhow};
use berth_fabric::Binding;
use berth_ofi::{OfiAcceptor, OfiBinding, OfiPort, Peers, Place};
use berth_port::Tables;
use berth_rendezvous::{Form, Limits, Rendezvous};

use super::Ofi;
use crate::{Client, Connect, Facts, Open, OpenQueue, Opening, PortUser, QueueUser};

/// An endpoint to be opened by its thread.
#[derive(Debug)]
pub struct Queue {
    place: Place,
    max_frame: usize,
    rendezvous: Rendezvous,
    peers: Peers,
}

impl Open for Ofi {
    type Queue = Queue;
    const COUNTERS: &'static [Tables] = &[berth_ofi::COUNTERS, berth_rendezvous::COUNTERS];

    /// Opens the rendezvous. Peers that come before the endpoint is open are told to come again.
    fn queues(&self, opening: &Opening<'_>) -> anyhow::Result<(Vec<Queue>, Facts)> {
        let Self { provider, fabric, domain, bind, rendezvous, max_peers } = self;
        let peers = Peers::new(*max_peers);
        let limits = Limits { peers: *max_peers, ..Limits::default() };
        let opened = Rendezvous::listen(*rendezvous, Form::Berth, limits, OfiAcceptor::new(peers.clone()));
        let rendezvous = opened.with_context(|| format!("rendezvous = \"{rendezvous}\""))?;
        let place = Place { provider: provider.clone(), fabric: fabric.clone(), domain: domain.clone(), bind: *bind };
        let facts = Facts::from_iter([("rendezvous".into(), rendezvous.local_addr().to_string().into())]);
        Ok((vec![Queue { place, max_frame: opening.max_frame, rendezvous, peers }], facts))
    }
}

impl OpenQueue for Queue {
    fn open<U: QueueUser>(self, user: U) -> anyhow::Result<U::Output> {
        user.port(OfiPort::open(&self.place, self.max_frame, self.rendezvous, self.peers)?)
    }

    fn binding(&self, port: &str) -> Option<Box<dyn Binding>> {
        Some(Box::new(OfiBinding::new(port.to_owned(), self.peers.clone())))
    }
}

impl Connect for Ofi {
    fn connect<U: PortUser>(client: &Client<'_>, user: U) -> anyhow::Result<()> {
        let provider = client.provider.context("this port needs --provider")?.to_owned();
        let owned = |name: Option<&str>| name.map(str::to_owned);
        let place = Place { provider, fabric: owned(client.fabric), domain: owned(client.domain), bind: client.bind };
        let name = client.rendezvous.unwrap_or(client.peer);
        let (port, peer) = match client.meet {
            Some(meet) => OfiPort::join(&place, client.max_frame, name, meet)?,
            None => OfiPort::connect(&place, client.max_frame, client.rendezvous()?)?,
        };
        user.run(port, peer);
        Ok(())
    }
}

/// The providers that can be used on this host now, each with its endpoint types.
pub(super) fn providers() -> anyhow::Result<Vec<(String, Vec<String>)>> {
    let providers = berth_ofi::providers().map_err(|reason| anyhow!("{reason}"))?;
    Ok(providers.into_iter().map(|provider| (provider.name, provider.endpoints)).collect())
}
