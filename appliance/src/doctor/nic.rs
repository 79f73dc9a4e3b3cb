//! Network interfaces: which driver, where, how fast, and what they can do for a poll loop.

use berth_ports::sriov::Address;

use super::Findings;
use crate::sys::Root;

/// Drivers with native XDP in current kernels; others take the generic, slower path.
const XDP_DRIVERS: [&str; 17] = [
    "bnxt_en",
    "dpaa2-eth",
    "ena",
    "enetc",
    "gve",
    "hv_netvsc",
    "i40e",
    "ice",
    "igb",
    "igc",
    "ixgbe",
    "mlx4_en",
    "mlx5_core",
    "nfp",
    "qede",
    "veth",
    "virtio_net",
];

pub(super) fn examine(root: &Root, f: &mut Findings) {
    let names = root.names("/sys/class/net");
    for name in names.iter().filter(|name| root.exists(&format!("/sys/class/net/{name}/device")) || is_up(root, name)) {
        let folder = format!("/sys/class/net/{name}");
        let queues = root.names(&format!("{folder}/queues"));
        let receive = queues.iter().filter(|queue| queue.starts_with("rx-")).count();
        let up = root.read(&format!("{folder}/operstate")).unwrap_or_else(|| "unknown".to_string());
        let driver = driver(root, &folder);
        let mut found = vec![format!("driver {driver}")];
        found.extend(pci_address(root, &folder));
        found.push(format!("{receive} rx queues"));
        found.extend(
            root.number(&format!("{folder}/speed")).filter(|mbps| *mbps > 0).map(|mbps| format!("{mbps} Mb/s")),
        );
        found.extend(
            root.number(&format!("{folder}/device/numa_node"))
                .filter(|node| *node >= 0)
                .map(|node| format!("node {node}")),
        );
        found
            .push(if XDP_DRIVERS.contains(&driver.as_str()) { "native XDP likely" } else { "generic XDP" }.to_string());
        found.push(format!("link {up}"));
        let found = found.join(", ");
        if up == "down" {
            f.warn(format!("nic {name}"), found, format!("ip link set {name} up"));
        } else {
            f.ok(format!("nic {name}"), found);
        }
    }
}

/// Virtual interfaces matter once they are in use; the loopback interface has the state "unknown".
fn is_up(root: &Root, name: &str) -> bool {
    root.read(&format!("/sys/class/net/{name}/operstate")).as_deref() == Some("up")
}

fn driver(root: &Root, folder: &str) -> String {
    root.link_name(&format!("{folder}/device/driver")).unwrap_or_else(|| "virtual".to_string())
}

/// The PCI address of an interface's device, also where a virtio device sits between.
fn pci_address(root: &Root, folder: &str) -> Option<String> {
    let device = std::fs::canonicalize(root.path(&format!("{folder}/device"))).ok()?;
    let address = device.iter().rev().find_map(|part| part.to_str()?.parse::<Address>().ok());
    address.map(|address| address.to_string())
}
