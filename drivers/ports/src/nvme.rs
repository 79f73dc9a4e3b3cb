//! `[[binding]]` with `kind = "nvme"`: leases of blocks over NVMe/TCP.

use std::{net::SocketAddr, ops::RangeInclusive, sync::Arc};

use anyhow::Context as _;
use berth_engine::Idle;
pub use berth_nvme_tcp::{Acceptor, Auth, NvmeBinding, NvmeCore, Opened};
use berth_nvme_tcp::{BUFFERS_MIN, IN_CAPSULE, Settings};
use berth_pages::{Backing, Pages};
use berth_port::Tables;

/// Values of the keys of `kind = "nvme"`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nvme {
    /// Addresses that hosts connect to.
    pub listen: Vec<SocketAddr>,
    /// CPUs that poll its connections.
    pub cpus: Vec<usize>,
    /// What those CPUs do while there is no work.
    pub idle: Idle,
    /// Limit on leases that are bound at once.
    pub max_leases: u32,
    /// Limit on controllers at once: one for each lease that a host has connected, and one for its discovery.
    pub max_hosts: u32,
    /// Limit on the I/O queues of a controller.
    pub io_queues: u16,
    /// Limit on the commands of a queue at once.
    pub queue_depth: u16,
    /// Bytes of data that a command may bring with it.
    pub in_capsule: u32,
    /// Bytes for data under way, of all connections together.
    pub buffers: u64,
    /// How hosts prove who they are.
    pub auth: Auth,
}

impl Nvme {
    /// Smallest allowed `buffers`.
    pub const BUFFERS_MIN: u64 = BUFFERS_MIN;

    /// Allowed values of `in_capsule`, in bytes.
    pub const IN_CAPSULE: RangeInclusive<u64> = IN_CAPSULE;

    /// Declarations of the counters of its bindings.
    pub const COUNTERS: &[Tables] = berth_nvme_tcp::COUNTERS;

    /// Binds its sockets.
    pub fn open(&self) -> anyhow::Result<Opened> {
        let buffers = Pages::new(self.buffers, &Backing::Ordinary, None).context("binding.buffers")?;
        let settings = Settings {
            listen: self.listen.clone(),
            cores: self.cpus.len(),
            max_leases: self.max_leases as usize,
            max_hosts: self.max_hosts as usize,
            io_queues: self.io_queues,
            queue_depth: self.queue_depth,
            in_capsule: self.in_capsule,
            buffers: Arc::new(buffers),
            auth: self.auth,
        };
        berth_nvme_tcp::open(settings).with_context(|| format!("binding nvme: {:?}", self.listen))
    }
}
