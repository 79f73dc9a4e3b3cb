//! Ports over libfabric: reliable datagram endpoints (`FI_EP_RDM`) of any provider: tcp, shm, udp;ofi_rxd on any host,
//! verbs;ofi_rxm or a vendor's own if there is a card for it.
//!
//! # Threads
//!
//! A port belongs to one thread at a time, and so does all that its endpoint stands on: libfabric is told that
//! (`FI_THREAD_DOMAIN`) and that progress is made by polling (`FI_PROGRESS_MANUAL`), so that providers take no locks
//! and, as far as they can, start no threads. The rendezvous has a thread for housekeeping; what it tells the port
//! waits in a list that costs the port one load a burst while it is empty.
//!
//! # A frame's way
//!
//! Receives of `max_frame` bytes are posted, a few hundred at a time. `rx` polls the one completion queue, lends each
//! message in the buffer that it was received into, and the answer is written over it. `tx` sends from there: a message
//! that the provider takes by value (`fi_inject`) gives its buffer back at once, a longer one when its completion
//! comes. Another buffer was posted in its place meanwhile, so that as many receives are posted under load as at rest
//! and providers need not keep messages themselves.
//!
//! `FI_MULTI_RECV` would spare the posting, but packs messages end to end, where an answer longer than its request has
//! no room.
//!
//! # Trust
//!
//! Whoever reaches an endpoint may send to it. Only messages of endpoints that were let in, by the rendezvous or by
//! LEASE_BIND, reach the service; the others are counted and dropped (`FI_SOURCE` tells them apart). How hard it is to
//! send as somebody else is the provider's affair: over tcp one needs the other's IP address; over shm, where peers
//! write into each other's memory, whoever may open that memory is trusted as with memif. Leases stand on their own:
//! each message shows the lease's key and generation.
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
