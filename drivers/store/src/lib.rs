//! Leased blocks in files and on block devices: [`BlockEngine`].

mod blocks;
mod buffers;
mod cores;
mod engine;
mod target;
mod task;

pub use blocks::BlockEngine;
pub use target::BlockOpenError;
