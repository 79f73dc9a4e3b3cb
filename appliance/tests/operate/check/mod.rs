//! `berth check`: exact messages, all of them in one pass.

mod docs;
mod functions;
mod leases;
mod messages;
mod ports;

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use tempfile::TempDir;

fn check(folder: &TempDir, text: &str) -> Output {
    let file = folder.path().join("berth.toml");
    fs::write(&file, text).unwrap();
    Command::new(env!("CARGO_BIN_EXE_berth")).arg("check").arg(file).output().unwrap()
}

/// The mistakes in `text`, without the folder of the file.
fn mistakes(text: &str) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let output = check(&folder, text);
    assert_eq!(output.status.code(), Some(2), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stdout.is_empty());
    let prefix = format!("{}/", folder.path().display());
    String::from_utf8(output.stderr).unwrap().replace(&prefix, "").lines().map(str::to_string).collect()
}

const PORT: &str = "[[port]]\nname = \"a\"\ndriver = \"udp\"\nbind = \"127.0.0.1:0\"\ncpu = 0\n";

#[test]
fn the_default_file_is_valid() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../config/berth.toml");
    let output = Command::new(env!("CARGO_BIN_EXE_berth")).arg("check").arg(file).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert_eq!(output.status.code(), Some(0));
    let out = String::from_utf8(output.stdout).unwrap();
    assert!(out.starts_with("port fpga0: udp 127.0.0.1:4700, cpu "), "{out}");
    assert!(out.ends_with("function rpc_increment: rpc_increment\n"), "{out}");
}

#[cfg(feature = "dpdk")]
#[test]
fn the_demo_is_valid() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../config/demo.toml");
    let output = Command::new(env!("CARGO_BIN_EXE_berth")).arg("check").arg(file).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn examples_are_valid_but_for_this_host() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../config/examples");
    for file in fs::read_dir(folder).unwrap() {
        let output = Command::new(env!("CARGO_BIN_EXE_berth")).arg("check").arg(file.unwrap().path()).output().unwrap();
        for line in String::from_utf8(output.stderr).unwrap().lines() {
            let other_builds =
                ["built without DPDK", "built without libfabric", "needs a build with the feature \"wasm\""];
            let fine =
                line.contains("does not exist or is not allowed") || other_builds.iter().any(|b| line.contains(b));
            assert!(fine, "{line}");
        }
    }
}

#[test]
fn no_function_is_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    let output = check(&folder, PORT);
    assert_eq!(output.status.code(), Some(0));
    let wanted = format!(
        "warning: {}/berth.toml:1:1: function: no [[function]] is given, every request will be refused; add one, such as \
         rpc_increment\n",
        folder.path().display()
    );
    assert_eq!(String::from_utf8(output.stderr).unwrap(), wanted);
}

#[test]
fn an_unreadable_file_is_named() {
    let output = Command::new(env!("CARGO_BIN_EXE_berth")).args(["check", "/nowhere/berth.toml"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let wanted = "/nowhere/berth.toml:1:1: cannot be read: No such file or directory (os error 2); name a TOML file\n";
    assert_eq!(String::from_utf8(output.stderr).unwrap(), wanted);
}

/// A document and the lines it earns, after the name of the file.
type Case = (&'static str, &'static [&'static str]);

fn assert_cases(before: &str, cases: &[Case]) {
    let cpus = std::thread::available_parallelism().unwrap().get();
    let cpus = (0..cpus).map(|cpu| cpu.to_string()).collect::<Vec<_>>().join(", ");
    let drivers: Vec<_> = berth_ports::WORDS.iter().map(|(word, _)| format!("\"{word}\"")).collect();
    let (last, others) = drivers.split_last().unwrap();
    let drivers = format!("{} or {last}", others.join(", "));
    for (text, wanted) in cases {
        let filled = wanted.iter().map(|line| line.replace("CPUS", &cpus).replace("DRIVERS", &drivers));
        let wanted: Vec<_> = filled.map(|line| format!("berth.toml:{line}")).collect();
        let found: Vec<_> = mistakes(&format!("{before}{text}"));
        assert_eq!(found, wanted, "in\n{before}{text}");
    }
}

/// Like [`mistakes`], with files beside the configuration.
fn mistakes_with(text: &str, files: &[(&str, &str)]) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    for (name, contents) in files {
        fs::write(folder.path().join(name), contents).unwrap();
    }
    let output = check(&folder, text);
    assert_eq!(output.status.code(), Some(2), "{}", String::from_utf8_lossy(&output.stderr));
    let prefix = format!("{}/", folder.path().display());
    String::from_utf8(output.stderr).unwrap().replace(&prefix, "").lines().map(str::to_string).collect()
}

#[test]
fn the_document_itself() {
    assert_cases(
        "",
        &[
            ("", &["1:1: port: is missing; write [[port]] with a name and a driver"]),
            ("port = 3", &["1:8: port: is 3; a list of tables, each headed [[port]], is wanted"]),
            ("port = []", &["1:8: port: is empty; write [[port]] and its keys"]),
            (
                "[[port]]\nname = \"a\ndriver = 3",
                &[
                    "2:10: not TOML: invalid basic string, expected `\"`",
                    "3:10: port[0].driver: is 3; a string is wanted",
                ],
            ),
            (
                "[[port]]\n",
                &[
                    "1:1: port[0].name: is missing; write name = \"fpga0\"",
                    "1:1: port[0].driver: is missing; write driver = DRIVERS",
                ],
            ),
        ],
    );
}
