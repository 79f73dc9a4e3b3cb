//! NVIDIA GPUs: what files tell of them, and on the live root what a worker finds that opens the driver.

mod config;
mod driver;
mod path;
mod unit;
mod worker;
mod xid;

pub(super) use config::examine as examine_config;

use super::{Findings, pci};
use crate::{run::gpus, sys::Root};

const DEVICES: &str = "/sys/bus/pci/devices";

pub(super) fn examine(root: &Root, live: bool, f: &mut Findings) {
    f.ok("gpu soft", "the GPU in software: device = \"soft\" of [[gpu]]");
    let gpus = nvidias(root);
    for address in &gpus {
        card(root, address, f);
        path::examine(root, address, f);
    }
    if !gpus.is_empty() {
        driver::examine(root, &gpus, f);
        unit::examine(root, f);
        xid::examine(root, &gpus, f);
    }
    if live {
        let found = gpus::worker().and_then(|worker| Ok(berth_gpu::cards(&worker)?));
        match found {
            Ok(cards) => worker::usable(&cards, f),
            // A host without such a card has no use for a driver.
            Err(_) if gpus.is_empty() => {}
            Err(e) => f.warn("cuda", e.to_string(), "device = \"soft\" of [[gpu]] works until then"),
        }
    }
}

/// The addresses of NVIDIA's display controllers, those without a display among them.
fn nvidias(root: &Root) -> Vec<String> {
    let id = |address: &str, name: &str| root.read(&format!("{DEVICES}/{address}/{name}")).unwrap_or_default();
    let is_gpu = |address: &String| id(address, "vendor") == "0x10de" && id(address, "class").starts_with("0x03");
    root.names(DEVICES).into_iter().filter(is_gpu).collect()
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
    (end > start).then(|| (end - start).saturating_add(1))
}
