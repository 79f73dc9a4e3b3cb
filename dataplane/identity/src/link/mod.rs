//! Between a datagram and an authenticated message (profile, "Frame", and decisions 1 to 3).
//!
//! [`Server`] and [`Client`] are the two ends on UDP: they cut messages into frames and join them again, verify
//! signatures, refuse replays, and answer a retransmission with what was answered before. [`accept_stream`] is the
//! serving end on QUIC, where TLS does most of that. Nothing here sends or reads a clock: datagrams go in, frames come
//! out, `now` is monotonic time.

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
pub use drops::{Drop, Drops, FRAMES_DROPPED};
pub use message::Message;
pub use notices::Notices;
pub use reassembly::{FRAGMENT_LIFE, MAX_REASSEMBLIES_PER_SOURCE, MAX_REASSEMBLY_BYTES, Reassembly};
pub use replay::{REPLAY_WINDOW, Replay};
pub use server::{Received, Reply, Server};
pub use stream::accept_stream;

use berth_port::Tables;

/// What a [`Server`] counts.
pub const COUNTERS: Tables = &[server::Counters::TABLE, Drop::TABLE];
