//! AMD GPUs and HIP's library, which sessions of HIP Remote use, as far as files tell of them.

use super::Findings;
use crate::sys::Root;

const DEVICES: &str = "/sys/bus/pci/devices";

/// What the loader finds HIP's library in.
const LIBRARIES: [&str; 4] = ["/opt/rocm/lib", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64"];

const NAMES: [&str; 4] = ["libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", "libamdhip64.so"];

pub(super) fn examine(root: &Root, f: &mut Findings) {
    let read = |address: &str, name: &str| root.read(&format!("{DEVICES}/{address}/{name}")).unwrap_or_default();
    // Display controllers and processing accelerators.
    let is_gpu = |address: &String| {
        let class = read(address, "class");
        read(address, "vendor") == "0x1002" && (class.starts_with("0x03") || class.starts_with("0x12"))
    };
    let gpus: Vec<_> = root.names(DEVICES).into_iter().filter(is_gpu).collect();
    for address in &gpus {
        let (what, id) = (format!("gpu {address}"), read(address, "device").replace("0x", ""));
        let node = read(address, "numa_node");
        let node = if node.is_empty() || node == "-1" { String::new() } else { format!(", node {node}") };
        match root.link_name(&format!("{DEVICES}/{address}/driver")).as_deref() {
            Some("amdgpu") => f.ok(what, format!("1002:{id}, bound to amdgpu{node}")),
            Some(other) => {
                let mend = format!("echo {address} > /sys/bus/pci/drivers/{other}/unbind && modprobe amdgpu");
                f.warn(what, format!("1002:{id}, bound to {other}{node}"), mend);
            }
            None => f.warn(what, format!("1002:{id}, no driver{node}"), "modprobe amdgpu"),
        }
    }
    if gpus.is_empty() {
        return;
    }
    let names = |folder: &'static str| NAMES.iter().map(move |name| format!("{folder}/{name}"));
    match LIBRARIES.into_iter().flat_map(names).find(|path| root.exists(path)) {
        Some(path) => f.ok("libamdhip64", path),
        None => f.warn("libamdhip64", "no libamdhip64.so", "apt-get install libamdhip64-5"),
    }
    if root.exists("/dev/kfd") {
        f.ok("amd device nodes", "/dev/kfd");
    } else {
        f.warn("amd device nodes", "missing: /dev/kfd", "modprobe amdgpu");
    }
}
