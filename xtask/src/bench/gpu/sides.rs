//! What is measured: rings, ports, workers and tenants of ours, and the baselines.

use std::{
    fs,
    net::UdpSocket,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::{Figures, Line, Scale};
use crate::{
    bench::{
        median,
        network::{self, CLIENT_CPU, OUT, SERVER_CPU},
        programs::{lines, number},
    },
    build, bundle,
    sh::{self, BERTH, Process, cmd, output, run},
};

/// Seconds that a program may take: a GPU may never answer.
const LIMIT: &str = "30";

/// The only line that a program prints.
fn line(program: &str, args: &[&str]) -> Result<Value> {
    let printed = lines(&output(cmd("timeout", ["--kill-after=5", LIMIT, program]).args(args))?)?;
    ensure!(printed.len() == 1, "{program} printed {printed:?}");
    Ok(printed[0].clone())
}

/// Percentiles in microseconds, or a rate in thousands a second.
fn figures(line: &Value) -> Result<Figures> {
    let (count, hiccups) = (number(line, "count")? as u64, line["hiccups"].as_u64());
    if let Some(rate) = line["per_s"].as_f64() {
        return Ok(Figures::one(rate / 1e3, count, hiccups));
    }
    percentiles(line, 1.0).map(|at| Figures { at, count, hiccups })
}

fn percentiles(line: &Value, scale: f64) -> Result<[f64; 3]> {
    let at = |key: &str| number(line, key).map(|figure| figure * scale);
    Ok([at("p50")?, at("p99")?, at("p99_9")?])
}

/// From a request in a ring to its answer there.
pub(super) fn ring(device: &str, mode: &str, count: &str, blocks: &str) -> Result<Figures> {
    figures(&line(&build::example("berth-gpu", "ring_to_ring")?, &[device, mode, count, blocks])?)
}

/// What a baseline says that knows nothing of Berth.
pub(super) fn bare_line(mode: &str, count: &str, more: &[&str]) -> Result<Value> {
    line(&bundle::bare()?, &[&["perf/baselines/cuda_bare.ptx", mode, count], more].concat())
}

pub(super) fn bare(mode: &str, count: &str, more: &[&str]) -> Result<Figures> {
    figures(&bare_line(mode, count, more)?)
}

/// Shots of a model on a device and on a core of this host: `one` at a time, or so many at once for `amount` milliseconds.
pub(super) fn decodes(device: &str, at_once: &str, amount: &str, code: &[&str; 2]) -> Result<(Figures, Figures)> {
    let program = build::example("berth-gpu", "ring_decodes")?;
    let said = line(&program, &[device, at_once, amount, code[0], code[1]])?;
    let ours = figures(&said)?;
    let theirs = match said["cpu_per_s"].as_f64() {
        Some(rate) => Figures::one(rate / 1e3, ours.count, None),
        None => Figures { at: percentiles(&said["cpu"], 1.0)?, count: ours.count, hiccups: None },
    };
    Ok((ours, theirs))
}

/// A port over UDP on the server's core, with these lines in and after its `[port.rpc]`, and a GPU if `device` is not
/// empty.
pub(super) fn config(name: &str, device: &str, rpc: &str, function: &str) -> Result<String> {
    let gpu = if device.is_empty() {
        String::new()
    } else {
        format!("[[gpu]]\nname = \"gpu0\"\ndevice = \"{device}\"\ntime_limit_ms = 10000\n")
    };
    let text = format!(
        "{gpu}[[port]]\nname = \"a\"\ndriver = \"udp\"\nbind = \"127.0.0.1:0\"\ncpu = {SERVER_CPU}\nidle = \"spin\"\n\
         [port.rpc]\n{rpc}{function}"
    );
    let path = format!("{OUT}/gpu-{name}.toml");
    fs::write(&path, text)?;
    Ok(path)
}

pub(super) const ON_GPU: &str = "dispatch = \"gpu\"\ngpu = \"gpu0\"\n";
pub(super) const INCREMENT: &str = "[[function]]\nname = \"rpc_increment\"\nhandler = \"builtin:rpc_increment\"\n";

/// A case of `berth perf rpc`, in microseconds.
pub(super) fn asked(config: &str, name: &str, asked: &[&str]) -> Result<Figures> {
    let (_server, ready) = sh::berth(config)?;
    let json = format!("{OUT}/gpu-{name}.json");
    let address = ready["ports"][0]["addr"].as_str().context("a port without an address")?;
    let mut perf =
        cmd(BERTH, ["perf", "rpc", "--port", "udp", "--peer", address, "--cpu", CLIENT_CPU, "--no-progress"]);
    run(perf.args(["--json", &json]).args(asked))?;
    let report: Value = serde_json::from_str(&fs::read_to_string(&json)?)?;
    let case = &report["cases"][0];
    let count = case["latency"]["n"].as_u64().context("no number of samples")?;
    let hiccups = case["hiccups"]["over_100_us"].as_u64().context("no hiccups")?;
    Ok(Figures { at: percentiles(&case["latency"], 1e-3)?, count, hiccups: Some(hiccups) })
}

/// Round trips over UDP.
pub(super) fn measured(config: &str, name: &str, scale: &Scale) -> Result<Figures> {
    let [seconds, warmup] = scale.udp;
    asked(config, name, &["--payload", "32", "--duration", seconds, "--warmup", warmup])
}

/// The same with a worker of ours on a CPU instead of the GPU.
pub(super) fn udp_on_cpu(scale: &Scale) -> Result<Figures> {
    let rpc = format!("dispatch = \"ring\"\nworker_cpus = [{SERVER_CPU}]\n");
    measured(&config("udp-ring", "", &rpc, INCREMENT)?, "udp-ring", scale)
}

/// A node that leases a GPU, and a client of it.
pub(super) struct Tenant {
    _node: Process,
    quic: String,
    /// What memory its leases are.
    pub(super) memory: String,
}

impl Tenant {
    pub(super) fn new() -> Result<Self> {
        let key = network::client_key("client")?;
        let path = format!("{OUT}/gpu-lease.toml");
        let text = format!(
            "[node]\nstate_dir = \"gpu-node\"\n[control]\nudp = \"127.0.0.1:0\"\nquic = \"127.0.0.1:0\"\nenrolled = [\"{key}\"]\n\
             [[control.policy]]\npresenter = \"*\"\nperms = [\"read\", \"write\", \"alloc\", \"exec\"]\n\
             [dataplane]\nfbmt = \"127.0.0.1:0\"\n\
             [[gpu]]\nname = \"gpu0\"\ndevice = \"auto\"\nuse = \"lease\"\ntime_limit_ms = 10000\n\
             [[region]]\nname = \"vram\"\nkind = \"vram\"\ngpu = \"gpu0\"\nsize = \"4 MiB\"\n"
        );
        // Leases of a run before this one are not its own.
        let _ = fs::remove_dir_all(Path::new(OUT).join("gpu-node"));
        fs::write(&path, text)?;
        let (node, ready) = sh::berth(&path)?;
        let quic = ready["endpoints"]["quic"].as_str().context("a node without QUIC")?.to_owned();
        let memory = ready["gpus"][0]["memory"].as_str().context("a GPU without memory")?.to_owned();
        Ok(Self { _node: node, quic, memory })
    }

    /// What it waits for.
    pub(super) fn asks(&self, what: &str, scale: &Scale) -> Result<Figures> {
        let program = build::example("berth-client", "gpu_lease_bench")?;
        figures(&line(&program, &[&self.quic, &format!("{OUT}/client.key"), what, scale.calls])?)
    }
}

/// From the kill of a worker to the first answer after it. Each is the first that ends: rests grow from one to the next.
pub(super) fn killed(case: &'static str, device: &str, kills: usize) -> Result<Line> {
    let config = config("killed", device, ON_GPU, INCREMENT)?;
    let mut times = Vec::new();
    for _ in 0..kills {
        let (server, ready) = sh::berth(&config)?;
        let client = UdpSocket::bind("127.0.0.1:0")?;
        client.connect(ready["ports"][0]["addr"].as_str().context("a port without an address")?)?;
        client.set_read_timeout(Some(Duration::from_millis(100)))?;
        let worker = ready["gpus"][0]["worker_pid"].as_u64().context("no worker")?;
        ensure!(answers(&client, 0)?, "no answer");
        let began = Instant::now();
        run(&mut cmd("kill", ["-KILL", &worker.to_string()]))?;
        for id in 1.. {
            if answers(&client, id)? {
                break;
            }
            ensure!(began.elapsed() < Duration::from_secs(30), "no answer after worker {worker} was killed");
        }
        times.push(began.elapsed().as_secs_f64() * 1e3);
        server.terminate()?.counters()?;
    }
    times.sort_unstable_by(f64::total_cmp);
    Ok(Line {
        case,
        unit: "ms",
        figures: Figures::one(median(times.iter().copied()), times.len() as u64, None),
        beside: format!("longest: {:.0} ms", times[times.len() - 1]),
        reach: "all < 2 s".into(),
        met: Some(times.iter().all(|ms| *ms < 2000.0)),
    })
}

/// Asks once: whether the function answered, and not somebody in its place.
fn answers(client: &UdpSocket, id: u32) -> Result<bool> {
    let words = [0x4355_5152, 0x191B_6322, 1, id, 0, 0].map(u32::to_le_bytes).concat();
    client.send(&[&words[..], &[7]].concat())?;
    let mut answer = [0; 64];
    let Ok(len) = client.recv(&mut answer) else { return Ok(false) };
    Ok(len == 25 && answer[4..8] == [0; 4] && answer[24] == 8)
}
