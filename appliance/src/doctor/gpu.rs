//! NVIDIA GPUs: what files tell of them, and on the live root what a worker finds that opens the driver.

use berth_gpu::{Card, Cards, Health, refused_node};

use super::Findings;
use crate::{run::gpus, sys::Root};

const DEVICES: &str = "/sys/bus/pci/devices";

/// What the loader finds the driver's library in, on Debian.
const LIBRARIES: [&str; 3] = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64"];

pub(super) fn examine(root: &Root, live: bool, f: &mut Findings) {
    f.ok("gpu soft", "the GPU in software: device = \"soft\" of [[gpu]]");
    let id = |address: &str, name: &str| root.read(&format!("{DEVICES}/{address}/{name}")).unwrap_or_default();
    // Display controllers of NVIDIA, those without a display among them.
    let is_gpu = |address: &String| id(address, "vendor") == "0x10de" && id(address, "class").starts_with("0x03");
    let gpus: Vec<_> = root.names(DEVICES).into_iter().filter(is_gpu).collect();
    for address in &gpus {
        card(root, address, f);
    }
    if !gpus.is_empty() {
        driver(root, f);
    }
    if live {
        let found = gpus::worker().and_then(|worker| Ok(berth_gpu::cards(&worker)?));
        match found {
            Ok(cards) => usable(&cards, f),
            // A host without such a card has no use for a driver.
            Err(_) if gpus.is_empty() => {}
            Err(e) => f.warn("cuda", e.to_string(), "device = \"soft\" of [[gpu]] works until then"),
        }
    }
}

/// What a worker of a [[gpu]] can have.
fn usable(cards: &Cards, f: &mut Findings) {
    let (major, minor) = cards.version;
    for card in &cards.all {
        let Card { address, uuid, name, memory, capability: [of, part], .. } = card;
        let what = format!("cuda {address}");
        let found =
            format!("{name}, {uuid}, {} MiB, capability {of}.{part}, driver of CUDA {major}.{minor}", memory >> 20);
        match card.unusable() {
            None => f.ok(what, found),
            Some(why) => f.warn(what, why, "name another one in [[gpu]]"),
        }
        if let Some(health) = &card.health {
            healthy(address, health, f);
        }
    }
    match &cards.management {
        Ok(driver) => f.ok("cuda driver", format!("{driver}, of CUDA {major}.{minor}")),
        Err(why) => f.warn("cuda driver", why.clone(), "apt-get install libnvidia-ml1"),
    }
}

/// What holds clocks down, in the management library's bits, and what mends it.
const THROTTLES: [(u64, &str, &str); 6] = [
    (0x02, "clocks that were set", "nvidia-smi -rac"),
    (0x04, "its power limit", "nvidia-smi -pl WATTS, as far as the card goes"),
    (0x08, "its hardware", "nvidia-smi -q -d PERFORMANCE says more: see to its power supply and cooling"),
    (0x20, "its temperature, by the driver", "see to its cooling"),
    (0x40, "its temperature", "see to its cooling"),
    (0x80, "the power supply", "see to the cables and the power supply of the host"),
];

/// How a card does, as its driver tells, a row for each subject.
fn healthy(address: &str, health: &Health, f: &mut Findings) {
    let what = |subject: &str| format!("cuda {address} {subject}");
    let mut row = |subject: &str, found: String, mend: Option<&str>| match mend {
        None => f.ok(what(subject), found),
        Some(mend) => f.warn(what(subject), found, mend),
    };
    if let (Some([width, widest]), Some([generation, latest])) = (health.width, health.generation) {
        let found = format!("PCIe x{width} of x{widest}, generation {generation} of {latest} (fewer while it is idle)");
        row("link", found, (width < widest).then_some("move the card to a slot that has all its lanes"));
    }
    if let Some([now, most]) = health.clock {
        let reasons = health.throttled.unwrap_or(0);
        let held = THROTTLES.iter().filter(|(bit, ..)| reasons & bit != 0);
        let by: Vec<_> = held.clone().map(|(_, by, _)| *by).collect();
        let by = if by.is_empty() { String::new() } else { format!(", held down by {}", by.join(", ")) };
        row("clocks", format!("{now} of {most} MHz{by}"), held.map(|(.., mend)| *mend).next());
    }
    match (health.ecc, health.errors.unwrap_or(0)) {
        (Some(true), 0) => row("memory", "errors are corrected".into(), None),
        (Some(true), errors) => {
            let mend = "nvidia-smi -q -d ECC, and drain the card: its memory fails";
            row("memory", format!("{errors} errors that could not be corrected"), Some(mend));
        }
        (Some(false), _) => row("memory", "errors are not corrected".into(), Some("nvidia-smi -e 1 and a restart")),
        (None, _) => {}
    }
    match health.persistent {
        Some(true) => row("persistence", "on".into(), None),
        Some(false) => row("persistence", "off: the first use takes seconds".into(), Some("nvidia-smi -pm 1")),
        None => {}
    }
    match health.compute_mode {
        Some(0) => row("compute mode", "default".into(), None),
        Some(2) => row("compute mode", "prohibited: nothing runs".into(), Some("nvidia-smi -c 0")),
        Some(_) => row("compute mode", "one process: a second lease has none".into(), Some("nvidia-smi -c 0")),
        None => {}
    }
    match health.processes.as_deref() {
        Some([]) => row("processes", "nobody's".into(), None),
        Some(pids) => {
            let pids: Vec<_> = pids.iter().map(ToString::to_string).collect();
            let found = format!("{}: each waits for milliseconds while another one runs", pids.join(", "));
            row("processes", found, Some("a GPU for Berth alone, or MIG"));
        }
        None => {}
    }
}

