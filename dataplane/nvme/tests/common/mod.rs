//! A node under test, and a host that speaks to it PDU by PDU.
#![allow(dead_code, unreachable_pub)] // each test binary uses a part

pub mod chap;
mod host;
pub mod line;
pub mod mutation;
mod node;

pub use host::*;
pub use node::*;
