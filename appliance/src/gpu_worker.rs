//! The `berth-gpu-worker` command, which `berth run` starts for a GPU.
#![forbid(unsafe_code)]

fn main() {
    berth_gpu::worker::main();
}
