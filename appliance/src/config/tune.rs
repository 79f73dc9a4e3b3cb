//! `[tune]`: what `berth tune` makes of the host.

use super::walk::Table;

/// `[tune]`
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tune {
    /// Huge pages of 2 MiB, at least.
    pub hugepages_2m: Option<u64>,
    /// Huge pages of 1 GiB, at least.
    pub hugepages_1g: Option<u64>,
    /// Whether interrupts and kernel work keep off the CPUs that poll.
    pub interrupts: bool,
    /// The frequency governor of the CPUs that poll.
    pub governor: Option<String>,
    /// Microseconds of each second that real-time tasks may run, -1 for all.
    pub rt_runtime_us: Option<i64>,
    /// The longest exit from an idle state, in microseconds, that `berth run` allows while it runs.
    pub cpu_dma_latency_us: Option<u32>,
    /// Network interfaces of the kernel.
    pub nics: Vec<Nic>,
}

/// `[[tune.nic]]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nic {
    /// The interface.
    pub name: String,
    /// How often polling may put interrupts off.
    pub defer_hard_irqs: Option<u64>,
    /// After how many nanoseconds deferred interrupts come after all.
    pub gro_flush_timeout_ns: Option<u64>,
}

pub(super) fn read(table: Option<Table<'_, '_>>) -> Tune {
    let mut tune = Tune { interrupts: true, ..Tune::default() };
    let Some(mut t) = table else { return tune };
    tune.hugepages_2m = t.integer("hugepages_2m", 0..=1 << 24).map(|at| at.value);
    tune.hugepages_1g = t.integer("hugepages_1g", 0..=1 << 14).map(|at| at.value);
    tune.interrupts = t.flag("interrupts").unwrap_or(true);
    let governors = ["performance", "schedutil", "ondemand", "powersave"].map(|word| (word, word));
    tune.governor = t.choice("governor", &governors).map(|at| at.value.to_owned());
    let throttling = t.flag("rt_throttling");
    tune.rt_runtime_us = throttling.map(|on| if on { 950_000 } else { -1 });
    tune.cpu_dma_latency_us = t.integer("cpu_dma_latency_us", 0..=1_000_000).map(|at| at.value as u32);
    for mut t in t.tables("nic").into_iter().flatten() {
        let name = super::name(&mut t, "eth0");
        let defer_hard_irqs = t.integer("defer_hard_irqs", 0..=1000).map(|at| at.value);
        let gro_flush_timeout_ns = t.integer("gro_flush_timeout_ns", 0..=1_000_000_000).map(|at| at.value);
        if let Some(name) = &name
            && (name.value.contains('/') || name.value.len() > 15)
        {
            t.sink().wrong(name, "is no interface; names have at most 15 characters and no slash");
        }
        t.finish();
        tune.nics.extend(name.map(|name| Nic { name: name.value, defer_hard_irqs, gro_flush_timeout_ns }));
    }
    t.finish();
    tune
}
