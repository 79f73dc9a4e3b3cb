//! The `berth-executor` command, which `berth run` starts for tasklets.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    berth_wasm::executor()
}
