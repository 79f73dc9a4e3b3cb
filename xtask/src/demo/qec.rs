//! `cargo xtask demo qec`: a surface code of distance 7 that is measured round by round, decoded while it is.

use std::fs;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::{
    build, setup,
    sh::{self, BERTH, cmd, run},
};

const OUT: &str = "target/demo/qec";
/// Its rounds repeat in twos, so that `commit` is even.
const MODEL: &str = "perf/data/surface_d7x29.dem";
/// In nanoseconds: that of superconducting qubits.
const ROUND: f64 = 1100.0;
/// 10^5, and what makes the experiment a multiple of `commit` longer than the model.
const ROUNDS: &str = "100002";
/// A host that falls behind is asked again, at a little more than what it did.
const TRIES: usize = 4;
/// How much later than offered rounds may be answered, on average, by a host that keeps up.
const SLACK: f64 = 1.01;

pub(crate) fn run_all() -> Result<()> {
    setup::build()?;
    build::berth()?;
    fs::create_dir_all(OUT)?;
    let model = sh::root().join(MODEL);
    let model = model.to_str().context("the repository's path is not UTF-8")?;
    let functions = ["enqueue_syndromes", "get_corrections", "reset_decoder"];
    let functions = functions.map(|name| format!("[[function]]\nname = \"{name}\"\nhandler = \"builtin:{name}\"\n"));
    let config = format!(
        "[runtime]\nhousekeeping_cpus = [0]\n[[port]]\nname = \"memif\"\ndriver = \"dpdk\"\n\
         device = \"net_memif0,role=server,socket=/run/berth-demo.sock\"\naddress = \"10.0.0.2/24\"\nudp_port = 4700\n\
         cpu = 1\nidle = \"spin\"\n[[decoder]]\nname = \"surface-d7\"\nalgorithm = \"window\"\nmodel = \"{model}\"\n\
         window = 14\ncommit = 6\nrounds = {ROUNDS}\ncorrections = \"decided\"\ncounter = \"round\"\n{}",
        functions.concat()
    );
    fs::write(format!("{OUT}/berth.toml"), config)?;
    let (berth, ready) = sh::berth(&format!("{OUT}/berth.toml"))?;
    let addr = ready["ports"][0]["addr"].as_str().context("a port without an address")?;
    let mut round = ROUND;
    let mut told = Vec::new();
    loop {
        println!("\na round each {round:.0} ns:");
        let (took, most) = stream(model, addr, round)?;
        let keeps_up = took <= round * SLACK;
        told.push(format!(
            "a round each {round:.0} ns: {}, {took:.0} ns a round, at most {most} rounds behind",
            if keeps_up { "kept up" } else { "fell behind" },
        ));
        if keeps_up || told.len() == TRIES {
            break;
        }
        round = took * 1.2;
    }
    let counters = berth.terminate()?.counters()?;
    let service = &counters["lcores"][0]["lanes"][0]["service"];
    for astray in ["repeated", "out_of_order", "undecided", "exhausted"] {
        println!("{astray}: {}", service[format!("decoder_surface-d7_{astray}")]);
    }
    println!("{}", told.join("\n"));
    Ok(())
}

/// Streams the experiment: how many nanoseconds a round took, and the most rounds that waited. Fails where a correction is not what
/// it must be.
fn stream(model: &str, addr: &str, round: f64) -> Result<(f64, u64)> {
    let json = format!("{OUT}/stream.json");
    let mut perf = cmd(BERTH, ["perf", "stream", "--cpu", "0", "--model", model, "--peer", addr]);
    perf.args(["--window-rounds", "14", "--commit", "6", "--count", ROUNDS, "--rate", &format!("{:.3}", 1e9 / round)]);
    perf.args(["--port", "dpdk", "--device", "net_memif1,role=client,socket=/run/berth-demo.sock"]);
    perf.args(["--address", "10.0.0.1/24", "--json", &json]);
    run(&mut perf)?;
    let report: Value = serde_json::from_str(&fs::read_to_string(&json)?)?;
    let stream = &report["cases"][0]["streams"][0];
    let took = stream["round_ns"].as_f64().with_context(|| format!("{json} has no round_ns"))?;
    let parts = stream["parts"].as_array().into_iter().flatten();
    Ok((took, parts.filter_map(|part| part["backlog_most"].as_u64()).max().unwrap_or(0)))
}
