//! `[node]`, `[control]` and `[dataplane]`: this host as a node that leases what it has.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
};

use berth_identity::{Enrolment, NodeId, PublicKey};
use berth_wire::fabric::Perms;

use super::{
    port::{self, Binds},
    region::Region,
    walk::{At, Table, instead},
};

/// `[node]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Where the node keeps its key and its journal.
    pub state_dir: PathBuf,
    /// The node's key; made at the first start where it is not there.
    pub key_file: PathBuf,
    /// Site, as announced.
    pub site: u32,
    /// Row, as announced.
    pub row: u32,
    /// Rack, as announced.
    pub rack: u32,
    /// Trust domain, as announced; empty is none.
    pub trust_domain: String,
}

/// `[control]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Control {
    /// Where control over UDP listens.
    pub udp: SocketAddr,
    /// Where control and data over QUIC listen.
    pub quic: SocketAddr,
    /// Where the discovery relay listens; `None` is off.
    pub relay: Option<SocketAddr>,
    /// The relays that are told of this node.
    pub announce: Vec<SocketAddr>,
    /// Who may enroll.
    pub enroll: Enrolment,
    /// Public keys that are enrolled from the start.
    pub enrolled: Vec<PublicKey>,
    /// Whether no token is issued before a scheduler has installed a fence.
    pub require_fence: bool,
    /// How many requests of one sender are served in a second; 0 is without limit.
    pub max_requests_per_sec: u32,
    /// Leases at a time, revoked ones that are remembered included.
    pub max_leases: usize,
    /// What presenters may do.
    pub policies: Vec<Policy>,
}

/// `[[control.policy]]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// The id of the presenter; `None` is every enrolled one.
    pub presenter: Option<NodeId>,
    /// What it may do.
    pub perms: Perms,
    /// The regions it may lease from, by position; `None` is all.
    pub regions: Option<Vec<usize>>,
}

/// `[dataplane]`
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Dataplane {
    /// Memory over TCP; `None` is off.
    pub fbmt: Option<SocketAddr>,
    /// Blocks over TCP; `None` is off.
    pub fbbt: Option<SocketAddr>,
    /// Memory and blocks over UDP; `None` is off.
    pub fbmu: Option<SocketAddr>,
}

/// Where state is kept unless the file says otherwise.
const STATE_DIR: &str = "/var/lib/berth";

pub(super) fn node(table: Option<Table<'_, '_>>, folder: &Path) -> Node {
    let default = |state_dir: PathBuf| Node {
        key_file: state_dir.join("node.key"),
        state_dir,
        site: 0,
        row: 0,
        rack: 0,
        trust_domain: String::new(),
    };
    let Some(mut t) = table else { return default(STATE_DIR.into()) };
    let state_dir = t.text("state_dir").map_or(STATE_DIR, |at| at.value);
    let mut node = default(folder.join(state_dir));
    if let Some(at) = t.text("key_file") {
        node.key_file = folder.join(at.value);
    }
    for (key, place) in [("site", &mut node.site), ("row", &mut node.row), ("rack", &mut node.rack)] {
        *place = t.integer(key, 0..=u32::MAX.into()).map_or(0, |at| at.value as u32);
    }
    if let Some(at) = t.text("trust_domain") {
        if at.value.len() > 255 {
            t.sink().wrong(&at, format_args!("has {} bytes; a trust domain has at most 255", at.value.len()));
        }
        node.trust_domain = at.value.to_string();
    }
    t.finish();
    node
}

