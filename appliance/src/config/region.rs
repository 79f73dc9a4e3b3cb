//! `[[region]]`: memory, blocks, memory of GPUs and virtual functions of this host that can be leased.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use berth_gpu::Choice;
use berth_keys::{At, Table, instead};
use berth_ports::sriov::{Address, Card, ClientSets, Network, PoolConfig};
use berth_wire::net::MacAddr;

use super::{name, rpc::Place, unique};

/// One region.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Region {
    /// Unique name: 1 to 64 printable ASCII characters, no spaces.
    pub name: String,
    /// What it is leased as. `Vram` has a GPU as backing, `Functions` a pool, the others one of the rest.
    pub kind: Kind,
    /// Length in bytes, a multiple of 4096; `None`: that of the file or device it lies in, or it has no bytes.
    pub size: Option<u64>,
    /// Where its bytes are.
    pub backing: Backing,
    /// The NUMA node its memory is to come from; `None`: any.
    pub numa: Option<u32>,
}

/// `region.kind`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Bytes of ordinary or huge pages.
    Memory,
    /// Blocks of 512 bytes.
    Block,
    /// Bytes of a GPU's memory, which kernels of their holder reach.
    Vram,
    /// Virtual functions of a network card or an NVMe controller, one a lease.
    Functions,
}

/// `region.backing`
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Backing {
    /// Ordinary pages.
    Ram,
    /// Huge pages of 2 MiB.
    Hugepages,
    /// A file or a block device, for blocks alone.
    Path(PathBuf),
    /// A GPU with `use = "lease"`, which no other region has.
    Gpu(LeasedGpu),
    /// The virtual functions of a physical function, which no other region has.
    Functions(PoolConfig),
}

/// A GPU whose memory is leased.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeasedGpu {
    /// As the configuration calls it.
    pub name: String,
    /// The GPU in software, NVIDIA's first, or one by its PCI address or UUID.
    pub device: Choice,
    /// How long a submitted kernel may run before it is killed: 100 ms to 10 min.
    pub limit: Duration,
    /// Where the bytes of leases lie.
    pub memory: Place,
}

/// Lengths of regions are multiples of this many bytes.
const GRANULE: u64 = 4096;

/// Reads `[[region]]`; `gpus` are those that can be leased.
pub(super) fn read_all(
    root: &mut Table<'_, '_>,
    folder: &Path,
    gpus: &[(At<String>, Choice, Duration)],
) -> Vec<Region> {
    let mut names = Vec::new();
    let mut regions: Vec<Region> = Vec::new();
    for mut t in root.tables("region").unwrap_or_default() {
        let name = name(&mut t, "scratch");
        let kinds = [("memory", Kind::Memory), ("block", Kind::Block), ("vram", Kind::Vram), ("vf", Kind::Functions)];
        let kind = t.choice("kind", &kinds);
        let kind = t.require("kind", kind, "kind = \"memory\", \"block\", \"vram\" or \"vf\"");
        if kind.as_ref().is_some_and(|kind| kind.value == Kind::Functions) {
            let pool = functions(&mut t, name.as_ref(), &regions);
            t.finish();
            names.extend(name.clone());
            if let (Some(name), Some(pool)) = (name, pool) {
                let (kind, backing) = (Kind::Functions, Backing::Functions(pool));
                regions.push(Region { name: name.value, kind, size: None, backing, numa: None });
            }
            continue;
        }
        let size = t.size("size");
        if let Some(at) = size.as_ref().filter(|at| at.value % GRANULE != 0) {
            t.sink().wrong(at, format_args!("is {} bytes; a multiple of {GRANULE} is wanted", at.value));
        }
        if kind.as_ref().is_some_and(|kind| kind.value == Kind::Vram) {
            let gpu = gpu(&mut t, gpus, &regions);
            if gpu.as_ref().is_none_or(|gpu| gpu.device == Choice::Soft || gpu.memory == Place::Pinned) {
                t.require("size", size.as_ref(), "size = \"256 MiB\"");
            }
            t.finish();
            names.extend(name.clone());
            if let (Some(name), Some(gpu)) = (name, gpu) {
                let (kind, backing) = (Kind::Vram, Backing::Gpu(gpu));
                let size = size.map(|at| at.value);
                regions.push(Region { name: name.value, kind, size, backing, numa: None });
            }
            continue;
        }
        let backing = t.text("backing");
        let found = backing.as_ref().map_or(Backing::Ram, |at| match at.value {
            "ram" => Backing::Ram,
            "hugepages" => Backing::Hugepages,
            path => Backing::Path(folder.join(path)),
        });
        if let (Some(at), Backing::Path(_)) = (&backing, &found) {
            if kind.as_ref().is_some_and(|kind| kind.value == Kind::Memory) {
                let message = format_args!("\"{}\" is a path, and memory is \"ram\" or \"hugepages\"", at.value);
                t.sink().wrong(at, message);
            }
            t.refuse(&["numa"], "a path has no NUMA node");
        } else {
            // A wrong size was reported already.
            t.require("size", size.as_ref(), "size = \"64 MiB\"");
        }
        let numa = t.integer("numa").map(|at| at.value as u32);
        t.finish();
        names.extend(name.clone());
        if let (Some(name), Some(kind)) = (name, kind) {
            let size = size.map(|at| at.value);
            regions.push(Region { name: name.value, kind: kind.value, size, backing: found, numa });
        }
    }
    unique(root.sink(), names.iter());
    regions
}

