//! Slot rings with the CUDA-Q Realtime flag protocol.
//!
//! A [`Ring`] is two arrays of N slots, requests (rx) and answers (tx), each with one 64-bit flag per slot:
//!
//! ```text
//! Producer                                 Dispatcher
//!   rx[i] := request                         rx_flag[i] == address?        (acquire)
//!   rx_flag[i] := address  (release)  ---->  tx[i] := handler(rx[i])
//!                                            tx_flag[i] := address | error (release)
//!   tx_flag[i] == address? (acquire)  <----  rx_flag[i] := 0               (release)
//!   take tx[i]; tx_flag[i] := 0              i := i + 1 mod N
//! ```
//!
//! There is one [`Producer`] and one [`Dispatcher`], each on its own core. They share nothing but the flags and the
//! slots, so no operation is an atomic read-modify-write. The flags are laid out as in the host API. A foreign
//! dispatcher (a GPU kernel, a C thread) can therefore serve our ring through [`Ring::as_abi`], and ours can serve a
//! foreign ring through [`Ring::attach`]. [`shared`] lays out such a ring for another process.
//!
//! If both ends are ours, [`pair`] makes an internal ring with the same two roles. Its flags lie in front of their
//! slots and carry the length of the message, and nobody clears them.
//!
//! Faults of the other side are counted and answered, never silent: see [`ProducerStats`] and [`DispatcherStats`]. A
//! flag is compared with the address it should hold, and is never dereferenced.

#[cfg(not(target_pointer_width = "64"))]
compile_error!("the ring's layouts are LP64");

pub mod abi;
mod cursor;
mod dispatcher;
#[cfg(loom)]
mod modelled;
mod outstanding;
mod producer;
mod ring;
mod sequence;
mod sync;

pub use dispatcher::{Dispatcher, DispatcherStats};
#[cfg(loom)]
pub use modelled::{Device, posted};
pub use outstanding::Outstanding;
pub use producer::{Elsewhere, Overrun, PATIENCE, Producer, ProducerStats, TxError};
pub use ring::{ErrorCode, Geometry, Ring, RingError, SlotIndex, pair};
#[cfg(not(loom))]
pub use ring::{pair_in, posted, shared};
pub use sequence::{Arrival, Sequence, SequenceCounts};

use berth_port::{Family, Tables};

/// Declarations of the counters of both ends of a ring.
pub const COUNTERS: Tables = &[ProducerStats::TABLE, DispatcherStats::TABLE];

const RING_EVENTS: Family = Family::counter("ring_events", "what happened in rings beside requests and answers");
