//! `cargo xtask demo`: the main job, from a packet to a decoded answer, twice.

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::{
    build, setup,
    sh::{self, BERTH, cmd, run},
};

const CONFIG: &str = "config/demo.toml";
const SHOTS: &str = "perf/data/surface_d5_p5e-3";
const OUT: &str = "target/demo";
/// How often `PyMatching` and Berth must predict the same flips.
const AGREEMENT: f64 = 0.999;

pub(crate) fn run_all() -> Result<()> {
    setup::build()?;
    build::berth()?;
    std::fs::create_dir_all(OUT)?;
    let (berth, ready) = sh::berth(CONFIG)?;
    let ports = ready["ports"].as_array().cloned().unwrap_or_default();
    let mut cases = Vec::new();
    for port in &ports {
        let addr = port["addr"].as_str().context("a port without an address")?;
        let (client, from): (_, &[&str]) = match port["driver"].as_str() {
            Some("dpdk") => (
                "dpdk",
                &["--device", "net_memif1,role=client,socket=/run/berth-demo.sock", "--address", "10.0.0.1/24"],
            ),
            _ => ("udp", &[]),
        };
        println!("\n{} port {} from a {client} client", port["driver"], port["name"]);
        let stem = format!("{OUT}/{}", port["name"].as_str().unwrap_or("port"));
        let mut perf = cmd(BERTH, ["perf", "rpc", "--cpu", "0", "--function", "qec_decode", "--shots", SHOTS]);
        perf.args(["--count", "100000", "--port", client, "--peer", addr]).args(from);
        for form in ["json", "hlog", "html"] {
            perf.args([format!("--{form}"), format!("{stem}.{form}")]);
        }
        run(&mut perf)?;
        cases.push(stem);
    }
    let counters = berth.terminate()?.counters()?;
    std::fs::write(format!("{OUT}/counters.json"), serde_json::to_string_pretty(&counters)?)?;
    println!();
    for stem in cases {
        agreement(&format!("{stem}.json"))?;
        println!("report: {stem}.html");
    }
    Ok(())
}

/// Prints what one run decoded, and fails where it disagrees with `PyMatching` more than ties explain.
fn agreement(path: &str) -> Result<()> {
    let result: Value = serde_json::from_str(&std::fs::read_to_string(path)?)?;
    let counts = &result["cases"][0]["counts"];
    let number = |key: &str| counts[key].as_u64().with_context(|| format!("{path} has no counts.{key}"));
    let (shots, agreed) = (number("predictions")?, number("agreements")?);
    let (ours, theirs) = (number("logical_errors")?, number("reference_logical_errors")?);
    let share = agreed as f64 / shots as f64;
    println!(
        "{path}: {shots} shots decoded, {:.3} % as PyMatching; logical errors {ours}, PyMatching's {theirs}",
        100.0 * share
    );
    if share < AGREEMENT {
        bail!("{path}: fewer than {:.1} % of the predictions agree", 100.0 * AGREEMENT);
    }
    Ok(())
}
