//! Where log lines go, and in which form.

use std::{fs, os::unix::fs::MetadataExt as _, os::unix::net::UnixDatagram, process::Command};

use serde_json::Value;

use crate::common::{Berth, INCREMENT, fails, port, write_config};

fn config(log: &str) -> String {
    format!("[log]\n{log}\n{}{INCREMENT}", port("a", ""))
}

/// What is logged from start to SIGTERM.
fn logged(log: &str, variable: Option<&str>) -> String {
    let berth = Berth::start_as(&config(log), |command| match variable {
        Some(level) => drop(command.env("RUST_LOG", level)),
        None => drop(command.env_remove("RUST_LOG")),
    });
    berth.stop().stderr
}

#[test]
fn lines_are_for_people_or_json_and_of_the_level_that_is_wanted() {
    let text = logged("", None);
    assert!(text.contains(" INFO berth::run: draining signal=15\n") && !text.contains('\x1b'), "{text:?}");
    assert_eq!(logged("level = \"warn\"", None), "");
    assert_eq!(logged("level = \"info,berth::run=error\"", None), "");
    assert!(logged("level = \"warn\"", Some("info")).contains("draining"), "the variable goes before");
    let json = logged("format = \"json\"", None);
    let line: Value = serde_json::from_str(json.lines().last().unwrap()).unwrap();
    assert_eq!((&line["level"], &line["message"], &line["signal"]), (&"INFO".into(), &"draining".into(), &15.into()));
}

#[test]
fn mistakes_are_told_with_their_place() {
    let (_, said) = fails(&config("level = \"loud\""));
    assert!(said.contains(":2:9: log.level: \"loud\" is no level; say \"info\""), "{said}");
    let (_, said) = fails(&config("format = \"xml\""));
    assert!(said.contains("log.format") && said.contains("journal"), "{said}");
}

#[test]
fn journald_gets_fields_where_standard_error_leads_to_it() {
    let (folder, file) = write_config(&config(""), &[]);
    let journal = folder.path().join("journal");
    fs::create_dir(&journal).unwrap();
    let socket = UnixDatagram::bind(journal.join("socket")).unwrap();
    let stderr = fs::File::create(folder.path().join("stderr")).unwrap();
    let stream = stderr.metadata().unwrap();
    // A mount of this process alone: a journal that this test reads.
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c"]).arg(format!(
        "mkdir -p /run/systemd/journal && mount --bind {} /run/systemd/journal && exec {} run --config {}",
        journal.display(),
        env!("CARGO_BIN_EXE_berth"),
        file.display()
    ));
    let berth = Berth::spawn_command(command, folder, |command| {
        command.env_remove("RUST_LOG").stderr(stderr);
        command.env("JOURNAL_STREAM", format!("{}:{}", stream.dev(), stream.ino()));
    });
    socket.set_read_timeout(Some(std::time::Duration::from_secs(5))).unwrap();
    berth.signal("-TERM");
    let mut entries = Vec::new();
    let draining = loop {
        let mut entry = vec![0; 65536];
        let len = socket.recv(&mut entry).unwrap_or_else(|e| panic!("{e} after {entries:?}"));
        let entry = String::from_utf8_lossy(&entry[..len]).into_owned();
        if entry.contains("draining") {
            break entry;
        }
        entries.push(entry);
    };
    // A value's length stands before it, as little-endian 64 bits; 5 is a notice.
    for (name, value) in [("PRIORITY", "5"), ("SYSLOG_IDENTIFIER", "berth"), ("TARGET", "berth::run"), ("SIGNAL", "15")]
    {
        let length = String::from_utf8((value.len() as u64).to_le_bytes().to_vec()).unwrap();
        assert!(draining.contains(&format!("{name}\n{length}{value}\n")), "no {name} in {draining:?}");
    }
}
