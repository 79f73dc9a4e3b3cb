//! Tasklets through the real binary, from `berth lease alloc` to the exit code of `berth tasklet run`.
#![cfg(feature = "wasm")]

#[path = "../common/mod.rs"]
mod common;
mod soak;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    time::{Duration, Instant},
};

use berth_tls::key_file;
use common::{Berth, fails};
use tempfile::TempDir;

/// Sums the bytes of its lease, 1 KiB at a time, and logs that it has.
const SUM: &str = r#"(module
  (import "fabricbios_fbmu_v0" "fbmu_get_size" (func $size (result i64)))
  (import "fabricbios_fbmu_v0" "fbmu_read" (func $read (param i64 i32 i32) (result i32)))
  (import "fabricbios_log_v0" "fb_log" (func $log (param i32 i32 i32)))
  (memory (export "memory") 1)
  (data (i32.const 100) "summed")
  (func (export "tasklet_alloc") (param i32) (result i32) i32.const 2048)
  (func (export "tasklet_run") (param i32 i32) (result i64)
    (local $at i64) (local $sum i64) (local $i i32)
    (loop $pieces
      (if (call $read (local.get $at) (i32.const 1024) (i32.const 1024)) (then unreachable))
      (local.set $i (i32.const 0))
      (loop $bytes
        (local.set $sum (i64.add (local.get $sum) (i64.load8_u (i32.add (i32.const 1024) (local.get $i)))))
        (br_if $bytes (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (i32.const 1024))))
      (br_if $pieces (i64.lt_u (local.tee $at (i64.add (local.get $at) (i64.const 1024))) (call $size))))
    (call $log (i32.const 2) (i32.const 100) (i32.const 6))
    (i64.store (i32.const 0) (local.get $sum))
    (i64.const 8)))"#;

const SPIN: &str = r#"(module (memory (export "memory") 1)
  (func (export "tasklet_run") (param i32 i32) (result i64) (loop $on (br $on)) (i64.const 0)))"#;

struct Site {
    berth: Berth,
    folder: TempDir,
}

fn config(folder: &Path, tasklet: &str) -> String {
    let key = key_file::read_or_create(&folder.join("key")).unwrap();
    let state = folder.join("state");
    format!(
        "[node]\nstate_dir = \"{}\"\n[control]\nudp = \"127.0.0.1:0\"\nquic = \"127.0.0.1:0\"\nenrolled = [\"{}\"]\n\
         [[control.policy]]\npresenter = \"*\"\nperms = [\"read\", \"write\", \"alloc\", \"exec\"]\n\
         [[region]]\nname = \"mem\"\nkind = \"memory\"\nsize = \"16 MiB\"\n\
         [tasklet]\ncpus = [0]\n{tasklet}\n",
        state.display(),
        key.public_key()
    )
}

impl Site {
    fn new(isolation: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let berth = Berth::start(&config(folder.path(), &format!("{isolation}\nsync_wait_ms = 100")));
        Self { berth, folder }
    }

    fn module(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        fs::write(&path, wat::parse_str(text).unwrap()).unwrap();
        path
    }

    fn run(&self, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_berth"));
        command.args(args).env("BERTH_KEY", self.folder.path().join("key")).env("XDG_STATE_HOME", self.folder.path());
        command.env("BERTH_NODE", self.berth.ready["endpoints"]["quic"].as_str().unwrap()).output().unwrap()
    }