/// The GPU of a `vram` region: one with `use = "lease"` that no other region has.
fn gpu(t: &mut Table<'_, '_>, gpus: &[(At<String>, Choice, Duration)], others: &[Region]) -> Option<LeasedGpu> {
    t.refuse(&["backing", "numa"], "its bytes are a GPU's");
    let at = t.text("gpu");
    let places = [("vram", Place::Vram), ("pinned", Place::Pinned), ("auto", Place::Auto)];
    let memory = t.chosen("memory", &places);
    let at = t.require("gpu", at, "gpu = \"gpu0\", the name of a [[gpu]] with use = \"lease\"")?;
    let Some((name, device, limit)) = gpus.iter().find(|(name, ..)| name.value == at.value) else {
        let message = format_args!("there is no [[gpu]] \"{}\" with use = \"lease\"; add one", at.value);
        t.sink().wrong(&at, message);
        return None;
    };
    let is_its = |other: &Region| matches!(&other.backing, Backing::Gpu(gpu) if gpu.name == name.value);
    if others.iter().any(is_its) {
        t.sink().wrong(&at, "there is a region of this GPU already");
    }
    Some(LeasedGpu { name: name.value.clone(), device: device.clone(), limit: *limit, memory })
}

fn functions(t: &mut Table<'_, '_>, name: Option<&At<String>>, others: &[Region]) -> Option<PoolConfig> {
    t.refuse(&["size", "backing", "numa"], "functions have no bytes");
    let pf = t.text("pf");
    let pf = t.require("pf", pf, "pf = \"0000:03:00.0\", an address that `lspci -D` prints");
    let pf = pf.and_then(|at| match at.value.parse::<Address>() {
        Ok(pf) => Some(at.map(|_| pf)),
        Err(bad) => {
            t.sink().wrong(&at, format_args!("\"{}\" {bad}", at.value));
            None
        }
    });
    let is_same = |pf: &At<Address>| {
        let same = |other: &Region| matches!(&other.backing, Backing::Functions(pool) if pool.pf == pf.value);
        others.iter().any(same)
    };
    if let Some(at) = pf.as_ref().filter(|at| is_same(at)) {
        t.sink().wrong(at, "there is a region of this function already");
    }
    let count = t.integer("count").map(|at| at.value as u16);
    let owner = t.text("owner").map(|at| at.value.to_owned());
    let card = match t.integer("namespace") {
        Some(at) => {
            t.refuse(&NETWORK, "functions of an NVMe controller have a namespace, and no network");
            Card::Nvme { namespace: at.value as u32 }
        }
        None => Card::Network(network(t)),
    };
    let (name, pf) = (name?.value.clone(), pf?.value);
    Some(PoolConfig { name, pf, count, owner, card })
}

/// What functions of a network card have, and others not.
const NETWORK: [&str; 6] = ["mac", "vlan", "rate", "trust", "spoofchk", "client_sets"];

fn network(t: &mut Table<'_, '_>) -> Network {
    let mac = t.text("mac").and_then(|at| {
        let parsed = station(at.value);
        parsed.map_err(|wrong| t.sink().wrong(&at, wrong)).ok()
    });
    let (vlan, rate) = (t.number("vlan") as u16, t.number("rate") as u32);
    let (trust, spoofchk) = (t.is_on("trust"), t.is_on("spoofchk"));
    let mut client = ClientSets::default();
    for at in t.texts("client_sets").map_or_else(Vec::new, |at| at.value) {
        match at.value {
            "mac" => client.mac = true,
            "vlan" => client.vlan = true,
            word => {
                let advice = instead(word, ["mac", "vlan"].into_iter());
                t.sink().wrong(&at, format_args!("\"{word}\" is nothing that a holder may choose; {advice}"));
            }
        }
    }
    Network { mac, vlan, rate, trust, spoofchk, client }
}

/// An Ethernet address of one station, such as `02:00:00:00:10:00`.
pub(crate) fn station(text: &str) -> Result<MacAddr, String> {
    let address = text.parse().ok().filter(|address: &MacAddr| address.is_station());
    address.ok_or_else(|| format!("{text:?} is not the address of one card; write one such as 02:00:00:00:10:00"))
}
