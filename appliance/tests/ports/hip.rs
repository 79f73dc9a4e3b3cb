//! `[hip]`: a worker with the software GPU, and the commands that use it.

use std::{
    net::SocketAddr,
    path::Path,
    process::{Command, Output},
};

use crate::common::{ADMIN, Berth, admin, fails, get};

pub(crate) const CONFIG: &str = "[hip]\nlisten = \"127.0.0.1:0\"\n[[gpu]]\nname = \"gpu0\"\ndevice = \"soft\"\nuse = \
                      \"hip\"\n[[hip.device]]\ngpu = \"gpu0\"\nmemory = \"64 MiB\"\n";

pub(crate) const VADD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../dataplane/ptx/tests/kernels/vadd.ptx#vadd");

/// `[hip.tls]` with a certificate, which openssl makes in the folder: `hip.crt`, `hip.key`.
pub(crate) fn tls(folder: &Path) -> String {
    let (cert, key) = (folder.join("hip.crt"), folder.join("hip.key"));
    let mut openssl = Command::new("openssl");
    openssl.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30"]);
    openssl.args(["-subj", "/CN=berth", "-keyout"]).arg(&key).arg("-out").arg(&cert);
    let made = openssl.output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    format!("[hip.tls]\ncert = \"{}\"\nkey = \"{}\"\n", cert.display(), key.display())
}

pub(crate) fn hip(berth: &Berth, args: &[&str]) -> Output {
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
    assert!(metrics.contains("berth_hip_requests_total{class=\"launch\",outcome=\"done\"} 2\n"), "{metrics}");
    assert!(metrics.contains("berth_hip_device_time_seconds_count{"), "{metrics}");
    // A session that stays is seen.
    let worker: SocketAddr = berth.ready["endpoints"]["hip"].as_str().unwrap().parse().unwrap();
    let memory = berth_hip::Client::connect(worker).unwrap().device(0).unwrap().alloc(1000).unwrap();
    let print = |command: &[&str]| {
        let mut berth_command = Command::new(env!("CARGO_BIN_EXE_berth"));
        let out = berth_command.args(command).args(["--admin", &admin(&berth).to_string()]).output().unwrap();
        String::from_utf8(out.stdout).unwrap()
    };
    let status = print(&["status"]);
    let words: Vec<Vec<_>> = status.lines().map(|line| line.split_whitespace().collect()).collect();
    let has = |row: &[&str]| assert!(words.iter().any(|words| words == row), "no {row:?} in\n{status}");
    has(&["0", "1024", "67108864"]);
    has(&["launch", "0", "0", "2", "0", "216", "0"]);
    has(&["hip", "sessions:", "1", "seconds", "requests", "errors", "bytes", "used", "lease"]);
    let session = words.iter().find(|words| words.first() == Some(&"127.0.0.1")).unwrap();
    assert_eq!((session.len(), &session[2..]), (6, &["3", "0", "1024", "-"][..]), "{status}");
    let top = print(&["top", "--once"]);
    assert!(top.contains("HIP: 1 sessions, 1 KiB of 64 MiB"), "{top}");
    drop(memory);
    let stopped = berth.stop();
    assert!(stopped.status.success());
    assert_eq!(stopped.counters["hip"]["connections"], 4);
}

#[test]
fn perf_measures_through_tls() {
    let folder = tempfile::tempdir().unwrap();
    let berth = Berth::start(&format!("{CONFIG}{}", tls(folder.path())));
    let worker = berth.ready["endpoints"]["hip"].as_str().unwrap();
    let (certificate, json) = (folder.path().join("hip.crt"), folder.path().join("report.json"));
    // More than TLS and the sockets hold, so that both sides are in the middle of records when they must wait.
    for op in ["ping", "memset", "h2d", "d2h"] {
        let mut perf = Command::new(env!("CARGO_BIN_EXE_berth"));
        perf.args(["perf", "hip", "--no-progress", "--to", worker, "--op", op, "--window", "2", "--duration", "0.5"]);
        perf.args(if op.contains('2') { &["--size", "5000001"][..] } else { &[] });
        let out = perf.arg("--tls").arg(&certificate).arg("--json").arg(&json).output().unwrap();
        assert!(out.status.success(), "{op}: {}", String::from_utf8_lossy(&out.stderr));
        let report: serde_json::Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
        let case = &report["cases"][0];
        assert!(case["name"].as_str().unwrap().ends_with(", TLS"), "{case}");
        assert!(case["latency"]["n"].as_u64() > Some(2) && case["counts"]["wrong"] == 0, "{op}: {case}");
    }
}

