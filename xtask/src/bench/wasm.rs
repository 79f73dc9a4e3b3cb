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
const ALONE: [(&str, &str, &str, &str, Reach); 15] = [
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
fn node(isolation: &str, ports: &str) -> Result<(Process, Value)> {
    let client = network::client_key("client")?;
    let config = format!(
        "[node]\nstate_dir = \"wasm-node\"\n[control]\nudp = \"127.0.0.1:0\"\nquic = \"127.0.0.1:0\"\nenrolled = [\"{client}\"]\n\
         [[control.policy]]\npresenter = \"*\"\nperms = [\"exec\"]\n\
         [tasklet]\ncpus = [{CLIENT_CPU}]\nisolation = \"{isolation}\"\nsync_wait_ms = 200\nmax_wall_ms = 60000\n{ports}"
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
    let (_node, ready) = node(isolation, "")?;
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
