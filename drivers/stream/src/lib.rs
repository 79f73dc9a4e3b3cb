//! Byte streams on threads that sleep: who may connect, how bytes are moved, and how much each peer holds at a time.
//!
//! A [`Listener`] has the only accept loop. Each connection is [`Pending`] until its peer has identified itself, in
//! whatever way its protocol defines, and [`Admitted`] after that. [`Connections`] limits both, also for carriers that
//! accept by themselves, as QUIC does. A [`Pump`] serves a connection's [`Session`](berth_port::Session). [`Shares`]
//! divides everything else that peers hold.
#![forbid(unsafe_code)]

mod connections;
mod listener;
mod pump;
mod shares;

pub use connections::{Admitted, Connections, Event, Limits, Pending};
pub use listener::Listener;
pub use pump::{End, LONG, Pump};
pub use shares::{Place, Shares};
