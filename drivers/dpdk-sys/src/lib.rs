//! Bindings to DPDK, generated from the installed headers. Only `berth-dpdk` uses them.
#![allow(warnings, clippy::all, clippy::pedantic)]

include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
