//! Software `RoCE`: a DPDK queue with an endpoint, its configured peers, and the acceptor of others.

use std::net::IpAddr;

use anyhow::Context as _;
use berth_dpdk::{DpdkPort, PortConfig};
use berth_rendezvous::{Attended, Limits, Rendezvous};
use berth_roce::{Config, Endpoint, Local, Remote, Slots, path_mtu};
use berth_roce_peers::{Agreed, RoceAcceptor, connect};
use berth_wire::roce::{P_KEY_DEFAULT, UDP_PORT};
use serde::Serialize;

use super::Roce;
use crate::{
    Client, Connect, Dpdk, Facts, Opening, PortUser,
    dpdk::open::{client_config, client_port, device},
};

/// A queue with an endpoint on it.
pub(crate) type RocePort = Attended<DpdkPort<Endpoint>>;

/// Our end of a peer that is configured by hand.
#[derive(Debug, Serialize)]
struct Known {
    address: IpAddr,
    qpn: u32,
    rkey: u32,
    base: u64,
    slots: usize,
    stride: usize,
    psn: u32,
}

impl Roce {
    /// Opens the device, adds the configured peers, and accepts others. Reports `rendezvous`, its address, and `peers`,
    /// what those that are configured by hand must be told.
    pub(crate) fn open(&self, dpdk: &Dpdk, opening: &Opening<'_>) -> anyhow::Result<(RocePort, Facts)> {
        let (endpoint, mut registrar) = berth_roce::endpoint(self.endpoint)?;
        let mut endpoint = Some(endpoint);
        let endpoint = || endpoint.take().expect("one queue");
        let port = device(dpdk, opening, endpoint)?.pop().context("a device has a queue")?;
        let mut peers = Vec::new();
        for &super::Peer { address, qpn, psn } in &self.peers {
            let remote = Remote { address, qpn, psn, path_mtu: self.endpoint.path_mtu, window: None };
            let Local { qpn, psn, rkey, slots } = registrar.add(&remote, psn, berth_roce_peers::random)?;
            let Slots { count, stride, base, .. } = slots;
            peers.push(Known { address, qpn: qpn.get(), rkey, base, slots: count, stride, psn: psn.get() });
        }
        let mut facts = Facts::new();
        if !peers.is_empty() {
            facts.insert("peers".into(), serde_json::to_value(peers)?);
        }
        let rendezvous = self.rendezvous.map(|super::Rendezvous { bind, form }| {
            let addresses = dpdk.addresses.iter().map(|(address, _)| *address).collect();
            let limits = Limits { peers: self.endpoint.peers, ..Limits::default() };
            let listening = Rendezvous::listen(bind, form, limits, RoceAcceptor::new(registrar, form, addresses));
            listening.with_context(|| format!("listening on {bind} for peers"))
        });
        let rendezvous = rendezvous.transpose()?;
        if let Some(rendezvous) = &rendezvous {
            facts.insert("rendezvous".into(), rendezvous.local_addr().to_string().into());
        }
        Ok((Attended::new(port, rendezvous), facts))
    }
}

/// MTU that holds most requests and that every Ethernet carries.
const USUAL_MTU: u16 = 1500;
/// Limit on what IPv6, UDP and the transport headers add to a payload, in bytes.
const HEADERS: usize = 84;

impl Connect for Roce {
    fn connect<U: PortUser>(client: &Client<'_>, user: U) -> anyhow::Result<()> {
        let Client { slots, unit, longest, .. } = *client;
        let rendezvous = client.rendezvous()?;
        let config = PortConfig { mtu: mtu(longest)?, udp_port: UDP_PORT, ..client_config(client)? };
        let address = config.addresses[0].0;
        // Answers are sent, so our own slots are never written to; the least there may be.
        let own = Slots { count: 1, stride: 128, base: 0, ..slots };
        let path_mtu = path_mtu(usize::from(config.mtu));
        let (endpoint, mut registrar) =
            berth_roce::endpoint(Config { p_key: P_KEY_DEFAULT, slots: own, path_mtu, peers: 1 })?;
        let mut endpoint = Some(endpoint);
        let port = client_port(client, &config, || endpoint.take().expect("one queue"))?;
        let connection = connect(&mut registrar, address, rendezvous, client.form, &Agreed { slots, unit })?;
        let stride = connection.remote.window.map_or(0, |window| window.slots.stride);
        anyhow::ensure!(
            longest.next_multiple_of(unit) <= stride,
            "requests of up to {longest} bytes, and the port's slots have {stride}; choose a smaller --payload",
        );
        user.run(port, connection.peer);
        // Until here: its end is the port's sign to forget us.
        drop(connection);
        Ok(())
    }
}

fn mtu(longest: usize) -> anyhow::Result<u16> {
    if longest <= path_mtu(usize::from(USUAL_MTU)) {
        return Ok(USUAL_MTU);
    }
    let payload = longest.next_power_of_two();
    anyhow::ensure!(payload <= 4096, "requests are one packet each, of at most 4096 bytes; choose a smaller --payload");
    Ok((payload + HEADERS) as u16)
}
