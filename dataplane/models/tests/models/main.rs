//! `RUSTC_WORKSPACE_WRAPPER=$PWD/dataplane/models/rustc cargo test --release -p berth-models --test models`
#![cfg(loom)]

mod admission;
mod lease;
mod posted;
mod ring;
