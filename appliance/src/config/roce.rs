//! `transport = "roce"`: unreliable connections over a port's UDP, spoken in software.

use std::net::{IpAddr, SocketAddr};

use berth_rendezvous::Form;
use berth_roce::{Config, Slots, path_mtu};
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

/// `immediate`
pub(super) const IMMEDIATE: &[(&str, ImmForm)] = &[("psn20", ImmForm::Psn20), ("psn24", ImmForm::Psn24)];

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
    let form = t.chosen("rendezvous_form", &[("berth", Form::Berth), ("host-api", Form::HostApi)]);
    let bind = address(t, &bind?)?;
    Some(Rendezvous { bind, form })
}

fn endpoint(t: &mut Table<'_, '_>, mtu: u16, fixed: usize) -> Option<Config> {
    let mut t = t.table_or_empty("roce");
    let form = t.chosen("immediate", IMMEDIATE);
    let (slots, default) = (t.integer("slots"), t.default_number("slots").min(form.max_slots().into()));
    let count = slots.map_or(default, |at| at.value) as usize;
    let (stride, base) = (t.number("stride") as usize, t.number("base"));
    let p_key = PKey(t.number("p_key") as u16);
    let peers = t.integer("peers").map_or(fixed + 16, |at| at.value as usize);
    let slots = Slots { count, stride, base, form };
    let config = Config { p_key, slots, path_mtu: path_mtu(usize::from(mtu)), peers };
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
    let qpn = t.integer("qpn");
    let qpn = t.require("qpn", qpn, "qpn = 0x11, the number of the peer's queue pair");
    let psn = t.number("psn") as u32;
    let parsed = ip.as_ref().and_then(|at| at.value.parse().ok());
    if let (Some(at), None) = (&ip, parsed) {
        t.sink().wrong(at, format_args!("\"{}\" is not an address; write one like \"10.0.0.1\"", at.value));
    }
    t.finish();
    Some(Peer { address: parsed?, qpn: Qpn::new(qpn?.value as u32), psn: Psn::new(psn) })
}
