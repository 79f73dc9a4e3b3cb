//! A worker that is killed or stopped at each of its steps: what that costs, and whom.

use std::{
    fs,
    os::unix::fs::symlink,
    sync::mpsc::{self, TryRecvError},
    thread,
    time::{Duration, Instant},
};

use berth_process::{Process, Stop};

use super::{
    GPU, HANDLER_FAILED, RPC, config, counters, device, fnv1a, increments, recover, signal, state, until, worker,
};
use crate::common::{ADMIN, Berth, INCREMENT, RPC_INCREMENT, admin, command, get, port, request, write_config};

fn text(device: &str, memory: &str, more: &str, functions: &str) -> String {
    let rpc = format!("{RPC}memory = \"{memory}\"\n{more}\n");
    config(&rpc, functions).replace("device = \"soft\"", &format!("device = \"{device}\""))
}

/// A worker that gets no core for a second is not taken for one that hangs.
fn patient(text: &str) -> String {
    text.replace("time_limit_ms = 1000", "time_limit_ms = 20000")
}

/// With NVIDIA's driver in software.
fn start(text: &str) -> Berth {
    Berth::start_as(text, |command| {
        command.env("LD_LIBRARY_PATH", berth_cuda_soft::folder().unwrap());
    })
}

/// Children of a process, of whichever thread.
fn children(of: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{of}/task")).into_iter().flatten().flatten();
    let children = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    children.collect::<String>().split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

/// The worker that runs now: the only child.
fn worker_now(berth: &Berth) -> u32 {
    let [worker] = children(berth.pid())[..] else { panic!("one worker") };
    worker
}

/// Whether the GPU runs its functions, as far as `berth` has heard: it may answer a moment before.
fn is_up(berth: &Berth) -> bool {
    get(admin(berth), "/metrics", "").1.contains("berth_gpu_up{gpu=\"gpu0\"} 1.0\n")
}

#[test]
fn a_killed_worker_costs_what_it_had_and_no_slot() {
    let functions = INCREMENT.to_owned() + &device("hangs", "budget_us = 4000000");
    for (kind, memory) in [("soft", "pinned"), ("auto", "pinned"), ("auto", "vram")] {
        let berth = start(&patient(&text(kind, memory, "slots = 8", &functions)));
        assert_eq!(berth.ready["gpus"][0]["memory"], memory);
        let client = berth.client("a");
        let mut id = 0;
        for delay in [0, 1, 3] {
            let pid = worker_now(&berth);
            let killer = thread::spawn(move || {
                thread::sleep(Duration::from_millis(delay));
                signal(pid, "-KILL");
            });
            // Every request has one answer, whoever gives it.
            for _ in 0..50 {
                (0..8).for_each(|ahead| client.send(&request(RPC_INCREMENT, &[7], id + ahead, 0)));
                for _ in 0..8 {
                    let answer = client.response();
                    let is_right = (answer.status, &answer.result[..]) == (0, &[8]) || answer.status == HANDLER_FAILED;
                    assert!(answer.request_id == id && is_right, "{answer:?}");
                    id += 1;
                }
            }
            killer.join().unwrap();
            recover(&client);
        }
        // Nothing that it had is run by the next one.
        (0..8).for_each(|ahead| client.send(&request(fnv1a("hangs"), &[7], id + ahead, 0)));
        thread::sleep(Duration::from_millis(100));
        let began = Instant::now();
        signal(worker_now(&berth), "-KILL");
        for ahead in 0..8 {
            let answer = client.response();
            assert_eq!((answer.request_id, answer.status), (id + ahead, HANDLER_FAILED), "{kind} {memory}");
        }
        assert!(began.elapsed() < Duration::from_secs(2), "{kind} {memory}: {:?}", began.elapsed());
        recover(&client);
        let stopped = berth.stop();
        assert!(stopped.status.success(), "{}", stopped.stderr);
        assert_eq!(counters(&stopped), [4, 0, 0], "{kind} {memory}");
    }
}

/// The start fails then, and says so: nobody waits for a port that nothing serves.
#[test]
fn a_worker_that_is_killed_before_it_serves_ends_the_start() {
    let (_folder, config) = write_config(&text("auto", "pinned", "", INCREMENT), &[]);
    let mut command = command(&config);
    command.env("LD_LIBRARY_PATH", berth_cuda_soft::folder().unwrap()).env("CUDA_SOFT_OPENS_MS", "10000");
    let berth = Process::start(&mut command, &Stop::default()).unwrap();
    until(|| !children(berth.id()).is_empty());
    signal(children(berth.id())[0], "-KILL");
    let ended = berth.finish(Duration::from_secs(5)).unwrap();
    assert!(ended.status.code() == Some(1) && ended.lines.is_empty(), "{}", ended.stderr);
    let told = "berth-gpu-worker ended before it loaded anything";
    assert!(ended.stderr.contains("gpu gpu0: ") && ended.stderr.contains(told), "{}", ended.stderr);
}

/// What ran before runs on, and the next reload is taken.
#[test]
fn a_worker_that_is_killed_within_a_reload_fails_it() {
    for device_name in ["soft", "auto"] {
        let gpu = |text: String| patient(&text) + ADMIN;
        let hangs = device("hangs", "budget_us = 4000000");
        let berth = start(&gpu(text(device_name, "pinned", "", &format!("{INCREMENT}{hangs}"))));
        let client = berth.client("a");
        assert_eq!(client.call(RPC_INCREMENT, &[1]).result, [2]);
        // What a reload waits for.
        client.send(&request(fnv1a("hangs"), &[1], 1, 0));
        thread::sleep(Duration::from_millis(100));
        berth.write("berth.toml", &gpu(text(device_name, "pinned", "", &device("reverse", ""))));
        berth.signal("-HUP");
        thread::sleep(Duration::from_millis(400));
        let began = Instant::now();
        signal(worker_now(&berth), "-KILL");
        assert_eq!(client.response().status, HANDLER_FAILED);
        assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
        recover(&client);
        assert_eq!(client.call(fnv1a("reverse"), &[1, 2]).status, -1, "{device_name}");

        berth.signal("-HUP");
        until(|| client.call(fnv1a("reverse"), &[1, 2]).result == [2, 1]);
        assert_eq!(client.call(RPC_INCREMENT, &[1]).status, -1);
        let stopped = berth.stop();
        assert_eq!(counters(&stopped), [1, 0, 0], "{device_name}");
        let told = "berth-gpu-worker ended before it loaded anything";
        assert!(stopped.stderr.contains(told), "{}", stopped.stderr);
    }
}

/// Another GPU's port and one on a CPU lose nothing when a worker hangs, dies or is stopped.
#[test]
fn one_gpus_worker_costs_no_other_port_an_answer() {
    let second = patient(&GPU.replace("gpu0", "gpu1"));
    // Three processes share the cores.
    let increment = INCREMENT.to_owned() + "budget_us = 3000000\n";
    let functions = increment + &device("hangs", "dispatch = \"gpu\"\nbudget_us = 200000");
    let ports =
        port("b", &RPC.replace("gpu0", "gpu1")) + &port("c", "[port.rpc]\ndispatch = \"inline\"\ngpu = \"gpu1\"");
    let berth = Berth::start(&format!("{second}{ports}{ADMIN}{}", config(RPC, &functions)));
    let worker = |name: &str| {
        let gpus = berth.ready["gpus"].as_array().unwrap();
        gpus.iter().find(|gpu| gpu["name"] == name).unwrap()["worker_pid"].as_u64().unwrap() as u32
    };
    let (first, other) = (worker("gpu0"), worker("gpu1"));
    let client = berth.client("a");
    let others = ["b", "c"].map(|name| berth.client(name));
    thread::scope(|scope| {
        // If this thread fails, they end, too.
        let served = others.each_ref().map(|client| {
            let (goes_on, is_over) = mpsc::channel::<()>();
            let rounds = scope.spawn(move || {
                let mut rounds = 0;
                while is_over.try_recv() == Err(TryRecvError::Empty) {
                    increments(client, 50);
                    rounds += 1;
                }
                rounds
            });
            (goes_on, rounds)
        });
        assert_eq!(client.call(fnv1a("hangs"), &[1]).status, HANDLER_FAILED);
        recover(&client);
        let now = || children(berth.pid()).into_iter().find(|pid| *pid != other).unwrap();
        assert_ne!(now(), first);
        for how in ["-KILL", "-STOP"] {
            until(|| is_up(&berth));
            let worker = now();
            signal(worker, how);
            until(|| state(worker).is_none_or(|state| "ZT".contains(state)));
            recover(&client);
            assert_ne!(now(), worker, "{how}");
        }
        for (goes_on, rounds) in served {
            drop(goes_on);
            assert!(rounds.join().unwrap() > 3);
        }
    });
    assert!(children(berth.pid()).contains(&other), "it is the same");
    let stopped = berth.stop();
    let gpus = stopped.counters["gpus"].as_array().unwrap();
    for (name, wanted) in [("gpu0", [3, 2]), ("gpu1", [0, 0])] {
        let counters = &gpus.iter().find(|gpu| gpu["name"] == name).unwrap()["counters"];
        assert_eq!(["gpu_restarts", "gpu_timeouts"].map(|name| counters[name].as_u64().unwrap()), wanted, "{name}");
    }
}

/// A card that is gone: no worker can open it, until it is back.
#[test]
fn a_lost_card_costs_calls_their_budgets_and_is_had_again() {
    for memory in ["pinned", "vram"] {
        let folder = tempfile::tempdir().unwrap();
        let library = folder.path().join("libcuda.so.1");
        let driver = fs::canonicalize(berth_cuda_soft::folder().unwrap().join("libcuda.so.1")).unwrap();
        let insert = || symlink(&driver, &library).unwrap();
        insert();
        let increment = INCREMENT.to_owned() + "budget_us = 300000\n";
        let beside = port("b", "[port.rpc]\ndispatch = \"inline\"\ngpu = \"gpu0\"");
        let text = format!("{beside}{}{ADMIN}", text("auto", memory, "", &increment));
        let berth = Berth::start_as(&text, |command| {
            command.env("LD_LIBRARY_PATH", folder.path());
        });
        let (client, other) = (berth.client("a"), berth.client("b"));
        assert_eq!(client.call(RPC_INCREMENT, &[1]).result, [2], "{memory}");
        assert!(is_up(&berth), "{memory}");

        fs::remove_file(&library).unwrap();
        signal(worker(&berth), "-KILL");
        until(|| !is_up(&berth));
        for n in 0..4 {
            let began = Instant::now();
            assert_eq!(client.call(RPC_INCREMENT, &[n]).status, HANDLER_FAILED, "{memory}");
            assert!(began.elapsed() < Duration::from_secs(2), "{memory}: {:?}", began.elapsed());
            assert_eq!(other.call(RPC_INCREMENT, &[n]).result, [n + 1], "{memory}");
        }
        assert!(!is_up(&berth), "{memory}");

        insert();
        assert!(recover(&client) < Duration::from_secs(5), "rests are 2 s at most");
        until(|| is_up(&berth));
        let stopped = berth.stop();
        assert!(stopped.stderr.contains("NVIDIA's driver is not there: libcuda.so.1"), "{}", stopped.stderr);
    }
}