#[test]
fn mistakes_are_told() {
    let with = |hip: &str| fails(&CONFIG.replace("[hip]\nlisten = \"127.0.0.1:0\"\n", &format!("[hip]\n{hip}\n")));
    for (line, said) in [("listen = \"0.0.0.0:0\"", "insecure = true"), ("lease = \"never\"", "hip.lease")] {
        let (code, text) = with(line);
        assert_eq!(code, Some(2), "{text}");
        assert!(text.contains(said), "{text}");
    }
    for other in ["dispatch", "lease"] {
        let (code, text) = fails(&format!("[[gpu]]\nname = \"gpu0\"\ndevice = \"hip:0\"\nuse = \"{other}\"\n"));
        assert_eq!(code, Some(2), "{text}");
        assert!(text.contains("gpu[0].device") && text.contains("write use = \"hip\""), "{text}");
    }
    let (_, text) = fails(&CONFIG.replace("gpu = \"gpu0\"", "gpu = \"gpu1\""));
    assert!(text.contains("there is no [[gpu]] \"gpu1\""), "{text}");
    let (_, text) = fails("[hip]\n");
    assert!(text.contains("device"), "{text}");
}

#[test]
fn connections_are_encrypted_and_listed_keys_let_in() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let keys = ["known", "unknown"].map(|name| {
        let key = berth_tls::key_file::generate().unwrap();
        berth_tls::key_file::create(&folder.path().join(name), &key).unwrap();
        key
    });
    let other = folder.path().join("other");
    std::fs::create_dir(&other).unwrap();
    tls(&other);
    let tls = format!("{}clients = [\"{}\"]\n", tls(folder.path()), keys[0].public_key());
    let berth = Berth::start(&format!("{CONFIG}{tls}{ADMIN}"));
    let (certificate, other) = (at("hip.crt"), at("other/hip.crt"));
    let info = |key: &str, certificate: &str| hip(&berth, &["info", "--tls", certificate, "--key", &at(key)]);
    let known = info("known", &certificate);
    assert!(known.status.success(), "{}", String::from_utf8_lossy(&known.stderr));
    let run = ["run", "--tls", &certificate, "--key", &at("known"), "--block", "4", "--verify", VADD];
    let run = hip(&berth, &[&run[..], &["f32:1,2,3,4", "f32:0.5*4", "zero:16", "4"]].concat());
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    for (why, out, said) in [
        ("a key that is not listed", info("unknown", &certificate), "alert"),
        ("a worker that has another certificate", info("known", &other), "certificate"),
        ("plain text", hip(&berth, &["info"]), "no worker answers"),
    ] {
        let text = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "{why}: {text}");
        assert!(text.contains(said), "{why}: {text}");
    }
    let (_, metrics) = get(admin(&berth), "/metrics", "");
    assert!(metrics.contains("berth_hip_sessions_ended_total{reason=\"tls_key\"} 1\n"), "{metrics}");
    berth.stop();
}

#[test]
fn mistakes_with_certificates_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let right = tls(folder.path());
    let with = |tls: &str| fails(&CONFIG.replace("127.0.0.1:0\"\n", &format!("0.0.0.0:0\"\n{tls}")));
    let (key, crt) = (folder.path().join("hip.key"), folder.path().join("hip.crt"));
    let allow = |file: &Path, mode| {
        std::fs::set_permissions(file, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
    };
    allow(&crt, 0o600);
    for (wrong, said) in [
        (right.replace("hip.key", "none.key"), "there is no file"),
        (right.replace("hip.key", "hip.crt"), "no private key in PEM"),
        (right.replace("hip.crt", "hip.key"), "no certificate in PEM"),
        (right.clone() + "clients = [\"me\"]\n", "\"me\" is not a public key"),
        (right.replace("cert =", "#"), "hip.tls.cert"),
    ] {
        let (code, text) = with(&wrong);
        assert_eq!(code, Some(2), "{text}");
        assert!(text.contains(said), "{text}");
    }
    allow(&key, 0o644);
    let (_, text) = with(&right);
    assert!(text.contains("is open to everybody on this host"), "{text}");
    std::fs::write(&crt, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").unwrap();
    allow(&key, 0o600);
    let (_, text) = with(&right);
    assert!(text.contains("no certificate and key of TLS"), "{text}");
}
