//! A host that was written in Python from the specifications alone drives a node's NVMe/TCP target over real sockets.

use std::process::{Command, Stdio};

use crate::common::Berth;

fn drive(part: &str) {
    let berth = Berth::start(include_str!("../nvme/node.toml"));
    let output = Command::new("python3")
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/nvme/scenario.py"))
        .args([part, env!("CARGO_BIN_EXE_berth"), &berth.pid().to_string(), &berth.ready.to_string()])
        .env("HOME", berth.folder())
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    let out = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{out}");
    println!("{}", out.lines().last().unwrap());
    let stopped = berth.stop();
    assert!(stopped.status.success());
    let lane = &stopped.counters["lcores"][0]["lanes"][0];
    assert!(lane["histograms"]["command_time"]["count"].as_u64() > Some(0), "{lane}");
}

#[test]
fn violations() {
    drive("violations");
}

#[test]
fn connects() {
    drive("connects");
}

#[test]
fn leases() {
    drive("leases");
}

/// Takes as long as the target's own patience with hosts that take nothing.
#[test]
fn faults() {
    drive("faults");
}
