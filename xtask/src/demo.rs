//! `cargo xtask demo`: the main job, from a packet to a decoded answer, twice; `cargo xtask demo gpu`: the same on a GPU;
//! `cargo xtask demo tasklet`: a tasklet on a lease; `cargo xtask demo qec`: an experiment decoded round by round.

pub(crate) mod qec;
pub(crate) mod tasklet;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::{
    build, setup,
    sh::{self, BERTH, cmd, run},
};

const CONFIG: &str = "config/demo.toml";
const SHOTS: &str = "perf/data/surface_d5_p5e-3";
const OUT: &str = "target/demo";
/// How often `PyMatching` and Berth must predict the same flips.
const AGREEMENT: f64 = 0.999;

pub(crate) fn run_all() -> Result<()> {
    setup::build()?;
    build::berth()?;
    std::fs::create_dir_all(OUT)?;
    let (berth, ready) = sh::berth(CONFIG)?;
    let ports = ready["ports"].as_array().cloned().unwrap_or_default();
    let mut cases = Vec::new();
    for port in &ports {
        let addr = port["addr"].as_str().context("a port without an address")?;
        let (client, from): (_, &[&str]) = match port["driver"].as_str() {
            Some("dpdk") => (
                "dpdk",
                &["--device", "net_memif1,role=client,socket=/run/berth-demo.sock", "--address", "10.0.0.1/24"],
            ),
            _ => ("udp", &[]),
        };
        println!("\n{} port {} from a {client} client", port["driver"], port["name"]);
        let stem = format!("{OUT}/{}", port["name"].as_str().unwrap_or("port"));
        let mut perf = cmd(BERTH, ["perf", "rpc", "--cpu", "0", "--function", "qec_decode", "--shots", SHOTS]);
        perf.args(["--count", "100000", "--port", client, "--peer", addr]).args(from);
        for form in ["json", "hlog", "html"] {
            perf.args([format!("--{form}"), format!("{stem}.{form}")]);
        }
        run(&mut perf)?;
        cases.push(stem);
    }
    let counters = berth.terminate()?.counters()?;
    std::fs::write(format!("{OUT}/counters.json"), serde_json::to_string_pretty(&counters)?)?;
    println!();
    for stem in cases {
        agreement(&format!("{stem}.json"))?;
        println!("report: {stem}.html");
    }
    Ok(())
}

/// Algorithms that GPUs have, as the configuration and the example `predict` of `berth-qec` call them, and how many shots of
/// each are decoded: on the GPU in software one by `relay_bp` takes milliseconds.
const ON_GPU: [(&str, &str, u64); 2] =
    [("lut", "", 4000), ("relay_bp", "relays = 1\nlegs = 3\niterations = 20\n", 400)];
/// Milliseconds that an answer of a GPU in software may take, with 15 before it, on a host that is busy.
const PATIENCE: &str = "60000";
/// What a decoder answers on a CPU: an example of `berth-qec`.
const PREDICT: &str = "target/release/examples/predict";
const GPU_MODEL: &str = "config/decoders/surface_d5.dem";
const GPU_SHOTS: &str = "perf/data/surface_d5_p1e-3";

/// Decodes d = 5 syndromes over memif on the GPU in software, and compares every answer with the CPU decoder's.
pub(crate) fn gpu() -> Result<()> {
    setup::build()?;
    build::berth()?;
    std::fs::create_dir_all(OUT)?;
    build::examples(&["predict".into()])?;
    let model = sh::root().join(GPU_MODEL);
    let mut told = Vec::new();
    for (algorithm, parameters, count) in ON_GPU {
        let stem = format!("{OUT}/gpu_{algorithm}");
        run(&mut cmd(PREDICT, [GPU_MODEL, algorithm, GPU_SHOTS, &stem, &count.to_string()]))?;
        let config = format!(
            "[runtime]\nhousekeeping_cpus = [0]\n[[gpu]]\nname = \"gpu0\"\ndevice = \"soft\"\n[[port]]\nname = \"memif\"\n\
             driver = \"dpdk\"\ndevice = \"net_memif0,role=server,socket=/run/berth-demo.sock\"\naddress = \
             \"10.0.0.2/24\"\nudp_port = 4700\ncpu = 1\nidle = \"wait\"\n[port.rpc]\ndispatch = \"gpu\"\ngpu = \"gpu0\"\n\
             [[decoder]]\nname = \"surface-d5\"\nalgorithm = \"{algorithm}\"\n{parameters}model = \"{model}\"\n\
             [[function]]\nname = \"qec_decode\"\nhandler = \"builtin:qec_decode\"\ndecoder = \"surface-d5\"\n",
            model = model.display(),
        );
        std::fs::write(format!("{stem}.toml"), config)?;
        let (berth, ready) = sh::berth(&format!("{stem}.toml"))?;
        let gpu = &ready["gpus"][0];
        println!("\n{algorithm} on gpu {} ({}), worker {}", gpu["name"], gpu["device"], gpu["worker_pid"]);
        let addr = ready["ports"][0]["addr"].as_str().context("a port without an address")?;
        let mut perf = cmd(BERTH, ["perf", "rpc", "--cpu", "0", "--function", "qec_decode", "--shots", &stem]);
        perf.args(["--count", &count.to_string(), "--warmup", "0", "--window", "16", "--timeout", PATIENCE]);
        perf.args(["--port", "dpdk", "--peer", addr]);
        perf.args(["--device", "net_memif1,role=client,socket=/run/berth-demo.sock", "--address", "10.0.0.1/24"]);
        perf.args(["--json", &format!("{stem}.json"), "--no-progress"]);
        run(&mut perf)?;
        let counters = berth.terminate()?.counters()?;
        let result: Value = serde_json::from_str(&std::fs::read_to_string(format!("{stem}.json"))?)?;
        let counts = &result["cases"][0]["counts"];
        let number = |key: &str| counts[key].as_u64().with_context(|| format!("{stem}.json has no counts.{key}"));
        let (answers, equal) = (number("predictions")?, number("agreements")?);
        told.push(format!("{algorithm}: {answers} answers from the GPU, {equal} equal to the CPU decoder's"));
        let trouble = ["gpu_restarts", "gpu_faults", "gpu_timeouts"];
        let trouble = trouble.iter().any(|name| counters["gpus"][0]["counters"][name] != 0);
        if (answers, equal) != (count, count) || trouble {
            bail!("{}, of {count}: {}", told.join("; "), counters["gpus"]);
        }
    }
    println!("\n{}", told.join("\n"));
    Ok(())
}

/// Prints what one run decoded, and fails where it disagrees with `PyMatching` more than ties explain.
fn agreement(path: &str) -> Result<()> {
    let result: Value = serde_json::from_str(&std::fs::read_to_string(path)?)?;
    let counts = &result["cases"][0]["counts"];
    let number = |key: &str| counts[key].as_u64().with_context(|| format!("{path} has no counts.{key}"));
    let (shots, agreed) = (number("predictions")?, number("agreements")?);
    let (ours, theirs) = (number("logical_errors")?, number("reference_logical_errors")?);
    let share = agreed as f64 / shots as f64;
    println!(
        "{path}: {shots} shots decoded, {:.3} % as PyMatching; logical errors {ours}, PyMatching's {theirs}",
        100.0 * share
    );
    if share < AGREEMENT {
        bail!("{path}: fewer than {:.1} % of the predictions agree", 100.0 * AGREEMENT);
    }
    Ok(())
}
