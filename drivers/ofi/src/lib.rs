//! Ports over libfabric: reliable datagram endpoints (`FI_EP_RDM`) of any provider. Those are tcp, shm and udp;ofi_rxd
//! on any host, and verbs;ofi_rxm or a vendor's own if there is a card for it.
//!
//! # Threads
//!
//! A port belongs to one thread at a time, and so does everything that its endpoint depends on. libfabric is told so
//! (`FI_THREAD_DOMAIN`), and that progress is made by polling (`FI_PROGRESS_MANUAL`): providers take no locks and, as
//! far as they can, start no threads. The rendezvous has its own housekeeping thread. What it tells the port waits in a
//! list, which costs the port one load per burst while it is empty.
//!
//! # The way of a frame
//!
//! Some hundred receives of `max_frame` bytes are posted at a time. `rx` polls the only completion queue and lends each
//! message in the buffer that it was received into; the answer is written over it. `tx` sends from there. A message
//! that the provider copies (`fi_inject`) frees its buffer at once, a longer one when it completes. Meanwhile another
//! buffer has been posted in its place, so that as many receives are posted under load as at rest, and providers need
//! not keep messages themselves.
//!
//! `FI_MULTI_RECV` would save the posting, but it packs messages end to end, which leaves no room for an answer that is
//! longer than its request.
//!
//! # Trust
//!
//! Anyone who can reach an endpoint may send to it. Only messages of endpoints that were admitted, by the rendezvous or
//! by LEASE_BIND, reach the service; others are counted and dropped (`FI_SOURCE` tells them apart). How hard it is to
//! send under another peer's name depends on the provider. Over tcp, one needs the other's IP address. Over shm, where
//! peers write into each other's memory, everyone who may open that memory is trusted, as with memif. Leases have their
//! own protection: each message carries the lease's key and generation.
#![allow(clippy::doc_markdown)] // the documents' names of ops

mod accept;
mod address;
mod buffers;
mod endpoint;
mod error;
mod facts;
mod info;
mod owned;
mod peers;
mod port;
mod roster;
mod signals;

pub use accept::{OfiAcceptor, OfiBinding};
pub use address::{Format, MAX_ADDRESS};
pub use error::{Error, Reason};
pub use facts::Facts;
pub use info::{Place, Provider, providers};
pub use peers::{Admitted, Peers};
pub use port::{COUNTERS, OfiPort};
pub use signals::reset_signals;
