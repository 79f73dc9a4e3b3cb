//! WASM tasklets: what may run, with which limits and capabilities, and how each run ends
//! (`docs/tasklets.md`, T1-T12).

#![forbid(unsafe_code)]

pub mod hostcall;
pub mod run;
