//! The Berth appliance: configuration, poll loops, host checks.
//!
//! The top floor composes and holds no protocol logic: [`config`] reads the file, [`check`] says what it would run,
//! [`run`] runs it, [`doctor`] says what the host can do, [`tune`] changes that, [`admin`] says how it is doing, [`top`] shows
//! that live, [`mod@log`] is what it says of itself, and [`cli`] are the commands of a client.
#![forbid(unsafe_code)]

pub mod admin;
pub mod check;
pub mod cli;
pub mod config;
pub mod doctor;
pub mod log;
pub mod run;
mod sys;
pub mod top;
pub mod tune;
#[cfg(feature = "wasm")]
mod wasm;
