//! `cargo xtask bench hip`: calls of HIP Remote on the software GPU, over loopback TCP. Rows of a GPU are for a machine that
//! has one.

use std::fs;

use anyhow::{Context, Result};
use serde_json::Value;

use super::{
    Pair, Reach, Row,
    network::{CLIENT_CPU, OUT, SERVER_CPU, TURNS, mixed, state},
    programs::number,
};
use crate::sh::{self, BERTH, Process, cmd, output, run};

/// Seconds of each turn, and before it.
const SECONDS: &str = "1";
const WARMUP: &str = "0.3";

/// Calls without a reply before one that has one.
const BATCH: [(&str, f64); 2] = [("1024", 1024.0), ("64", 64.0)];

/// Where iperf3 listens.
const IPERF: &str = "5292";

/// The baseline, and where it is compiled to.
const SINK: [&str; 2] = ["perf/baselines/hip_sink.c", "target/bench/hip_sink"];

/// What needs a GPU, and devices that are not built.
const ON_GPUS: [(&str, &str); 3] = [
    ("on a GPU: H2D 64 MiB", "the lesser of iperf3 and the driver's pinned copy"),
    ("on a GPU: D2H 64 MiB", "the lesser of iperf3 and the driver's pinned copy"),
    ("on a GPU: launch and synchronize", "the same on the driver, plus our PING"),
];

pub(super) fn rows() -> Result<Vec<Row>> {
    fs::create_dir_all(OUT)?;
    let [source, binary] = SINK;
    run(&mut cmd("cc", ["-O3", "-march=native", "-o", binary, source]))?;
    let mut rows = vec![ping("spin", "walk")?, ping("wait", "wait")?];
    rows.extend(calls()?);
    for size in [1_u32, 64] {
        for out in [false, true] {
            rows.push(copy(size, out)?);
        }
    }
    rows.push(beside_idle()?);
    rows.push(beside_stream()?);
    rows.extend(through_tls()?);
    Ok(rows)
}

/// The lines of the table that no run here fills.
pub(super) fn not_measured() -> String {
    let line = |(case, baseline)| format!("| {case} | {baseline} |  |  | not measured |  |  |  |  |\n");
    ON_GPUS.map(line).concat()
}

/// A worker with one core.
fn worker(idle: &str) -> Result<(Process, String)> {
    worker_with(idle, "")
}

/// The same with further tables.
fn worker_with(idle: &str, tables: &str) -> Result<(Process, String)> {
    let config = format!(
        "[runtime]\nhousekeeping_cpus = [{CLIENT_CPU}]\n[hip]\nlisten = \"127.0.0.1:0\"\ncpus = [{SERVER_CPU}]\n\
         idle = \"{idle}\"\nper_peer = 256\n{tables}[[gpu]]\nname = \"gpu0\"\ndevice = \"soft\"\nuse = \"hip\"\n\
         [[hip.device]]\ngpu = \"gpu0\"\nmemory = \"512 MiB\"\n"
    );
    let path = format!("{OUT}/hip.toml");
    fs::write(&path, config)?;
    let (server, ready) = sh::berth(&path)?;
    let address = ready["endpoints"]["hip"].as_str().context("a worker without an address")?.to_owned();
    Ok((server, address))
}

/// The client, of ours and of the baselines' alike.
fn perf(to: &str, asked: &[&str]) -> Result<Value> {
    let json = format!("{OUT}/hip.json");
    let mut perf = cmd(BERTH, ["perf", "hip", "--no-progress", "--cpu", CLIENT_CPU, "--bounce-cpu", SERVER_CPU]);
    perf.args(["--to", to, "--duration", SECONDS, "--warmup", WARMUP, "--json", &json]);
    run(perf.args(asked))?;
    let report: Value = serde_json::from_str(&fs::read_to_string(json)?)?;
    report.pointer("/cases/0").cloned().context("the report has no case")
}

fn ours(idle: &str, asked: &[&str]) -> Result<Value> {
    let (_server, address) = worker(idle)?;
    perf(&address, asked)
}

fn sink(mode: &str, asked: &[&str]) -> Result<Value> {
    let (_server, port) = sh::server(&mut cmd(SINK[1], ["0", SERVER_CPU, mode]), "ready ")?;
    perf(&format!("127.0.0.1:{}", port.trim()), &[asked, &["--echo"]].concat())
}

