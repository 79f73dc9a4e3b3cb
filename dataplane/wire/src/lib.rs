//! Codecs of every protocol Berth speaks: checked views over byte slices, and their writers. Nothing here copies a
//! payload or panics on any input.
#![forbid(unsafe_code)]

pub mod fabric;
pub mod net;
pub mod nvme;
pub mod rendezvous;
pub mod roce;
pub mod rpc;
