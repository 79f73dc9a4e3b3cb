//! Ports, and what answers their requests, through the real program.

#[path = "../common/mod.rs"]
mod common;

mod decode;
#[cfg(feature = "dpdk")]
mod dpdk;
mod gpu;
mod gpu_dispatch;
mod hip;
mod hip_amd;
mod hip_leases;
mod hip_library;
mod hip_nvidia;
mod message;
#[cfg(feature = "ofi")]
mod ofi;
mod ring_kernel;
#[cfg(feature = "dpdk")]
mod roce;
mod rpc;
mod run;
mod server;
mod slot_memory;
mod windows;
