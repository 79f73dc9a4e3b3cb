//! `[hip]`: a worker with the software GPU, and the commands that use it.

mod common;

use std::{
    net::SocketAddr,
    process::{Command, Output},
};

use common::{ADMIN, Berth, admin, fails, get};

const CONFIG: &str = "[hip]\nlisten = \"127.0.0.1:0\"\n[[gpu]]\nname = \"gpu0\"\ndevice = \"soft\"\nuse = \
                      \"hip\"\n[[hip.device]]\ngpu = \"gpu0\"\nmemory = \"64 MiB\"\n";

const VADD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../dataplane/ptx/tests/kernels/vadd.ptx#vadd");

fn hip(berth: &Berth, args: &[&str]) -> Output {
    let worker: SocketAddr = berth.ready["endpoints"]["hip"].as_str().unwrap().parse().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_berth"));
    command.args(["hip", args[0], "--worker", &worker.to_string(), "--json"]).args(&args[1..]);
    command.output().unwrap()
}

#[test]
fn a_worker_alone_is_a_whole_configuration_and_runs_a_kernel() {
    let berth = Berth::start(&format!("{CONFIG}{ADMIN}"));
    let info = hip(&berth, &["info"]);
    assert!(info.status.success(), "{}", String::from_utf8_lossy(&info.stderr));
    let info: serde_json::Value = serde_json::from_slice(&info.stdout).unwrap();
    assert_eq!((&info["arch"], &info["memory_total"]), (&"berth-ptx".into(), &(64 << 20).into()));
    let run = ["run", "--block", "4", "--verify", "--print", "2=f32", VADD, "f32:1,2,3,4", "f32:0.5*4", "zero:16", "4"];
    let run = hip(&berth, &run);
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let run: serde_json::Value = serde_json::from_slice(&run.stdout).unwrap();
    assert_eq!(run["buffers"]["2"], serde_json::json!([1.5, 2.5, 3.5, 4.5]));
    assert_eq!(run["verified"], true);
    let out = hip(&berth, &["run", "--block", "8", VADD, "f32:1", "f32:1", "zero:4", "8"]);
    assert_eq!(out.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&out.stderr).contains("hipErrorIllegalAddress"));
    let (_, metrics) = get(admin(&berth), "/metrics", "");
    assert!(metrics.contains("berth_hip_launches_total{} 2\n"), "{metrics}");
    let stopped = berth.stop();
    assert!(stopped.status.success());
    assert_eq!(stopped.counters["hip"]["connections"], 3);
}

#[test]
fn mistakes_are_told() {
    let with = |hip: &str| fails(&CONFIG.replace("[hip]\nlisten = \"127.0.0.1:0\"\n", &format!("[hip]\n{hip}\n")));
    for (line, said) in
        [("listen = \"0.0.0.0:0\"", "insecure = true"), ("lease = \"required\"", "hip.lease: is not a key")]
    {
        let (code, text) = with(line);
        assert_eq!(code, Some(2), "{text}");
        assert!(text.contains(said), "{text}");
    }
    let (_, text) = fails(&CONFIG.replace("\"soft\"", "\"0000:01:00.0\""));
    assert!(text.contains("gpu[0].device") && text.contains("write \"soft\""), "{text}");
    let (_, text) = fails(&CONFIG.replace("gpu = \"gpu0\"", "gpu = \"gpu1\""));
    assert!(text.contains("there is no [[gpu]] \"gpu1\""), "{text}");
    let (_, text) = fails("[hip]\n");
    assert!(text.contains("device"), "{text}");
}
