//! `cargo xtask demo tasklet`: the SDK's example in Rust, run beside a lease of a node, over QUIC.

use std::{fs, path::Path, process::Command};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::{
    build, setup,
    sh::{self, BERTH, cargo, cmd, line, run},
};

const OUT: &str = "target/demo/tasklet";
const SDK: &str = "drivers/wasm/sdk/Cargo.toml";
const SUM: &str = "target/demo/tasklet/sdk/wasm32-unknown-unknown/release/examples/sum.wasm";
/// What is written into the lease, whose other bytes are zero.
const WRITTEN: &str = "Code that comes to the data";

/// Runs the example on a lease, by its hash, without waiting, cancelled, and without fuel, and looks at what each says.
pub(crate) fn run_all() -> Result<()> {
    setup::tasklets()?;
    build::berth()?;
    fs::create_dir_all(OUT)?;
    let build = ["build", "--quiet", "--locked", "--release", "--target", setup::WASM, "--example", "sum"];
    run(cargo(build).args(["--manifest-path", SDK, "--target-dir", &format!("{OUT}/sdk")]))?;
    let key = format!("{OUT}/key");
    let word = if Path::new(&key).exists() { "show" } else { "new" };
    let public = json(&mut cmd(BERTH, ["key", word, "--key", &key, "--json"]))?;
    let config = format!(
        "[node]\nstate_dir = \"state\"\n[control]\nudp = \"127.0.0.1:0\"\nquic = \"127.0.0.1:0\"\nenrolled = [{}]\n\
         [[control.policy]]\npresenter = \"*\"\nperms = [\"read\", \"write\", \"alloc\", \"exec\"]\n\
         [[region]]\nname = \"mem\"\nkind = \"memory\"\nsize = \"1 MiB\"\n[tasklet]\ncpus = [0]\n",
        public["public_key"]
    );
    fs::write(format!("{OUT}/berth.toml"), config)?;
    let (node, ready) = sh::berth(&format!("{OUT}/berth.toml"))?;
    let quic = ready["endpoints"]["quic"].as_str().context("a node without QUIC")?;
    walk(&|args| {
        let mut berth = cmd(BERTH, args);
        berth.env("BERTH_KEY", &key).env("BERTH_NODE", quic).env("XDG_STATE_HOME", OUT);
        berth
    })?;
    node.terminate()?;
    Ok(())
}

fn walk(berth: &dyn Fn(&[&str]) -> Command) -> Result<()> {
    let sum = format!("{}\n", WRITTEN.bytes().map(u64::from).sum::<u64>());
    let lease = json(&mut berth(&["lease", "alloc", "--size", "4096", "--json"]))?;
    let lease = lease["lease_id"].as_str().context("a lease without an id")?;
    told(&mut berth(&["lease", "write", lease, WRITTEN]), 0, &[])?;
    let on_it = ["tasklet", "run", SUM, "--lease", lease];
    println!("\nthe sum of a lease's bytes:");
    told(&mut berth(&on_it), 0, &[&sum])?;
    println!("\nthe same module by its hash, which the node knows now:");
    told(berth(&on_it).arg("--hash-only"), 0, &[&sum])?;
    println!("\nwithout waiting for its end:");
    let id = detached(berth(&on_it))?;
    until_ended(berth, &id)?;
    told(&mut berth(&["tasklet", "result", &id]), 0, &[&sum])?;
    println!("\ncancelled, while it waits for the one core, which is leased:");
    let cores = json(&mut berth(&["tasklet", "lease", "alloc", "--json"]))?;
    let id = detached(berth(&on_it))?;
    told(&mut berth(&["tasklet", "cancel", &id]), 0, &[])?;
    told(&mut berth(&["tasklet", "result", &id]), 15, &["node: cancelled", "EXEC_FAILED"])?;
    let cores = cores["lease_id"].as_str().context("a lease without an id")?;
    told(&mut berth(&["tasklet", "lease", "free", cores]), 0, &[])?;
    println!("\nwith too little fuel:");
    told(berth(&on_it).args(["--fuel", "1000"]), 13, &["the limit is 1000", "raise --fuel"])
}

/// Shows a command and what it printed: all that is `wanted`, and it ends with this status.
fn told(command: &mut Command, status: i32, wanted: &[&str]) -> Result<()> {
    let (ended, text) = shown(command)?;
    let all = wanted.iter().all(|words| text.contains(words));
    ensure!(ended == Some(status) && all, "{} ended with {ended:?} or does not tell {wanted:?}", line(command));
    Ok(())
}

fn shown(command: &mut Command) -> Result<(Option<i32>, String)> {
    let output = command.output().with_context(|| format!("cannot start {}", line(command)))?;
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    println!("$ {}\n{}", line(command), text.trim_end());
    Ok((output.status.code(), text))
}

fn json(command: &mut Command) -> Result<Value> {
    let (ended, text) = shown(command)?;
    ensure!(ended == Some(0), "{} failed", line(command));
    serde_json::from_str(&text).with_context(|| format!("{} printed no JSON", line(command)))
}

/// The id of a tasklet that nobody waits for.
fn detached(mut run: Command) -> Result<String> {
    Ok(json(run.args(["--detach", "--json"]))?["tasklet"].to_string())
}

fn until_ended(berth: &dyn Fn(&[&str]) -> Command, id: &str) -> Result<()> {
    for _ in 0..100 {
        if json(&mut berth(&["tasklet", "status", id, "--json"]))?["status"] != "UNKNOWN" {
            return Ok(());
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    bail!("tasklet {id} does not end")
}
