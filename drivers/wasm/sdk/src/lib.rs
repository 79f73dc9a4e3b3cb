//! Write WASM tasklets and ring kernels for Berth, without the standard library.
//!
//! Build with `cargo build --release --target wasm32-unknown-unknown`, as a `cdylib`. A tasklet:
//!
//! ```ignore
//! #![no_std]
//! extern crate alloc;
//! use alloc::vec::Vec;
//! use berth_tasklet_sdk::{Error, Input, tasklet};
//!
//! fn run(input: Input<'_>) -> Result<Vec<u8>, Error> {
//!     Ok(input.payload.to_vec())
//! }
//! tasklet!(run);
//! ```
//!
//! A run is one thread in an instance of its own, so nothing here is locked.

#![no_std]
#![warn(missing_docs)]

#[cfg(not(target_arch = "wasm32"))]
compile_error!("build for wasm32-unknown-unknown");

extern crate alloc;

pub mod entry;
mod heap;
mod input;
mod lease;
mod log;

pub use input::{Cap, Input};
pub use lease::{Blocks, Granted, Memory, Standing};
pub use log::{Level, log};

/// Bytes of a block.
pub const BLOCK_LEN: usize = 512;

/// Why a call or a run failed: what a hostcall returned, or a code of the tasklet's own above 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Error(pub i32);

impl Error {
    /// No such entry, one of the other kind, or its lease was freed.
    pub const INVALID_LEASE: Self = Self(-1);
    /// The lease has expired.
    pub const EXPIRED: Self = Self(-2);
    /// The lease was revoked.
    pub const FENCED: Self = Self(-3);
    /// Outside the lease.
    pub const OUT_OF_RANGE: Self = Self(-4);
    /// No bytes, or more than one access may have.
    pub const BAD_LENGTH: Self = Self(-5);
    /// Too many accesses are under way.
    pub const BUSY: Self = Self(-6);
    /// The node failed.
    pub const INTERNAL: Self = Self(-7);
    /// A right is missing.
    pub const DENIED: Self = Self(-8);
    /// Nothing is free, or the run has allocated as many leases as it may.
    pub const NO_CAPACITY: Self = Self(-9);
    /// A size or a time is 0.
    pub const BAD_PARAM: Self = Self(-10);
    /// The input is no `TaskletInputV0`.
    pub const BAD_INPUT: Self = Self(1);
}
