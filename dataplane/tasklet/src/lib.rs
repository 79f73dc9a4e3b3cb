//! WASM tasklets: what may run, with which limits and capabilities, and how each run ends
//! (`docs/tasklets.md`, T1-T12).
//!
//! ```text
//! SUBMIT -> Maxima, Capabilities, Modules -> Schedule: waiting -> Go::Start   -> Module::run on a thread of the pool
//!                                                       ready  -> Go::Resume     Hostcalls::turn, call; Log
//! STATUS, FETCH_RESULT <- Results <------------------------------------------ Outcome
//! ```
#![forbid(unsafe_code)]
#![allow(clippy::doc_markdown)] // the documents' names of rights and ops

pub mod capability;
pub mod channel;
pub mod hostcall;
pub mod log;
pub mod module;
pub mod result;
pub mod run;
pub mod schedule;
