//! Access to leased memory and blocks: two-sided messages, FBMU, FBBU, FBMT, FBBT and pages, without I/O.
//!
//! ```text
//! a message  ->  protocol    what is asked for (two_sided, shim, stream)
//!                Gate        probes the table, berth_lease::check decides, memory is copied on the spot
//!                BlockIo,    blocks, and a GPU's memory that the host cannot address, go to their engine, which
//!                            answers later: a future for tasks,
//!                Flights     slots that a poll loop looks at for its services,
//!                Accesses    completions of a connection, which Stream and NVMe queues answer as they come; their
//!                            buffers may be of a Pool
//! an answer  <-  protocol    its status and data
//! ```
//!
//! Every access of every carrier goes through [`Gate`]: there is one decision and one copy. Nothing here waits, reads
//! a clock or makes a system call, and memory is served without allocation or lock.
#![forbid(unsafe_code)]

mod block;
mod counts;
mod datagram;
mod flights;
mod gate;
mod page;
mod pool;
mod service;
mod shim;
mod stream;
mod tasklet;
mod two_sided;

pub use block::{Accesses, BlockIo, Ended};
pub use counts::{COUNTERS, Counts, Totals};
pub use datagram::{Answer, Later, Protocol, Request, answer};
pub use gate::{AccessRequest, Failure, Gate, Served};
pub use page::PageOp;
pub use pool::{Buffers, CHUNK, Pool};
pub use service::LeaseService;
pub use shim::Shim;
pub use stream::{LONGEST, Stream};
pub use tasklet::TaskletLeases;
pub use two_sided::TwoSided;
