//! `[[binding]]` with `kind = "rdma"`: leases over RDMA.

#[cfg(feature = "verbs")]
mod open;

use std::sync::Arc;

use berth_fabric::Binding;
use berth_memory::Memory;
use berth_port::Tables;

/// The keys of `kind = "rdma"`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rdma {
    /// The device's name, as `rdma link` has it.
    pub device: String,
    /// The device's port.
    pub port: u8,
    /// The address that clients connect to, by its index in the port's table.
    pub gid_index: u8,
    /// Leases that are connected at once, at most: each has a queue pair.
    pub max_leases: u32,
    /// Whether memory windows are what scopes a remote key.
    pub windows: Windows,
}

/// `binding.windows`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Windows {
    /// Where they work on the device.
    Auto,
    /// Or else the appliance does not start.
    Always,
    /// Every lease is a memory region of its own.
    Never,
}

impl Rdma {
    /// What its bindings count, where they are built in.
    pub const COUNTERS: &[Tables] = &[
        #[cfg(feature = "verbs")]
        berth_rdma_lease::COUNTERS,
    ];

    /// Opens the device; `memory` is that of each region.
    pub fn open(&self, memory: &[Option<Arc<dyn Memory>>]) -> anyhow::Result<Box<dyn Binding>> {
        #[cfg(feature = "verbs")]
        return open::open(self, memory);
        #[cfg(not(feature = "verbs"))]
        {
            let _ = memory;
            anyhow::bail!(crate::not_built("RDMA", "verbs"))
        }
    }
}
