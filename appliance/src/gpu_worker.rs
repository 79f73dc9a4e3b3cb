//! The `berth-gpu-worker` command, which `berth run` starts for a GPU.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    berth_gpu::worker::main()
}
