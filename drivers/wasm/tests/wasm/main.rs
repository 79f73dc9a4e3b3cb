//! Tasklets and ring kernels from modules to outcomes, through the crate's public face.

mod code;
mod common;
mod differential;
mod examples;
mod fuel;
mod hostcalls;
mod kernels;
mod profile;
mod runs;

const ISOLATED: bool = false;
