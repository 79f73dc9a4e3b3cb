//! The Berth appliance: configuration, poll loops, host checks.
//!
//! The top floor composes and holds no protocol logic: [`config`] reads the file, [`check`] says what it would run,
//! [`run`] runs it, and [`doctor`] says what the host can do.
#![forbid(unsafe_code)]

pub mod check;
pub mod config;
pub mod doctor;
pub mod run;
mod sys;
