//! A node through its public face: requests in, answers and what is journaled out.

mod announce;
mod bindings;
mod common;
mod discovery;
mod handles;
mod hostile;
mod journal;
mod keys;
mod leases;
mod limits;
mod list;
mod placement;
mod quotas;
mod recovery;
mod tokens;
mod work;
