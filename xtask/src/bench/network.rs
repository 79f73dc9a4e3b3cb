//! Rows over two cores: a client on one, Berth or a baseline server in turn on the other.

use std::{fs, path::Path, process::Command};

use anyhow::{Context, Result};
use serde_json::Value;

use super::{
    Pair, Reach, Row,
    capacity::{self, Messages, Target},
};
use crate::{
    hugepages::Hugepages,
    sh::{self, BERTH, Process, cmd, output, run},
};

pub(crate) const OUT: &str = "target/bench";
pub(super) const CLIENT_CPU: &str = "0";
pub(super) const SERVER_CPU: &str = "1";
pub(super) const SOCKET: &str = "/run/berth-bench.sock";
/// Turns of each contestant.
pub(super) const TURNS: usize = 9;
/// 2 MiB pages of each of two DPDK processes.
pub(super) const PAGES: usize = 128;
/// Seconds of each turn.
pub(super) const SECONDS: &str = "1";

/// The public half of the key `OUT/NAME.key`, which is made if it is not there.
pub(super) fn client_key(name: &str) -> Result<String> {
    let file = format!("{OUT}/{name}.key");
    let word = if Path::new(&file).exists() { "show" } else { "new" };
    let printed: Value = serde_json::from_str(&output(&mut cmd(BERTH, ["key", word, "--key", &file, "--json"]))?)?;
    Ok(printed["public_key"].as_str().context("a key without a public half")?.to_owned())
}

/// What `berth perf` is told to ask a server: a suite, whom, and what.
pub(super) struct Peer(pub(super) Vec<String>);

impl Peer {
    /// Calls of `rpc_increment` with so many bytes, from this client port.
    pub(super) fn rpc(address: &str, client: Vec<String>, payload: usize) -> Self {
        let args = ["rpc", "--peer", address, "--payload", &payload.to_string()].map(String::from);
        Self(args.into_iter().chain(client).collect())
    }

    /// The server sends requests back unchanged.
    fn echoing(mut self) -> Self {
        self.0.push("--echo".into());
        self
    }
}

/// Starts a server; returns it with what the client is told to ask it.
pub(super) type Start = Box<dyn Fn() -> Result<(Process, Peer)>>;

/// A pair of servers that take turns, and the figures of them that make rows.
pub(super) struct Contest {
    /// Names the files of the runs.
    pub(super) name: &'static str,
    pub(super) baseline: &'static str,
    pub(super) ours: Start,
    pub(super) theirs: Start,
    pub(super) figures: Vec<Figure>,
    /// Turns of each.
    pub(super) turns: usize,
}

pub(super) struct Figure {
    pub(super) case: &'static str,
    /// The client's options for its pacing; without any, one request is outstanding.
    pub(super) pacing: &'static [&'static str],
    /// JSON pointer to the figure in a case of the report.
    pub(super) pointer: &'static str,
    pub(super) scale: f64,
    pub(super) unit: &'static str,
    pub(super) reach: Reach,
}

pub(super) fn round_trip(case: &'static str, reach: f64) -> Figure {
    Figure { case, pacing: &[], pointer: "/latency/p50", scale: 1e-3, unit: "us", reach: Reach::AtMost(reach) }
}

pub(super) fn rows() -> Result<Vec<Row>> {
    let _pages = Hugepages::reserve(2 * PAGES);
    fs::create_dir_all(OUT)?;
    let contests = [
        Contest {
            name: "memif",
            baseline: "testpmd 5tswap",
            ours: Box::new(|| berth("memif", 32)),
            theirs: Box::new(|| testpmd(32)),
            figures: vec![round_trip("rpc_increment 32 B, memif, RTT p50", 1.05)],
            turns: TURNS,
        },
        Contest {
            name: "udp",
            baseline: "C recvfrom/sendto",
            ours: Box::new(|| berth("udp", 32)),
            theirs: Box::new(|| echo("udp_echo", &[])),
            figures: vec![round_trip("rpc_increment 32 B, udp, RTT p50", 1.05)],
            turns: TURNS,
        },
        Contest {
            name: "uring",
            baseline: "C liburing",
            ours: Box::new(|| berth("uring", 32)),
            theirs: Box::new(|| echo("uring_echo", &["-luring"])),
            figures: vec![round_trip("rpc_increment 32 B, uring, RTT p50", 1.05)],
            turns: TURNS,
        },
    ];
    let rows = contests.iter().map(contest).collect::<Result<Vec<_>>>()?;
    let mut rows: Vec<Row> = rows.into_iter().flatten().collect();
    let most = capacity::Contest {
        case: "rpc_increment 32 B, memif, server's capacity".into(),
        baseline: "testpmd 5tswap",
        ours: Box::new(|| busy_berth(BERTH)),
        theirs: Box::new(|| busy_testpmd(32)),
        least: Some(0.9),
        turns: TURNS,
    };
    rows.insert(1, most.row()?);
    Ok(rows)
}

