//! Facts about the host, for the inventory.

use std::path::Path;

use berth_fabric::{Facts, Gpu, Tier};
use berth_host::{NumaNode, gpus, has_ecc, numa_nodes};
use berth_wire::fabric::{MemTierKind, TierFlags};

/// Reads the facts from sysfs.
pub(crate) fn facts(sys: &Path) -> Facts {
    let nodes = numa_nodes(sys);
    let flags = if has_ecc(sys) { TierFlags::ECC } else { TierFlags::NONE };
    let number = |id: u32| u16::try_from(id).ok();
    let tier = |node: &NumaNode| {
        Some(Tier {
            numa: number(node.id)?,
            // Memory without a processor of its own hangs on a link.
            kind: if node.cpus.is_empty() { MemTierKind::CxlExpander } else { MemTierKind::Dram },
            latency_ns: node.latency_ns.unwrap_or(0),
            bandwidth_bps: node.bandwidth.unwrap_or(0).saturating_mul(8),
            flags,
        })
    };
    let gpu = |gpu: berth_host::Gpu| Gpu {
        name: gpu.address,
        numa: gpu.numa.and_then(number),
        vram: gpu.vram.unwrap_or(0),
        host_map: gpu.window > 0,
    };
    Facts {
        cpus: nodes.iter().map(|node| node.cpus.len() as u32).sum(),
        tiers: nodes.iter().filter_map(tier).collect(),
        gpus: gpus(sys).into_iter().map(gpu).collect(),
    }
}
