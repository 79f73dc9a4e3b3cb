//! The profiles: valid on a host that has what they ask for, and started where this machine has it.

use std::{fs, path::Path};

use berth::config::{self, Host, Origin};

use crate::common::{Berth, RPC_INCREMENT};

fn profile(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../config/profiles").join(format!("{name}.toml"))
}

#[test]
fn each_is_valid_where_its_host_is() {
    let mut seen = Vec::new();
    for entry in fs::read_dir(profile("laptop").parent().unwrap()).unwrap() {
        let file = entry.unwrap().path();
        let name = file.file_stem().unwrap().to_str().unwrap().to_owned();
        let big = name == "mlx5-gpu-host";
        let (cpus, is_file): (_, fn(&Path) -> bool) = ((0..if big { 8 } else { 2 }).collect(), Path::is_file);
        let host = Host {
            cpus,
            has_feature: if big { |name| name != "ofi" } else { |_| false },
            is_file,
            is_public: |_| false,
            read: |path| fs::read_to_string(path),
        };
        let loaded = config::load(&Origin { file, sets: Vec::new() }, &host);
        let loaded = loaded.unwrap_or_else(|notes| panic!("{name}: {notes:?}"));
        assert_eq!(loaded.warnings, [], "{name}");
        seen.push(name);
    }
    seen.sort();
    assert_eq!(seen, ["fabric-node", "laptop", "mlx5-gpu-host", "qec-lab", "vm"]);
}

/// Starts a profile as it is, but for its addresses.
fn start(name: &str, sets: &[&str]) -> Berth {
    Berth::start_file(&profile(name), |command| {
        let all = ["admin.listen=\"127.0.0.1:0\"", "port[0].bind=\"127.0.0.1:0\""].iter().chain(sets);
        command.args(all.flat_map(|set| ["--set", set]));
    })
}

#[test]
fn those_for_calls_answer_them() {
    for (name, port) in [("laptop", "local"), ("vm", "net"), ("qec-lab", "control")] {
        if name != "laptop" && std::thread::available_parallelism().unwrap().get() < 2 {
            continue;
        }
        let berth = start(name, &[]);
        assert_eq!(berth.client(port).call(RPC_INCREMENT, &[1, 2]).result, [2, 3], "{name}");
        assert_eq!(berth.stop().status.code(), Some(0), "{name}");
    }
}

#[test]
fn the_fabric_node_listens_everywhere() {
    if std::thread::available_parallelism().unwrap().get() < 2 {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = |key: &str, name: &str| format!("{key}={:?}", folder.path().join(name).display().to_string());
    let mut sets = vec![path("node.state_dir", "state"), path("region[1].backing", "blocks")];
    let listeners =
        ["control.udp", "control.quic", "control.relay", "dataplane.fbmt", "dataplane.fbbt", "dataplane.fbmu"];
    sets.extend(listeners.map(|key| format!("{key}=\"127.0.0.1:0\"")));
    let berth = start("fabric-node", &sets.iter().map(String::as_str).collect::<Vec<_>>());
    let names: Vec<_> = berth.ready["endpoints"].as_object().unwrap().keys().cloned().collect();
    assert_eq!(names, ["admin", "control-udp", "fbbt", "fbmt", "fbmu", "quic", "relay", "two-sided"]);
    assert_eq!(berth.stop().status.code(), Some(0));
}
