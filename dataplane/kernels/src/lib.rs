//! Ring kernels: typed messages of fixed size, and the kernels that answer them.
//!
//! ```text
//! message, in any format ─▶ Schema::read ─▶ raw ─▶ kernel ─▶ raw ─▶ Schema::write ─▶ answer, in the same format
//!             └─ the same bytes again from the same peer ─▶ the same answer ──────────────▲
//! ```
//!
//! A [`Schema`] is declared once and gives a message its three formats; a [`Registry`] knows schemas by name. docs/ring-kernels.md is
//! the reference.
#![forbid(unsafe_code)]

mod dedup;
mod header;
mod kernel;
mod member;
mod program;
mod queue;
mod registry;
mod schema;

pub use berth_wire::memory_pack::{Format, Scalar};
pub(crate) use kernel::part;
pub use kernel::{
    DROPPED, DUPLICATE, Kernel, KernelError, NOT_ACTIVE, Next, OUTCOMES, Refusal, Sent, Settings, Ticket,
};
pub use member::{Member, MemberError};
pub use program::{Builtin, Code, Failed, Instance, Runs};
pub use queue::{Backpressure, QueueSettings, UNDER_WAY};
pub use registry::{Message, Registry, RegistryError, VectorAddRequest, VectorAddResponse};
pub use schema::{Choice, MAX_MEMBERS, Schema, SchemaError};
