//! Clients that were written in Python from the pages in docs/ alone drive real nodes: through every op of
//! docs/fabricbios-profile.md, every status of `GPU_SUBMIT`, and every rule of docs/tasklets.md.

use std::{
    path::PathBuf,
    process::{Command, Stdio},
};

use crate::common::Berth;

/// The Python that `cargo xtask setup` makes, or what `BERTH_PYTHON` names: it has aioquic and cryptography.
fn python() -> PathBuf {
    let made = || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../target/fabric-venv/bin/python"));
    std::env::var_os("BERTH_PYTHON").map_or_else(made, PathBuf::from)
}

/// Runs a script of the client to its end, and returns the last line that it printed.
fn client(script: &str, args: &[&str]) -> String {
    let python = python();
    let output = Command::new(&python)
        .arg(format!("{}/tests/{script}", env!("CARGO_MANIFEST_DIR")))
        .args(args)
        .stderr(Stdio::inherit())
        .output()
        .unwrap_or_else(|error| panic!("{}: {error}; `cargo xtask setup` makes it", python.display()));
    let out = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{out}");
    out.lines().last().unwrap_or_default().to_owned()
}

fn drive(carrier: &str) {
    let main = Berth::start(include_str!("../fabric/node.toml"));
    let strict = Berth::start(include_str!("../fabric/strict.toml"));
    println!("{}", client("fabric/scenario.py", &[carrier, &main.ready.to_string(), &strict.ready.to_string()]));
    assert!(main.stop().status.success());
    assert!(strict.stop().status.success());
}

#[test]
fn every_op_over_udp() {
    drive("udp");
}

#[test]
fn every_op_over_quic() {
    drive("quic");
}

/// Every status of `GPU_SUBMIT`, on a GPU in software.
fn submit_kernels(carrier: &str) {
    const NODE: &str = include_str!("../gpu_submit/node.toml");
    let patient = NODE.replace("time_limit_ms = 500", "time_limit_ms = 60000");
    let nodes = [NODE, &patient, include_str!("../gpu_submit/plain.toml")].map(Berth::start);
    let ready = nodes.each_ref().map(|node| node.ready.to_string());
    client("gpu_submit/scenario.py", &[carrier, &ready[0], &ready[1], &ready[2]]);
    for node in nodes {
        assert!(node.stop().status.success());
    }
}

#[test]
fn every_status_of_gpu_submit_over_udp() {
    submit_kernels("udp");
}

#[test]
fn every_status_of_gpu_submit_over_quic() {
    submit_kernels("quic");
}

/// Every rule of docs/tasklets.md, and a restart of the node.
#[cfg(feature = "wasm")]
fn run_tasklets(carrier: &str, isolation: &str) {
    const SCRIPT: &str = "tasklet/scenario.py";
    let folder = tempfile::tempdir().unwrap();
    let modules = folder.path().to_str().unwrap();
    client(SCRIPT, &["modules", modules]);
    let texts: Vec<_> = folder.path().read_dir().unwrap().map(|text| text.unwrap().path()).collect();
    for path in texts {
        let wasm = wat::parse_file(&path).unwrap_or_else(|error| panic!("{error}"));
        std::fs::write(path.with_extension("wasm"), wasm).unwrap();
    }
    // The state lies beside the configuration, and that is kept over the restart.
    let config = |text: &str, name: &str| {
        let folder = folder.path().join(name);
        std::fs::create_dir(&folder).unwrap();
        let config = folder.join("berth.toml");
        std::fs::write(&config, format!("{text}isolation = \"{isolation}\"\n")).unwrap();
        config
    };
    let main = config(include_str!("../tasklet/node.toml"), "main");
    let short = config(include_str!("../tasklet/short.toml"), "short");
    let (node, short) = (Berth::start_file(&main, |_| ()), Berth::start_file(&short, |_| ()));
    let ready = [node.ready.to_string(), short.ready.to_string()];
    let left = client(SCRIPT, &[carrier, modules, &ready[0], &ready[1]]);
    assert!(node.stop().status.success());
    let node = Berth::start_file(&main, |_| ());
    let ready = [node.ready.to_string(), short.ready.to_string()];
    let mut args = vec![carrier, modules, &ready[0], &ready[1]];
    args.extend(left.split(' '));
    client(SCRIPT, &args);
    assert!(node.stop().status.success());
    assert!(short.stop().status.success());
}

#[cfg(feature = "wasm")]
#[test]
fn every_rule_of_tasklets_over_udp() {
    run_tasklets("udp", "process");
}

#[cfg(feature = "wasm")]
#[test]
fn every_rule_of_tasklets_over_quic() {
    run_tasklets("quic", "inline");
}
