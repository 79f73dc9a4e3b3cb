//! Cards with virtual functions: whether a pool of them can be leased, and what keeps it from that.

use super::Findings;
use crate::sys::Root;

const DEVICES: &str = "/sys/bus/pci/devices";

pub(super) fn examine(root: &Root, f: &mut Findings) {
    for pf in root.names(DEVICES) {
        let number = |file| root.number(&format!("{DEVICES}/{pf}/{file}")).filter(|number| *number > 0);
        if let Some(total) = number("sriov_totalvfs") {
            card(root, &pf, total, number("sriov_numvfs").unwrap_or(0), f);
        }
    }
}

fn card(root: &Root, pf: &str, total: i64, has: i64, f: &mut Findings) {
    let what = format!("sriov {pf}");
    let found = format!("{has} of {total} virtual functions");
    if root.link_name(&format!("{DEVICES}/{pf}/iommu_group")).is_none() {
        return f.warn(what, format!("{found}; vfio-pci cannot take them without an IOMMU"), "see iommu");
    }
    let functions: Vec<_> =
        (0..has).filter_map(|index| root.link_name(&format!("{DEVICES}/{pf}/virtfn{index}"))).collect();
    let shared = functions.iter().filter(|function| !is_alone(root, function)).count();
    if shared > 0 {
        let mend = "put the card into a slot whose port has ACS, which keeps its functions apart";
        return f.warn(what, format!("{found}, {shared} of them in IOMMU groups with others"), mend);
    }
    let no_reset = functions.iter().find(|function| {
        let methods = root.read(&format!("{DEVICES}/{function}/reset_method")).unwrap_or_default();
        !methods.split_whitespace().any(|method| method == "flr")
    });
    if let Some(function) = no_reset {
        let mend = format!("echo flr > {DEVICES}/{function}/reset_method; a card that refuses it cannot be leased");
        return f.warn(what, format!("{found}; {function} is not reset by flr"), mend);
    }
    let down = root.names(&format!("{DEVICES}/{pf}/net")).into_iter().find(|name| {
        let flags = root.read(&format!("/sys/class/net/{name}/flags")).unwrap_or_default();
        u32::from_str_radix(flags.trim_start_matches("0x"), 16).is_ok_and(|flags| flags & 1 == 0)
    });
    if let Some(name) = down {
        let mend = format!("ip link set {name} up");
        return f.warn(what, format!("{found}; {name} is down, and its functions have no link"), mend);
    }
    f.ok(what, format!("{found}; a region with kind = \"vf\" and pf = \"{pf}\" can lease them"));
}

/// Whether a function is the only one of its IOMMU group.
fn is_alone(root: &Root, function: &str) -> bool {
    let group = root.link_name(&format!("{DEVICES}/{function}/iommu_group"));
    group.is_some_and(|group| root.names(&format!("/sys/kernel/iommu_groups/{group}/devices")) == [function])
}
