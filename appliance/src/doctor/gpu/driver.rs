//! What files tell of NVIDIA's driver.

use std::collections::BTreeSet;

use berth_gpu::refused_node;

use super::{Findings, Root};

/// What the loader finds the driver's library in, on Debian.
const LIBRARIES: [&str; 3] = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64"];

/// The kernel's modules, the library of programs, and the device nodes.
pub(super) fn examine(root: &Root, gpus: &[String], f: &mut Findings) {
    const WHAT: &str = "nvidia driver";
    let module = |name: &str| root.exists(&format!("/sys/module/{name}"));
    let kind = is_open(root).map_or("", |is_open| if is_open { ", the open one" } else { ", the proprietary one" });
    match (root.read("/sys/module/nvidia/version"), module("nvidia")) {
        (Some(version), _) => f.ok(WHAT, format!("module nvidia {version}{kind}")),
        (None, true) => f.ok(WHAT, format!("module nvidia{kind}")),
        (None, false) => {
            f.warn(WHAT, "the module nvidia is not loaded", "apt-get install nvidia-driver && modprobe nvidia");
        }
    }
    let has = |folder: &&&str| root.exists(&format!("{folder}/libcuda.so.1"));
    match LIBRARIES.iter().find(has) {
        Some(folder) => f.ok("libcuda", format!("{folder}/libcuda.so.1")),
        None => f.warn("libcuda", "no libcuda.so.1", "apt-get install libcuda1"),
    }
    nodes(root, gpus, f);
    match (module("nvidia_peermem"), is_open(root)) {
        (true, _) => f.ok("nvidia-peermem", "loaded: verbs devices reach the memory of GPUs"),
        (false, Some(true)) => f.ok("nvidia-peermem", "not loaded: the open module gives verbs devices dma-bufs"),
        (false, _) => {
            f.warn("nvidia-peermem", "not loaded", "modprobe nvidia-peermem, or a driver and a card with dma-buf");
        }
    }
    let gdrdrv = if module("gdrdrv") { "loaded" } else { "not loaded" };
    f.ok("gdrdrv", format!("{gdrdrv}, and not used: memory = \"vram\" has the CPU map dma-bufs"));
    mps(root, f);
}

/// The driver's nodes, and that of each GPU, by the number that the module tells; 0 where it tells none.
fn nodes(root: &Root, gpus: &[String], f: &mut Findings) {
    const WHAT: &str = "gpu device nodes";
    let minor = |gpu: &String| root.field(&format!("/proc/driver/nvidia/gpus/{gpu}/information"), "Device Minor");
    let minors: BTreeSet<u32> =
        gpus.iter().map(|gpu| minor(gpu)?.parse().ok()).map(Option::unwrap_or_default).collect();
    let own = minors.iter().map(|minor| format!("/dev/nvidia{minor}"));
    let nodes: Vec<_> = ["/dev/nvidiactl", "/dev/nvidia-uvm"].map(str::to_owned).into_iter().chain(own).collect();
    let missing: Vec<_> = nodes.iter().filter(|node| !root.exists(node)).map(String::as_str).collect();
    match refused_node(&root.path("/dev")) {
        Some(refused) => f.warn(WHAT, refused, "add the user that runs Berth to the nodes' group"),
        None if missing.is_empty() => f.ok(WHAT, nodes.join(", ")),
        None => {
            let minors: Vec<_> = minors.iter().map(|minor| format!("-c {minor}")).collect();
            f.warn(
                WHAT,
                format!("missing: {}", missing.join(", ")),
                format!("nvidia-modprobe {} -u", minors.join(" ")),
            );
        }
    }
}

/// Whether the kernel's module is the open one, which alone exports memory of GPUs as dma-bufs; `None` where it does not tell.
fn is_open(root: &Root) -> Option<bool> {
    root.read("/proc/driver/nvidia/version").map(|version| version.contains("Open Kernel Module"))
}

/// NVIDIA's multi-process service, by which processes share a GPU at the same time.
fn mps(root: &Root, f: &mut Findings) {
    /// `nvidia-cuda-mps-control` and `-server`, of which the kernel keeps 15 letters.
    const NAME: &str = "nvidia-cuda-mps";
    const MEND: &str = "echo quit | nvidia-cuda-mps-control";
    let is_its = |pid: &String| root.read(&format!("/proc/{pid}/comm")).as_deref() == Some(NAME);
    let is_pid = |name: &String| name.bytes().all(|byte| byte.is_ascii_digit());
    let pids: Vec<_> = root.names("/proc").into_iter().filter(|name| is_pid(name) && is_its(name)).collect();
    if !pids.is_empty() {
        let found = format!("runs, as {}: workers do not reach it, and wait while its clients run", pids.join(", "));
        f.warn("mps", found, MEND);
    } else if root.exists("/tmp/nvidia-mps/control") {
        // Processes of other users may be hidden.
        f.warn("mps", "there is its pipe /tmp/nvidia-mps/control, and no process that can be seen", MEND);
    } else {
        f.ok("mps", "does not run");
    }
}
