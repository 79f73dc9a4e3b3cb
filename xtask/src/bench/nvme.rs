//! `cargo xtask bench nvme`: what a disk over NVMe/TCP costs beside the socket alone. Rows of this host; those with the
//! kernel's own target are in `lab/bench/nvme.sh`.

use std::{fs, path::Path};

use anyhow::{Context, Result};
use serde_json::Value;

use super::{
    Pair, Reach, Row,
    network::{CLIENT_CPU, OUT, SERVER_CPU, TURNS, client_key, mixed, state},
    programs::{example, lines, number},
};
use crate::{
    build,
    sh::{self, BERTH, Process, cmd, output, run},
};

/// Seconds of each turn, and before it.
const SECONDS: f64 = 1.0;
const WARMUP: f64 = 0.3;

/// Where iperf3 listens.
const IPERF: &str = "5291";

/// The baseline, and where it is compiled to.
const ECHO: [&str; 2] = ["perf/baselines/tcp_echo.c", "target/bench/tcp_echo"];

pub(super) fn rows() -> Result<Vec<Row>> {
    fs::create_dir_all(OUT)?;
    let [source, binary] = ECHO;
    run(&mut cmd("cc", ["-O3", "-march=native", "-o", binary, source]))?;
    let mut rows = alone()?;
    let many = many()?;
    let checks = unchecked(&many)?;
    rows.extend([many, checks]);
    for write in [false, true] {
        rows.push(long(write)?);
    }
    rows.extend(ends()?);
    rows.extend(memory()?);
    Ok(rows)
}

/// One command at a time: the round trip.
fn alone() -> Result<Vec<Row>> {
    let mut rows = ["p50", "p99", "p99_9"].map(|at| Row {
        case: format!("READ 4 KiB, QD 1, loopback, {}", at.replace('_', ".")),
        baseline: "C echo over TCP, 72 B in, 4144 B out".into(),
        unit: "us",
        reach: if at == "p50" { Reach::AtMost(1.15) } else { Reach::Printed },
        pairs: Vec::new(),
    });
    for turn in 0..TURNS {
        let (ours, theirs) = super::in_turn(turn, || ours(&["--depth", "1"]), || echo(&["--depth", "1"]))?;
        for (row, at) in rows.iter_mut().zip(["p50", "p99", "p99_9"]) {
            let figure = |run: &Run| Ok::<_, anyhow::Error>(number(&run.case["latency"], at)? / 1e3);
            row.pairs.push(pair(&ours, &theirs, figure)?);
        }
    }
    Ok(rows.into())
}

/// As many reads as one server core can do, if the client can ask for so many.
fn many() -> Result<Row> {
    let (mut pairs, mut busy) = (Vec::new(), Vec::new());
    for turn in 0..TURNS {
        let (ours, theirs) = super::in_turn(turn, || ours(&["--depth", "32"]), || echo(&["--depth", "32"]))?;
        pairs.push(pair(&ours, &theirs, |run| Ok(number(&run.case, "answered_per_s")? / 1e3))?);
        busy.push([ours.busy, theirs.busy]);
    }
    Ok(Row {
        case: "READ 4 KiB, QD 32, one server core".into(),
        baseline: "the same echo, 32 under way".into(),
        unit: "k/s",
        reach: Reach::Capacity(Some(0.8), busy),
        pairs,
    })
}

/// What the lease's checks take of those reads: each is checked as it is accepted, and as its bytes are copied.
fn unchecked(reads: &Row) -> Result<Row> {
    let checks = example("berth-lease-io", "check_bench", true)?;
    let checks = checks.iter().map(|line| number(line, "checks_ns")).collect::<Result<Vec<_>>>()?;
    let checks = super::median(checks.into_iter());
    let without = |rate: f64| 1.0 / (1.0 / rate - checks * 1e-6);
    Ok(Row {
        case: format!("the lease's two checks of those reads, {checks:.1} ns"),
        baseline: "reads without their time".into(),
        unit: "k/s",
        reach: Reach::AtLeast(0.99),
        pairs: reads.pairs.iter().map(|pair| Pair { theirs: without(pair.ours), ..pair.clone() }).collect(),
    })
}

