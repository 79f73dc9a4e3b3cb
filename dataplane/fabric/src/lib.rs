//! A fabricBIOS node without I/O: the ops of its control plane, discovery, and what it journals.
//!
//! Time is an argument everywhere. In this crate `Now::wall` is Unix time, as the host's clock says it.
#![forbid(unsafe_code)]

pub mod discovery;
pub mod journal;
mod recovered;

pub use recovered::{Recovered, RecoveredLease};
