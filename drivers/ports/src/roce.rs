//! `transport = "roce"`: unreliable RoCE connections over a port's UDP, in software.

#[cfg(feature = "dpdk")]
pub(crate) mod open;

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
};

use berth_keys::{Key, Kind, Owner, Section, Table, address, key};
use berth_rendezvous::Form;
use berth_roce::{Config, Slots, path_mtu};
use berth_wire::roce::{PKey, Psn, Qpn};

use crate::common;

/// Values of `[port.roce]`, and of the other keys of such a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Roce {
    /// Settings that its peers share.
    pub endpoint: Config,
    /// Where peers connect by themselves; `None` if all are configured.
    pub rendezvous: Option<Rendezvous>,
    /// Peers that are configured by hand.
    pub peers: Vec<Peer>,
}

/// Values of `port.rendezvous` and `port.rendezvous_form`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rendezvous {
    /// TCP address to bind; port 0 takes a free one.
    pub bind: SocketAddr,
    /// Messages of the rendezvous.
    pub form: Form,
}

/// Values of `[[port.peer]]`: a sender that is programmed by hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// IP address of the sender.
    pub address: IpAddr,
    /// Number of the sender's queue pair.
    pub qpn: Qpn,
    /// Packet sequence number of the first packet that it sends, and of the first that it receives.
    pub psn: Psn,
}

static ROCE: Section = Section::new(
    "",
    &[
        key("slots", Kind::Integer(1, 4096), "slots of each peer, at most 4 with psn24").default("64"),
        key("stride", Kind::Integer(128, 1 << 24), "bytes from one slot to the next, a multiple of 128")
            .default("2048"),
        key("base", Kind::Integer(0, 1 << 39), "the virtual address of the first slot, a multiple of 128").default("0"),
        common::IMMEDIATE,
        key("p_key", Kind::Integer(1, 0xffff), "the partition").default("0xffff"),
        key("peers", Kind::Integer(1, 4096), "peers, at most").otherwise("16 more than are given here").example("16"),
    ],
);

static PEER: Section = Section::new(
    "A peer that is programmed by hand. The \"berth ready\" line tells the queue pair and the key that it must use.",
    &[
        key("address", Kind::Text, "its address").required().example("\"10.0.0.1\""),
        key("qpn", Kind::Integer(2, 0x00ff_fffe), "the number of its queue pair").required().example("0x11"),
        key("psn", Kind::Integer(0, 0x00ff_ffff), "the number of the first packet in each direction").default("0"),
    ],
);

/// The word that these keys belong to.
pub(crate) const OWNER: Owner = Owner { key: "transport", word: "roce" };

/// Keys of `[[port]]` that belong to this transport.
pub(crate) const KEYS: &[Key] = &[
    common::RENDEZVOUS,
    common::RENDEZVOUS_FORM,
    key("roce", Kind::Table(&ROCE), "what each peer of transport = \"roce\" has"),
    key("peer", Kind::Tables(&PEER), "peers that are programmed by hand"),
];

/// Reads the keys of a port with this transport, whose IP packets have at most `mtu` bytes.
pub(crate) fn read(t: &mut Table<'_, '_>, mtu: u16) -> Option<Roce> {
    let rendezvous = rendezvous(t);
    let tables = t.tables("peer").unwrap_or_default();
    let peers: Vec<_> = tables.into_iter().filter_map(peer).collect();
    if rendezvous.is_none() && peers.is_empty() {
        t.require("rendezvous", None::<()>, "rendezvous = \"10.0.1.2:4791\", where peers come, or [[port.peer]]");
    }
    let endpoint = endpoint(t, mtu, peers.len())?;
    Some(Roce { endpoint, rendezvous, peers })
}

/// Reads `rendezvous` and `rendezvous_form`.
pub(crate) fn rendezvous(t: &mut Table<'_, '_>) -> Option<Rendezvous> {
    let bind = t.text("rendezvous");
    let form = t.chosen("rendezvous_form", &[("berth", Form::Berth), ("host-api", Form::HostApi)]);
    let bind = address(t, &bind?)?;
    Some(Rendezvous { bind, form })
}

impl fmt::Display for Roce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Slots { count, stride, .. } = self.endpoint.slots;
        write!(f, "{count} slots x {stride} B, {} known peers", self.peers.len())?;
        self.rendezvous.iter().try_for_each(|Rendezvous { bind, form }| write!(f, ", rendezvous {bind} {form:?}"))
    }
}

fn endpoint(t: &mut Table<'_, '_>, mtu: u16, fixed: usize) -> Option<Config> {
    let mut t = t.table_or_empty("roce");
    let form = t.chosen("immediate", common::IMMEDIATES);
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
