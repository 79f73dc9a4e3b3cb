//! Where leased bytes live: memory arenas and block devices.
//!
//! [`Memory`] is a region of memory, ordinary or of huge pages, on one NUMA node if that is wanted; blocks kept in RAM
//! are such a region too. [`BlockEngine`] is a region of blocks in a file or on a block device.

mod blocks;
mod copy;
mod engine;
mod memory;
mod numa;
mod target;

pub use blocks::BlockEngine;
pub use memory::{Backing, Memory, MemoryError};
pub use target::BlockOpenError;
