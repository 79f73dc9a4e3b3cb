//! Requests over DPDK that a GPU reads where they were received.

use std::{path::Path, process::Command};

use super::{GPU, RPC, counters, signal, state, until, worker};
use crate::common::{Berth, INCREMENT, Stopped};

/// A port of a memif, with its socket in this folder.
fn config(folder: &Path, [ours, gpu, rpc, functions]: [&str; 4]) -> String {
    format!(
        "[runtime.dpdk]\nhugepages = false\nmemory_mb = 128\n{gpu}[[port]]\nname = \"d\"\ndriver = \"dpdk\"\ndevice = \
         \"net_memif0,role=server,socket={}\"\naddress = \"{ours}\"\nudp_port = 4700\ncpu = 0\nidle = \"wait\"\n{rpc}\n{functions}",
        folder.join("m.sock").display()
    )
}

/// Calls a function so often, up to 16 calls at a time, of so many bytes, and compares every answer.
fn calls(folder: &Path, [address, peer]: [&str; 2], count: u32, bytes: usize) {
    let device = format!("net_memif1,role=client,socket={}", folder.join("m.sock").display());
    let mut perf = Command::new(env!("CARGO_BIN_EXE_berth"));
    perf.args(["perf", "rpc", "--function", "rpc_increment", "--count", &count.to_string(), "--warmup", "0"]);
    perf.args(["--payload", &bytes.to_string(), "--window", "16", "--cpu", "1", "--port", "dpdk"]);
    let output = perf.args(["--device", &device, "--address", address, "--peer", peer]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// How many requests were put into rings, how many of them where they lay, and how many frames were left there.
fn in_place(stopped: &Stopped) -> [u64; 3] {
    let of = |part, name| stopped.sum("d", part, name);
    [of("service", "ring_pushed"), of("service", "ring_in_place"), of("port", "rx_kept")]
}

#[test]
fn requests_over_memif_are_answered_from_the_buffers_they_came_in() {
    let folder = tempfile::tempdir().unwrap();
    for (ours, theirs, peer) in
        [("10.0.0.2/24", "10.0.0.1/24", "10.0.0.2:4700"), ("fd00::2/64", "fd00::1/64", "[fd00::2]:4700")]
    {
        let berth = Berth::start(&config(folder.path(), [ours, GPU, RPC, INCREMENT]));
        for bytes in [0, 1, 32, 40, 41, 300, 1000] {
            calls(folder.path(), [theirs, peer], 300, bytes);
        }
        let stopped = berth.stop();
        assert!(stopped.status.success(), "{}", stopped.stderr);
        assert_eq!(in_place(&stopped), [2100; 3], "{ours}");
        assert_eq!(stopped.sum("d", "service", "answered"), 2100);
        assert_eq!(counters(&stopped), [0; 3]);
    }
}

/// On one of NVIDIA's, by its driver in software; calls to a port of a memif, with the worker killed in the middle.
fn on_nvidias(variables: &[(&str, &str)]) -> Stopped {
    let folder = tempfile::tempdir().unwrap();
    let gpu = GPU.replace("device = \"soft\"", "device = \"auto\"");
    let rpc = format!("{RPC}memory = \"pinned\"");
    let text = config(folder.path(), ["10.0.0.2/24", &gpu, &rpc, INCREMENT]);
    let berth = Berth::start_as(&text, |command| {
        command.env("LD_LIBRARY_PATH", berth_cuda_soft::folder().unwrap()).envs(variables.iter().copied());
    });
    let call = || calls(folder.path(), ["10.0.0.1/24", "10.0.0.2:4700"], 500, 100);
    call();
    signal(worker(&berth), "-KILL");
    until(|| state(worker(&berth)).is_none());
    call();
    let stopped = berth.stop();
    assert!(stopped.status.success(), "{}", stopped.stderr);
    assert_eq!(counters(&stopped), [1, 0, 0]);
    assert_eq!(stopped.sum("d", "service", "answered"), 1000);
    stopped
}

#[test]
fn a_gpu_of_nvidias_reads_memory_that_its_process_cannot_write() {
    assert_eq!(in_place(&on_nvidias(&[])), [1000; 3]);
}

#[test]
fn where_that_is_not_supported_requests_are_copied() {
    let stopped = on_nvidias(&[("CUDA_SOFT_WRITES_ALL", "1")]);
    assert_eq!(in_place(&stopped), [1000, 0, 0]);
    let told = "gpu0: requests are copied into their slots: the GPU does not read memory that its process cannot write";
    assert!(stopped.stderr.contains(told), "{}", stopped.stderr);
}
