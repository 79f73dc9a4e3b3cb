//! The way from a GPU to a network card: the bridges and sockets between them, and what turns their packets round.

use std::path::PathBuf;

use berth_ports::sriov::Address;

use super::{DEVICES, Findings, Root, pci};

/// What lies between two devices, the best first.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Between {
    /// A switch, whose port towards the processor has this address.
    Switch(String),
    /// A root complex.
    Complex,
    /// Two root complexes of one NUMA node.
    Complexes,
    /// Two NUMA nodes: that of the first device, and that of the second.
    Nodes(i64, i64),
}

/// Where a device is.
struct Place {
    /// Its root complex, such as `/sys/devices/pci0000:3a`.
    complex: PathBuf,
    /// The bridges from there to it.
    bridges: Vec<String>,
    node: Option<i64>,
}

/// What was found between a GPU and a network card, and what mends it.
pub(super) struct Path {
    between: Between,
    pub(super) found: String,
    pub(super) mend: Option<String>,
}

/// The NUMA node of a device; `None` where the firmware does not tell.
pub(super) fn node(root: &Root, address: &str) -> Option<i64> {
    root.number(&format!("{DEVICES}/{address}/numa_node")).filter(|node| *node >= 0)
}

/// The way to the nearest network card.
pub(super) fn examine(root: &Root, gpu: &str, f: &mut Findings) {
    let what = format!("gpu {gpu} path");
    let is_own = |address: &String| {
        let class = root.read(&format!("{DEVICES}/{address}/class")).unwrap_or_default();
        // A virtual function is where its physical one is.
        class.starts_with("0x02") && !root.exists(&format!("{DEVICES}/{address}/physfn"))
    };
    let nics = root.names(DEVICES).into_iter().filter(is_own);
    let paths = nics.filter_map(|nic| between(root, gpu, &nic));
    match paths.min_by(|a, b| a.between.cmp(&b.between)) {
        None => f.ok(what, format!("no network card; {}", iommu(root, &[gpu]).0)),
        Some(Path { found, mend: None, .. }) => f.ok(what, found),
        Some(Path { found, mend: Some(mend), .. }) => f.warn(what, found, mend),
    }
}

/// The way between these two; `None` where one is not there.
pub(super) fn between(root: &Root, gpu: &str, nic: &str) -> Option<Path> {
    let (from, to) = (place(root, gpu)?, place(root, nic)?);
    let shared = from.bridges.iter().zip(&to.bridges).take_while(|(a, b)| a == b).count();
    let between = match (from.node, to.node) {
        _ if shared > 0 => Between::Switch(from.bridges[shared - 1].clone()),
        _ if from.complex == to.complex => Between::Complex,
        (Some(a), Some(b)) if a != b => Between::Nodes(a, b),
        _ => Between::Complexes,
    };
    let name = pci::interfaces(root, nic).first().map_or(String::new(), |name| format!(" ({name})"));
    let (iommu, mut mend) = iommu(root, &[gpu, nic]);
    let way = match &between {
        Between::Switch(port) => {
            let below = from.bridges[shared..].iter().chain(&to.bridges[shared..]);
            let (acs, amends) = redirects(root, below);
            mend = mend.or(amends);
            format!("one switch, below {port}, {acs}")
        }
        Between::Complex => "through the root complex".into(),
        Between::Complexes => "through two root complexes".into(),
        Between::Nodes(a, b) => {
            mend = Some("move the GPU or the card to a slot of the other one's socket".into());
            format!("from node {a} to node {b}, between sockets")
        }
    };
    Some(Path { between, found: format!("to {nic}{name}: {way}; {iommu}"), mend })
}

fn place(root: &Root, address: &str) -> Option<Place> {
    let real = std::fs::canonicalize(root.path(&format!("{DEVICES}/{address}"))).ok()?;
    let is_function = |part: &std::ffi::OsStr| part.to_str().is_some_and(|part| part.parse::<Address>().is_ok());
    let complex = real.iter().take_while(|part| !is_function(part)).collect();
    let mut bridges: Vec<_> =
        real.iter().filter(|part| is_function(part)).map(|part| part.to_string_lossy().into_owned()).collect();
    bridges.pop()?;
    Some(Place { complex, bridges, node: node(root, address) })
}

