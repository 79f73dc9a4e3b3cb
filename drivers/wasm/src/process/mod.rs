//! Runs in processes of their own (`docs/wasm.md`).
//!
//! ```text
//! a thread of the pool ── Isolated: slot, socket for code ──▶ executor: filter of system calls, wasmtime, one run
//!   Hostcalls::call, turn ◀── Asked, Command over the slot ──┘
//! ```
//!
//! An executor serves one presenter, and one run at a time. It asks for every byte, and its run's capabilities are not its own to
//! say: the thread that serves it has them. What it could do if it were taken over is what its run may do.

mod cgroup;
mod code;
mod descriptor;
mod executor;
mod isolated;
mod keeper;
mod sandbox;
mod slot;
mod start;
mod worker;

pub use executor::{executor, shut_in};
pub use isolated::{Isolated, Isolation};
pub use start::{Parent, Starter, UNIT};