/// Turns of two sides, of each of which a figure is taken.
fn contest(
    row: (String, &str, &'static str, Reach),
    ours: impl Fn() -> Result<Value>,
    theirs: impl Fn() -> Result<Value>,
    figure: impl Fn(&Value) -> Result<[f64; 2]>,
) -> Result<Row> {
    let (case, baseline, unit, reach) = row;
    let mut pairs = Vec::new();
    for turn in 0..TURNS {
        let (ours, theirs) = super::in_turn(turn, &ours, &theirs)?;
        let state = mixed(&state(&ours), &state(&theirs));
        pairs.push(Pair { state, ours: figure(&ours)?[0], theirs: figure(&theirs)?[1] });
    }
    Ok(Row { case, baseline: baseline.into(), unit, reach, pairs })
}

fn p50(case: &Value) -> Result<[f64; 2]> {
    Ok([number(&case["latency"], "p50")? / 1e3; 2])
}

fn ping(idle: &'static str, mode: &'static str) -> Result<Row> {
    let row = (format!("PING RTT, {idle}, p50"), "C ping-pong of the same bytes", "us", Reach::AtMost(1.10));
    contest(row, || ours(idle, &[]), || sink(mode, &[]), p50)
}

/// Calls without a reply, in millions a second.
fn calls() -> Result<[Row; 3]> {
    let [(sets, per_set), (launches, per_launch)] = BATCH;
    let set = ["--op", "memset", "--window", "2", "--batch", sets];
    let launch = ["--op", "launch", "--window", "2", "--batch", launches];
    let rate = |ours: f64, theirs: f64| {
        move |case: &Value| {
            let rate = number(case, "answered_per_s")? / 1e6;
            Ok([rate * ours, rate * theirs])
        }
    };
    let case = || "MEMSET 64 B without reply".to_owned();
    let mut walk = contest(
        (case(), "C sink that walks the headers", "M/s", Reach::Printed),
        || ours("spin", &set),
        || sink("walk", &set),
        rate(per_set, per_set),
    )?;
    let ours_of = |row: &Row| super::median(row.pairs.iter().map(|pair| pair.ours));
    let ratio = super::median(walk.pairs.iter().map(|pair| pair.ours / pair.theirs));
    walk.reach = Reach::Other(">= 0.50x and 3 M/s".into(), ratio >= 0.5 && ours_of(&walk) >= 3.0);
    let habit = contest(
        (case(), "C worker of upstream's habit", "M/s", Reach::AtLeast(3.0)),
        || ours("spin", &set),
        || sink("habit", &set),
        rate(per_set, per_set),
    )?;
    let launch = contest(
        ("launch of an empty kernel without reply".into(), "our MEMSET", "M/s", Reach::AtLeast(0.25)),
        || ours("spin", &launch),
        || ours("spin", &set),
        rate(per_launch, per_set),
    )?;
    Ok([walk, habit, launch])
}

/// Bandwidth of copies of so many MiB.
fn copy(mib: u32, out: bool) -> Result<Row> {
    let (op, name) = if out { ("d2h", "D2H") } else { ("h2d", "H2D") };
    let size = format!("{mib} MiB");
    let asked = ["--op", op, "--window", "2", "--size", &size];
    let bytes = f64::from(mib) * f64::from(1_u32 << 20);
    let (mut pairs, mut seen) = (Vec::new(), String::new());
    for turn in 0..TURNS {
        let ours = || {
            let case = ours("spin", &asked)?;
            seen = state(&case);
            Ok(number(&case, "answered_per_s")? * bytes / 1e9)
        };
        let (ours, theirs) = super::in_turn(turn, ours, || iperf(out))?;
        pairs.push(Pair { state: seen.clone(), ours, theirs });
    }
    Ok(Row {
        case: format!("{name} {size}"),
        baseline: "iperf3, one stream".into(),
        unit: "GB/s",
        reach: Reach::AtLeast(0.9),
        pairs,
    })
}

/// One stream of iperf3 in GB/s.
fn iperf(out: bool) -> Result<f64> {
    let server =
        &mut cmd("taskset", ["-c", SERVER_CPU, "iperf3", "-s", "-B", "127.0.0.1", "-p", IPERF, "--forceflush"]);
    let (_server, _) = sh::server(server, "Server listening")?;
    let mut stream = cmd("taskset", ["-c", CLIENT_CPU, "iperf3", "-c", "127.0.0.1", "-p", IPERF, "-l", "128K", "-J"]);
    stream.args(["-t", "1"]).args(if out { &["-R"][..] } else { &[] });
    let report: Value = serde_json::from_str(&output(&mut stream)?)?;
    let bits = report.pointer("/end/sum_received/bits_per_second").and_then(Value::as_f64);
    Ok(bits.context("iperf3 reports no bandwidth")? / 8e9)
}

fn beside_idle() -> Result<Row> {
    let row = ("PING RTT beside 200 idle sessions, p50".to_owned(), "alone", "us", Reach::AtMost(1.10));
    contest(row, || ours("spin", &["--idle-sessions", "200"]), || ours("spin", &[]), p50)
}

/// Its client shares the CPU of the one that is measured.
fn beside_stream() -> Result<Row> {
    let row = ("PING RTT beside one that streams H2D of 1 MiB, p50".to_owned(), "alone", "us", Reach::Printed);
    let beside = || {
        let (_server, address) = worker("spin")?;
        let mut stream = cmd(BERTH, ["perf", "hip", "--no-progress", "--cpu", CLIENT_CPU, "--to", &address]);
        stream.args(["--op", "h2d", "--duration", "60"]);
        // Ends with the turn.
        let _stream = sh::Process::start(&mut stream, &berth_process::Stop::default())?;
        perf(&address, &[])
    };
    contest(row, beside, || ours("spin", &[]), p50)
}

/// Round trips and copies through TLS, against the same without.
fn through_tls() -> Result<[Row; 2]> {
    let [cert, key] = ["crt", "key"].map(|end| format!("{OUT}/hip-tls.{end}"));
    let mut openssl =
        cmd("openssl", ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]);
    run(openssl.args(["-days", "30", "-subj", "/CN=berth", "-keyout", &key, "-out", &cert]))?;
    let tables = "[hip.tls]\ncert = \"hip-tls.crt\"\nkey = \"hip-tls.key\"\n";
    let through = |asked: &[&str]| {
        let (_server, address) = worker_with("spin", tables)?;
        perf(&address, &[asked, &["--tls", &cert]].concat())
    };
    let row = |case: &str, unit| (case.to_owned(), "without TLS", unit, Reach::Printed);
    let copy = ["--op", "h2d", "--window", "2", "--size", "1 MiB"];
    let bandwidth = |case: &Value| Ok([number(case, "answered_per_s")? * f64::from(1 << 20) / 1e9; 2]);
    Ok([
        contest(row("PING RTT through TLS, p50", "us"), || through(&[]), || ours("spin", &[]), p50)?,
        contest(row("H2D 1 MiB through TLS", "GB/s"), || through(&copy), || ours("spin", &copy), bandwidth)?,
    ])
}
