//! `[node]`, `[control]` and `[dataplane]`: this host as a node that leases what it has.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use berth_identity::{Enrolment, NodeId, PublicKey};
use berth_keys::{At, Binds, Table, address, claim, default_address, instead};
use berth_lease::Item;
use berth_wire::fabric::Perms;

use super::region::Region;

/// `[node]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Folder of the node's key and its journal.
    pub state_dir: PathBuf,
    /// The node's key; made at the first start where it is not there.
    pub key_file: PathBuf,
    /// Site, as announced.
    pub site: u32,
    /// Row, as announced.
    pub row: u32,
    /// Rack, as announced.
    pub rack: u32,
    /// Trust domain, as announced, at most 255 bytes; empty is none.
    pub trust_domain: String,
}

/// `[control]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Control {
    /// Address of the listener for control over UDP.
    pub udp: SocketAddr,
    /// Address of the listener for control and data over QUIC.
    pub quic: SocketAddr,
    /// Address of the discovery relay, over UDP; `None` is off.
    pub relay: Option<SocketAddr>,
    /// The relays that are told of this node.
    pub announce: Vec<SocketAddr>,
    /// Whether keys that are not in `enrolled` may enroll themselves.
    pub enroll: Enrolment,
    /// Public keys that are enrolled.
    pub enrolled: Vec<PublicKey>,
    /// Whether no token is issued before a scheduler has installed a fence.
    pub require_fence: bool,
    /// How many requests of one sender are served in a second; 0 is without limit.
    pub max_requests_per_sec: u32,
    /// Leases at a time, revoked ones that are remembered included. Room for them is taken at the start.
    pub max_leases: usize,
    /// Permissions of presenters, which add up, and limits of what they hold.
    pub policies: Vec<Policy>,
}

/// `[[control.policy]]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// The id of the presenter; `None` is every enrolled one.
    pub presenter: Option<NodeId>,
    /// Its permissions. Those of all policies that fit a presenter add up.
    pub perms: Perms,
    /// The regions it may lease from, by position; `None` is all.
    pub regions: Option<Vec<usize>>,
    /// Whether it may use the pool of tasklets, where `regions` is not all.
    pub cpu: bool,
    /// Quotas of one presenter: bytes for `Item::Bytes`, counts for the rest. What is absent is not limited here.
    pub limits: Vec<(Item, u64)>,
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

pub(super) fn node(mut t: Table<'_, '_>, folder: &Path) -> Node {
    let state_dir = t.text("state_dir").map_or(t.default_text("state_dir"), |at| at.value);
    let state_dir = folder.join(state_dir);
    let key_file = t.text("key_file").map_or_else(|| state_dir.join("node.key"), |at| folder.join(at.value));
    let [site, row, rack] = ["site", "row", "rack"].map(|key| t.number(key) as u32);
    let trust_domain = t.text("trust_domain");
    if let Some(at) = trust_domain.as_ref().filter(|at| at.value.len() > 255) {
        t.sink().wrong(at, format_args!("has {} bytes; a trust domain has at most 255", at.value.len()));
    }
    let trust_domain = trust_domain.map_or(t.default_text("trust_domain"), |at| at.value).to_owned();
    t.finish();
    Node { state_dir, key_file, site, row, rack, trust_domain }
}

pub(super) fn control(mut t: Table<'_, '_>, regions: &[Region], tasklets: bool, binds: &mut Binds) -> Control {
    let [local_udp, local_quic] = ["udp", "quic"].map(|key| default_address(&t, key));
    let mut listen = |key| listener(&mut t, key, &format!("control.{key}"), binds);
    let udp = listen("udp").unwrap_or(local_udp);
    let quic = listen("quic").unwrap_or(local_quic);
    let relay = listen("relay");
    let announce = t.texts("announce").map_or_else(Vec::new, |at| at.value);
    let announce = announce.iter().filter_map(|at| address(&t, at)).collect();
    let enroll = t.chosen("enroll", &[("closed", Enrolment::Closed), ("open", Enrolment::Open)]);
    let enrolled = t.texts("enrolled").map_or_else(Vec::new, |at| at.value);
    let enrolled = enrolled.iter().filter_map(|at| public_key(&t, at)).collect();
    let require_fence = t.is_on("require_fence");
    let max_requests_per_sec = t.number("max_requests_per_sec") as u32;
    let max_leases = t.number("max_leases") as usize;
    let policies = t.tables("policy").unwrap_or_default();
    let policies = policies.into_iter().filter_map(|t| policy(t, regions, tasklets)).collect();
    t.finish();
    Control { udp, quic, relay, announce, enroll, enrolled, require_fence, max_requests_per_sec, max_leases, policies }
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
    let bind = address(t, &at)?;
    claim(t, binds, &at, bind, owner.to_string());
    Some(bind)
}

pub(super) fn public_key(t: &Table<'_, '_>, at: &At<&str>) -> Option<PublicKey> {
    let key = at.value.parse().ok();
    if key.is_none() {
        let message = format_args!("\"{}\" is not a public key; `berth key show` prints one: 64 hex digits", at.value);
        t.sink().wrong(at, message);
    }
    key
}

fn policy(mut t: Table<'_, '_>, regions: &[Region], tasklets: bool) -> Option<Policy> {
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
    let mut cpu = false;
    let resources = t.texts("resources").map(|at| {
        let is_cpu = |at: &At<&str>| tasklets && at.value == "cpu" && regions.iter().all(|region| region.name != "cpu");
        cpu = at.value.iter().any(is_cpu);
        let region = |at: &At<&str>| {
            let position = regions.iter().position(|region| region.name == at.value);
            if position.is_none() {
                let advice = instead(at.value, regions.iter().map(|region| region.name.as_str()));
                t.sink().wrong(at, format_args!("there is no region \"{}\"; {advice}", at.value));
            }
            position
        };
        at.value.iter().filter(|at| !is_cpu(at)).filter_map(region).collect()
    });
    let limits = Item::ALL.into_iter().filter_map(|item| {
        let most = match item {
            Item::Leases => t.integer("max_leases"),
            Item::Bytes => t.size("max_bytes"),
            Item::Handles => t.integer("max_handles"),
            Item::Attachments => t.integer("max_attachments"),
            Item::Proxies => t.integer("max_proxies"),
            Item::Bindings => t.integer("max_bindings"),
            Item::PageState => t.integer("max_page_state"),
            Item::Functions => t.integer("max_functions"),
            Item::Composites => t.integer("max_composites"),
        };
        Some((item, most?.value))
    });
    let limits = limits.collect();
    t.finish();
    Some(Policy { presenter: presenter?, perms, regions: resources, cpu, limits })
}
