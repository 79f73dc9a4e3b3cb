//! The GPU in software: `cargo xtask bench gpu`. Rows of a GPU are for a machine that has one.

use std::{
    fmt::Write as _,
    fs,
    net::UdpSocket,
    thread::available_parallelism,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::{
    in_turn, median,
    network::{CLIENT_CPU, OUT, SERVER_CPU},
    programs::{lines, number},
};
use crate::{
    build,
    sh::{self, BERTH, cmd, output, run},
};

/// Turns of each side.
const TURNS: usize = 5;
/// Times that a worker is killed.
const KILLS: usize = 7;
/// Seconds of each turn over UDP.
const SECONDS: &str = "2";

/// What nobody measures on a GPU yet.
const UNMEASURED: [&str; 4] = [
    "on a GPU: rpc_increment 32 B, ring to ring, pinned, 1 block",
    "on a GPU: open throughput, 64 slots, 1 and 8 blocks",
    "on a GPU: mode = \"graph\", 32 B",
    "on a GPU: relay_bp, 4096 at once",
];

const UDP: &str = "rpc_increment 32 B, udp, dispatch gpu, RTT";
const RELAY: &str = "relay_bp, surface code d = 5 with events, one relay, one shot at a time, udp, RTT";
const KILLED: &str = "worker killed, to the first answer";

/// A line of the table: percentiles in `unit`, of so many samples; what it is beside; and how it is judged.
struct Line {
    case: &'static str,
    unit: &'static str,
    /// The median, and the 99th and 99.9th percentiles; NaN where there are too few samples.
    at: [f64; 3],
    count: u64,
    /// Times that the measuring loop did not run for over 100 us; `None` where nobody looked.
    hiccups: Option<u64>,
    beside: String,
    reach: &'static str,
    met: Option<bool>,
}

pub(super) fn run_all() -> Result<()> {
    let table = measured_table()?;
    println!("\n{table}");
    fs::write(format!("{OUT}/gpu.md"), table)?;
    println!("written to {OUT}/gpu.md");
    Ok(())
}

/// Measures all and makes the table.
pub(super) fn measured_table() -> Result<String> {
    fs::create_dir_all(OUT)?;
    let mut all = vec![instructions()?];
    all.extend(rings()?);
    all.extend(udp("soft")?);
    all.push(relay_bp("soft")?);
    all.push(killed("soft")?);
    let mut on_card = Vec::new();
    if has_card()? {
        on_card.extend(udp("auto")?.into_iter().take(1));
        on_card.push(relay_bp("auto")?);
        on_card.push(killed("auto")?);
    }
    Ok(table(&all, &on_card))
}

/// Whether there is a GPU of NVIDIA's that functions run on.
pub(super) fn has_card() -> Result<bool> {
    fs::create_dir_all(OUT)?;
    match sh::berth(&config("card", "auto", ON_GPU, INCREMENT)?) {
        Ok((_server, ready)) => Ok(ready["gpus"][0]["kind"] == "cuda"),
        Err(why) => {
            eprintln!("no GPU: {why}");
            Ok(false)
        }
    }
}

/// The lines of the GPU in software, and of a GPU, if there is one.
fn table(all: &[Line], on_card: &[Line]) -> String {
    let mut text = String::from(
        "| case, on the GPU in software | p50 | p99 | p99.9 | samples | hiccups | beside | reach | |\n|---|---|---|---|---|---|---|---|---|\n",
    );
    let lines = all.iter().map(|line| ("", line)).chain(on_card.iter().map(|line| ("on a GPU: ", line)));
    for (place, Line { case, unit, at, count, hiccups, beside, reach, met }) in lines {
        let figure = |value: f64| if value.is_nan() { String::new() } else { format!("{value:.1} {unit}") };
        let [p50, p99, p999] = at.map(figure);
        let hiccups = hiccups.map_or_else(String::new, |hiccups| hiccups.to_string());
        let met = met.map_or("", |met| if met { "met" } else { "short" });
        let _ = writeln!(
            text,
            "| {place}{case} | {p50} | {p99} | {p999} | {count} | {hiccups} | {beside} | {reach} | {met} |"
        );
    }
    let missing = [UDP, RELAY, KILLED].map(|case| format!("on a GPU: {case}"));
    let missing = missing.into_iter().filter(|_| on_card.is_empty());
    for case in UNMEASURED.map(str::to_owned).into_iter().chain(missing) {
        let _ = writeln!(text, "| {case} | not measured | | | | | | | |");
    }
    text
}

/// What the interpreter does on one core.
fn instructions() -> Result<Line> {
    let rates = (0..TURNS).map(|_| {
        let kernel = ["gpu", "run", "dataplane/ptx/tests/kernels/loop.ptx", "zero:1024", "50000", "--block", "256"];
        let printed = output(&mut cmd("taskset", ["-c", SERVER_CPU, BERTH].into_iter().chain(kernel)))?;
        let rate = printed.lines().find_map(|line| line.strip_prefix("instructions_per_s"));
        Ok(rate.context("berth gpu run tells no rate")?.trim().parse::<f64>()? / 1e6)
    });
    let rates = rates.collect::<Result<Vec<_>>>()?;
    let rate = median(rates.iter().copied());
    Ok(Line {
        case: "interpreter, one core, million instructions/s",
        unit: "M/s",
        at: [rate, f64::NAN, f64::NAN],
        count: rates.len() as u64,
        hiccups: None,
        beside: String::new(),
        reach: ">= 50 M/s",
        met: Some(rate >= 50.0),
    })
}

/// From a request in a ring to its answer there, one at a time and as many as the ring has slots.
fn rings() -> Result<[Line; 2]> {
    let example = build::example("berth-gpu", "ring_to_ring")?;
    let printed = lines(&output(&mut cmd::<&str>(&example, []))?)?;
    let [one, many] = &printed[..] else { bail!("{example} printed {printed:?}") };
    let at = ["p50", "p99", "p99_9"].map(|key| one[key].as_f64().unwrap_or(f64::NAN));
    let rates = many["per_s"].as_array().context("no rates")?.iter().filter_map(Value::as_f64);
    let rate = median(rates) / 1e3;
    let whole = |line: &Value, key: &str| line[key].as_u64().with_context(|| format!("{line} has no {key}"));
    Ok([
        Line {
            case: "rpc_increment 32 B, ring to ring, one at a time",
            unit: "us",
            at,
            count: whole(one, "count")?,
            hiccups: Some(whole(one, "hiccups")?),
            beside: String::new(),
            reach: "p50 < 30 us",
            met: Some(at[0] < 30.0),
        },
        Line {
            case: "the same, 64 at a time, thousand answers/s",
            unit: "k/s",
            at: [rate, f64::NAN, f64::NAN],
            count: whole(many, "count")?,
            hiccups: Some(whole(many, "hiccups")?),
            beside: String::new(),
            reach: "printed",
            met: None,
        },
    ])
}

/// A port over UDP on the server's core, with these lines in and after its `[port.rpc]`, and a GPU if `device` is not
/// empty.
fn config(name: &str, device: &str, rpc: &str, function: &str) -> Result<String> {
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

const ON_GPU: &str = "dispatch = \"gpu\"\ngpu = \"gpu0\"\n";
const INCREMENT: &str = "[[function]]\nname = \"rpc_increment\"\nhandler = \"builtin:rpc_increment\"\n";

/// A case of `berth perf rpc`: percentiles in microseconds, samples, hiccups.
fn measured(config: &str, name: &str, asked: &[&str]) -> Result<([f64; 3], u64, u64)> {
    let (_server, ready) = sh::berth(config)?;
    let json = format!("{OUT}/gpu-{name}.json");
    let address = ready["ports"][0]["addr"].as_str().context("a port without an address")?;
    let mut perf =
        cmd(BERTH, ["perf", "rpc", "--port", "udp", "--peer", address, "--cpu", CLIENT_CPU, "--no-progress"]);
    run(perf.args(["--json", &json]).args(asked))?;
    let report: Value = serde_json::from_str(&fs::read_to_string(&json)?)?;
    let case = &report["cases"][0];
    let at = |key: &str| number(&case["latency"], key).map(|nanos| nanos / 1e3);
    let answered = case["latency"]["n"].as_u64();
    let hiccups = case["hiccups"]["over_100_us"].as_u64().context("no hiccups")?;
    Ok(([at("p50")?, at("p99")?, at("p99_9")?], answered.context("no number of samples")?, hiccups))
}

/// Round trips over UDP, beside the same with a worker of ours on a CPU instead of the GPU.
fn udp(device: &str) -> Result<[Line; 2]> {
    let gpu = config("udp-gpu", device, ON_GPU, INCREMENT)?;
    let ring = config("udp-ring", "", &format!("dispatch = \"ring\"\nworker_cpus = [{SERVER_CPU}]\n"), INCREMENT)?;
    let asked = ["--payload", "32", "--duration", SECONDS, "--warmup", "0.3"];
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for turn in 0..TURNS {
        let (one, other) = in_turn(turn, || measured(&gpu, "udp-gpu", &asked), || measured(&ring, "udp-ring", &asked))?;
        ours.push(one);
        theirs.push(other);
    }
    let ratio = median(ours.iter().zip(&theirs).map(|(one, other)| one.0[0] / other.0[0]));
    // The client, the port's core and the kernel poll at the same time.
    let cores = available_parallelism()?.get();
    let few = if cores < 3 { format!(", of 3 threads that poll on {cores} cores") } else { String::new() };
    let line = |case, all: &[([f64; 3], u64, u64)], beside| Line {
        case,
        unit: "us",
        at: [0, 1, 2].map(|at| median(all.iter().map(|one| one.0[at]))),
        count: all.iter().map(|one| one.1).sum(),
        hiccups: Some(all.iter().map(|one| one.2).sum()),
        beside,
        reach: "printed",
        met: None,
    };
    Ok([
        line(UDP, &ours, format!("dispatch ring: {ratio:.2}x{few}")),
        line("rpc_increment 32 B, udp, dispatch ring, on a CPU, RTT", &theirs, String::new()),
    ])
}

/// One shot at a time, those of the demonstration.
fn relay_bp(device: &str) -> Result<Line> {
    let shots = format!("{OUT}/gpu-relay");
    let (model, from) = ("config/decoders/surface_d5.dem", "perf/data/surface_d5_p1e-3");
    run(&mut cmd(&build::example("berth-qec", "predict")?, [model, "relay_bp", from, &shots, "1000"]))?;
    let decoder = format!(
        "[[decoder]]\nname = \"d\"\nalgorithm = \"relay_bp\"\nrelays = 1\nlegs = 3\niterations = 20\nmodel = \"{}\"\n\
         [[function]]\nname = \"qec_decode\"\nhandler = \"builtin:qec_decode\"\ndecoder = \"d\"\n",
        sh::root().join(model).display(),
    );
    let config = config("relay", device, ON_GPU, &decoder)?;
    let asked = ["--function", "qec_decode", "--shots", &shots, "--count", "1000", "--warmup", "0"];
    let (at, count, hiccups) = measured(&config, "relay", &asked)?;
    Ok(Line {
        case: RELAY,
        unit: "us",
        at,
        count,
        hiccups: Some(hiccups),
        beside: String::new(),
        reach: "printed",
        met: None,
    })
}

/// From the kill of a worker to the first answer after it. Each is the first that ends: rests grow from one to the next.
fn killed(device: &str) -> Result<Line> {
    let config = config("killed", device, ON_GPU, INCREMENT)?;
    let mut times = Vec::new();
    for _ in 0..KILLS {
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
        case: KILLED,
        unit: "ms",
        at: [median(times.iter().copied()), f64::NAN, f64::NAN],
        count: times.len() as u64,
        hiccups: None,
        beside: format!("longest: {:.0} ms", times[times.len() - 1]),
        reach: "all < 2 s",
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
