//! `device = "auto"`, with NVIDIA's driver in software.

use std::{fs, path::Path, process::Command, time::Duration};

use super::{HANDLER_FAILED, RPC, config, counters, device, fnv1a, recover, signal, worker};
use crate::common::{Berth, INCREMENT, RPC_INCREMENT, command, write_config};

fn with_library(folder: &Path) -> impl FnOnce(&mut Command) {
    let folder = folder.to_owned();
    move |command| {
        command.env("LD_LIBRARY_PATH", folder);
    }
}

/// On one of NVIDIA's GPUs.
fn start(functions: &str) -> Berth {
    let text = config(RPC, functions).replace("device = \"soft\"", "device = \"auto\"");
    Berth::start_as(&text, with_library(&berth_cuda_soft::folder().unwrap()))
}

#[test]
fn a_gpu_of_nvidias_answers_and_is_had_again_after_faults() {
    let functions = [INCREMENT.into(), device("traps", ""), device("hangs", "budget_us = 200000")].concat();
    let berth = start(&functions);
    let gpu = &berth.ready["gpus"][0];
    let told = ["name", "device", "kind", "memory"].map(|key| gpu[key].as_str().unwrap());
    assert_eq!(told, ["gpu0", "0000:3b:00.0", "cuda", "vram"]);
    let client = berth.client("a");
    for n in 0..200 {
        assert_eq!(client.call(RPC_INCREMENT, &[n, 255]).result, [n + 1, 0]);
    }
    assert_eq!(client.call(fnv1a("traps"), &[1]).status, HANDLER_FAILED);
    recover(&client);
    assert_eq!(client.call(fnv1a("hangs"), &[1]).status, HANDLER_FAILED);
    recover(&client);
    let stopped = berth.stop();
    assert!(stopped.status.success(), "{}", stopped.stderr);
    assert_eq!(counters(&stopped), [2, 1, 1]);
    let told = "gpu0: its kernel stopped: CUDA_ERROR_LAUNCH_FAILED (719): unspecified launch failure";
    assert!(stopped.stderr.contains(told), "{}", stopped.stderr);
}

#[test]
fn graphs_run_there_too_and_a_killed_worker_is_replaced() {
    let berth = start(&device("reverse_graph", "mode = \"graph\""));
    let client = berth.client("a");
    let answers = || assert_eq!(client.call(fnv1a("reverse_graph"), &[0, 1, 2]).result, [2, 1, 0]);
    (0..50).for_each(|_| answers());
    signal(worker(&berth), "-KILL");
    let began = std::time::Instant::now();
    while client.call(fnv1a("reverse_graph"), &[0, 2]).result != [2, 0] {
        assert!(began.elapsed() < Duration::from_secs(20));
    }
    answers();
    assert_eq!(counters(&berth.stop()), [1, 0, 0]);
}

#[test]
fn without_a_driver_nothing_starts() {
    let text = config(RPC, INCREMENT).replace("device = \"soft\"", "device = \"auto\"");
    let (folder, config) = write_config(&text, &[]);
    fs::write(folder.path().join("libcuda.so.1"), "").unwrap();
    let output = command(&config).env("LD_LIBRARY_PATH", folder.path()).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && output.stdout.is_empty());
    assert!(said.contains("gpu gpu0: NVIDIA's driver is not there: ") && said.contains("libcuda.so.1"), "{said}");
}
