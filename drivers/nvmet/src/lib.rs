//! Leases of blocks over NVMe by the kernel's own target (nvmet), as a binding `nvme` of a node.
//!
//! ```text
//! LEASE_BIND -> KernelBinding -> Nvmet -> System: configfs, loop devices
//! ```
//!
//! The kernel knows nothing of leases: it serves a range until [`Nvmet`] takes that away, also when this process is gone.
//! So every start takes away first whatever an earlier process left, and `LEASE_BIND` does so for its lease.

mod binding;
mod loops;
mod nvmet;
mod system;

use berth_port::Tables;

pub use self::{
    binding::{KernelBinding, Settings},
    nvmet::{Address, Disk, Nvmet, OpenError, Port},
    system::{Attached, Linux, System},
};

/// What bindings count.
pub const COUNTERS: &[Tables] = &[&[binding::Counts::TABLE]];
