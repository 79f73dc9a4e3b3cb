//! `RoCEv2` for unreliable connections: the transport headers over UDP, and the invariant CRC behind them.
//!
//! References are to the `InfiniBand` Architecture Specification, volume 1 (IBTA), and its annex A17 (`RoCEv2`).
//!
//! ```text
//! Ethernet | IP | UDP, port 4791 | BTH 12 | RETH 16 where a write starts | ImmDt 4 | payload | pad 0..3 | ICRC 4
//! ```

mod headers;
mod icrc;
mod numbers;
mod packet;

pub use headers::{Bth, Reth};
pub use icrc::{Icrc, IcrcMemo, icrc};
pub use numbers::{P_KEY_DEFAULT, PKey, Psn, Qpn};
pub use packet::{HEADERS_MAX, Head, Malformed, Opcode, Packet};

/// The UDP port of `RoCEv2` (annex A17.3.1).
pub const UDP_PORT: u16 = 4791;

/// The longest path MTU, in bytes of payload (IBTA 9.4.2).
pub const PATH_MTU_MAX: usize = 4096;
