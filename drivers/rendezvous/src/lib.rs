//! The TCP rendezvous, where peers of an RDMA, software-RoCE or libfabric port identify themselves and learn where to
//! send.
//!
//! [`Rendezvous::listen`] runs one listener on its own thread, for housekeeping cores. Each port brings an
//! [`Acceptor`], which makes a peer's queue pair or entry on that thread; the port itself brings that to its poll core.
//! [`call`] is the client's half.
//!
//! Messages and both [`Form`]s are described in `docs/rdma.md`; the codec is [`berth_wire::rendezvous`].
//!
//! Peers may be hostile: a connection has [`Limits::request_within`] for its request, which is at most 4 KiB long, and
//! the numbers of peers and connections are limited. Connections probe whether their peer is alive, so that a host that
//! dies silently is noticed within [`DEAD_AFTER`].
#![forbid(unsafe_code)]

mod attended;
mod client;
mod counters;
mod exchange;
mod peers;
mod server;

use std::{net::SocketAddr, time::Duration};

pub use attended::Attended;
pub use berth_wire::{
    fabric::Status,
    rendezvous::{Answer, Offer},
};
pub use client::{CallError, Held, call};
pub use counters::COUNTERS;
pub use server::Rendezvous;

/// How long a silent host counts as alive.
pub const DEAD_AFTER: Duration = Duration::from_secs(5);

/// Interval between calls of [`Acceptor::tick`].
pub const TICK: Duration = Duration::from_millis(20);

/// The messages that a port's rendezvous speaks. The two forms cannot be told apart on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// 12 bytes each way; a peer outlives its connection until it connects again.
    HostApi,
    /// TLVs; a peer lives as long as its connection.
    Berth,
}

/// Limits of a rendezvous.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Limit on the peers at a time.
    pub peers: usize,
    /// Time in which a connection must send its request.
    pub request_within: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { peers: 64, request_within: Duration::from_secs(5) }
    }
}

/// Number of a peer at one rendezvous; never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerId(pub u64);

/// A port's handling of its peers. Everything runs on the rendezvous's thread.
///
/// When the rendezvous is dropped, the acceptor is dropped too, without [`Acceptor::gone`] for the remaining peers.
pub trait Acceptor: Send + 'static {
    /// Takes a peer, and adds to `answer` what it must know; or refuses it with a status.
    ///
    /// `from` is the address of its TCP connection, which need not be that on the fabric.
    fn offer(&mut self, peer: PeerId, from: SocketAddr, offer: &Offer<'_>, answer: &mut Answer) -> Result<(), Status>;

    /// A peer has left: its connection ended, or in [`Form::HostApi`] its successor has come.
    fn gone(&mut self, peer: PeerId);

    /// Housekeeping, called every [`TICK`]. Peers passed to `end` lose their connection; [`Acceptor::gone`] is not
    /// called for them.
    fn tick(&mut self, end: &mut dyn FnMut(PeerId)) {
        let _ = end;
    }
}
