//! Leases of virtual functions (SR-IOV): LEASE_ALLOC of NET, and LEASE_BIND of kind 5.
//!
//! ```text
//! Pool, a Resource     Free ── grant ──▶ Leased ── end ──▶ Free
//! SriovBinding            Leased ── give ──▶ Bound ── take back ──▶ Leased
//!                                              Ending ── too late ──▶ Fenced ── tried again each second ──▶ Leased
//! ```
//!
//! A function that is handed over is bound to vfio-pci, and who has it reaches the device past this process. So nothing is
//! believed to be over but what the kernel says is: a function is free again when vfio-pci has let it go and it was reset.
//! Each step is on disk before it is done ([`Record`]).
#![deny(unsafe_code)]
#![allow(clippy::doc_markdown)] // the documents' names of ops

mod address;
mod admin;
mod binding;
mod function;
mod holder;
mod net;
mod netlink;
mod nvme;
mod pool;
mod record;
mod state;
mod sysfs;

pub use address::{Address, BadAddress};
pub use admin::{Admin, Driver};
pub use binding::SriovBinding;
pub use netlink::{Attributes, Rtnetlink, Setting, Switch};
pub use pool::{COUNTERS, Card, ClientSets, HostConfig, Network, OpenError, Opened, PoolConfig, open};
pub use record::{Files, Record, Records, Step};
pub use state::State;
pub use sysfs::{Interface, Sysfs};
