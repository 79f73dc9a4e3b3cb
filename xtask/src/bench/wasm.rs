//! `cargo xtask bench wasm`: tasklets and ring kernels, each beside what they stand on.

use std::fs;

use anyhow::{Context, Result};
use serde_json::Value;

use super::{
    Pair, Reach, Row, median,
    network::{self, CLIENT_CPU, Contest, OUT, PAGES, Peer, TURNS, port_lines, round_trip},
    programs::{lines, number},
};
use crate::{
    build,
    hugepages::Hugepages,
    sh::{self, Process, cargo, cmd, output, run},
};

/// Rounds of submissions.
const ROUNDS: &str = "15";

/// Pairs of revocations.
const REVOCATIONS: &str = "101";

/// A module that loops: `loop br 0 end unreachable`.
const ENDLESS: &[u8] = b"\0asm\x01\0\0\0\x01\x07\x01\x60\x02\x7F\x7F\x01\x7E\x03\x02\x01\0\x05\x03\x01\0\x01\
    \x07\x18\x02\x06memory\x02\0\x0Btasklet_run\0\0\x0A\x0A\x01\x08\0\x03\x40\x0C\0\x0B\0\x0B";

/// What tasklets cost, on one core each.
pub(super) fn tasklets() -> Result<Vec<Row>> {
    fs::create_dir_all(OUT)?;
    // The example finds the programs that it starts beside itself.
    run(&mut cargo(["build", "--release", "--quiet", "-p", "berth-wasm", "--bins"]))?;
    let speed = build::example("berth-wasm", "speed")?;
    let alone = lines(&output(&mut cmd::<&str>(&speed, []))?)?;
    let (bare, slots) = (
        median(figures(&alone, "run", "theirs")?.into_iter()),
        median(figures(&alone, "hostcall_process", "ours")?.into_iter()) / 1e3,
    );
    let mut rows = submissions("inline", Reach::Added((1.5 * bare + 10.0).round()))?;
    rows.truncate(1);
    rows.extend(submissions("process", Reach::Added((1.5 * (bare + slots) + 20.0).round()))?);
    for (case, name, baseline, unit, reach) in ALONE {
        rows.push(row(&alone, case, name, baseline, unit, reach)?);
    }
    for isolation in ["inline", "process"] {
        rows.push(revocations(isolation)?);
    }
    rows.push(saturated()?);
    Ok(rows)
}

/// Round trips of messages to ring kernels.
pub(super) fn messages() -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    let _pages = Hugepages::reserve(2 * PAGES);
    for (port, case, most) in
        [("udp", "VectorAdd 43 B, udp, RTT p50", 1.03), ("memif", "VectorAdd 43 B, memif, RTT p50", 1.10)]
    {
        rows.extend(network::contest(&vector_add(port, case, most))?);
    }
    Ok(rows)
}

/// What the example `speed` prints: a case, its name in the table, the baseline, the unit, and what it is to reach.
const ALONE: [(&str, &str, &str, &str, Reach); 16] = [
    ("compute", "compute-bound tasklet, 10^8 operators, inline", "bare wasmtime, fuel on", "ms", Reach::AtMost(1.02)),
    ("compute_process", "the same, process", "bare wasmtime, fuel on", "ms", Reach::Printed),
    ("fuel_off", "bare wasmtime, fuel off", "bare wasmtime, fuel on", "ms", Reach::Printed),
    ("epochs", "bare wasmtime, epochs", "bare wasmtime, fuel on", "ms", Reach::Printed),
    ("fuel_and_epochs", "bare wasmtime, fuel and epochs", "bare wasmtime, fuel on", "ms", Reach::Printed),
    // So many runs a second as the time of one has room for.
    ("run", "a run of a trivial module on one core, inline", "bare wasmtime, pooled", "us", Reach::AtMost(1.0 / 0.6)),
    ("run_process", "the same, process", "bare wasmtime, pooled", "us", Reach::Printed),
    ("hostcall", "fbmu_read_lease 64 B, inline", "a bare hostcall that copies 64 B", "ns", Reach::Added(60.0)),
    ("hostcall_process", "the same, process", "a bare hostcall that copies 64 B", "ns", Reach::Printed),
    ("read", "fbmu_read_lease 1 MiB, inline", "memcpy of 1 MiB", "us", Reach::AtMost(1.15)),
    ("read_process", "the same, process", "memcpy of 1 MiB", "us", Reach::AtMost(2.3)),
    ("kernel", "VectorAdd as a WASM kernel, service time", "builtin:vector_add", "ns", Reach::Added(150.0)),
    ("codec_dotcompute", "VectorAdd decoded, run and encoded, dotcompute", "view, add, copy", "ns", Reach::Added(20.0)),
    ("codec_memorypack", "the same, memorypack", "view, add, copy", "ns", Reach::Added(20.0)),
    ("codec_raw", "the same, raw", "view, add, copy", "ns", Reach::Added(20.0)),
    ("codec_crate", "the same, memorypack, by the crate `memorypack`", "view, add, copy", "ns", Reach::Printed),
];

