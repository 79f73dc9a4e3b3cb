//! Opens the device of a binding.

use anyhow::Context as _;
use berth_fabric::Binding;
use berth_pages::DmaMemory;
use berth_rdma_lease::{Config, RdmaBinding, Verbs};
use tracing::info;

use super::{Rdma, Windows};

pub(super) fn open(rdma: &Rdma, memory: &[Option<DmaMemory>]) -> anyhow::Result<Box<dyn Binding>> {
    let Rdma { device, port, gid_index, max_leases, windows } = rdma;
    let windows = match windows {
        Windows::Auto => berth_rdma_lease::Windows::Auto,
        Windows::Always => berth_rdma_lease::Windows::Always,
        Windows::Never => berth_rdma_lease::Windows::Never,
    };
    let (port, gid_index, max_leases) = (*port, *gid_index, *max_leases);
    let config = Config { device: device.clone(), port, gid_index, max_leases, windows };
    let verbs = Verbs::open(config, memory.to_vec()).context("binding rdma")?;
    info!(device, windows = verbs.uses_windows(), "leases can be connected over RDMA");
    Ok(Box::new(RdmaBinding::new(device.clone(), verbs, max_leases as usize)))
}
