//! From datagrams to authenticated messages and back (profile, "Frame", and decisions 1 to 3).
//!
//! [`Server`] and [`Client`] are the two ends on UDP. They cut messages into frames and join them again, verify
//! signatures, refuse replays, and answer a retransmission with the earlier answer. [`accept_stream`] is the server end
//! on QUIC, where TLS does most of that. Nothing here does I/O or reads a clock: datagrams go in, frames come out, and
//! `now` is monotonic time.

mod answers;
mod client;
mod drops;
mod message;
mod notices;
mod reassembly;
mod replay;
mod server;
mod stream;

pub use answers::{ANSWER_LIFE, MAX_ANSWER_BYTES};
pub use client::{Answer, Client};
pub use drops::{Drop, Drops};
pub use message::Message;
pub use notices::Notices;
pub use reassembly::{FRAGMENT_LIFE, MAX_REASSEMBLIES_PER_SOURCE, MAX_REASSEMBLY_BYTES, Reassembly};
pub use replay::{REPLAY_WINDOW, Replay};
pub use server::{Received, Reply, Server};
pub use stream::accept_stream;

use berth_port::Tables;

/// Declarations of the counters of a [`Server`].
pub const COUNTERS: Tables = &[server::Counters::TABLE, Drop::TABLE];
