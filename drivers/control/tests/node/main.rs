//! A node at its sockets: what clients see of it.
#![allow(clippy::doc_markdown, reason = "the names of ops")]

#[path = "../common/mod.rs"]
mod common;

mod addresses;
mod blocks;
mod bytes;
mod discovery;
mod endings;
mod greedy;
mod memory;
mod recovery;
mod shares;
mod tasklets;
mod vram;
