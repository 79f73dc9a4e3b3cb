//! fabricBIOS v0. Everything is big-endian.

pub mod data;