fn figures(all: &[Value], case: &str, side: &str) -> Result<Vec<f64>> {
    all.iter().filter(|line| line["case"] == case).map(|line| number(line, side)).collect()
}

fn row(all: &[Value], case: &str, name: &str, baseline: &str, unit: &'static str, reach: Reach) -> Result<Row> {
    let (ours, theirs) = (figures(all, case, "ours")?, figures(all, case, "theirs")?);
    let pair = |(ours, theirs)| Pair { state: String::new(), ours, theirs };
    Ok(Row {
        case: name.into(),
        baseline: baseline.into(),
        unit,
        reach,
        pairs: ours.into_iter().zip(theirs).map(pair).collect(),
    })
}

/// A node that runs tasklets on the server's core, its QUIC address, and the key that may submit.
fn node(isolation: &str, sync_wait_ms: u32, ports: &str) -> Result<(Process, Value)> {
    let client = network::client_key("client")?;
    let config = format!(
        "[node]\nstate_dir = \"wasm-node\"\n[control]\nudp = \"127.0.0.1:0\"\nquic = \"127.0.0.1:0\"\nenrolled = [\"{client}\"]\n\
         [[control.policy]]\npresenter = \"*\"\nperms = [\"read\", \"write\", \"alloc\", \"exec\", \"revoke\"]\n\
         [[region]]\nname = \"mem\"\nkind = \"memory\"\nsize = \"16 MiB\"\n\
         [tasklet]\ncpus = [{CLIENT_CPU}]\nisolation = \"{isolation}\"\nsync_wait_ms = {sync_wait_ms}\nmax_wall_ms = 60000\n{ports}"
    );
    let path = format!("{OUT}/wasm-{isolation}.toml");
    fs::write(&path, config)?;
    sh::berth(&path)
}

fn quic(ready: &Value) -> Result<&str> {
    ready["endpoints"]["quic"].as_str().context("a node without QUIC")
}

/// `TASKLET_SUBMIT` by hash beside one that is refused when it was verified, and CANCELs.
fn submissions(isolation: &str, reach: Reach) -> Result<Vec<Row>> {
    let bench = build::example("berth-client", "submit_bench")?;
    let (_node, ready) = node(isolation, 50, "")?;
    let all = lines(&output(&mut cmd(&bench, [quic(&ready)?, &format!("{OUT}/client.key"), ROUNDS]))?)?;
    let case = format!("SUBMIT by hash, trivial module, {isolation}, verified to answered");
    let mut rows = vec![row(&all, "submit", &case, "refused once it is verified", "us", reach)?];
    for (case, what) in [("cancel_loop", "a tight loop"), ("cancel_fill", "a loop of bulk memory")] {
        let took = figures(&all, case, "ours")?;
        let most = took.iter().copied().fold(0.0, f64::max);
        let pairs = took.into_iter().map(|ours| Pair { state: String::new(), ours, theirs: f64::NAN });
        rows.push(Row {
            case: format!("CANCEL of {what}, {isolation}"),
            baseline: String::new(),
            unit: "ms",
            reach: Reach::Other(format!("< 50 ms each ({most:.1} at most)"), most < 50.0),
            pairs: pairs.collect(),
        });
    }
    Ok(rows)
}

/// `CAP_REVOKE` of a lease that a tasklet reads without pause, and of one that nobody reads.
fn revocations(isolation: &str) -> Result<Row> {
    let bench = build::example("berth-client", "revoke_tasklet_bench")?;
    let (_node, ready) = node(isolation, 2, "")?;
    let all = lines(&output(&mut cmd(&bench, [quic(&ready)?, &format!("{OUT}/client.key"), REVOCATIONS]))?)?;
    let sum = |name: &str| all.iter().map(|line| number(line, name)).sum::<Result<f64>>();
    let (late, reads) = (sum("served_after_answer")?, sum("reads")?);
    let pairs = all.iter().map(|line| {
        let (ours, theirs) = (number(line, "ours")?, number(line, "theirs")?);
        Ok(Pair { state: String::new(), ours, theirs })
    });
    let pairs: Vec<Pair> = pairs.collect::<Result<_>>()?;
    let median = median(pairs.iter().map(|pair| pair.ours));
    Ok(Row {
        case: format!("CAP_REVOKE to its answer while a tasklet reads the lease, {isolation}"),
        baseline: "while nobody reads it".into(),
        unit: "us",
        reach: Reach::Other(
            format!("< 1 ms, none served after ({late} of {reads} were)"),
            median < 1000.0 && late == 0.0 && reads > 0.0,
        ),
        pairs,
    })
}

