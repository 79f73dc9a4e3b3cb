//! The NVMe/TCP target: leases as namespaces, without I/O (NVMe base 2.0, TCP transport 1.0, NVM command set).
//!
//! ```text
//! bytes in  ->  Connection   PDUs: digests, R2T and data, violations
//!               connect      what the connection becomes: an admin queue, or an I/O queue of its controller
//!               Queue        a slot for each command, from its capsule to its response
//!               Admin        properties, Identify, logs, features, events; discovery
//!               Io           reads and writes of the namespace: every one through berth_lease_io's Gate
//! bytes out <-  Connection
//! ```
//!
//! A [`Target`] has a subsystem for each lease that is bound, with one namespace and for one host. Its connections share
//! controllers, which end with their admin queue, with the lease, or when their host says nothing for too long.
#![forbid(unsafe_code)]

mod abort;
mod admin;
pub mod auth;
mod connect;
mod connection;
mod controller;
mod counts;
mod exclusive;
mod features;
mod health;
pub mod host;
mod identify;
mod io;
mod latency;
mod logs;
mod names;
mod namespace;
mod output;
mod queue;
mod target;

pub use connection::Connection;
pub use counts::COUNTERS;
pub use latency::Latencies;
pub use names::{lease_of, nqn, requested_host};
pub use target::{BindError, Client, Limits, Target, Unbound};

/// Offset in a command capsule's PDU of its SGL descriptor, which FEI names.
const SGL: u32 = 32;
