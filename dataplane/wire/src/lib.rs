//! Codecs of every protocol that Berth speaks: checked views over byte slices, and their writers. No payload is copied,
//! and no input causes a panic.
#![forbid(unsafe_code)]

pub mod fabric;
pub mod hip;
pub mod memory_pack;
pub mod net;
pub mod nvme;
pub mod rendezvous;
pub mod roce;
pub mod rpc;
