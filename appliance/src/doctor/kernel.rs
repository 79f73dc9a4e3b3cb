//! What the kernel lets this process do: `io_uring`, raw sockets, device pass-through; and the DPDK in this binary.

use std::io;

use socket2::{Domain, Socket, Type};

use super::Findings;
use crate::sys::Root;

/// `AF_XDP`, which the standard names do not include.
const AF_XDP: i32 = 44;
const CAPABILITIES: [(u32, &str, &str); 5] = [
    (12, "CAP_NET_ADMIN", "AF_XDP, interface set-up"),
    (13, "CAP_NET_RAW", "AF_PACKET, AF_XDP"),
    (14, "CAP_IPC_LOCK", "locked memory"),
    (21, "CAP_SYS_ADMIN", "huge pages of others"),
    (23, "CAP_SYS_NICE", "real-time priority"),
];

pub(super) fn examine(root: &Root, live: bool, f: &mut Findings) {
    match root.number("/proc/sys/kernel/io_uring_disabled") {
        Some(2) => f.missing("io_uring sysctl", "disabled for all", "sysctl -w kernel.io_uring_disabled=0"),
        Some(1) => f.warn("io_uring sysctl", "disabled for the unprivileged", "sysctl -w kernel.io_uring_disabled=0"),
        _ => f.ok("io_uring sysctl", "enabled"),
    }
    if live {
        match berth_uring::probe() {
            Ok(()) => f.ok("io_uring", "DEFER_TASKRUN works"),
            Err(e) => f.missing("io_uring", format!("{e}"), "use Linux 6.1 or later; driver = \"udp\" works without"),
        }
        socket(f, "af_xdp", Domain::from(AF_XDP), "a kernel with CONFIG_XDP_SOCKETS");
        socket(f, "af_packet", Domain::PACKET, "a kernel with CONFIG_PACKET");
    }
    capabilities(root, f);
    pass_through(root, f);
    dpdk(root, f);
}

fn socket(f: &mut Findings, what: &str, domain: Domain, kernel: &str) {
    match Socket::new(domain, Type::RAW, None) {
        Ok(_) => f.ok(what, "sockets can be opened"),
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
            f.missing(what, format!("{e}"), "run as root, or grant CAP_NET_RAW and CAP_NET_ADMIN");
        }
        Err(e) => f.missing(what, format!("{e}"), format!("boot {kernel}")),
    }
}

fn capabilities(root: &Root, f: &mut Findings) {
    let bits =
        root.field("/proc/self/status", "CapEff").and_then(|hex| u64::from_str_radix(&hex, 16).ok()).unwrap_or(0);
    let lacking: Vec<_> = CAPABILITIES.iter().filter(|(bit, ..)| bits >> bit & 1 == 0).collect();
    if lacking.is_empty() {
        f.ok("capabilities", "all that Berth uses");
        return;
    }
    let found: Vec<_> = lacking.iter().map(|(_, name, why)| format!("no {name} ({why})")).collect();
    let names: Vec<_> = lacking.iter().map(|(_, name, _)| name.to_lowercase()).collect();
    f.warn("capabilities", found.join(", "), format!("setcap {}+ep $(command -v berth)", names.join(",")));
}

fn pass_through(root: &Root, f: &mut Findings) {
    let groups = root.names("/sys/kernel/iommu_groups").len();
    if groups > 0 {
        f.ok("iommu", format!("{groups} groups"));
    } else {
        f.warn("iommu", "off", "turn VT-d or AMD-Vi on in the firmware and boot with intel_iommu=on iommu=pt");
    }
    let release = root.read("/proc/sys/kernel/osrelease").unwrap_or_default();
    let modules = root.read(&format!("/lib/modules/{release}/modules.dep")).unwrap_or_default();
    if root.exists("/sys/bus/pci/drivers/vfio-pci") {
        f.ok("vfio-pci", "loaded");
    } else if modules.contains("/vfio-pci.ko") {
        f.warn("vfio-pci", "not loaded: no PCI device can be taken by DPDK", "modprobe vfio-pci");
    } else {
        f.warn(
            "vfio-pci",
            format!("not in kernel {release}: no PCI device can be taken by DPDK"),
            "boot a kernel with CONFIG_VFIO_PCI, with its modules installed; AF_XDP and AF_PACKET do without",
        );
    }
}

fn dpdk(root: &Root, f: &mut Findings) {
    let folders = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/local/lib64"];
    let library = folders.iter().flat_map(|folder| root.names(folder)).find(|name| name.starts_with("librte_eal.so."));
    match &library {
        Some(name) => f.ok("libdpdk", name),
        None => f.missing("libdpdk", "not installed", "apt-get install libdpdk-dev"),
    }
    if berth_ports::has_feature("dpdk") {
        f.ok("dpdk driver", "built in");
    } else {
        f.warn("dpdk driver", "not built in", "cargo build --release --features dpdk");
    }
}