/// Bandwidth of one connection.
fn long(write: bool) -> Result<Row> {
    let mix = if write { "write=1" } else { "read=1" };
    let asked = ["--size", "131072", "--depth", "8", "--mix", mix];
    let (mut pairs, mut busy, mut state) = (Vec::new(), Vec::new(), String::new());
    for turn in 0..TURNS {
        let ours = || {
            let run = ours(&asked)?;
            busy.push(run.busy);
            state.clone_from(&run.state);
            Ok(number(&run.case, "answered_per_s")? * 131_072.0 / 1e9)
        };
        let (ours, theirs) = super::in_turn(turn, ours, || iperf(write))?;
        pairs.push(Pair { state: state.clone(), ours, theirs });
    }
    let busy = 100.0 * super::median(busy.into_iter());
    Ok(Row {
        case: format!(
            "{} 128 KiB, QD 8, one connection (server busy {busy:.0} %)",
            if write { "WRITE" } else { "READ" }
        ),
        baseline: "iperf3, one stream".into(),
        unit: "GB/s",
        reach: Reach::AtLeast(0.8),
        pairs,
    })
}

/// What a client measured, and what its server had to do.
struct Run {
    case: Value,
    /// How the two cores stood.
    state: String,
    /// The share of the time that the server had work.
    busy: f64,
}

fn pair(ours: &Run, theirs: &Run, figure: impl Fn(&Run) -> Result<f64>) -> Result<Pair> {
    Ok(Pair { state: mixed(&ours.state, &theirs.state), ours: figure(ours)?, theirs: figure(theirs)? })
}

/// The client: of ours and of the baseline's alike.
fn perf(whom: &[&str], asked: &[&str], json: &str) -> Result<Value> {
    let mut perf = cmd(BERTH, ["perf", "nvme", "--no-progress", "--cpu", CLIENT_CPU, "--bounce-cpu", SERVER_CPU]);
    perf.args(["--duration", &SECONDS.to_string(), "--warmup", &WARMUP.to_string(), "--json", json]);
    run(perf.args(whom).args(asked))?;
    let report: Value = serde_json::from_str(&fs::read_to_string(json)?)?;
    report.pointer("/cases/0").cloned().context("the report has no case")
}

fn ours(asked: &[&str]) -> Result<Run> {
    let (server, quic) = node("spin")?;
    let key = format!("{OUT}/client.key");
    let case = perf(&["--control", &quic, "--identity", &key], asked, &format!("{OUT}/nvme.json"))?;
    let stopped = server.terminate()?.counters()?;
    let lcores = stopped["lcores"].as_array().context("a node without poll cores")?;
    let busy_ns: f64 = lcores.iter().filter_map(|lcore| lcore["counters"]["busy_ns"].as_f64()).sum();
    let busy = (busy_ns * 1e-9 / (SECONDS + WARMUP)).min(1.0);
    told("berth", &case, busy);
    Ok(Run { state: state(&case), case, busy })
}

fn echo(asked: &[&str]) -> Result<Run> {
    let (server, port) = sh::server(&mut cmd(ECHO[1], ["0", SERVER_CPU]), "ready ")?;
    let to = format!("127.0.0.1:{}", port.trim());
    let case = perf(&["--to", &to, "--echo"], asked, &format!("{OUT}/nvme-echo.json"))?;
    let busy = server.terminate()?.line("busy ")?.trim().parse()?;
    told("C echo", &case, busy);
    Ok(Run { state: state(&case), case, busy })
}

/// One run, for whoever watches.
fn told(who: &str, case: &Value, busy: f64) {
    let us = |at: &str| case["latency"][at].as_f64().unwrap_or(f64::NAN) / 1e3;
    let n = &case["latency"]["n"];
    let (p50, p99, most) = (us("p50"), us("p99"), us("p99_9"));
    eprintln!("{who}: n {n}, p50 {p50:.2} us, p99 {p99:.2} us, p99.9 {most:.2} us, server busy {:.0} %", 100.0 * busy);
}

/// One stream of iperf3 in GB/s, in the direction of a read or of a write.
fn iperf(write: bool) -> Result<f64> {
    let server =
        &mut cmd("taskset", ["-c", SERVER_CPU, "iperf3", "-s", "-B", "127.0.0.1", "-p", IPERF, "--forceflush"]);
    let (_server, _) = sh::server(server, "Server listening")?;
    let mut stream = cmd("taskset", ["-c", CLIENT_CPU, "iperf3", "-c", "127.0.0.1", "-p", IPERF, "-l", "128K", "-J"]);
    stream.args(["-t", "1"]).args(if write { &[][..] } else { &["-R"] });
    let report: Value = serde_json::from_str(&output(&mut stream)?)?;
    let bits = report.pointer("/end/sum_received/bits_per_second").and_then(Value::as_f64);
    Ok(bits.context("iperf3 reports no bandwidth")? / 8e9)
}

