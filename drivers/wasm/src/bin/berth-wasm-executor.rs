//! Runs tasklets for `berth_wasm::Isolated`, shut in.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    berth_wasm::executor()
}
