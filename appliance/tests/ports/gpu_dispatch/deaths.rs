//! A worker that is killed or stopped at each of its steps: what that costs, and whom.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use super::{HANDLER_FAILED, RPC, config, counters, device, fnv1a, recover, signal, until};
use crate::common::{ADMIN, Berth, INCREMENT, RPC_INCREMENT, command, request, write_config};

fn text(device: &str, memory: &str, more: &str, functions: &str) -> String {
    let rpc = format!("{RPC}memory = \"{memory}\"\n{more}\n");
    config(&rpc, functions).replace("device = \"soft\"", &format!("device = \"{device}\""))
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

#[test]
fn a_killed_worker_costs_what_it_had_and_no_slot() {
    for (device, memory) in [("soft", "pinned"), ("auto", "pinned"), ("auto", "vram")] {
        let berth = start(&text(device, memory, "slots = 8", INCREMENT));
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
        let stopped = berth.stop();
        assert!(stopped.status.success(), "{}", stopped.stderr);
        assert_eq!(counters(&stopped), [3, 0, 0], "{device} {memory}");
    }
}

/// The start fails then, and says so: nobody waits for a port that nothing serves.
#[test]
fn a_worker_that_is_killed_before_it_serves_ends_the_start() {
    let (_folder, config) = write_config(&text("auto", "pinned", "", INCREMENT), &[]);
    let mut command = command(&config);
    command.env("LD_LIBRARY_PATH", berth_cuda_soft::folder().unwrap()).env("CUDA_SOFT_OPENS_MS", "10000");
    let berth = command.spawn().unwrap();
    until(|| !children(berth.id()).is_empty());
    signal(children(berth.id())[0], "-KILL");
    let began = Instant::now();
    let output = berth.wait_with_output().unwrap();
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && output.stdout.is_empty(), "{said}");
    let told = "gpu gpu0: ";
    assert!(said.contains(told) && said.contains("berth-gpu-worker ended before it loaded anything"), "{said}");
}

/// What ran before runs on, and the next reload is taken.
#[test]
fn a_worker_that_is_killed_within_a_reload_fails_it() {
    for device_name in ["soft", "auto"] {
        let gpu = |text: String| text.replace("time_limit_ms = 1000", "time_limit_ms = 20000") + ADMIN;
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
        assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
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
