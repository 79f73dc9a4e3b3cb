//! Ports over DPDK: PCI network cards and every software device that DPDK has a driver for.
//!
//! # Threads
//!
//! EAL is DPDK's run-time. [`Eal::init`] starts it once per process, on the housekeeping cores, where its own threads
//! (interrupts, the memif control channel) stay. It owns no poll core: poll threads belong to the appliance, which pins
//! them. They register with EAL when they first use a port, which gives them their own buffer caches.
//!
//! [`open`] starts a device and returns one [`DpdkPort`] per queue pair. A port belongs to one thread at a time: it may
//! move, but not be shared, which the borrow checker enforces. The queues of a device share nothing on the hot path:
//! each has its buffer pool, its [`berth_net::Host`] and its counters. They share the device itself, which is
//! reference-counted: when its last port is dropped, every queue has stopped polling, and the device is stopped, closed
//! and removed, in this order. Opening and closing take a process-wide lock, because DPDK's control functions are not
//! thread-safe.
//!
//! # The way of a frame
//!
//! `rx` takes up to 32 frames from the device, and lends each to the service in the buffer in which it arrived. The
//! answer is written over the request. Addresses are swapped and checksums computed in place, and the same buffer is
//! queued for transmission. Nothing is copied, allocated or locked. ARP, neighbour discovery and ping are answered
//! along the way. `tx` hands the queue to the device in one burst.
//!
//! With [`PortConfig::kept`], buffers lie in memory that another process, such as that of a GPU, can map to read. A
//! frame can then be left in its buffer for it, until it is released.
//!
//! # Trust
//!
//! Bytes from the wire are never trusted, but descriptors are. A network card writes them, or, for memif and vhost, the
//! process on the other side does, into memory that DPDK's drivers read without checks. A malicious memif or vhost peer
//! can therefore crash this process; the mode of its socket decides who may be one. A peer that is merely killed in the
//! middle of a burst cannot (see `unmap.rs`).

mod device;
mod eal;
mod error;
mod mbuf;
mod pool;
mod port;
mod rings;
mod unmap;

pub use device::{PortConfig, open, open_speaking};
pub use eal::{Eal, EalConfig, Memory};
pub use error::{Errno, Error};
pub use port::{COUNTERS, DpdkPort};
pub use rings::ring_pair;
