//! The TCP rendezvous: where peers of an RDMA, software-RoCE or libfabric port say who they are and learn where to
//! send.
//!
//! [`Rendezvous::listen`] runs one listener on a thread of its own, for housekeeping cores. Each port brings an
//! [`Acceptor`], which makes the queue pair or the entry of a peer on that thread; how it gets from there to the port's
//! poll core is the port's affair. [`call`] is the client half.
//!
//! Messages and both [`Form`]s are described in `docs/rdma.md`; the codec is [`berth_wire::rendezvous`].
//!
//! Peers are hostile: a connection has [`Limits::request_within`] for its request, which is at most 4 KiB long, and
//! peers and connections are capped. Connections probe whether their peer still lives, so that a host that dies without
//! a word is noticed within [`DEAD_AFTER`].
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

/// How often [`Acceptor::tick`] is called.
pub const TICK: Duration = Duration::from_millis(20);

/// Which messages a port's rendezvous speaks. The two cannot be told apart on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// 12 bytes each way; a peer outlives its connection until it connects again.
    HostApi,
    /// TLVs; a peer lives as long as its connection.
    Berth,
}

/// What a rendezvous allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Peers at a time.
    pub peers: usize,
    /// How long a connection may take for its request.
    pub request_within: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { peers: 64, request_within: Duration::from_secs(5) }
    }
}

/// One peer of one rendezvous. Numbers are never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerId(pub u64);

/// What a port does with its peers. Everything runs on the rendezvous's thread.
///
/// Dropping the rendezvous drops the acceptor, without a call of [`Acceptor::gone`] for the peers there were.
pub trait Acceptor: Send + 'static {
    /// Takes a peer in and adds to `answer` what it must know, or says why not.
    ///
    /// `from` is the address of its TCP connection, which need not be that of its fabric.
    fn offer(&mut self, peer: PeerId, from: SocketAddr, offer: &Offer<'_>, answer: &mut Answer) -> Result<(), Status>;

    /// A peer that was taken in is gone: its connection ended, or in [`Form::HostApi`] its successor has come.
    fn gone(&mut self, peer: PeerId);

    /// Called every [`TICK`], for housekeeping. Peers named to `end` lose their connection; [`Acceptor::gone`] is not
    /// called for them.
    fn tick(&mut self, end: &mut dyn FnMut(PeerId)) {
        let _ = end;
    }
}
