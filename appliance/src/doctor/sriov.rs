//! Cards with virtual functions: whether a pool of them can be leased, and what keeps it from that.

use berth_ports::sriov::{Address, Sysfs};

use super::Findings;
use crate::sys::Root;

const DEVICES: &str = "/sys/bus/pci/devices";

pub(super) fn examine(root: &Root, f: &mut Findings) {
    let sysfs = sysfs(root);
    for pf in root.names(DEVICES).iter().filter_map(|name| name.parse().ok()) {
        let number = |file| sysfs.number(pf, file).filter(|number| *number > 0);
        if let Some(total) = number("sriov_totalvfs") {
            card(&sysfs, pf, total, number("sriov_numvfs").unwrap_or(0), f);
        }
    }
}

/// PCI functions below the root.
pub(super) fn sysfs(root: &Root) -> Sysfs {
    Sysfs::new(&root.path("/"))
}

fn card(sysfs: &Sysfs, pf: Address, total: u32, has: u32, f: &mut Findings) {
    let what = format!("sriov {pf}");
    let found = format!("{has} of {total} virtual functions");
    if sysfs.group(pf).is_none() {
        return f.warn(what, format!("{found}; vfio-pci cannot take them without an IOMMU"), "see iommu");
    }
    let functions: Vec<_> = (0..has as u16).filter_map(|index| sysfs.virtual_function(pf, index)).collect();
    let is_alone = |function: &&Address| sysfs.group(**function).is_some_and(|(_, alone)| alone);
    let shared = functions.len() - functions.iter().filter(is_alone).count();
    if shared > 0 {
        let mend = "put the card into a slot whose port has ACS, which keeps its functions apart";
        return f.warn(what, format!("{found}, {shared} of them in IOMMU groups with others"), mend);
    }
    if let Some(function) = functions.iter().find(|function| !sysfs.has_flr(**function)) {
        let mend = format!("echo flr > {DEVICES}/{function}/reset_method; a card that refuses it cannot be leased");
        return f.warn(what, format!("{found}; {function} is not reset by flr"), mend);
    }
    if let Some(down) = sysfs.interface(pf).filter(|interface| !interface.up) {
        let mend = format!("ip link set {} up", down.name);
        return f.warn(what, format!("{found}; {} is down, and its functions have no link", down.name), mend);
    }
    let mut keys = format!("kind = \"vf\" and pf = \"{pf}\"");
    if sysfs.is_nvme(pf) {
        if sysfs.live_controller(pf).is_none() {
            return f.warn(what, format!("{found}; no driver has its controller"), "modprobe nvme");
        }
        keys += ", and the namespace of its first function,";
    }
    f.ok(what, format!("{found}; a region with {keys} can lease them"));
}
