//! Drop-ins beside the configuration file, and `--set`: what is merged, what is replaced, and which note names which file.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use tempfile::TempDir;

use crate::common::{Berth, INCREMENT, RPC_INCREMENT, port};

/// A folder with a configuration file and these drop-ins.
fn folder(main: &str, drop_ins: &[(&str, &str)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("berth.toml"), main).unwrap();
    fs::create_dir(folder.path().join("conf.d")).unwrap();
    for (name, text) in drop_ins {
        fs::write(folder.path().join("conf.d").join(name), text).unwrap();
    }
    folder
}

fn check(folder: &Path, sets: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_berth"));
    command.arg("check").arg(folder.join("berth.toml"));
    command.args(sets.iter().flat_map(|set| ["--set", set])).output().unwrap()
}

/// What would run, a line each.
fn summary(main: &str, drop_ins: &[(&str, &str)], sets: &[&str]) -> Vec<String> {
    let output = check(folder(main, drop_ins).path(), sets);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// The mistakes, without the folder.
fn mistakes(main: &str, drop_ins: &[(&str, &str)], sets: &[&str]) -> Vec<String> {
    let folder = folder(main, drop_ins);
    let output = check(folder.path(), sets);
    assert_eq!(output.status.code(), Some(2), "{}", String::from_utf8_lossy(&output.stdout));
    let prefix = format!("{}/", folder.path().display());
    String::from_utf8(output.stderr).unwrap().replace(&prefix, "").lines().map(str::to_owned).collect()
}

#[test]
fn tables_are_merged_lists_of_tables_appended_and_values_replaced() {
    let main = format!("{}[port.rpc]\nslots = 8\nslot_size = 256\n{INCREMENT}", port("a", ""));
    let drop_ins = [
        ("20.toml", "[node]\nstate_dir = \"/late\"\n"),
        ("10.toml", "[node]\nstate_dir = \"/early\"\nsite = 7\n[control]\n"),
        ("30.toml", "[[function]]\nname = \"f\"\nhandler = \"builtin:rpc_increment\"\n"),
        ("40.toml.off", "nonsense"),
    ];
    let lines = summary(&main, &drop_ins, &["port[0].rpc.slots=16", "node.key_file=\"/key\""]);
    let wanted = [
        "port a: udp 127.0.0.1:0, cpu 0, idle Wait, rpc V24 16 x 256 B, inline",
        "function rpc_increment: rpc_increment",
        "function f: rpc_increment",
        "control: 0 enrolled, enrolment closed, state /late, key /key",
        "endpoint control-udp: 127.0.0.1:5700",
        "endpoint quic: 127.0.0.1:5701",
    ];
    assert_eq!(lines, wanted);
}

#[test]
fn values_that_are_set_need_nothing_before_them() {
    let lines = summary(
        "",
        &[],
        &[
            "port=[{name = \"a\", driver = \"udp\", bind = \"127.0.0.1:0\", cpu = 0}]",
            "function=[]",
            "function=[{name = \"f\", handler = \"builtin:rpc_increment\"}]",
            "port[0].rpc.slots=4",
            "port[0].name=\"b\"",
        ],
    );
    let wanted = ["port b: udp 127.0.0.1:0, cpu 0, idle Spin, rpc V24 4 x 2048 B, inline", "function f: rpc_increment"];
    assert_eq!(lines, wanted);
}

#[test]
fn each_mistake_names_the_file_it_stands_in() {
    let main = port("a", "") + "idle = \"wait\"\n";
    let found = mistakes(
        &port("a", "nam = 1"),
        &[("a.toml", ""), ("b.toml", "[[port]]\nname = \"b\"\n"), ("c.toml", "[runtime]\nmemory = 3\nbroken")],
        &["port[0].cpu=4095", "port[1].driver=\"udpp\"", "port[2].cpu=1", "port[0].cpu", "admin.listen=\"a\" b", "=3"],
    );
    let cpus: Vec<_> = (0..std::thread::available_parallelism().unwrap().get()).map(|cpu| cpu.to_string()).collect();
    let wanted = [
        "berth.toml:7:1: port[0].nam: is not a key; did you mean `name`?".to_owned(),
        "conf.d/c.toml:2:1: runtime.memory: is not a key; there are: dpdk, housekeeping_cpus".to_owned(),
        "conf.d/c.toml:3:7: not TOML: key with no value, expected `=`".to_owned(),
        format!(
            "--set 1:1:13: port[0].cpu: CPU 4095 does not exist or is not allowed; this process may use: {}",
            cpus.join(", ")
        ),
        "--set 2:1:16: port[1].driver: \"udpp\" is unknown; did you mean `udp`?".to_owned(),
        "--set 3:1:1: port[2].cpu: there is no port[2]; a list begins with [0]".to_owned(),
        "--set 4:1:1: write PATH=VALUE, such as port[0].cpu=3 or log.level='\"debug\"'".to_owned(),
    ];
    assert_eq!(found[..7], wanted);
    assert!(found[7].starts_with("--set 5:1:18: not TOML: "), "{}", found[7]);
    assert_eq!(found[8], "--set 6:1:1: write PATH=VALUE, such as port[0].cpu=3 or log.level='\"debug\"'");
    assert_eq!(found.len(), 9, "{found:?}");
    // A key of its own twice in one file is a mistake, in two files it is not.
    assert!(mistakes(&main, &[], &[])[0].starts_with("berth.toml:8:1: not TOML: duplicate key"));
}

#[test]
fn relative_paths_of_drop_ins_start_at_the_main_file() {
    let decoder = "[[decoder]]\nname = \"d\"\nalgorithm = \"mwpm\"\nmodel = \"conf.d/m.dem\"\n";
    let main = port("a", "") + INCREMENT;
    let lines = summary(&main, &[("m.dem", "error(0.1) D0 L0\n"), ("d.toml", decoder)], &[]);
    assert!(lines[1].starts_with("decoder 0 d: mwpm, ") && lines[1].ends_with("/conf.d/m.dem"), "{lines:?}");
}

#[test]
fn a_running_appliance_has_them_too_and_a_reload_reads_them_again() {
    let berth = Berth::start_fully(&port("a", ""), &[], |command| {
        command.args(["--set", "port[0].name=\"b\"", "--set", "port[0].rpc.slot_size=128"]);
    });
    let client = berth.client("b");
    assert_eq!(client.call(RPC_INCREMENT, &[1]).status, -1, "no function yet");
    fs::create_dir(berth.folder().join("conf.d")).unwrap();
    fs::write(berth.folder().join("conf.d/functions.toml"), INCREMENT).unwrap();
    berth.signal("-HUP");
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while client.call(RPC_INCREMENT, &[1]).result != [2] {
        assert!(std::time::Instant::now() < deadline);
    }
    assert_ne!(client.call(RPC_INCREMENT, &[1; 105]).status, 0, "what was set still holds");
    berth.stop();
}
