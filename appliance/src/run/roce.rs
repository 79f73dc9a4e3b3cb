//! Software `RoCE`: a DPDK queue with an endpoint, its peers, and the door that they come by.

use std::net::IpAddr;

use anyhow::Context as _;
use berth_dpdk::DpdkPort;
use berth_rendezvous::{Attended, Limits, Rendezvous};
use berth_roce::{Endpoint, Local, Remote};
use berth_roce_peers::Door;
use serde::Serialize;

use super::queue::Facts;
use crate::config;

/// A queue with an endpoint on it.
pub(super) type RocePort = Attended<DpdkPort<Endpoint>>;

/// Our end of a peer that is programmed by hand.
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

/// Opens the device, takes in the peers that are there from the start, and opens the door for those who come. Tells
/// `rendezvous`, where peers come, and `peers`, what those that are programmed by hand must be told.
pub(super) fn open(
    roce: &berth_ports::Roce,
    device: &berth_ports::Dpdk,
    runtime: &config::Runtime,
) -> anyhow::Result<(RocePort, Facts)> {
    let (endpoint, mut registrar) = berth_roce::endpoint(roce.endpoint)?;
    let mut endpoint = Some(endpoint);
    let endpoint = || endpoint.take().expect("one queue");
    let port = super::dpdk::open(device, 1, None, runtime, endpoint)?.pop().context("a device has a queue")?;
    let mut peers = Vec::new();
    for &berth_ports::Peer { address, qpn, psn } in &roce.peers {
        let remote = Remote { address, qpn, psn, path_mtu: roce.endpoint.path_mtu, window: None };
        let Local { qpn, psn, rkey, slots } = registrar.add(&remote, psn, berth_roce_peers::random)?;
        let berth_roce::Slots { count, stride, base, .. } = slots;
        peers.push(Known { address, qpn: qpn.get(), rkey, base, slots: count, stride, psn: psn.get() });
    }
    let mut facts = Facts::new();
    if !peers.is_empty() {
        facts.insert("peers".into(), serde_json::to_value(peers)?);
    }
    let rendezvous = roce.rendezvous.map(|berth_ports::Rendezvous { bind, form }| {
        let addresses = device.addresses.iter().map(|(address, _)| *address).collect();
        let limits = Limits { peers: roce.endpoint.peers, ..Limits::default() };
        let listening = Rendezvous::listen(bind, form, limits, Door::new(registrar, form, addresses));
        listening.with_context(|| format!("listening on {bind} for peers"))
    });
    let rendezvous = rendezvous.transpose()?;
    if let Some(rendezvous) = &rendezvous {
        facts.insert("rendezvous".into(), rendezvous.local_addr().to_string().into());
    }
    Ok((Attended::new(port, rendezvous), facts))
}
