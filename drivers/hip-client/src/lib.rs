//! A client of HIP Remote workers.
//!
//! ```text
//! Client ── device(0) ─▶ Device ─▶ Buffer, Module, Stream, Event, Graph     freed on the worker when they are dropped
//!                          │
//!                       Session: the same calls with handles as numbers ─▶ Link: one connection
//! ```
//!
//! Calls that return nothing are not waited for: they are collected, and sent by the next call that waits, when 64 KiB
//! are there, by [`Session::flush`], or after a millisecond. What fails in them is told by the next [`Device::synchronize`],
//! [`Stream::synchronize`], [`Event::synchronize`] or copy to the host.
//!
//! When the connection breaks, one call says so ([`Error::Lost`]), and all that belonged to the session answers
//! [`Error::Gone`]. The next [`Client::device`] connects again.
#![forbid(unsafe_code)]

mod access;
mod client;
mod code;
mod error;
mod graphs;
mod link;
mod memory;
mod session;
mod stream;
mod streams;

pub use self::{
    access::{Access, EnvError, Lease},
    client::{Client, Device},
    code::{Arguments, Function, FunctionInfo, Module, Shape},
    error::{Error, Result},
    graphs::{Capture, Graph, GraphExec},
    memory::{Buffer, CopyOut},
    session::Session,
    streams::{Event, Stream, events},
};

/// The text in a field of fixed length: up to the first NUL, or all of it. Bytes that are no UTF-8 are replaced.
pub fn text(field: &[u8]) -> String {
    let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
    String::from_utf8_lossy(&field[..end]).into_owned()
}