pub(super) fn control(mut t: Table<'_, '_>, regions: &[Region], binds: &mut Binds) -> Control {
    let local = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut listen = |key| listener(&mut t, key, &format!("control.{key}"), binds);
    let (udp, quic, relay) = (listen("udp"), listen("quic"), listen("relay"));
    let announce = t.texts("announce").map_or_else(Vec::new, |at| at.value);
    let announce = announce.iter().filter_map(|at| port::address(&t, at)).collect();
    let enroll = t.choice("enroll", &[("closed", Enrolment::Closed), ("open", Enrolment::Open)]);
    let enrolled = t.texts("enrolled").map_or_else(Vec::new, |at| at.value);
    let enrolled = enrolled.iter().filter_map(|at| public_key(&t, at)).collect();
    let require_fence = t.flag("require_fence").unwrap_or(false);
    let max_requests_per_sec = t.integer("max_requests_per_sec", 0..=u32::MAX.into());
    let max_leases = t.integer("max_leases", 1..=1 << 24);
    let policies = t.tables("policy").unwrap_or_default();
    let policies = policies.into_iter().filter_map(|t| policy(t, regions)).collect();
    t.finish();
    Control {
        udp: udp.unwrap_or(local(5700)),
        quic: quic.unwrap_or(local(5701)),
        relay,
        announce,
        enroll: enroll.map_or(Enrolment::Closed, |at| at.value),
        enrolled,
        require_fence,
        max_requests_per_sec: max_requests_per_sec.map_or(10_000, |at| at.value as u32),
        max_leases: max_leases.map_or(1 << 16, |at| at.value as usize),
        policies,
    }
}

pub(super) fn dataplane(table: Option<Table<'_, '_>>, leases: bool, binds: &mut Binds) -> Dataplane {
    let Some(mut t) = table else { return Dataplane::default() };
    if !leases {
        t.sink().mistake(t.span(), t.path(), "serves leases, and nothing grants any; add [control]");
    }
    let fbmu = listener(&mut t, "fbmu", "dataplane.fbmu", binds);
    let mut tcp = BTreeMap::new();
    let mut listen = |key| listener(&mut t, key, &format!("dataplane.{key}"), &mut tcp);
    let dataplane = Dataplane { fbmt: listen("fbmt"), fbbt: listen("fbbt"), fbmu };
    t.finish();
    dataplane
}

/// The address under `key`, which no other listener of the same transport has.
fn listener(t: &mut Table<'_, '_>, key: &'static str, owner: &str, binds: &mut Binds) -> Option<SocketAddr> {
    let at = t.text(key)?;
    let bind = port::address(t, &at)?;
    port::claim(t, binds, &at, bind, owner.to_string());
    Some(bind)
}

fn public_key(t: &Table<'_, '_>, at: &At<&str>) -> Option<PublicKey> {
    let key = at.value.parse().ok();
    if key.is_none() {
        let message = format_args!("\"{}\" is not a public key; `berth key show` prints one: 64 hex digits", at.value);
        t.sink().wrong(at, message);
    }
    key
}

fn policy(mut t: Table<'_, '_>, regions: &[Region]) -> Option<Policy> {
    let presenter = t.text("presenter");
    let presenter = t.require("presenter", presenter, "presenter = \"*\" or the id that `berth key show` prints");
    let presenter = presenter.and_then(|at| {
        let parsed = if at.value == "*" { Some(None) } else { at.value.parse().ok().map(Some) };
        if parsed.is_none() {
            let message = format_args!(
                "\"{}\" is not an id; write \"*\" or the 32 hex digits that `berth key show` prints",
                at.value
            );
            t.sink().wrong(&at, message);
        }
        parsed
    });
    let words = t.texts("perms");
    let words = t.require("perms", words, "perms = [\"read\", \"write\", \"alloc\"]");
    let mut perms = Perms::NONE;
    for at in words.map_or_else(Vec::new, |at| at.value) {
        if let Some(perm) = Perms::from_name(at.value) {
            perms = perms | perm;
        } else {
            let words: Vec<_> = Perms::ALL.names().collect();
            let advice = instead(at.value, words.iter().map(String::as_str));
            t.sink().wrong(&at, format_args!("\"{}\" is not a permission; {advice}", at.value));
        }
    }
    let resources = t.texts("resources").map(|at| {
        let region = |at: &At<&str>| {
            let position = regions.iter().position(|region| region.name == at.value);
            if position.is_none() {
                let advice = instead(at.value, regions.iter().map(|region| region.name.as_str()));
                t.sink().wrong(at, format_args!("there is no region \"{}\"; {advice}", at.value));
            }
            position
        };
        at.value.iter().filter_map(region).collect()
    });
    t.finish();
    Some(Policy { presenter: presenter?, perms, regions: resources })
}
