//! Cores: how many, how isolated, how fast they wake.

use super::Findings;
use crate::sys::{Root, cpu_list};

const CPU: &str = "/sys/devices/system/cpu";

pub(super) fn examine(root: &Root, f: &mut Findings) {
    let online = cpu_list(&root.read(&format!("{CPU}/online")).unwrap_or_default());
    let allowed = root.allowed_cpus();
    let found = format!("{} online, this process may use {}", online.len(), allowed.len());
    if allowed.len() >= 2 {
        f.ok("cpus", found);
    } else {
        f.warn("cpus", found, "give the process at least two CPUs: one to poll, one for housekeeping");
    }

    let poll_list = match online.as_slice() {
        [_, second, .., last] => format!("{second}-{last}"),
        [_, second] => second.to_string(),
        _ => "1".to_string(),
    };
    let boot = |option: &str| {
        format!("add {option}={poll_list} to GRUB_CMDLINE_LINUX in /etc/default/grub, then: update-grub && reboot")
    };
    for (what, file) in [("isolcpus", "isolated"), ("nohz_full", "nohz_full")] {
        match root.read(&format!("{CPU}/{file}")).filter(|list| !cpu_list(list).is_empty()) {
            Some(list) => f.ok(what, format!("CPUs {list}")),
            None => f.warn(what, "no CPU: the scheduler may interrupt poll loops", boot(what)),
        }
    }

    match root.read(&format!("{CPU}/cpu0/cpufreq/scaling_governor")).as_deref() {
        Some("performance") => f.ok("governor", "performance"),
        Some(other) => f.warn("governor", other, "cpupower frequency-set -g performance"),
        None => f.ok("governor", "the host or hypervisor sets the frequency"),
    }

    examine_idle_states(root, f);

    match root.number(&format!("{CPU}/smt/active")) {
        Some(1) => f.warn(
            "smt",
            "on: a sibling thread shares the core of a poll loop",
            "echo off > /sys/devices/system/cpu/smt/control",
        ),
        _ => f.ok("smt", "off"),
    }

    match root.number("/proc/sys/kernel/sched_rt_runtime_us") {
        Some(-1) => f.ok("rt throttling", "off"),
        Some(us) => f.warn(
            "rt throttling",
            format!("{us} us a second: a real-time poll loop is stopped for the rest"),
            "sysctl -w kernel.sched_rt_runtime_us=-1",
        ),
        None => f.ok("rt throttling", "not in this kernel"),
    }
}

/// The exit latency of the deepest C-state that is enabled.
fn examine_idle_states(root: &Root, f: &mut Findings) {
    let folder = format!("{CPU}/cpu0/cpuidle");
    let states = root.names(&folder).into_iter().filter_map(|state| {
        let enabled = root.number(&format!("{folder}/{state}/disable")) != Some(1);
        let latency = root.number(&format!("{folder}/{state}/latency"))?;
        enabled.then(|| (latency, root.read(&format!("{folder}/{state}/name")).unwrap_or(state)))
    });
    match states.max() {
        Some((us, name)) if us > 10 => f.warn(
            "c-states",
            format!("{name} takes {us} us to leave"),
            "cpupower idle-set -D 10 (idle = \"spin\" never enters one)",
        ),
        Some((us, name)) => f.ok("c-states", format!("deepest is {name}, {us} us to leave")),
        None => f.ok("c-states", "none"),
    }
    if root.exists("/dev/cpu_dma_latency") {
        f.ok("cpu_dma_latency", "/dev/cpu_dma_latency is there to hold C-states off");
    } else {
        f.warn(
            "cpu_dma_latency",
            "no /dev/cpu_dma_latency",
            "boot with processor.max_cstate=1 intel_idle.max_cstate=0",
        );
    }
}
