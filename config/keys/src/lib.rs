//! Configuration documents: TOML files that are merged into one, and read by a schema of their keys.
//!
//! A [`Section`] lists the keys of a table, with their types, defaults and documentation. A [`Table`] is read by it,
//! and every mistake is noted in a [`Sink`] with its file, line and column.
#![forbid(unsafe_code)]

pub mod document;
pub mod schema;
mod values;
mod walk;

pub use document::{Origin, Source};
pub use schema::{CPU_MAX, Key, Kind, Owned, Owner, Reload, Section, key};
pub use values::{Binds, address, claim, default_address};
pub use walk::{At, Note, Sink, Table, instead, parse_bytes};
