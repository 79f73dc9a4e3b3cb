//! Two-sided reads over libfabric against nothing but messages back and forth.

use std::fs;

use anyhow::{Context, Result};
use serde_json::Value;

use super::{
    Pair, Reach, Row,
    network::{CLIENT_CPU, OUT, SERVER_CPU, TURNS, client_key, state},
    programs::{lines, number},
};
use crate::sh::{self, BERTH, cmd, output, run};

/// Seconds of each turn.
const SECONDS: &str = "1.5";
/// A request of a two-sided read, and its answer with 64 bytes.
const REQUEST: usize = 32;
const ANSWER: usize = 65;
/// Messages of `fi_pingpong` in each direction.
const MESSAGES: &str = "20000";

pub(super) fn rows() -> Result<Vec<Row>> {
    fs::create_dir_all(OUT)?;
    let source = "perf/baselines/ofi_pingpong.c";
    let binary = format!("{OUT}/ofi_pingpong");
    run(&mut cmd("cc", ["-O3", "-march=native", "-o", &binary, source, "-lfabric"]))?;
    let mut rows = Vec::new();
    for (provider, bind) in [("tcp", "127.0.0.1"), ("shm", "-")] {
        let (mut medians, mut means) = (Vec::new(), Vec::new());
        for turn in 0..TURNS {
            let theirs = || Ok((String::new(), bare(&binary, provider, bind)?, fi_pingpong(provider)?));
            let ((state, p50, mean), (_, bare, pingpong)) =
                super::in_turn(turn, || ours(provider, bind, turn), theirs)?;
            medians.push(Pair { state: state.clone(), ours: p50, theirs: bare });
            means.push(Pair { state, ours: mean, theirs: pingpong });
        }
        let row = |statistic: &str, baseline: &str, reach, pairs| Row {
            case: format!("two-sided READ 64 B, ofi {provider}, RTT {statistic}"),
            baseline: baseline.into(),
            unit: "us",
            reach,
            pairs,
        };
        rows.push(row("p50", "C ping-pong, 32 B and 65 B", Reach::AtMost(1.15), medians));
        rows.push(row("mean", "fi_pingpong 64 B x 2", Reach::AtMost(1.15), means));
    }
    Ok(rows)
}

/// A round trip with Berth: how the two cores stood, the median and the mean, in microseconds.
fn ours(provider: &str, bind: &str, turn: usize) -> Result<(String, f64, f64)> {
    let client = client_key("client")?;
    let bind = if bind == "-" { None } else { Some(format!("{bind}:0")) };
    let at = bind.as_ref().map_or(String::new(), |bind| format!("bind = \"{bind}\"\n"));
    let config = format!(
        "[node]\nstate_dir = \"ofi-node\"\n[control]\nudp = \"127.0.0.1:0\"\nquic = \"127.0.0.1:0\"\n\
         enrolled = [\"{client}\"]\n[[control.policy]]\npresenter = \"*\"\nperms = [\"read\", \"write\", \"alloc\"]\n\
         [[region]]\nname = \"bench\"\nkind = \"memory\"\nsize = \"16 MiB\"\n[[port]]\nname = \"ofi\"\ndriver = \"ofi\"\n\
         provider = \"{provider}\"\n{at}rendezvous = \"127.0.0.1:0\"\ncpu = {SERVER_CPU}\nidle = \"spin\"\n\
         service = \"lease-io\"\n"
    );
    let path = format!("{OUT}/ofi-{provider}.toml");
    fs::write(&path, config)?;
    let (_server, ready) = sh::berth(&path)?;
    let quic = ready["endpoints"]["quic"].as_str().context("a node without QUIC")?;
    let json = format!("{OUT}/ofi-{provider}-berth-{turn}.json");
    let key = format!("{OUT}/client.key");
    let mut perf = cmd(BERTH, ["perf", "lease", "--binding", "ofi", "--provider", provider, "--op", "read"]);
    perf.args(["--control", quic, "--identity", &key, "--json", &json, "--no-progress"]);
    perf.args(["--cpu", CLIENT_CPU, "--bounce-cpu", SERVER_CPU, "--duration", SECONDS, "--warmup", "0.3"]);
    perf.args(bind.iter().flat_map(|bind| ["--bind", bind]));
    run(&mut perf)?;
    let report: Value = serde_json::from_str(&fs::read_to_string(&json)?)?;
    let case = &report["cases"][0];
    let latency = &case["latency"];
    Ok((state(case), number(latency, "p50")? / 1e3, number(latency, "mean")? / 1e3))
}

/// The same messages between two programs of a screenful, median in microseconds.
fn bare(binary: &str, provider: &str, bind: &str) -> Result<f64> {
    let (_server, address) = sh::server(&mut cmd(binary, [provider, bind, SERVER_CPU]), "ready ")?;
    let (request, answer) = (REQUEST.to_string(), ANSWER.to_string());
    let client = [provider, bind, CLIENT_CPU, address.trim(), &request, &answer, SECONDS];
    let report = lines(&output(&mut cmd(binary, client))?)?;
    Ok(number(report.first().context("no figure")?, "p50")? / 1e3)
}

/// libfabric's own program prints the mean of one way.
fn fi_pingpong(provider: &str) -> Result<f64> {
    let on = |cpu: &str, server: &[&str]| {
        let mut program = cmd("taskset", ["-c", cpu, "fi_pingpong", "-e", "rdm", "-p", provider, "-S", "64"]);
        program.args(["-I", MESSAGES]).args(server);
        program
    };
    let mut server = on(SERVER_CPU, &[]);
    let mut server = server.stdout(std::process::Stdio::null()).spawn().context("fi_pingpong")?;
    // It says nothing when it listens.
    std::thread::sleep(std::time::Duration::from_millis(500));
    let printed = output(&mut on(CLIENT_CPU, &["127.0.0.1"]));
    if printed.is_err() {
        let _ = server.kill();
    }
    server.wait()?;
    let printed = printed?;
    let figures = printed.lines().last().context("fi_pingpong printed nothing")?;
    // bytes, #sent, #ack, total, time, MB/sec, usec/xfer, Mxfers/sec
    let one_way: f64 = figures.split_whitespace().nth(6).context("fi_pingpong prints other columns")?.parse()?;
    Ok(2.0 * one_way)
}
