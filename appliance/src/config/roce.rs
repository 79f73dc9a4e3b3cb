//! `transport = "roce"`: unreliable connections over a port's UDP, spoken in software.

use std::net::{IpAddr, SocketAddr};

use berth_rendezvous::Form;
use berth_roce::{Config, PEERS_MAX, Slots, path_mtu};
use berth_wire::{
    rendezvous::ImmForm,
    roce::{PKey, Psn, Qpn},
};

use super::{port::address, walk::Table};

/// `[port.roce]`, and what else such a port has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Roce {
    /// What its peers have in common.
    pub endpoint: Config,
    /// Where peers come by themselves.
    pub rendezvous: Option<Rendezvous>,
    /// Peers that are there from the start.
    pub peers: Vec<Peer>,
}

/// `port.rendezvous` with `port.rendezvous_form`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rendezvous {
    /// The TCP address to bind; port 0 takes a free one.
    pub bind: SocketAddr,
    /// What is spoken there.
    pub form: Form,
}

/// `[[port.peer]]`: a sender that is programmed by hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// Its address.
    pub address: IpAddr,
    /// Its queue pair.
    pub qpn: Qpn,
    /// The number of the first packet that it sends, and of the first that it gets.
    pub psn: Psn,
}

/// The keys below `[[port]]` that belong to this transport alone.
pub(super) const ALONE: &[&str] = &["roce", "peer"];

/// Reads the keys of a port with this transport, whose IP packets are at most `mtu` bytes long.
pub(super) fn roce(t: &mut Table<'_, '_>, mtu: u16) -> Option<Roce> {
    let rendezvous = rendezvous(t);
    let tables = t.tables("peer").unwrap_or_default();
    let peers: Vec<_> = tables.into_iter().filter_map(peer).collect();
    if rendezvous.is_none() && peers.is_empty() {
        t.require("rendezvous", None::<()>, "rendezvous = \"10.0.1.2:4791\", where peers come, or [[port.peer]]");
    }
    let endpoint = endpoint(t, mtu, peers.len())?;
    Some(Roce { endpoint, rendezvous, peers })
}

/// `rendezvous` and `rendezvous_form`.
pub(super) fn rendezvous(t: &mut Table<'_, '_>) -> Option<Rendezvous> {
    let bind = t.text("rendezvous");
    let form = t.choice("rendezvous_form", &[("berth", Form::Berth), ("host-api", Form::HostApi)]);
    let bind = address(t, &bind?)?;
    Some(Rendezvous { bind, form: form.map_or(Form::Berth, |at| at.value) })
}

fn endpoint(t: &mut Table<'_, '_>, mtu: u16, fixed: usize) -> Option<Config> {
    let slots = Slots { count: 64, stride: 2048, base: 0, form: ImmForm::Psn20 };
    let mut config = Config { p_key: PKey(0xffff), slots, path_mtu: path_mtu(usize::from(mtu)), peers: fixed + 16 };
    let Some(mut t) = t.table("roce") else { return Some(config) };
    let form = t.choice("immediate", &[("psn20", ImmForm::Psn20), ("psn24", ImmForm::Psn24)]);
    config.slots.form = form.map_or(config.slots.form, |at| at.value);
    let slots = t.integer("slots", 1..=u64::from(ImmForm::Psn20.max_slots()));
    config.slots.count = slots.map_or(config.slots.form.max_slots().min(64) as usize, |at| at.value as usize);
    config.slots.stride = t.integer("stride", 128..=1 << 24).map_or(config.slots.stride, |at| at.value as usize);
    config.slots.base = t.integer("base", 0..=1 << 39).map_or(0, |at| at.value);
    config.p_key = t.integer("p_key", 1..=0xffff).map_or(config.p_key, |at| PKey(at.value as u16));
    config.peers = t.integer("peers", 1..=PEERS_MAX as u64).map_or(config.peers, |at| at.value as usize);
    let checked = config.check();
    if let Err(e) = checked {
        t.sink().mistake(t.span(), t.path(), e);
    } else if config.peers < fixed {
        t.sink().mistake(
            t.span(),
            t.path(),
            format_args!("{fixed} [[port.peer]] are given; write peers = {fixed} or more"),
        );
    }
    t.finish();
    checked.is_ok().then_some(config)
}

fn peer(mut t: Table<'_, '_>) -> Option<Peer> {
    let ip = t.text("address");
    let ip = t.require("address", ip, "address = \"10.0.0.1\"");
    let qpn = t.integer("qpn", 2..=0x00ff_fffe);
    let qpn = t.require("qpn", qpn, "qpn = 0x11, the number of the peer's queue pair");
    let psn = t.integer("psn", 0..=0x00ff_ffff).map_or(0, |at| at.value as u32);
    let parsed = ip.as_ref().and_then(|at| at.value.parse().ok());
    if let (Some(at), None) = (&ip, parsed) {
        t.sink().wrong(at, format_args!("\"{}\" is not an address; write one like \"10.0.0.1\"", at.value));
    }
    t.finish();
    Some(Peer { address: parsed?, qpn: Qpn::new(qpn?.value as u32), psn: Psn::new(psn) })
}
