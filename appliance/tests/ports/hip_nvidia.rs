//! `[hip]` with a GPU of NVIDIA's, by its driver in software: each session has a process of its own.

use std::{
    fs,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use berth_hip::Client;

use crate::common::{ADMIN, Berth, admin, fails, fails_as, get};

const CONFIG: &str = "[hip]\nlisten = \"127.0.0.1:0\"\n[hip.session]\nmemory = \"64 MiB\"\nhandles = 1000\n\
                      kernel_timeout_ms = 3000\n[[gpu]]\nname = \"gpu0\"\ndevice = \"auto\"\nuse = \
                      \"hip\"\n[[hip.device]]\ngpu = \"gpu0\"\nmemory = \"96 MiB\"\n";

const FOLDER: &str = env!("CARGO_MANIFEST_DIR");

/// With the driver of this version of CUDA.
fn start(version: &str) -> Berth {
    start_with(CONFIG, version)
}

fn start_with(config: &str, version: &str) -> Berth {
    let folder = berth_cuda_soft::folder().unwrap();
    Berth::start_as(&format!("{config}{ADMIN}"), |command| {
        command.env("LD_LIBRARY_PATH", folder).env("CUDA_SOFT_VERSION", version);
    })
}

/// One more device, as a session's GPU.
fn device(name: &str, device: &str) -> String {
    format!(
        "[[gpu]]\nname = \"{name}\"\ndevice = \"{device}\"\nuse = \"hip\"\n[[hip.device]]\ngpu = \"{name}\"\n\
         memory = \"96 MiB\"\n"
    )
}

/// Runs the client that was written from the page.
fn stranger(berth: &Berth, how: &str) {
    let mut python = Command::new("python3");
    python.arg(format!("{FOLDER}/../drivers/hip/tests/client.py")).arg(worker(berth));
    python.arg(format!("{FOLDER}/../dataplane/ptx/tests/kernels")).arg(how);
    assert!(python.status().unwrap().success(), "{how}");
}

fn nothing_is_used(berth: &Berth, device: usize) {
    let line = format!("berth_hip_device_used_bytes{{device=\"{device}\"}} 0.0\n");
    until("memory of sessions that are over", || get(admin(berth), "/metrics", "").1.contains(&line));
}

fn worker(berth: &Berth) -> &str {
    berth.ready["endpoints"]["hip"].as_str().unwrap()
}

/// The processes that it has started.
fn children(berth: &Berth) -> Vec<u32> {
    let mut all = Vec::new();
    for task in fs::read_dir(format!("/proc/{}/task", berth.pid())).unwrap().flatten() {
        let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
        all.extend(children.split_whitespace().map(|pid| pid.parse::<u32>().unwrap()));
    }
    all
}

pub(super) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_stranger_in_python_finds_the_rules_kept() {
    // Before CUDA 12.4 the driver does not tell what kernels take.
    for version in ["12020", "12040"] {
        let berth = start(version);
        stranger(&berth, "--nvidia");
        let (_, metrics) = get(admin(&berth), "/metrics", "");
        assert!(metrics.contains("berth_hip_worker_ends_total{reason=\"fault\"} 3\n"), "{metrics}");
        assert!(metrics.contains("berth_hip_worker_ends_total{reason=\"timeout\"} 1\n"), "{metrics}");
        nothing_is_used(&berth, 0);
    }
}

#[test]
fn devices_of_both_kinds_are_used_together_and_lost_one_by_one() {
    let first = CONFIG.replace("\"auto\"", "\"soft\"");
    let more =
        [("gpu1", "0000:3b:00.0"), ("gpu2", "soft"), ("gpu3", "0000:5e:00.0")].map(|(name, at)| device(name, at));
    let berth = start_with(&format!("{first}{}", more.concat()), "12040");
    stranger(&berth, "--several");
    (0..4).for_each(|device| nothing_is_used(&berth, device));
    let stopped = berth.stop();
    assert!(stopped.status.success());
    let ends =
        ["fault", "timeout", "gone"].map(|end| stopped.counters["hip"][&format!("workers_{end}")].as_u64().unwrap());
    assert_eq!(ends, [4, 1, 0], "the ends of all devices' workers");
}

#[test]
fn a_worker_that_is_killed_is_told_to_its_session_alone() {
    let berth = start("12040");
    // Two are ready before anybody asks.
    until("workers that are kept ready", || !children(&berth).is_empty());
    let began = Instant::now();
    let first = Client::connect(worker(&berth)).unwrap().device(0).unwrap();
    let kept = first.upload(&[7; 5000]).unwrap();
    first.synchronize().unwrap();
    let oldest = children(&berth).into_iter().min_by_key(|pid| started(*pid)).unwrap();
    let took = began.elapsed();
    let memory = fs::read_to_string(format!("/proc/{oldest}/status")).unwrap();
    let memory = memory.lines().find(|line| line.starts_with("VmRSS")).unwrap().to_owned();
    println!("the first allocation of a session took {took:?}; its worker has {memory}");
    until("the next ones", || children(&berth).len() == 3);
    let second = Client::connect(worker(&berth)).unwrap().device(0).unwrap();
    second.upload(&[9; 100]).unwrap();
    second.synchronize().unwrap();
    // The oldest is the first session's.
    assert!(Command::new("kill").args(["-KILL", &oldest.to_string()]).status().unwrap().success());
    until("it is told", || first.synchronize().is_err());
    let told = kept.read(0, &mut [0; 10]).unwrap_err().to_string();
    assert!(told.contains("709") || told.contains("hipErrorContextIsDestroyed"), "{told}");
    let again = second.upload(&[3; 100]).unwrap();
    let mut read = [0; 100];
    again.read(0, &mut read).unwrap();
    assert_eq!(read, [3; 100]);
    first.session().reset().unwrap();
    let mut fresh = [1; 5000];
    first.alloc(5000).unwrap().read(0, &mut fresh).unwrap();
    assert_eq!(fresh, [0; 5000]);
    let mut third = [1; 5000];
    let other = Client::connect(worker(&berth)).unwrap().device(0).unwrap();
    other.alloc(5000).unwrap().read(0, &mut third).unwrap();
    assert_eq!(third, [0; 5000]);
    let stopped = berth.stop();
    assert!(stopped.status.success());
    assert_eq!(stopped.counters["hip"]["workers_gone"], 1);
}

/// When a process began, in ticks of the kernel's.
fn started(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit(')').next().unwrap().split_whitespace().nth(19).unwrap().parse().unwrap()
}

#[test]
fn what_is_missing_or_named_twice_is_told() {
    let (code, text) = fails(CONFIG);
    assert!(code != Some(0) && text.contains("gpu gpu0") && text.contains("libcuda.so.1"), "{text}");
    // One GPU by two names, which the driver alone can tell.
    let twice = format!("{CONFIG}{}", device("gpu1", "0000:3b:00.0"));
    let (code, text) = fails_as(&twice, |command| {
        command.env("LD_LIBRARY_PATH", berth_cuda_soft::folder().unwrap());
    });
    assert!(code != Some(0) && text.contains("gpu gpu1 is the same as gpu0, at 0000:3b:00.0"), "{text}");
}
