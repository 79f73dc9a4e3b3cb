//! What a worker finds that opens NVIDIA's driver, and what the management library says.

use berth_gpu::{Card, Cards, Health};

use super::Findings;

/// What a worker of a [[gpu]] can have.
pub(super) fn usable(cards: &Cards, f: &mut Findings) {
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
        direct(card, f);
        if let Some(health) = &card.health {
            healthy(card, health, f);
        }
    }
    match &cards.management {
        Ok(driver) => f.ok("cuda driver", format!("{driver}, of CUDA {major}.{minor}")),
        Err(why) => f.warn("cuda driver", why.clone(), "apt-get install libnvidia-ml1"),
    }
}

/// How network cards reach its memory, as the driver tells.
fn direct(card: &Card, f: &mut Findings) {
    let what = format!("cuda {} gpudirect", card.address);
    let order = match card.writes_ordering {
        Some(200) => ", and all GPUs see their writes in order",
        Some(100) => ", and it sees their writes in order",
        Some(_) => ", and it must flush before it reads what they wrote",
        None => "",
    };
    match (card.rdma, card.dma_buf) {
        (None, None) => f.ok(what, "the driver does not tell"),
        (Some(false), _) => {
            f.ok(what, "network cards do not reach its memory: requests go through the host");
        }
        (_, Some(true)) => f.ok(what, format!("network cards reach its memory by dma-bufs{order}")),
        (_, not) => {
            let dma_bufs = if not.is_some() { "has no dma-bufs" } else { "does not tell of dma-bufs" };
            let mend = "apt-get install nvidia-open-kernel-dkms, for Turing or later; else modprobe nvidia-peermem";
            f.warn(what, format!("the driver {dma_bufs}: network cards need nvidia-peermem{order}"), mend);
        }
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
fn healthy(Card { address, memory, .. }: &Card, health: &Health, f: &mut Findings) {
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
    match health.mig {
        Some([false, false]) => row("mig", "off".into(), None),
        Some([true, true]) => {
            let found =
                "on: a worker has the first instance, or the one in CUDA_VISIBLE_DEVICES of Berth's environment";
            let found = found.into();
            row("mig", found, Some(&format!("nvidia-smi -i {address} -mig 0, for the whole card")));
        }
        Some([now, _]) => {
            let (now, then) = if now { ("on", "off") } else { ("off", "on") };
            let mend = format!("nvidia-smi --gpu-reset -i {address}");
            row("mig", format!("{now}, and {then} after the next reset"), Some(&mend));
        }
        None => {}
    }
    if let Some([used, all]) = health.bar1 {
        let found = format!("{} of {} MiB are in use", used >> 20, all >> 20);
        if all < *memory {
            let found = format!("{found}, and its memory has {} MiB", memory >> 20);
            row("BAR1", found, Some("turn Above 4G Decoding and Resizable BAR on in the firmware"));
        } else {
            row("BAR1", found, None);
        }
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
