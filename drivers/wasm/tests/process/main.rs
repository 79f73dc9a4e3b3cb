//! Tasklets in processes of their own: all that holds for those on threads, and what becomes of executors.

#[path = "../wasm/common.rs"]
mod common;
#[path = "../wasm/fuel.rs"]
mod fuel;
#[path = "../wasm/hostcalls.rs"]
mod hostcalls;
mod lives;
#[path = "../wasm/runs.rs"]
mod runs;
mod unit;

const ISOLATED: bool = true;
