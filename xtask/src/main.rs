//! `cargo xtask`: everything a person or CI does with this tree, in one place.
#![forbid(unsafe_code)]

mod bench;
mod bridge;
mod build;
mod bundle;
mod demo;
mod hugepages;
mod lab;
mod package;
mod setup;
mod sh;
mod test;
mod together;

use anyhow::Result;

const USAGE: &str = "\
cargo xtask setup          install the Debian packages that building and testing need
cargo xtask demo           decode surface-code syndromes over DPDK memif and over io_uring, and write a report
cargo xtask demo gpu       decode them on the GPU in software, and compare every answer with the CPU's
cargo xtask demo tasklet   run the SDK's example beside a lease, over QUIC: by hash, detached, cancelled, out of fuel
cargo xtask demo qec       stream 10^5 rounds of a surface code over DPDK memif, decoded as they arrive, and say how far behind
cargo xtask test [STAGE...] all stages of CI: lint, unit, system, fuzz, lab. Besides: long, hours of the same
cargo xtask lab [SUITE...] suites in a guest with devices and kernel features that this host may lack; --native: here
cargo xtask lab blktests CHECKOUT  the NVMe tests of blktests against leases, in a guest
cargo xtask package        the Debian packages, in target/package
cargo xtask bridge [dpdk] [ofi] [verbs]  the library by which CUDA-Q's servers use our ports, with these drivers besides the sockets
cargo xtask gpu            a folder, target/gpu, that tests and measures what there is of GPUs on a machine with nothing of ours
cargo xtask bench rpc      the speed table, each row interleaved with its baseline
cargo xtask bench lease    the same for leases
cargo xtask bench rdma     the same for RDMA, libfabric and RoCE in software
cargo xtask bench nvme     the same for NVMe/TCP; host, guest: a part of it
cargo xtask bench wasm     the same for tasklets and messages to ring kernels; tasklets, messages: a part of it
cargo xtask bench gpu      the GPU in software, and NVIDIA's beside bare kernels; quick: whether the rows of these run
cargo xtask bench qec      decoders beside PyMatching and relay-bp, on the same shots; quick: whether all of it runs
cargo xtask bench hip      calls of HIP Remote on the GPU in software, against C and iperf3
cargo xtask bench knobs    what the knobs of docs/tune.md do on this host
cargo xtask bench appliance  how soon the appliance is ready, and how much memory it takes
cargo xtask bench telemetry  what telemetry costs: against a build without it";

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    std::env::set_current_dir(sh::root())?;
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["setup"] => setup::all(),
        ["bench", "rpc"] => bench::rpc(),
        ["bench", "lease"] => bench::lease(),
        ["bench", "rdma"] => bench::rdma(),
        ["bench", "nvme"] => bench::nvme(None),
        ["bench", "nvme", part @ ("host" | "guest")] => bench::nvme(Some(part)),
        ["bench", "wasm"] => bench::wasm(None),
        ["bench", "wasm", part @ ("tasklets" | "messages")] => bench::wasm(Some(part)),
        ["bench", "gpu"] => bench::gpu(),
        ["bench", "gpu", "quick"] => bench::gpu_quick(),
        // What `bench gpu quick` and `gpu run` start with a driver in software.
        ["gpu", "rows"] => bench::gpu_rows(),
        ["bench", "qec"] => bench::qec(false),
        ["bench", "qec", "quick"] => bench::qec(true),
        ["bench", "hip"] => bench::hip(),
        ["bench", "knobs"] => bench::knobs(),
        ["bench", "appliance"] => bench::appliance(),
        ["bench", "telemetry"] => bench::telemetry(),
        ["package"] => package::command(),
        ["bridge", ref features @ ..] => bridge::command(features),
        ["gpu"] => bundle::make(),
        ["gpu", "run", out] => bundle::run_all(out),
        ["demo"] => demo::run_all(),
        ["demo", "gpu"] => demo::gpu(),
        ["demo", "qec"] => demo::qec::run_all(),
        ["demo", "tasklet"] => demo::tasklet::run_all(),
        ["test", ref stages @ ..] => test::command(stages),
        ["lab", ref args @ ..] => lab::command(args),
        _ => {
            eprintln!("{USAGE}");
            std::process::exit(2);
        }
    }
}
