//! `[[binding]]` with `kind = "rdma"`: leases over RDMA.

#[cfg(feature = "verbs")]
mod open;

use berth_fabric::Binding;
use berth_pages::DmaMemory;
use berth_port::Tables;

/// Values of the keys of `kind = "rdma"`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rdma {
    /// Name of the device, as `rdma link` prints it.
    pub device: String,
    /// Port number of the device, from 1.
    pub port: u8,
    /// Index of the address that clients connect to in the port's GID table.
    pub gid_index: u8,
    /// Limit on leases that are connected at once; each has a queue pair.
    pub max_leases: u32,
    /// Whether memory windows limit a remote key to one lease and connection.
    pub windows: Windows,
}

/// Values of `binding.windows`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Windows {
    /// Use them if they work on the device.
    Auto,
    /// Use them; without them, the appliance does not start.
    Always,
    /// Register every lease as a memory region of its own.
    Never,
}

impl Rdma {
    /// Declarations of the counters of its bindings; empty if they are not built in.
    pub const COUNTERS: &[Tables] = &[
        #[cfg(feature = "verbs")]
        berth_rdma_lease::COUNTERS,
    ];

    /// Opens the device. `memory` has that of each region, `None` for those that are not in memory.
    pub fn open(&self, memory: &[Option<DmaMemory>]) -> anyhow::Result<Box<dyn Binding>> {
        #[cfg(feature = "verbs")]
        return open::open(self, memory);
        #[cfg(not(feature = "verbs"))]
        {
            let _ = memory;
            anyhow::bail!(crate::not_built("RDMA", "verbs"))
        }
    }
}