/// What a poll core takes for a request, as it counts itself, while endless tasklets have the client's core in turns with the client.
fn saturated() -> Result<Row> {
    const ADMIN: &str = "127.0.0.1:5781";
    let endless = format!("{OUT}/endless.wasm");
    fs::write(&endless, ENDLESS)?;
    let (lines, client) = port_lines("udp", 32);
    let ports = format!(
        "[admin]\nlisten = \"{ADMIN}\"\n{lines}service = \"rpc\"\n[port.rpc]\n[[function]]\nname = \"rpc_increment\"\n\
         handler = \"builtin:rpc_increment\"\n"
    );
    let (_node, ready) = node("process", 2, &ports)?;
    let address = ready["ports"][0]["addr"].as_str().context("a port without an address")?;
    let Peer(asks) = Peer::rpc(address, client, 32);
    let node = quic(&ready)?;
    let berth = |args: &[&str]| {
        let mut berth = cmd(sh::BERTH, args);
        berth.env("BERTH_KEY", format!("{OUT}/client.key")).env("BERTH_NODE", node).env("XDG_STATE_HOME", OUT);
        output(berth.env("BERTH_ADMIN", ADMIN))
    };
    let json = |args: &[&str]| Ok::<Value, anyhow::Error>(serde_json::from_str(&berth(args)?)?);
    let p50 = |tasklets: usize| {
        let submit = ["tasklet", "run", &endless, "--fuel", "10000000000", "--detach", "--json"];
        let runs: Vec<Value> = (0..tasklets).map(|_| json(&submit)).collect::<Result<_>>()?;
        json(&["status", "--json"])?;
        let pacing = ["--cpu", CLIENT_CPU, "--duration", "1", "--no-progress"];
        output(cmd(sh::BERTH, ["perf"]).args(&asks).args(pacing))?;
        let status = json(&["status", "--json"])?;
        for run in runs {
            berth(&["tasklet", "cancel", &run["tasklet"].to_string()])?;
        }
        let recent = status["recent"].as_array().context("a status without latencies")?;
        let of = recent.iter().find(|of| of["stage"] == "service_time" && of["port"].is_string());
        of.and_then(|of| of["summary"]["p50"].as_f64()).context("no service time")
    };
    let mut pairs = Vec::new();
    for turn in 0..TURNS {
        let (ours, theirs) = super::in_turn(turn, || p50(4), || p50(0))?;
        pairs.push(Pair { state: String::new(), ours, theirs });
    }
    Ok(Row {
        case: "rpc_increment on a poll core while the pool is full, service time, p50".into(),
        baseline: "while it is idle".into(),
        unit: "ns",
        reach: Reach::AtMost(1.05),
        pairs,
    })
}

/// A port with the kernel and the function that it is measured against.
fn rpc(port: &str) -> (String, Vec<String>) {
    let (lines, client) = port_lines(port, 43);
    let functions = "service = \"rpc\"\n[port.rpc]\n[[function]]\nname = \"rpc_increment\"\nhandler = \"builtin:rpc_increment\"\n\
                     [[ring_kernel]]\nmessage = \"VectorAddRequest\"\nkernel = \"builtin:vector_add\"\n";
    (format!("{lines}{functions}"), client)
}

fn served(port: &'static str, asked: &'static str) -> network::Start {
    Box::new(move || {
        let (config, mut client) = rpc(port);
        let path = format!("{OUT}/wasm-{port}.toml");
        fs::write(&path, config)?;
        let (server, ready) = sh::berth(&path)?;
        let address = ready["ports"][0]["addr"].as_str().context("a port without an address")?;
        client.extend(["--function".into(), asked.into()]);
        Ok((server, Peer::rpc(address, client, 43)))
    })
}

fn vector_add(port: &'static str, case: &'static str, most: f64) -> Contest {
    Contest {
        name: if port == "udp" { "vector-add-udp" } else { "vector-add-memif" },
        baseline: "rpc_increment 43 B",
        ours: served(port, "vector_add"),
        theirs: served(port, "rpc_increment"),
        figures: vec![round_trip(case, most)],
        turns: TURNS,
    }
}
