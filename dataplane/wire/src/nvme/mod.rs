//! NVMe over TCP: PDUs, commands and completions, the structures that commands carry, and authentication; and what a
//! controller of virtual functions is told. Everything is little-endian.
//!
//! References are to the NVMe base specification 2.0 (Base), its NVM command set specification 1.0 (NVM) and the NVMe/TCP
//! transport specification 1.0 (TCP), by the names of the fields. Fields that are not named here are zero where they are
//! written, and not looked at where they are read.
//!
//! ```text
//! common header 8 | rest of the header, hlen in all | header digest 4 | pad up to pdo | data | data digest 4
//! ```

pub mod admin;
pub mod auth;
pub mod command;
pub mod fabrics;
pub mod identify;
pub mod io;
pub mod log;
pub(crate) mod macros;
pub mod opcode;
pub mod pdu;
pub mod status;
pub mod virtualization;

pub use command::{Cqe, Sgl, Sqe};
pub use status::Status;
