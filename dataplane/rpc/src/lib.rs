//! Dispatch of CUDA-Q Realtime RPC: a [`RpcService`] answers the frames of a port.
//!
//! ```text
//! frame ─▶ gate: header, lengths, function, schema ─▶ inline: handler, in the frame's own buffer ─▶ answer
//!             │ refused: answered or dropped, counted
//!             └────────────────▶ ring: slot ─▶ Worker: handler, in the tx slot ─▶ slot ─▶ RpcService::poll ─▶ answer
//! ```
//!
//! Every request has exactly one outcome, counted by name. An answer echoes the `request_id` and `ptp_timestamp` of its
//! request whatever the outcome. Handlers are one monomorphised value per core ([`Handlers`]); nothing on the path of a
//! request allocates, locks or dispatches dynamically. docs/protocol-rpc.md is the reference.
#![forbid(unsafe_code)]

mod call;
mod counts;
mod forward;
mod gate;
mod guard;
pub mod handlers;
mod order;
mod program;
mod queued;
mod service;
mod table;
mod window;
mod worker;

pub use call::{Call, Failure, Handlers, Outcome};
pub use counts::COUNTERS;
pub use forward::RING_BUDGET;
pub use guard::{COOL_OFF, MAX_STRIKES};
pub use order::Order;
pub use program::{Program, Updates, updates};
pub use service::{Config, RpcService, SetupError, Stage, Undispatchable};
pub use table::{Dispatch, Function, FunctionIndex, FunctionTable, RingIndex, TableError};
pub use window::{WINDOW_COUNTERS, WindowHelper};
pub use worker::Worker;