    fn json(&self, args: &[&str]) -> serde_json::Value {
        let output = self.run(&[args, &["--json"]].concat());
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    fn ok(&self, args: &[&str]) -> Output {
        let output = self.run(args);
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        output
    }

    fn error(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert!(!output.status.success(), "{args:?}");
        String::from_utf8(output.stderr).unwrap()
    }
}

/// Where runs happen: the default is a process of their own.
const ISOLATIONS: [&str; 2] = ["", "isolation = \"inline\""];

#[test]
fn a_stranger_sums_a_lease() {
    for isolation in ISOLATIONS {
        sums_a_lease(&Site::new(isolation));
    }
}

fn sums_a_lease(site: &Site) {
    let lease =
        site.json(&["lease", "alloc", "--size", "4096", "--resource", "0"])["lease_id"].as_str().unwrap().to_owned();
    site.ok(&["lease", "write", &lease, "abc", "--offset", "1030"]);
    let sum = site.module("sum.wasm", SUM);
    let sum = sum.to_str().unwrap();
    let ran = site.ok(&["tasklet", "run", sum, "--lease", &lease]);
    assert_eq!(ran.stdout, (u64::from(b'a') + u64::from(b'b') + u64::from(b'c')).to_le_bytes());
    assert_eq!(String::from_utf8(ran.stderr).unwrap(), "info: summed\n");
    let by_hash = site.ok(&["tasklet", "run", sum, "--lease", &lease, "--hash-only"]);
    assert_eq!(by_hash.stdout, ran.stdout);
    let hungry = site.error(&["tasklet", "run", sum, "--lease", &lease, "--fuel", "1000"]);
    assert!(hungry.contains("FUEL_EXHAUSTED") && hungry.contains("raise --fuel"), "{hungry}");
    let talkative = site.error(&["tasklet", "run", sum, "--lease", &lease, "--hostcalls", "2"]);
    assert!(talkative.contains("HOSTCALL_LIMIT") && talkative.contains("raise --hostcalls"), "{talkative}");
    let denied = site.error(&["tasklet", "run", sum, "--lease", &format!("{lease}:svc_listen")]);
    assert!(denied.contains("UNSUPPORTED"), "{denied}");
    let denied = site.error(&["tasklet", "run", sum, "--lease", "99:query"]);
    assert!(denied.contains("UNAUTHORIZED"), "{denied}");
    let unknown = site.module("spin.wasm", SPIN);
    let unknown = site.error(&["tasklet", "run", unknown.to_str().unwrap(), "--hash-only"]);
    assert!(unknown.contains("MODULE_NOT_FOUND"), "{unknown}");
    fs::write(site.folder.path().join("garbage.wasm"), b"garbage").unwrap();
    let garbage = site.error(&["tasklet", "run", site.folder.path().join("garbage.wasm").to_str().unwrap()]);
    assert!(garbage.contains("INVALID"), "{garbage}");
}

#[test]
fn a_detached_tasklet_is_asked_for_and_cancelled() {
    for isolation in ISOLATIONS {
        detaches_and_cancels(&Site::new(isolation));
    }
}

fn detaches_and_cancels(site: &Site) {
    let spin = site.module("spin.wasm", SPIN);
    let lease = site.json(&["tasklet", "lease", "alloc", "--memory", "16 MiB"]);
    let cpu = lease["cpu"].as_str().unwrap();
    let run = ["tasklet", "run", spin.to_str().unwrap(), "--detach", "--cpu", cpu, "--fuel", "9999999999"];
    let id = site.json(&run)["tasklet"].to_string();
    assert_eq!(site.json(&["tasklet", "status", &id])["status"], "UNKNOWN");
    site.ok(&["tasklet", "cancel", &id]);
    let result = site.error(&["tasklet", "result", &id]);
    assert!(result.contains("node: cancelled\n") && result.contains("EXEC_FAILED"), "{result}");
    assert_eq!(site.ok(&["tasklet", "logs", &id]).stdout, b"node: cancelled\n");
    assert!(site.error(&["tasklet", "cancel", &id]).contains("FINISHED"));
    assert!(
        site.error(&["tasklet", "status", "99"].map(|arg| if arg == "status" { "result" } else { arg }))
            .contains("NOT_FOUND")
    );
    site.ok(&["tasklet", "lease", "free", lease["lease_id"].as_str().unwrap()]);
}

#[test]
fn limits_that_no_run_can_have_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    for (tasklet, why) in [
        ("isolation = \"none\"", "is unknown"),
        ("max_memory = 100000", "no multiple of 64 KiB"),
        ("max_output = \"1 MiB\"", "more than an answer holds"),
    ] {
        let (code, said) = fails(&config(folder.path(), tasklet));
        assert!(code == Some(2) && said.contains(why), "{code:?}: {said}");
    }
}

/// Executors of this node.
fn executors(berth: &Berth) -> Vec<u32> {
    let parent = berth.pid().to_string();
    let stat = |pid: u32| fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let ours = |pid: &u32| {
        let stat = stat(*pid);
        stat.contains("(berth-executor)")
            && stat.rsplit(") ").next().unwrap_or_default().split(' ').nth(1) == Some(&parent)
    };
    let all = fs::read_dir("/proc").unwrap().flatten();
    all.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(ours).collect()
}

fn kill(signal: &str, pids: &[u32]) {
    let done = Command::new("kill").arg(signal).args(pids.iter().map(u32::to_string)).status().unwrap();
    assert!(done.success());
}

/// A killed executor costs its run; a stopped one goes on at its next turn; those that wait find another; and none is left behind.
#[test]
fn executors_are_killed_and_stopped_at_every_phase() {
    let site = Site::new("");
    let spin = site.module("spin.wasm", SPIN);
    let sum = site.module("sum.wasm", SUM);
    let lease =
        site.json(&["lease", "alloc", "--size", "4096", "--resource", "0"])["lease_id"].as_str().unwrap().to_owned();
    let sums = |site: &Site| site.ok(&["tasklet", "run", sum.to_str().unwrap(), "--lease", &lease]);
    let detach = |fuel: &str| {
        site.json(&["tasklet", "run", spin.to_str().unwrap(), "--detach", "--fuel", fuel])["tasklet"].to_string()
    };
    // Before any run; then with one under way and one in the queue.
    kill("-KILL", &executors(&site.berth));
    sums(&site);
    let (first, second) = (detach("9999999999"), detach("1000"));
    kill("-STOP", &executors(&site.berth));
    assert_eq!(site.json(&["tasklet", "status", &first])["status"], "UNKNOWN");
    kill("-KILL", &executors(&site.berth));
    let ended = |id: &str| {
        let begun = Instant::now();
        while site.json(&["tasklet", "status", id])["status"] == "UNKNOWN" {
            assert!(begun.elapsed() < Duration::from_secs(10), "{id} does not end");
        }
    };
    ended(&first);
    assert!(site.error(&["tasklet", "result", &first]).contains("EXEC_FAILED"));
    let logs = site.ok(&["tasklet", "logs", &first]).stdout;
    assert_eq!(String::from_utf8(logs).unwrap(), "node: its executor ended: signal: 9 (SIGKILL)\n");
    ended(&second);
    assert!(site.error(&["tasklet", "result", &second]).contains("FUEL_EXHAUSTED"));
    sums(&site);
    // One is under way, and the node ends, or is killed.
    for signal in ["-TERM", "-KILL"] {
        let site = Site::new("");
        let spin = site.module("spin.wasm", SPIN);
        site.ok(&["tasklet", "run", spin.to_str().unwrap(), "--detach", "--fuel", "9999999999"]);
        let left = executors(&site.berth);
        assert!(!left.is_empty());
        site.berth.signal(signal);
        let begun = Instant::now();
        while left
            .iter()
            .any(|pid| fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z ")))
        {
            assert!(begun.elapsed() < Duration::from_secs(10), "executors outlive their node");
        }
    }
}