fn card(root: &Root, address: &str, f: &mut Findings) {
    let (what, device) = (format!("gpu {address}"), format!("{DEVICES}/{address}"));
    let read = |name: &str| root.read(&format!("{device}/{name}"));
    let model = root.field(&format!("/proc/driver/nvidia/gpus/{address}/information"), "Model");
    let mut found =
        vec![model.unwrap_or_else(|| format!("10de:{}", read("device").unwrap_or_default().replace("0x", "")))];
    let bound = root.link_name(&format!("{device}/driver"));
    found.push(bound.as_ref().map_or("no driver".into(), |driver| format!("bound to {driver}")));
    found.extend(read("numa_node").filter(|node| node != "-1").map(|node| format!("node {node}")));
    found.extend(bar1(root, &device).map(|bytes| format!("BAR1 {} MiB", bytes >> 20)));
    let link = |which: &str| Some((read(&format!("{which}_link_width"))?, read(&format!("{which}_link_speed"))?));
    let (now, most) = (link("current"), link("max"));
    found.extend(now.as_ref().map(|(width, speed)| format!("PCIe x{width} at {speed}")));
    let found = found.join(", ");
    match (bound.as_deref(), now, most) {
        (Some("nvidia"), Some((width, _)), Some((most, _))) if width != most => {
            f.warn(what, format!("{found}, of x{most}"), "move the card to a slot that has all its lanes");
        }
        (Some("nvidia"), ..) => f.ok(what, found),
        (Some(other), ..) => {
            f.warn(what, found, format!("echo {address} > /sys/bus/pci/drivers/{other}/unbind && modprobe nvidia"));
        }
        (None, ..) => f.warn(what, found, "modprobe nvidia"),
    }
}

/// The size of the window to its memory: the second of its regions in `resource`, of 64 bits each.
fn bar1(root: &Root, device: &str) -> Option<u64> {
    let text = root.read(&format!("{device}/resource"))?;
    let mut words = text.lines().nth(1)?.split_whitespace();
    let mut word = || u64::from_str_radix(words.next()?.trim_start_matches("0x"), 16).ok();
    let (start, end) = (word()?, word()?);
    (end > start).then(|| end - start + 1)
}

/// The kernel's modules, the library of programs, and the device nodes.
fn driver(root: &Root, f: &mut Findings) {
    const WHAT: &str = "nvidia driver";
    let module = |name: &str| root.exists(&format!("/sys/module/{name}"));
    match (root.read("/sys/module/nvidia/version"), module("nvidia")) {
        (Some(version), _) => f.ok(WHAT, format!("module nvidia {version}")),
        (None, true) => f.ok(WHAT, "module nvidia"),
        (None, false) => {
            f.warn(WHAT, "the module nvidia is not loaded", "apt-get install nvidia-driver && modprobe nvidia");
        }
    }
    let has = |folder: &&&str| root.exists(&format!("{folder}/libcuda.so.1"));
    match LIBRARIES.iter().find(has) {
        Some(folder) => f.ok("libcuda", format!("{folder}/libcuda.so.1")),
        None => f.warn("libcuda", "no libcuda.so.1", "apt-get install libcuda1"),
    }
    let nodes = ["/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia-uvm"];
    let missing: Vec<_> = nodes.into_iter().filter(|node| !root.exists(node)).collect();
    match refused_node(&root.path("/dev")) {
        Some(refused) => f.warn("gpu device nodes", refused, "add the user that runs Berth to the nodes' group"),
        None if missing.is_empty() => f.ok("gpu device nodes", nodes.join(", ")),
        None => f.warn("gpu device nodes", format!("missing: {}", missing.join(", ")), "nvidia-modprobe -c 0 -u"),
    }
    if module("nvidia_peermem") {
        f.ok("nvidia-peermem", "loaded: verbs devices reach the memory of GPUs");
    } else {
        f.warn("nvidia-peermem", "not loaded", "modprobe nvidia-peermem, or a driver and a card with dma-buf");
    }
}
