//! Which knobs a configuration wants turned, and to what.

use std::collections::BTreeSet;

use crate::{
    config::{Config, Nic},
    sys::{Root, cpu_list},
};

const CPU: &str = "/sys/devices/system/cpu";

/// A file of `/proc` or `/sys`, and what it is to hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// What it does, such as `interrupt 24`.
    pub what: String,
    /// Its file: an absolute path, to be read below the root.
    pub path: String,
    /// What it is to hold. The file is written only where it holds something else.
    pub wanted: Wanted,
}

/// What a knob is to hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wanted {
    /// This text, compared as it is.
    Text(String),
    /// This number or more.
    AtLeast(u64),
    /// These CPUs as a list; how the list is written does not matter.
    Cpus(Vec<usize>),
    /// These CPUs as a mask in hexadecimal digits; commas and leading zeros do not matter.
    Mask(Vec<usize>),
}

impl Wanted {
    /// Whether `held` will do.
    pub(super) fn holds(&self, held: &str) -> bool {
        match self {
            Self::Text(text) => held == text,
            Self::AtLeast(least) => held.parse().is_ok_and(|held: u64| held >= *least),
            Self::Cpus(cpus) => {
                !held.is_empty()
                    && cpu_list(held).into_iter().collect::<BTreeSet<_>>() == cpus.iter().copied().collect()
            }
            Self::Mask(cpus) => {
                let bits = |mask: &str| mask.replace(',', "").trim_start_matches('0').to_string();
                bits(held) == bits(&mask(cpus))
            }
        }
    }

    /// What is written.
    pub(super) fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::AtLeast(least) => least.to_string(),
            Self::Cpus(cpus) => cpus.iter().map(ToString::to_string).collect::<Vec<_>>().join(","),
            Self::Mask(cpus) => mask(cpus),
        }
    }
}

/// The kernel's form of a set of CPUs: hexadecimal words of 32 bits, the highest first.
fn mask(cpus: &[usize]) -> String {
    let words = cpus.iter().max().map_or(1, |highest| highest / 32 + 1);
    let word = |n: usize| cpus.iter().filter(|cpu| **cpu / 32 == n).fold(0u32, |bits, cpu| bits | 1 << (cpu % 32));
    (0..words).rev().map(|n| format!("{:08x}", word(n))).collect::<Vec<_>>().join(",")
}

/// The knobs of `config`, in the order in which they are turned.
pub(crate) fn settings(config: &Config, root: &Root) -> Vec<Setting> {
    let tune = &config.tune;
    let mut all = Vec::new();
    let mut add = |what: String, path: String, wanted| {
        if root.exists(&path) {
            all.push(Setting { what, path, wanted });
        }
    };
    for (size, folder, pages) in
        [("2 MiB", "hugepages-2048kB", tune.hugepages_2m), ("1 GiB", "hugepages-1048576kB", tune.hugepages_1g)]
    {
        if let Some(pages) = pages {
            let path = format!("/sys/kernel/mm/hugepages/{folder}/nr_hugepages");
            add(format!("huge pages of {size}"), path, Wanted::AtLeast(pages));
        }
    }
    let polled = config.polled_cpus();
    let online = cpu_list(&root.read(&format!("{CPU}/online")).unwrap_or_default());
    let rest: Vec<_> = online.iter().copied().filter(|cpu| !polled.contains(cpu)).collect();
    if tune.interrupts && !rest.is_empty() {
        add("interrupts to come".into(), "/proc/irq/default_smp_affinity".into(), Wanted::Mask(rest.clone()));
        for irq in root.names("/proc/irq") {
            let path = format!("/proc/irq/{irq}/smp_affinity_list");
            let cpus = cpu_list(&root.read(&path).unwrap_or_default());
            if cpus.iter().any(|cpu| polled.contains(cpu)) {
                add(format!("interrupt {irq}"), path, Wanted::Cpus(rest.clone()));
            }
        }
        add("kernel work".into(), "/sys/devices/virtual/workqueue/cpumask".into(), Wanted::Mask(rest));
    }
    if let Some(governor) = &tune.governor {
        for cpu in &polled {
            let path = format!("{CPU}/cpu{cpu}/cpufreq/scaling_governor");
            add(format!("governor of CPU {cpu}"), path, Wanted::Text(governor.clone()));
        }
    }
    if let Some(us) = tune.rt_runtime_us {
        let path = "/proc/sys/kernel/sched_rt_runtime_us".into();
        add("time of real-time tasks".into(), path, Wanted::Text(us.to_string()));
    }
    for Nic { name, defer_hard_irqs, gro_flush_timeout_ns } in &tune.nics {
        let knobs = [("napi_defer_hard_irqs", defer_hard_irqs), ("gro_flush_timeout", gro_flush_timeout_ns)];
        for (knob, value) in knobs {
            if let Some(value) = value {
                let path = format!("/sys/class/net/{name}/{knob}");
                add(format!("{knob} of {name}"), path, Wanted::Text(value.to_string()));
            }
        }
    }
    all
}
