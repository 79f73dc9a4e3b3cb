//! `memory = "vram"`, with NVIDIA's driver in software: requests lie in the GPU's memory, which the CPU writes.

use std::{process::Command, thread, time::Duration};

use super::{GPU, RPC, config, counters, device, increments};
use crate::common::{Berth, INCREMENT, RPC_INCREMENT, command, fails, fails_as, write_config};

/// The driver exports such dma-bufs; empty: those that a CPU maps.
fn driver(dma_buf: &'static str) -> impl FnOnce(&mut Command) {
    move |command| {
        command.env("LD_LIBRARY_PATH", berth_cuda_soft::folder().unwrap()).env("CUDA_SOFT_DMA_BUF", dma_buf);
    }
}

fn text(memory: &str, more: &str, functions: &str) -> String {
    let rpc = format!("{RPC}memory = \"{memory}\"\n{more}");
    config(&rpc, functions).replace("device = \"soft\"", "device = \"auto\"")
}

#[test]
fn requests_there_are_answered_like_others() {
    for (memory, blocks) in [("vram", 1), ("auto", 4)] {
        let text = text(memory, "", INCREMENT).replace("limit_ms", &format!("limit_ms = 1000\nblocks = {blocks}\n#"));
        let berth = Berth::start_as(&text, driver(""));
        assert_eq!(berth.ready["gpus"][0]["memory"], "vram");
        increments(&berth.client("a"), 2000);
        let stopped = berth.stop();
        assert_eq!(stopped.sum("a", "service", "answered"), 2000);
        assert_eq!(counters(&stopped), [0; 3]);
    }
}

#[test]
fn what_no_cpu_can_map_is_told_and_replaced_only_where_that_is_asked_for() {
    for (dma_buf, why) in [
        (
            "none",
            "cuMemGetHandleForAddressRange: CUDA_ERROR_NOT_SUPPORTED (801): operation not supported; dma-bufs need the open \
             kernel modules of NVIDIA's driver",
        ),
        ("elsewhere", "the driver maps it at 0x"),
        ("device", "a CPU cannot map its dma-buf: "),
        ("forgets", "what a CPU writes to the mapped dma-buf does not reach the GPU's next process"),
        ("stale", "what the GPU writes does not reach a CPU that maps its dma-buf"),
    ] {
        let (_folder, config) = write_config(&text("vram", "", INCREMENT), &[]);
        let mut command = command(&config);
        driver(dma_buf)(&mut command);
        let output = command.output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        let wanted = format!("gpu gpu0, memory = \"vram\": {why}");
        assert!(!output.status.success() && output.stdout.is_empty() && said.contains(&wanted), "{said}");

        let berth = Berth::start_as(&text("auto", "", INCREMENT), driver(dma_buf));
        assert_eq!(berth.ready["gpus"][0]["memory"], "pinned");
        assert_eq!(berth.client("a").call(RPC_INCREMENT, &[1]).result, [2]);
        let stopped = berth.stop();
        let told = format!("gpu gpu0: requests lie in memory of the host, which it reads: {why}");
        assert!(stopped.stderr.contains(&told), "{}", stopped.stderr);
    }
}

/// A ring's requests take 2 MiB of it.
#[test]
fn a_gpu_without_room_for_requests_is_told() {
    let full = |command: &mut Command| {
        command.env("LD_LIBRARY_PATH", berth_cuda_soft::folder().unwrap()).env("CUDA_SOFT_ROOM_MIB", "1");
    };
    let why = "cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY (2): out of memory";
    let (code, said) = fails_as(&text("vram", "", INCREMENT), full);
    assert!(code == Some(1) && said.contains(&format!("gpu gpu0, memory = \"vram\": {why}")), "{said}");

    let berth = Berth::start_as(&text("auto", "", INCREMENT), full);
    assert_eq!(berth.ready["gpus"][0]["memory"], "pinned");
    increments(&berth.client("a"), 100);
    let stopped = berth.stop();
    let told = format!("gpu gpu0: requests lie in memory of the host, which it reads: {why}");
    assert!(stopped.stderr.contains(&told), "{}", stopped.stderr);
}

#[test]
fn graphs_and_the_gpu_in_software_have_requests_in_memory_of_the_host() {
    let graph = device("reverse_graph", "mode = \"graph\"");
    let soft = config(&format!("{RPC}memory = \"vram\""), INCREMENT);
    assert!(soft.contains(GPU));
    for (text, wanted) in [
        (soft, "port[0].rpc.memory: the GPU in software has no memory but the host's; write \"pinned\" or \"auto\""),
        (text("vram", "", &graph), "a graph's are in memory of the host; write memory = \"pinned\" there"),
    ] {
        let (status, stderr) = fails(&text);
        assert!(status == Some(2) && stderr.contains(wanted), "{wanted}: {stderr}");
    }
    let berth = Berth::start_as(&text("auto", "", &graph), driver(""));
    assert_eq!(berth.ready["gpus"][0]["memory"], "pinned");
}

#[test]
fn a_reload_to_graphs_is_refused_and_costs_nothing() {
    let berth = Berth::start_as(&text("auto", "", INCREMENT), driver(""));
    let client = berth.client("a");
    berth.write("berth.toml", &text("auto", "", &device("reverse_graph", "mode = \"graph\"")));
    berth.signal("-HUP");
    for _ in 0..100 {
        assert_eq!(client.call(RPC_INCREMENT, &[1]).result, [2]);
        thread::sleep(Duration::from_millis(10));
    }
    let stopped = berth.stop();
    assert_eq!(counters(&stopped), [0; 3]);
    let told = "mode = \"graph\" needs requests in memory of the host: write memory = \"pinned\", and restart";
    assert!(stopped.stderr.contains(told), "{}", stopped.stderr);
}
