//! Leases over RDMA: LEASE_BIND of kind RDMA.
//!
//! [`RdmaBinding`] decides, [`Hca`] does. Everything runs on the control plane's threads; the dataplane is the device.
#![allow(clippy::doc_markdown)] // the documents' names of ops

mod binding;
mod device;
mod hca;

pub use binding::{COUNTERS, FIRST_PROBE, PROBE_EVERY, RdmaBinding};
pub use device::{Config, Link, Verbs, Windows};
pub use hca::{Connect, End, Hca, HcaError, Key, Local, Peer, Seen, Unconnected, Unended};
