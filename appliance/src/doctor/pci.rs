//! Network cards as DPDK sees them: which driver has each, in which IOMMU group, and the command that gives it to DPDK.

use berth_ports::sriov::Address;

use super::{Findings, sriov::sysfs};
use crate::{
    config::{Backing, Region},
    sys::Root,
};

const DEVICES: &str = "/sys/bus/pci/devices";
/// Through these, DPDK and the kernel use a card at the same time.
const SHARING: [&str; 3] = ["mlx4_core", "mlx5_core", "mana"];

pub(super) fn examine(root: &Root, regions: &[Region], f: &mut Findings) {
    let (devices, sysfs) = (root.names(DEVICES), sysfs(root));
    for address in devices.iter().filter(|address| class(root, address).starts_with("0x02")) {
        let pf = address.parse().ok().and_then(|address| sysfs.physical_function(address));
        match pf.and_then(|pf| pool_of(regions, pf)) {
            Some(pool) => f.ok(format!("dpdk {address}"), format!("a function of region {pool}, which leases it")),
            None => card(root, address, f),
        }
    }
}

/// The region that leases the functions of a physical one.
fn pool_of(regions: &[Region], pf: Address) -> Option<&str> {
    let is_its = |region: &&Region| matches!(&region.backing, Backing::Functions(pool) if pool.pf == pf);
    regions.iter().find(is_its).map(|region| region.name.as_str())
}

fn card(root: &Root, address: &str, f: &mut Findings) {
    let what = format!("dpdk {address}");
    let driver = driver(root, address);
    let id = |name| root.read(&format!("{DEVICES}/{address}/{name}")).unwrap_or_default();
    let card = format!("{}:{}", id("vendor").trim_start_matches("0x"), id("device").trim_start_matches("0x"));
    let port = format!("a port with device = \"{address}\" can have it");
    let has = match &driver {
        Some(driver) => format!("{card}, bound to {driver}"),
        None => format!("{card}, no driver"),
    };
    match driver.as_deref() {
        Some(driver) if SHARING.contains(&driver) => {
            return f.ok(what, format!("{has}, which shares it with DPDK: {port}"));
        }
        Some("igb_uio" | "uio_pci_generic") => return f.ok(what, format!("{has}: {port}")),
        _ => {}
    }
    let Some(group) = root.link_name(&format!("{DEVICES}/{address}/iommu_group")) else {
        let mend = match interfaces(root, address).first() {
            Some(name) => format!("see iommu; without, device = \"net_af_xdp0,iface={name}\" goes through the kernel"),
            None => "see iommu".to_string(),
        };
        return f.warn(what, format!("{has}; vfio-pci cannot take it without an IOMMU"), mend);
    };
    let has = format!("{has}, IOMMU group {group}");
    let others = others(root, address, &group);
    if !others.is_empty() {
        let mend = format!("unbind {}, or put the card into a slot with a group of its own", others.join(" and "));
        return f.warn(what, format!("{has}, which vfio-pci must have whole"), mend);
    }
    if driver.as_deref() == Some("vfio-pci") {
        return f.ok(what, format!("{has}: {port}"));
    }
    if let Some(name) = interfaces(root, address).iter().find(|name| is_up(root, name)) {
        let free = format!("the kernel uses it as {name}; to see how DPDK gets it: ip link set {name} down");
        return f.ok(what, format!("{has}; {free}"));
    }
    let unbind = driver.map_or(String::new(), |_| format!("echo {address} > {DEVICES}/{address}/driver/unbind && "));
    let bind = format!(
        "echo vfio-pci > {DEVICES}/{address}/driver_override && {unbind}echo {address} > /sys/bus/pci/drivers_probe"
    );
    f.warn(what, format!("{has}, free for DPDK"), bind);
}

fn class(root: &Root, address: &str) -> String {
    root.read(&format!("{DEVICES}/{address}/class")).unwrap_or_default()
}

fn driver(root: &Root, address: &str) -> Option<String> {
    root.link_name(&format!("{DEVICES}/{address}/driver"))
}

/// What else of a group keeps VFIO from it: devices, bridges apart, that kernel drivers have.
fn others(root: &Root, address: &str, group: &str) -> Vec<String> {
    let members = root.names(&format!("/sys/kernel/iommu_groups/{group}/devices"));
    let others = members.iter().filter(|member| *member != address && !class(root, member).starts_with("0x0604"));
    let bound = others.filter_map(|member| Some((member, driver(root, member)?)));
    bound
        .filter(|(_, driver)| driver != "vfio-pci" && driver != "pci-stub")
        .map(|(member, driver)| format!("{member} ({driver})"))
        .collect()
}

/// The kernel's interfaces of a card, also where a virtio device sits between.
pub(super) fn interfaces(root: &Root, address: &str) -> Vec<String> {
    let device = format!("{DEVICES}/{address}");
    let nested = root.names(&device).into_iter().filter(|name| name.starts_with("virtio"));
    let folders = nested.map(|name| format!("{device}/{name}/net")).chain([format!("{device}/net")]);
    folders.flat_map(|folder| root.names(&folder)).collect()
}

/// An interface that somebody has set up, with a link or without (bit 0 of its flags is `IFF_UP`).
fn is_up(root: &Root, name: &str) -> bool {
    let flags = root.read(&format!("/sys/class/net/{name}/flags")).unwrap_or_default();
    u32::from_str_radix(flags.trim_start_matches("0x"), 16).is_ok_and(|flags| flags & 1 == 1)
}
