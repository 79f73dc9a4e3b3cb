//! Memory: huge pages, NUMA nodes, the lock limit.

use super::Findings;
use crate::sys::Root;

const NODES: &str = "/sys/devices/system/node";
const MIB: u64 = 1 << 20;

pub(super) fn examine(root: &Root, f: &mut Findings) {
    let nodes: Vec<_> = root.names(NODES).into_iter().filter(|name| is_node(name)).collect();
    match nodes.len() {
        0 | 1 => f.ok("numa", "one node"),
        n => f.ok("numa", format!("{n} nodes: poll a device from a CPU of its own node")),
    }
    pages(root, f, "hugepages 2M", "hugepages-2048kB", &nodes, 256);
    pages(root, f, "hugepages 1G", "hugepages-1048576kB", &nodes, 1);

    let limits = root.read("/proc/self/limits").unwrap_or_default();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"));
    match line.and_then(|rest| rest.split_whitespace().next()) {
        Some("unlimited") => f.ok("memlock", "unlimited"),
        Some(soft) => {
            let bytes: u64 = soft.parse().unwrap_or(0);
            let found = format!("{} MiB", bytes / MIB);
            if bytes >= 64 * MIB {
                f.ok("memlock", found);
            } else {
                f.warn("memlock", found, "ulimit -l unlimited, or LimitMEMLOCK=infinity in the unit");
            }
        }
        None => f.warn("memlock", "unknown", "mount /proc"),
    }
}

fn is_node(name: &str) -> bool {
    name.strip_prefix("node").is_some_and(|id| !id.is_empty() && id.bytes().all(|b| b.is_ascii_digit()))
}

fn pages(root: &Root, f: &mut Findings, what: &str, folder: &str, nodes: &[String], wanted: u32) {
    let dir = format!("/sys/kernel/mm/hugepages/{folder}");
    let Some(total) = root.number(&format!("{dir}/nr_hugepages")) else {
        f.warn(what, "this processor or kernel has none of this size", "use the other size");
        return;
    };
    let free = root.number(&format!("{dir}/free_hugepages")).unwrap_or(0);
    let per_node: Vec<_> = nodes
        .iter()
        .filter_map(|node| Some((node, root.number(&format!("{NODES}/{node}/hugepages/{folder}/free_hugepages"))?)))
        .map(|(node, free)| format!("{node} {free}"))
        .collect();
    let found = format!("{free} free of {total} ({})", per_node.join(", "));
    if free > 0 {
        f.ok(what, found);
    } else {
        f.warn(what, found, format!("echo {wanted} > {dir}/nr_hugepages"));
    }
}
