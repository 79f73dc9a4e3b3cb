//! `[[binding]]` with `kind = "sriov"`, and `[[region]]` with `kind = "vf"`: leases of virtual functions.

use std::path::Path;

use anyhow::Context as _;
use berth_port::Tables;
pub use berth_sriov::{Address, Card, ClientSets, Network, Opened, PoolConfig, Sysfs};
use berth_sriov::{HostConfig, open};

/// The keys of `kind = "sriov"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sriov {
    /// Whether a holder that does not let go is ended; otherwise the function is fenced.
    pub kill: bool,
}

impl Sriov {
    /// What its bindings count.
    pub const COUNTERS: &[Tables] = &[berth_sriov::COUNTERS];

    /// Opens these pools of this host; what is done to their functions is kept in `state_dir`.
    pub fn open(&self, pools: Vec<PoolConfig>, state_dir: &Path) -> anyhow::Result<Opened> {
        let host = HostConfig::new(state_dir, self.kill).context("node.state_dir")?;
        Ok(open(pools, host)?)
    }
}
