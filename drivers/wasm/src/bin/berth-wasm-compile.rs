//! Compiles the module that it reads, within limits: the child of `berth_wasm::Compiler`.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    berth_wasm::child()
}
