//! `cargo xtask demo qec`: a surface code of distance 7 that is measured round by round, decoded while it is.

use std::fs;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::{
    build, setup,
    sh::{self, BERTH, cmd, run},
};

const OUT: &str = "target/demo/qec";
/// Its loop, of two rounds, as often as windows of two distances need it: the model of `make_shots.py FOLDER 7x29`. Rounds repeat in
/// twos, so that `commit` is even.
const MODEL: &str = "config/decoders/surface_d7.dem";
const LOOP: [&str; 2] = ["\nrepeat 2 {\n", "\nrepeat 13 {\n"];
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
    let text = fs::read_to_string(MODEL).context(MODEL)?;
    ensure!(text.matches(LOOP[0]).count() == 1, "{MODEL} has another loop");
    let model = sh::root().join(OUT).join("surface_d7x29.dem");
    fs::write(&model, text.replace(LOOP[0], LOOP[1]))?;
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
        let report = stream(model, addr, round)?;
        let number = |key: &str| report[key].as_f64().with_context(|| format!("the report has no {key}"));
        let took = number("round_ns")?;
        let keeps_up = took <= round * SLACK;
        told.push(format!(
            "a round each {round:.0} ns: {}, {took:.0} ns a round, at most {} rounds behind",
            if keeps_up { "kept up" } else { "fell behind" },
            report["backlog_most"]
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

/// Streams the experiment, and fails where a correction is not what it must be.
fn stream(model: &str, addr: &str, round: f64) -> Result<Value> {
    let json = format!("{OUT}/stream.json");
    let mut perf = cmd(BERTH, ["perf", "stream", "--cpu", "0", "--model", model, "--peer", addr]);
    perf.args(["--window-rounds", "14", "--commit", "6", "--count", ROUNDS, "--rate", &format!("{:.3}", 1e9 / round)]);
    perf.args(["--port", "dpdk", "--device", "net_memif1,role=client,socket=/run/berth-demo.sock"]);
    perf.args(["--address", "10.0.0.1/24", "--json", &json]);
    run(&mut perf)?;
    Ok(serde_json::from_str(&fs::read_to_string(json)?)?)
}
