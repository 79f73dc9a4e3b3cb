//! Leased blocks in files and on block devices: [`BlockEngine`].

mod blocks;
mod buffers;
mod engine;
mod target;

pub use blocks::{BlockEngine, COUNTERS};
pub use target::BlockOpenError;
