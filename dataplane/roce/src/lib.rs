//! `RoCEv2` in software: unreliable connections over Berth's own IP host.
//!
//! An [`Endpoint`] is a [`berth_net::Transport`]: it turns datagrams on UDP port 4791 into the frames of a service, and
//! answers into packets. An FPGA that writes into an RDMA card's memory so writes into that of a host with a plain one.
//! It does no I/O and never reads a clock; every packet costs one pass of the ICRC and one copy into its slot.
//!
//! ```text
//! WRITE, no immediate            bytes land in the peer's region
//! WRITE with immediate           ... and the slot that it names becomes a frame, lent where it lies
//! SEND Only                      the packet becomes a frame, lent where it lies
//! answer                         SEND Only; or, to a peer that has a window, WRITE Only with immediate
//! ```
//!
//! # Peers
//!
//! Each peer has a queue pair: a number, a key and a region of slots that are its alone, all random or of its own, so
//! that no peer can reach another's. The [`Registrar`] makes and unmakes them on any thread; the endpoint takes note at
//! its next burst. A peer's name, in [`berth_port::Frame::peer`], is its IP address with the low 16 bits of its queue
//! pair's number as port, which no two peers share.
//!
//! # Loss
//!
//! Nothing is sent twice on an unreliable connection. A gap in the sequence ends the message under way, and the next
//! that starts is taken. A packet from the past is a duplicate or was overtaken, and is dropped; but [`RESTART`] packets
//! in a row, in sequence and each the start of a message, are a sender that has begun anew. Each datagram is counted
//! once: as a packet that was taken, or by the reason for which it was not.
#![forbid(unsafe_code)]

mod counters;
mod endpoint;
mod queue_pair;
mod region;
mod registrar;
mod responder;

pub use counters::Refusal;
pub use endpoint::Endpoint;
pub use region::{ConfigError, Slots};
pub use registrar::{AddError, Local, Registrar, Remote, Window, endpoint};
pub use responder::RESTART;

/// What all peers of an endpoint have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// The partition.
    pub p_key: berth_wire::roce::PKey,
    /// The slots of each peer.
    pub slots: Slots,
    /// The longest payload of a packet that is sent, in bytes: 256, 512, 1024, 2048 or 4096.
    pub path_mtu: usize,
    /// The most peers, up to [`PEERS_MAX`].
    pub peers: usize,
}

/// The most peers of an endpoint.
pub const PEERS_MAX: usize = 4096;
