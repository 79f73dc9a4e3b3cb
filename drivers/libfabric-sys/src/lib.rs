//! Bindings to libfabric, generated from the installed headers. Only `berth-ofi` uses them.
#![allow(warnings, clippy::all, clippy::pedantic)]

include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
