//! `[[binding]]` with `kind = "nvme"`: leases of blocks over NVMe/TCP.

use std::{net::SocketAddr, sync::Arc};

use anyhow::Context as _;
use berth_engine::Idle;
pub use berth_nvme_tcp::{Acceptor, Auth, NvmeBinding, NvmeCore, Opened};
use berth_nvme_tcp::{BUFFERS_MIN, Settings};
use berth_pages::{Backing, Pages};
use berth_port::Tables;

/// The keys of `kind = "nvme"`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nvme {
    /// Where hosts connect.
    pub listen: Vec<SocketAddr>,
    /// The CPUs that poll its connections.
    pub cpus: Vec<usize>,
    /// What they do when there is nothing to do.
    pub idle: Idle,
    /// Leases that are bound at once, at most.
    pub max_leases: u32,
    /// Controllers at once, at most: one for each lease that a host has connected, and for its discovery.
    pub max_hosts: u32,
    /// I/O queues of a controller, at most.
    pub io_queues: u16,
    /// Commands of a queue at once, at most.
    pub queue_depth: u16,
    /// Bytes for data under way, of all connections.
    pub buffers: u64,
    /// How hosts prove who they are.
    pub auth: Auth,
}

impl Nvme {
    /// The least that `buffers` may be.
    pub const BUFFERS_MIN: u64 = BUFFERS_MIN;

    /// What its bindings count.
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
            buffers: Arc::new(buffers),
            auth: self.auth,
        };
        berth_nvme_tcp::open(settings).with_context(|| format!("binding nvme: {:?}", self.listen))
    }
}