/// A node whose leases are disks, in RAM; and its QUIC address.
fn node(idle: &str) -> Result<(Process, String)> {
    let client = client_key("client")?;
    let config = format!(
        "[runtime]\nhousekeeping_cpus = [{CLIENT_CPU}]\n[node]\nstate_dir = \"nvme-node\"\n[control]\nudp = \"127.0.0.1:0\"\n\
         quic = \"127.0.0.1:0\"\nenrolled = [\"{client}\"]\n[[control.policy]]\npresenter = \"*\"\n\
         perms = [\"read\", \"write\", \"alloc\", \"revoke\"]\n[[region]]\nname = \"bench\"\nkind = \"block\"\n\
         size = \"256 MiB\"\n[[binding]]\nkind = \"nvme\"\nlisten = [\"127.0.0.1:0\"]\ncpus = [{SERVER_CPU}]\n\
         idle = \"{idle}\"\nmax_leases = 1024\nmax_hosts = 512\n"
    );
    // What an earlier node leased would be recovered.
    let _ = fs::remove_dir_all(Path::new(OUT).join("nvme-node"));
    let path = format!("{OUT}/nvme.toml");
    fs::write(&path, config)?;
    let (server, ready) = sh::berth(&path)?;
    let quic = ready["endpoints"]["quic"].as_str().context("a node without QUIC")?.to_owned();
    Ok((server, quic))
}

/// From `LEASE_BIND` to the first read, and from asking for a revocation to the first read that is refused.
fn ends() -> Result<Vec<Row>> {
    let bench = build::example("berth-perf", "nvme_lease_bench")?;
    let (_server, quic) = node("spin")?;
    let all = lines(&output(&mut cmd(&bench, ["ends", &quic, &format!("{OUT}/client.key")]))?)?;
    let figures = |key: &str| all.iter().map(|line| number(line, key)).collect::<Result<Vec<_>>>();
    let late: f64 = figures("served_after_answer")?.iter().sum();
    let (refused, answered) = (figures("refused_us")?, figures("answered_us")?);
    let median = super::median(refused.iter().copied());
    let alone = |ours: f64, theirs: f64| Pair { state: String::new(), ours, theirs };
    Ok(vec![
        Row {
            case: "CAP_REVOKE to the first read refused, QD 8".into(),
            baseline: "until it is answered".into(),
            unit: "us",
            reach: Reach::Other(format!("< 1 ms, none served after ({late} were)"), median < 1000.0 && late == 0.0),
            pairs: refused.into_iter().zip(answered).map(|(ours, theirs)| alone(ours, theirs)).collect(),
        },
        Row {
            case: "LEASE_BIND to the end of the first read, both connections included".into(),
            baseline: "none".into(),
            unit: "us",
            reach: Reach::Printed,
            pairs: figures("first_read_us")?.into_iter().map(|ours| alone(ours, f64::NAN)).collect(),
        },
    ])
}

/// What leases and connections that nobody uses take.
fn memory() -> Result<Vec<Row>> {
    let bench = build::example("berth-perf", "nvme_lease_bench")?;
    let (server, quic) = node("adaptive")?;
    let key = format!("{OUT}/client.key");
    let told = lines(&output(&mut cmd(&bench, ["memory", &quic, &key, &server.id().to_string()]))?)?;
    let told = told.first().context("no figures")?;
    let row = |case: String, key: &str, most: f64| {
        let ours = number(told, key)?;
        let reach = Reach::Other(format!("<= {most} KiB"), ours <= most);
        let pairs = vec![Pair { state: String::new(), ours, theirs: f64::NAN }];
        Ok::<_, anyhow::Error>(Row { case, baseline: "none".into(), unit: "KiB", reach, pairs })
    };
    Ok(vec![
        row(format!("resident memory of a bound idle lease, of {}", told["leases"]), "lease_kib", 4.0)?,
        row(format!("resident memory of an idle connection, of {}", told["connections"]), "connection_kib", 32.0)?,
    ])
}
