//! Rows over two cores: a client on one, Berth or a baseline server in turn on the other.

use std::{fs, path::Path, process::Command};

use anyhow::{Context, Result};
use serde_json::Value;

use super::{Pair, Reach, Row};
use crate::{
    hugepages::Hugepages,
    serve::{BERTH, Server},
    sh::{cmd, run},
};

const OUT: &str = "target/bench";
const CLIENT_CPU: &str = "0";
const SERVER_CPU: &str = "1";
const SOCKET: &str = "/run/berth-bench.sock";
/// Turns of each contestant.
const TURNS: usize = 9;
/// 2 MiB pages of each of two DPDK processes.
const PAGES: usize = 128;
/// Seconds of each turn.
const SECONDS: &str = "1.5";

/// How a client reaches a server.
struct Peer {
    address: String,
    client: Vec<String>,
}

/// A pair of servers that take turns, and the figures of them that make rows.
struct Contest {
    port: &'static str,
    baseline: &'static str,
    ours: fn() -> Result<(Server, Peer)>,
    theirs: fn() -> Result<(Server, Peer)>,
    figures: Vec<Figure>,
}

struct Figure {
    case: &'static str,
    /// The client's pacing.
    pacing: &'static [&'static str],
    /// Where the figure stands in a case of the report.
    pointer: &'static str,
    scale: f64,
    unit: &'static str,
    reach: Reach,
}

fn round_trip(case: &'static str, reach: f64) -> Figure {
    Figure { case, pacing: &[], pointer: "/latency/p50", scale: 1e-3, unit: "us", reach: Reach::AtMost(reach) }
}