/// Our RPC service on a memif, asked for all that it can do.
pub(super) fn busy_berth(binary: &str) -> Result<Target> {
    let (server, _) = berth_of(binary, "memif", 32)?;
    Ok(Target { server, messages: Messages::rpc(32), frame_ns: capacity::of_berth })
}

/// DPDK's forwarder likewise.
pub(super) fn busy_testpmd(payload: usize) -> Result<Target> {
    let (server, _) = testpmd(payload)?;
    Ok(Target { server, messages: Messages::echo(payload), frame_ns: capacity::of_testpmd })
}

pub(super) fn contest(contest: &Contest) -> Result<Vec<Row>> {
    let mut pairs = vec![Vec::new(); contest.figures.len()];
    for turn in 0..contest.turns {
        let ours = || measure(contest, &format!("berth-{turn}"), &contest.ours);
        let theirs = || measure(contest, &format!("baseline-{turn}"), &contest.theirs);
        let (ours, theirs) = super::in_turn(turn, ours, theirs)?;
        for ((ours, theirs), pairs) in ours.into_iter().zip(theirs).zip(&mut pairs) {
            pairs.push(Pair { state: mixed(&ours.0, &theirs.0), ours: ours.1, theirs: theirs.1 });
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
fn measure(contest: &Contest, name: &str, start: &Start) -> Result<Vec<(String, f64)>> {
    let (_server, Peer(asked)) = start()?;
    let figures = contest.figures.iter().enumerate().map(|(index, figure)| {
        let json = format!("{OUT}/{}-{index}-{name}.json", contest.name);
        let mut perf = cmd(BERTH, ["perf"]);
        perf.args(&asked).args(["--no-progress", "--cpu", CLIENT_CPU, "--bounce-cpu", SERVER_CPU]);
        perf.args(["--duration", SECONDS, "--warmup", "0.3", "--json", &json]).args(figure.pacing);
        run(&mut perf)?;
        let report: Value = serde_json::from_str(&fs::read_to_string(&json)?)?;
        let case = &report["cases"][0];
        let value = case.pointer(figure.pointer).and_then(Value::as_f64).context("the report lacks the figure")?;
        Ok((state(case), value * figure.scale))
    });
    figures.collect()
}

/// `near` or `far` where the cores were so both before and after.
pub(super) fn state(case: &Value) -> String {
    let at = |when: &str| case[when]["state"].as_str().unwrap_or("unknown").to_owned();
    mixed(&at("bounce_before"), &at("bounce_after"))
}

/// The state of two moments.
pub(super) fn mixed(one: &str, other: &str) -> String {
    if one == other { one } else { "mixed" }.into()
}

/// The arguments of a memif device whose buffers hold frames of `payload` bytes and their headers.
pub(super) fn memif(id: u8, role: &str, payload: usize) -> String {
    let bsize = if payload > 1400 { ",bsize=8192" } else { "" };
    format!("net_memif{id},role={role},socket={SOCKET}{bsize}")
}

/// The longest IP packet around a payload: the usual one, or a jumbo frame's.
fn mtu(payload: usize) -> usize {
    if payload > 1400 { 6000 } else { 1500 }
}

/// Our client's port for a server on a memif.
fn memif_client(payload: usize) -> Vec<String> {
    let device = memif(1, "client", payload);
    ["--port", "dpdk", "--device", &device, "--address", "10.0.0.1/24"].map(String::from).into()
}

/// The lines of a port of ours, and the client's port for it.
pub(super) fn port_lines(port: &str, payload: usize) -> (String, Vec<String>) {
    let (lines, client) = if port == "memif" {
        let device = format!("{},mac={SERVER_MAC}", memif(0, "server", payload));
        let mtu = mtu(payload);
        let lines = format!(
            "driver = \"dpdk\"\ndevice = \"{device}\"\naddress = \"10.0.0.2/24\"\nudp_port = 4700\nmtu = {mtu}\n"
        );
        (lines, memif_client(payload))
    } else {
        (format!("driver = \"{port}\"\nbind = \"127.0.0.1:0\"\n"), vec!["--port".into(), "udp".into()])
    };
    (format!("[[port]]\nname = \"{port}\"\n{lines}cpu = {SERVER_CPU}\nidle = \"spin\"\n"), client)
}

/// Our RPC service on a port, asked with payloads of so many bytes.
pub(super) fn berth(port: &str, payload: usize) -> Result<(Process, Peer)> {
    berth_of(BERTH, port, payload)
}

/// The same of another build.
pub(super) fn berth_of(binary: &str, port: &str, payload: usize) -> Result<(Process, Peer)> {
    let (lines, client) = port_lines(port, payload);
    let config = format!(
        "{lines}service = \"rpc\"\n[port.rpc]\n[[function]]\nname = \"rpc_increment\"\n\
         handler = \"builtin:rpc_increment\"\n"
    );
    let path = format!("{OUT}/{port}.toml");
    fs::write(&path, config)?;
    let (server, ready) = sh::berth_of(binary, &path)?;
    let address = ready["ports"][0]["addr"].as_str().context("a port without an address")?;
    Ok((server, Peer::rpc(address, client, payload)))
}

/// DPDK's own forwarder, which swaps the addresses of every layer and sends the frame back.
pub(super) fn testpmd(payload: usize) -> Result<(Process, Peer)> {
    let cores = format!("{CLIENT_CPU},{SERVER_CPU}");
    let device = format!("{},mac={SERVER_MAC}", memif(0, "server", payload));
    let mut testpmd = Command::new("stdbuf");
    let memory: &[&str] = if Hugepages::free(PAGES) { &["--in-memory"] } else { &["--no-huge", "-m", "128"] };
    testpmd.args(["-oL", "dpdk-testpmd", "-l", &cores, "--file-prefix", "berth-bench", "--no-pci"]).args(memory);
    testpmd.args(["--vdev", &device, "--", "--forward-mode=5tswap", "--auto-start", "--nb-cores=1"]);
    testpmd.arg("--record-core-cycles");
    // A memif carries what its buffers hold, whatever the longest packet is said to be.
    let jumbo = ["--total-num-mbufs=4096", "--mbuf-size=8704"];
    testpmd.args(if payload > 1400 { &jumbo[..] } else { &["--total-num-mbufs=16384"] });
    let (server, _) = sh::server(&mut testpmd, "Press enter to exit")?;
    let mut client = memif_client(payload);
    client.extend(["--neighbour".into(), format!("10.0.0.2={SERVER_MAC}")]);
    Ok((server, Peer::rpc("10.0.0.2:4700", client, payload).echoing()))
}

/// Of whatever serves a memif: the client of [`capacity`] asks nobody for it.
const SERVER_MAC: &str = "02:00:00:00:00:02";

/// A baseline server of `perf/baselines`, compiled as its users would.
fn echo(name: &str, libraries: &[&str]) -> Result<(Process, Peer)> {
    let binary = format!("{OUT}/{name}");
    let source = format!("perf/baselines/{name}.c");
    if !Path::new(&binary).exists() {
        run(cmd("cc", ["-O3", "-march=native", "-o", &binary, &source]).args(libraries))?;
    }
    let (server, port) = sh::server(&mut cmd(&binary, ["0", SERVER_CPU]), "ready ")?;
    let address = format!("127.0.0.1:{}", port.trim());
    Ok((server, Peer::rpc(&address, vec!["--port".into(), "udp".into()], 32).echoing()))
}
