//! Berth's own small IP host, with which a port over raw frames speaks UDP.
//!
//! A [`Host`] owns one link-layer address, a few IP addresses and one UDP port. It classifies received frames
//! ([`Outcome`]), answers ARP, neighbour discovery and ping in place, turns a datagram into its answer in the same
//! buffer, and builds frames of its own. It does no I/O, allocates nothing per frame, and never reads a clock.
//!
//! ```text
//! rx(frame) -> Udp(datagram)   the service writes an answer over the payload, then `reply` rewrites the headers
//!           -> Answer(len)     the frame now holds an answer to ARP, NDP or ping: send it
//!           -> Drop(reason)    counted by the caller
//! way_back(peer, way) -> Route  to a peer whose datagram came that way
//! route(peer) -> Route         to any peer: write a payload behind `Route::header_len`, then `seal` writes the headers
//! solicit(peer) -> len         a request for a neighbour that `route` did not know
//! ```
//!
//! A [`Transport`] turns datagrams into the frames of a service. [`Udp`] is the one that adds nothing.
#![forbid(unsafe_code)]

mod flow;
mod host;
mod inbound;
mod neighbours;
mod outbound;
mod transport;

pub use host::{Host, HostConfig, Interface};
pub use inbound::{Datagram, Drop, Outcome, Verified};
pub use neighbours::SharedNeighbours;
pub use outbound::{NoRoute, Route, Sealed};
pub use transport::{Answer, Taken, Transport, Udp};

/// Counters of a port over raw frames, in addition to its own.
pub const COUNTERS: berth_port::Tables = &[Drop::TABLE];