/// What the IOMMU does with the requests of these devices, and what mends it where it translates their addresses.
fn iommu(root: &Root, devices: &[&str]) -> (String, Option<String>) {
    const TAKEN: &str = "vfio-pci's";
    let mode = |address: &&str| {
        let device = format!("{DEVICES}/{address}");
        let group = root.link_name(&format!("{device}/iommu_group"))?;
        // What vfio-pci has is translated in any case, as its user says.
        let is_taken = root.link_name(&format!("{device}/driver")).is_some_and(|driver| driver == "vfio-pci");
        let mode = root.read(&format!("/sys/kernel/iommu_groups/{group}/type")).unwrap_or_else(|| "not told".into());
        Some((address.to_string(), if is_taken { TAKEN.into() } else { mode }))
    };
    let modes: Vec<_> = devices.iter().filter_map(mode).collect();
    let others: Vec<_> = modes.iter().filter(|(_, mode)| mode != "identity").collect();
    if modes.is_empty() {
        return ("no IOMMU".into(), None);
    }
    if others.is_empty() {
        return ("the IOMMU passes through".into(), None);
    }
    let translates = others.iter().any(|(_, mode)| mode.starts_with("DMA"));
    let others: Vec<_> = others.into_iter().map(|(address, mode)| format!("{mode} for {address}")).collect();
    (format!("the IOMMU's mode is {}", others.join(", ")), translates.then(|| "boot with iommu=pt".into()))
}

/// Whether these bridges send what one device has for another up to the processor first, and what mends that.
fn redirects<'b>(root: &Root, bridges: impl Iterator<Item = &'b String>) -> (String, Option<String>) {
    let told: Vec<_> = bridges.map(|bridge| (bridge, redirect(root, bridge))).collect();
    let on: Vec<_> = told.iter().filter(|(_, on)| *on == Some(true)).map(|(bridge, _)| bridge.as_str()).collect();
    if !on.is_empty() {
        let mend = format!(
            "boot with pci=disable_acs_redir={}, which joins IOMMU groups; until then: setpci -s BRIDGE ECAP_ACS+6.w=0",
            on.join(";")
        );
        return (format!("ACS of {} sends packets up to the processor first", on.join(" and ")), Some(mend));
    }
    if told.iter().any(|(_, on)| on.is_none()) {
        return ("ACS is told to root alone".into(), Some("run berth doctor as root".into()));
    }
    ("which ACS does not keep apart".into(), None)
}

/// Whether a bridge's ACS redirects requests or completions between its devices (PCI Express Base Specification, "Access
/// Control Services": the control register, bits 2 and 3); `None` where its configuration space cannot be read.
fn redirect(root: &Root, bridge: &str) -> Option<bool> {
    const ACS: u32 = 0x000D;
    const REDIRECT: u16 = 0b1100;
    /// Of the 3840 bytes of extended capabilities, each of 8 or more.
    const MOST: usize = 480;

    let space = root.bytes(&format!("{DEVICES}/{bridge}/config"), 4096)?;
    // Others than root have the header alone.
    if space.len() <= 64 {
        return None;
    }
    let mut at = 0x100;
    for _ in 0..MOST {
        let Some(header) = space.get(at..at + 4) else { break };
        let header = u32::from_le_bytes(header.try_into().ok()?);
        if header & 0xFFFF == ACS {
            let control = space.get(at + 6..at + 8)?;
            return Some(u16::from_le_bytes(control.try_into().ok()?) & REDIRECT != 0);
        }
        at = (header >> 20) as usize & !3;
        // The list ends with 0; a bridge that is gone reads as ones.
        if at < 0x100 || header == u32::MAX {
            break;
        }
    }
    Some(false)
}
