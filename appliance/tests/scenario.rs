//! A client that was written in Python from docs/fabricbios-profile.md alone drives two real nodes through every op.

mod common;

use std::{
    path::PathBuf,
    process::{Command, Stdio},
};

use common::Berth;

/// The Python that `cargo xtask setup` makes, or what `BERTH_PYTHON` names: it has aioquic and cryptography.
fn python() -> PathBuf {
    let made = || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../target/fabric-venv/bin/python"));
    std::env::var_os("BERTH_PYTHON").map_or_else(made, PathBuf::from)
}

fn drive(carrier: &str) {
    let main = Berth::start(include_str!("fabric/node.toml"));
    let strict = Berth::start(include_str!("fabric/strict.toml"));
    let python = python();
    let output = Command::new(&python)
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fabric/scenario.py"))
        .args([carrier, &main.ready.to_string(), &strict.ready.to_string()])
        .stderr(Stdio::inherit())
        .output()
        .unwrap_or_else(|error| panic!("{}: {error}; `cargo xtask setup` makes it", python.display()));
    let out = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{out}");
    println!("{}", out.lines().last().unwrap());
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
