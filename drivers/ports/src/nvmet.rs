//! `[[binding]]` with `kind = "nvme"` and `provider = "kernel"`: leases of blocks over NVMe by the kernel's own target.

use std::{net::SocketAddr, path::PathBuf, sync::Arc};

use anyhow::Context as _;
use berth_fabric::Binding;
pub use berth_nvmet::Nvmet;
use berth_nvmet::{Address, KernelBinding, Settings};
use berth_port::Tables;

/// The keys of `provider = "kernel"`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelNvme {
    /// Where hosts connect over RDMA; none: only this host, by loop.
    pub rdma: Vec<SocketAddr>,
    /// Leases that are bound at once, at most.
    pub max_leases: u32,
}

impl KernelNvme {
    /// What its bindings count.
    pub const COUNTERS: &[Tables] = berth_nvmet::COUNTERS;

    /// Makes its ports in the kernel's target. `backings`: the file or device of each region.
    pub fn open(&self, nvmet: &Arc<Nvmet>, backings: Vec<Option<PathBuf>>) -> anyhow::Result<Box<dyn Binding>> {
        let addresses = match &*self.rdma {
            [] => vec![Address::Loop],
            rdma => rdma.iter().copied().map(Address::Rdma).collect(),
        };
        let settings = Settings { addresses, max_leases: self.max_leases as usize, backings };
        let binding = KernelBinding::new(Arc::clone(nvmet), settings);
        Ok(Box::new(binding.context("binding nvme: a port of the kernel's NVMe target")?))
    }
}