pub(super) fn rows() -> Result<Vec<Row>> {
    let _pages = Hugepages::reserve(2 * PAGES);
    fs::create_dir_all(OUT)?;
    let throughput = Figure {
        case: "rpc_increment 32 B, memif, open throughput",
        pacing: &["--window", "256"],
        pointer: "/answered_per_s",
        scale: 1e-6,
        unit: "M/s",
        reach: Reach::AtLeast(0.75),
    };
    let contests = [
        Contest {
            port: "memif",
            baseline: "testpmd 5tswap",
            ours: || berth("memif", r#"device = "net_memif0,role=server,socket=/run/berth-bench.sock""#),
            theirs: testpmd,
            figures: vec![round_trip("rpc_increment 32 B, memif, RTT p50", 1.10), throughput],
        },
        Contest {
            port: "udp",
            baseline: "C recvfrom/sendto",
            ours: || berth("udp", ""),
            theirs: || echo("udp_echo", &[]),
            figures: vec![round_trip("rpc_increment 32 B, udp, RTT p50", 1.05)],
        },
        Contest {
            port: "uring",
            baseline: "C liburing",
            ours: || berth("uring", ""),
            theirs: || echo("uring_echo", &["-luring"]),
            figures: vec![round_trip("rpc_increment 32 B, uring, RTT p50", 1.05)],
        },
    ];
    contests.iter().map(contest).collect::<Result<Vec<_>>>().map(|rows| rows.into_iter().flatten().collect())
}

fn contest(contest: &Contest) -> Result<Vec<Row>> {
    let mut pairs = vec![Vec::new(); contest.figures.len()];
    for turn in 0..TURNS {
        let ours = measure(contest, &format!("berth-{turn}"), contest.ours, &[])?;
        let theirs = measure(contest, &format!("baseline-{turn}"), contest.theirs, &["--echo"])?;
        for ((ours, theirs), pairs) in ours.into_iter().zip(theirs).zip(&mut pairs) {
            let state = if ours.0 == theirs.0 { ours.0 } else { "mixed".into() };
            pairs.push(Pair { state, ours: ours.1, theirs: theirs.1 });
        }
    }
    let rows = contest.figures.iter().zip(pairs).map(|(figure, pairs)| Row {
        case: figure.case.into(),
        baseline: contest.baseline.into(),
        unit: figure.unit,
        reach: figure.reach.clone(),
        pairs,
    });
    Ok(rows.collect())
}

/// One turn: starts the server, takes every figure, stops it. Each figure comes with the state of the two cores.
fn measure(
    contest: &Contest,
    name: &str,
    start: fn() -> Result<(Server, Peer)>,
    mode: &[&str],
) -> Result<Vec<(String, f64)>> {
    let (_server, peer) = start()?;
    let figures = contest.figures.iter().enumerate().map(|(index, figure)| {
        let json = format!("{OUT}/{}-{index}-{name}.json", contest.port);
        let mut perf = cmd(BERTH, ["perf", "rpc", "--no-progress", "--cpu", CLIENT_CPU, "--bounce-cpu", SERVER_CPU]);
        perf.args(["--peer", &peer.address]).args(&peer.client).args(["--payload", "32", "--duration", SECONDS]);
        perf.args(["--warmup", "0.3", "--json", &json]).args(figure.pacing).args(mode);
        run(&mut perf)?;
        let report: Value = serde_json::from_str(&fs::read_to_string(&json)?)?;
        let case = &report["cases"][0];
        let value = case.pointer(figure.pointer).and_then(Value::as_f64).context("the report lacks the figure")?;
        Ok((state(case), value * figure.scale))
    });
    figures.collect()
}

/// `near` or `far` where the cores were so both before and after.
fn state(case: &Value) -> String {
    let at = |when: &str| case[when]["state"].as_str().unwrap_or("unknown").to_owned();
    let (before, after) = (at("bounce_before"), at("bounce_after"));
    if before == after { before } else { "mixed".into() }
}

/// Our client's port for a server on a memif.
fn memif_client(neighbour: &[&str]) -> Vec<String> {
    let device = format!("net_memif1,role=client,socket={SOCKET}");
    let mut args = vec!["--port".into(), "dpdk".into(), "--device".into(), device];
    args.extend(["--address".into(), "10.0.0.1/24".into()]);
    args.extend(neighbour.iter().map(|&arg| arg.into()));
    args
}

fn berth(port: &str, device: &str) -> Result<(Server, Peer)> {
    let (driver, lines) = match port {
        "memif" => ("dpdk", format!("{device}\naddress = \"10.0.0.2/24\"\nudp_port = 4700")),
        driver => (driver, "bind = \"127.0.0.1:0\"".into()),
    };
    let config = format!(
        "[[port]]\nname = \"{port}\"\ndriver = \"{driver}\"\n{lines}\ncpu = {SERVER_CPU}\nidle = \"spin\"\n\
         service = \"rpc\"\n[port.rpc]\n[[function]]\nname = \"rpc_increment\"\nhandler = \"builtin:rpc_increment\"\n"
    );
    let path = format!("{OUT}/{port}.toml");
    fs::write(&path, config)?;
    let (server, ports) = Server::berth(&path)?;
    let address = ports[0]["addr"].as_str().context("a port without an address")?.to_owned();
    let client = if port == "memif" { memif_client(&[]) } else { vec!["--port".into(), "udp".into()] };
    Ok((server, Peer { address, client }))
}

/// DPDK's own forwarder, which swaps the addresses of every layer and sends the frame back.
fn testpmd() -> Result<(Server, Peer)> {
    let cores = format!("{CLIENT_CPU},{SERVER_CPU}");
    let device = format!("net_memif0,role=server,socket={SOCKET},mac={TESTPMD_MAC}");
    let mut testpmd = Command::new("stdbuf");
    let memory: &[&str] = if Hugepages::free(PAGES) { &["--in-memory"] } else { &["--no-huge", "-m", "128"] };
    testpmd.args(["-oL", "dpdk-testpmd", "-l", &cores, "--file-prefix", "berth-bench", "--no-pci"]).args(memory);
    testpmd.args(["--vdev", &device, "--", "--forward-mode=5tswap", "--auto-start", "--nb-cores=1"]);
    testpmd.args(["--total-num-mbufs=16384"]);
    let (server, _) = Server::start_with_stdin(&mut testpmd, "Press enter to exit")?;
    let neighbour = format!("10.0.0.2={TESTPMD_MAC}");
    Ok((server, Peer { address: "10.0.0.2:4700".into(), client: memif_client(&["--neighbour", &neighbour]) }))
}

const TESTPMD_MAC: &str = "02:00:00:00:00:02";

/// A baseline server of `perf/baselines`, compiled as its users would.
fn echo(name: &str, libraries: &[&str]) -> Result<(Server, Peer)> {
    let binary = format!("{OUT}/{name}");
    let source = format!("perf/baselines/{name}.c");
    if !Path::new(&binary).exists() {
        run(cmd("cc", ["-O3", "-march=native", "-o", &binary, &source]).args(libraries))?;
    }
    let (server, port) = Server::start(&mut cmd(&binary, ["0", SERVER_CPU]), "ready ")?;
    let address = format!("127.0.0.1:{}", port.trim());
    Ok((server, Peer { address, client: vec!["--port".into(), "udp".into()] }))
}
