//! A node through its public interface: requests in, answers and journal records out.

mod announce;
mod bench;
mod bindings;
mod common;
mod composites;
mod discovery;
mod functions;
mod handles;
mod histories;
mod hostcalls;
mod hostile;
mod journal;
mod keys;
mod leases;
mod limits;
mod list;
mod placement;
mod quotas;
mod rdma;
mod recovery;
mod secrets;
mod tasklets;
mod teardowns;
mod tokens;
mod work;
