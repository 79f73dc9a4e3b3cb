//! Where leased bytes live: memory arenas and block devices.
//!
//! [`Memory`] is a region of memory, ordinary or of huge pages, on one NUMA node if that is wanted; blocks kept in RAM
//! are such a region too.

mod copy;
mod memory;
mod numa;

pub use memory::{Backing, Memory, MemoryError};
