//! The lease plane, through the real program.

#[path = "../common/mod.rs"]
mod common;

mod enrolled;
mod gpu_lease;
mod lease;
mod lease_io;
mod million;
mod nvme;
mod nvme_auth;
mod quotas;
mod revocation;
mod scenario;
