//! Leases over RDMA.

use std::sync::Arc;

use anyhow::Context as _;
use berth_fabric::Binding;
use berth_memory::Memory;
use berth_rdma_lease::{Config, RdmaBinding, Verbs, Windows};
use tracing::info;

use crate::config;

/// Opens the device of each binding; `memory` is that of each region.
pub(super) fn bindings(
    bindings: &[config::Binding],
    memory: &[Option<Arc<dyn Memory>>],
) -> anyhow::Result<Vec<Box<dyn Binding>>> {
    let open = |config::Binding::Rdma(rdma): &config::Binding| -> anyhow::Result<Box<dyn Binding>> {
        let config::Rdma { device, port, gid_index, max_leases, windows } = rdma;
        let windows = match windows {
            config::Windows::Auto => Windows::Auto,
            config::Windows::Always => Windows::Always,
            config::Windows::Never => Windows::Never,
        };
        let (port, gid_index, max_leases) = (*port, *gid_index, *max_leases);
        let config = Config { device: device.clone(), port, gid_index, max_leases, windows };
        let verbs = Verbs::open(config, memory.to_vec()).context("binding rdma")?;
        info!(device, windows = verbs.uses_windows(), "leases can be connected over RDMA");
        Ok(Box::new(RdmaBinding::new(device.clone(), verbs, max_leases as usize)))
    };
    bindings.iter().map(open).collect()
}
