//! Ports over DPDK: PCI network cards and every software device that DPDK has a driver for.
//!
//! # Threads
//!
//! EAL is DPDK's run-time; [`Eal::init`] starts it once per process, on the cores that housekeeping owns. Its own
//! threads (interrupts, the memif control channel) stay there. It owns no poll core: poll threads are the appliance's,
//! pinned by it, and register with EAL when they first touch a port, which gives them their own buffer caches.
//!
//! [`open`] brings a device up and returns one [`DpdkPort`] per queue pair. A port belongs to one thread at a time; it
//! may move, not be shared, and the borrow checker holds users to that. The queues of one device share nothing on the
//! hot path: each has its buffer pool, its [`berth_net::Host`] and its counters. What they share, the device itself,
//! is reference-counted: when the last port of a device is dropped, the device is stopped, closed and removed, in this
//! order and after every queue has stopped polling. Opening and closing take one process-wide lock, since DPDK's
//! control functions are not thread-safe.
//!
//! # A frame's way
//!
//! `rx` takes up to 32 frames from the device, and lends each to the service in the buffer it arrived in. The answer is
//! written over the request; addresses are swapped and checksums made in place, and the same buffer is queued for
//! transmission. Nothing is copied, allocated or locked. ARP, neighbour discovery and ping are answered on the way.
//! `tx` hands the queue to the device in one burst.
//!
//! # Trust
//!
//! Bytes from the wire are never trusted. Descriptors are: a network card writes them, and for memif or vhost the
//! process on the other side does, into memory that DPDK's drivers read without suspicion. A memif or vhost peer that
//! means to can therefore crash this process; the mode of its socket says who may be one. A peer that merely goes,
//! killed in the middle of a burst, cannot (see `unmap.rs`).

mod device;
mod eal;
mod error;
mod mbuf;
mod port;
mod rings;
mod unmap;

pub use device::{PortConfig, open, open_speaking};
pub use eal::{Eal, EalConfig, Memory};
pub use error::{Errno, Error};
pub use port::{COUNTERS, DpdkPort};
pub use rings::ring_pair;
