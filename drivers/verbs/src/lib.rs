//! RDMA: a safe layer over libibverbs, and the verbs port on top of it ([`open`], [`VerbsPort`]).
//!
//! The libraries are loaded at run time, so one program serves hosts with and without RDMA; if there is none,
//! [`Error::NoRdma`] says what is missing.
//!
//! # Safe to misuse
//!
//! Everything keeps what it needs: a [`Context`] lives until the last [`Pd`], [`Cq`] or [`Mr`] of it is dropped, a
//! region keeps its memory registered and mapped, and a [`Qp`] keeps the regions that its work requests name until it
//! has been destroyed, which takes posted work back. So nothing that a device may still write is ever freed. Registered
//! memory is reached by copies ([`Mr::read`], [`Mr::write`]) or by a raw pointer, since peers may write it at any time.
//! Changes of state are checked before the device is asked, and work is refused in states that take none.
//!
//! # Not guessable
//!
//! A connection takes packets that name its queue pair's number and the next packet sequence number, and come from its
//! peer's address; memory takes accesses that name its rkey, through a queue pair of its domain. Sequence numbers start
//! at random ([`random_psn`]). Devices give out queue pair numbers and the upper bits of rkeys in order: numbers are
//! spread by decoys ([`QpConfig::scatter`]), the low byte of a window's rkey is the binder's to choose, and soft-RoCE
//! itself draws the low byte of a region's. What separates tenants is the domain and the sequence number, not the
//! number.
//!
//! # What is not here
//!
//! `rdma_cm`: a port's peers find it by the rendezvous, which FPGAs need anyway, and address vectors need no path
//! record on RoCE. Extended atomics, XRC, completion channels (ports poll), and InfiniBand's LID addressing: every
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
