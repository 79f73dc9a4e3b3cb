//! `RUSTFLAGS="--cfg loom" cargo test --release -p berth-models --target-dir target/loom`
#![cfg(loom)]

mod admission;
mod lease;
mod posted;
mod ring;
