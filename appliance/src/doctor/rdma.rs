//! RDMA devices with their ports and GIDs, and soft-RoCE where there is none.

use super::Findings;
use crate::sys::Root;

const DEVICES: &str = "/sys/class/infiniband";

/// What a GID entry that is not used holds.
const NO_GID: &str = "0000:0000:0000:0000:0000:0000:0000:0000";

pub(super) fn examine(root: &Root, f: &mut Findings) {
    let devices = root.names(DEVICES);
    if devices.is_empty() {
        return absent(root, f);
    }
    for device in devices {
        let ports = format!("{DEVICES}/{device}/ports");
        for port in root.names(&ports) {
            examine_port(root, f, &device, &format!("{ports}/{port}"), &port);
        }
    }
    if !root.exists("/dev/infiniband/uverbs0") {
        f.missing("rdma user access", "no /dev/infiniband/uverbs0", "modprobe ib_uverbs");
    }
}

fn examine_port(root: &Root, f: &mut Findings, device: &str, folder: &str, port: &str) {
    let what = format!("rdma {device} port {port}");
    // As "4: ACTIVE".
    let state = root.read(&format!("{folder}/state")).unwrap_or_default();
    let state = state.split_once(": ").map_or("unknown", |(_, word)| word);
    let link = root.read(&format!("{folder}/link_layer")).unwrap_or_else(|| "unknown".to_string());
    let gids = gids(root, folder);
    let mut found = vec![format!("{link}, {state}")];
    found.extend(root.read(&format!("{folder}/rate")));
    found.extend(gids.iter().map(|(index, gid)| format!("gid {index} {gid}")));
    let found = found.join(", ");
    let device = device_name(root, folder);
    if state != "ACTIVE" {
        f.warn(what, found, format!("ip link set {device} up"));
    } else if gids.iter().any(|(_, gid)| gid.contains("RoCE v2") && gid.contains("::ffff:")) || link != "Ethernet" {
        f.ok(what, found);
    } else {
        // Peers that speak IPv4 reach it by the GID of an IPv4 address only.
        f.warn(what, found, format!("ip addr add 10.0.0.1/24 dev {device}"));
    }
}

/// The network interface behind a port, by its first GID.
fn device_name(root: &Root, folder: &str) -> String {
    root.read(&format!("{folder}/gid_attrs/ndevs/0")).unwrap_or_else(|| "eth0".to_string())
}

/// The GIDs in use, each with its place, its type and its address as IPv6 addresses are written.
fn gids(root: &Root, folder: &str) -> Vec<(u32, String)> {
    let mut places: Vec<u32> =
        root.names(&format!("{folder}/gids")).iter().filter_map(|place| place.parse().ok()).collect();
    places.sort_unstable();
    let gid = |place: u32| {
        let gid = root.read(&format!("{folder}/gids/{place}")).filter(|gid| gid != NO_GID)?;
        let address = gid.parse::<std::net::Ipv6Addr>().map_or(gid, |address| address.to_string());
        let kind = root.read(&format!("{folder}/gid_attrs/types/{place}"));
        Some((place, kind.map_or_else(|| address.clone(), |kind| format!("{address} ({kind})"))))
    };
    places.into_iter().filter_map(gid).collect()
}

/// Where there is no device: whether the kernel could have a software one.
fn absent(root: &Root, f: &mut Findings) {
    let version = root.read("/proc/sys/kernel/osrelease").unwrap_or_default();
    let modules = format!("/lib/modules/{version}");
    let loaded = root.exists("/sys/module/rdma_rxe");
    let has = |list: &str| root.read(&format!("{modules}/{list}")).is_some_and(|text| text.contains("/rdma_rxe.ko"));
    let add = "rdma link add rxe0 type rxe netdev eth0";
    if loaded || has("modules.builtin") {
        f.warn("rdma", "no device; soft-RoCE is there", add);
    } else if has("modules.dep") {
        f.warn("rdma", "no device; soft-RoCE can be loaded", format!("modprobe rdma_rxe && {add}"));
    } else {
        f.warn(
            "rdma",
            format!("no device, and the kernel {version} has no module rdma_rxe for a software one"),
            "use a kernel built with CONFIG_RDMA_RXE (Debian: linux-image-amd64, not the cloud kernel), or transport = \
             \"roce\" on a DPDK port",
        );
    }
}
