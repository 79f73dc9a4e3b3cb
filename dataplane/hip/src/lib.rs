//! HIP Remote: one [`Session`] for each connection, on any [`Device`], without I/O; and the software GPU as one.
//!
//! ```text
//! bytes in  ->  Session    frames, order, deferred errors, `NO_REPLY`
//!               data       what follows requests and answers, to and from device memory
//!               objects    typed handles: streams, events, modules, functions, graphs
//!               ops        what each operation does, and what it refuses
//!               Device     memory and jobs: set, copy, load, launch; at most one under way
//! bytes out <-  Session
//! ```
//!
//! A session may be bound to a lease of a device (`lease`); it ends with that.
//!
//! A session runs its work in order, on whatever streams. A launch goes on while the session serves what needs no
//! device; everything else waits for it. Sections of docs/hip-remote.md are named where they are implemented.
#![forbid(unsafe_code)]

mod counters;
mod data;
mod device;
mod jobs;
mod lease;
mod objects;
mod ops;
mod rows;
mod session;
pub mod soft;
mod work;

use std::sync::Arc;

pub use counters::{Activity, COUNTERS, Counters, Latencies};
pub use device::{Allocation, Copy2d, Device, Done, Job, Kernel, Launch, Loaded, Properties};
pub use lease::{Binder, Claim, Grant, Standing};
pub use session::{MESSAGE_MAX, Session, Settings};

/// Random numbers that nobody guesses.
pub type Random = Arc<dyn Fn() -> u64 + Send + Sync>;
