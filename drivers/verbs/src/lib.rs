//! RDMA: a safe layer over libibverbs, and the verbs port on top of it ([`open`], [`VerbsPort`]).
//!
//! The libraries are loaded at run time, so one program serves hosts with and without RDMA. Without them,
//! [`Error::NoRdma`] says what is missing.
//!
//! # Safe to misuse
//!
//! Every object keeps what it needs. A [`Context`] lives until the last [`Pd`], [`Cq`] or [`Mr`] made from it is
//! dropped; a region keeps its memory registered and mapped; and a [`Qp`] keeps the regions that its work requests name
//! until it has been destroyed, which flushes posted work. Memory that a device may still write is therefore never
//! freed. Registered memory is accessed by copies ([`Mr::read`], [`Mr::write`]) or through a raw pointer, because peers
//! may write it at any time. Changes of state are checked before the device is asked, and work is refused in states
//! that do not accept it.
//!
//! # Hard to guess
//!
//! A connection accepts packets from its peer's address that name its queue pair number and the next packet sequence
//! number. Memory accepts accesses that name its rkey, through a queue pair of its domain. Sequence numbers start at
//! random ([`random_psn`]). Devices assign queue pair numbers and the upper bits of rkeys in order. Decoys spread the
//! numbers ([`QpConfig::scatter`]), the binder chooses the low byte of a window's rkey, and soft-RoCE draws the low
//! byte of a region's. What separates tenants is the domain and the sequence number, not the queue pair number.
//!
//! # What is not here
//!
//! `rdma_cm`, because a port's peers find it by the rendezvous, which FPGAs need anyway, and address vectors need no
//! path record on RoCE. Extended atomics, XRC, completion channels (ports poll). InfiniBand's LID addressing: every
//! address is a GID.

mod cq;
mod device;
mod error;
mod memory;
mod port;
mod qp;
mod srq;
mod state;
mod work;

pub use cq::{Completion, Cq, Outcome, Work};
pub use device::{Context, Event, Gid, GidKind, Limits, PortInfo, devices};
pub use error::Error;
pub use memory::{Access, Mr, Mw, Pd};
pub use port::{COUNTERS, OpenError, PortConfig, VerbsPort, open};
pub use qp::{Path, Qp, QpConfig, Remote, Retry, random, random_psn};
pub use srq::Srq;
pub use state::{QpKind, State};
pub use work::{AddressId, BATCH, Flags, Local, MemoryId, Op, RemoteBytes};
