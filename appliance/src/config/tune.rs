//! `[tune]`: what `berth tune` makes of the host.

use berth_keys::Table;

/// `[tune]`
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tune {
    /// Huge pages of 2 MiB, at least; `None`: as they are.
    pub hugepages_2m: Option<u64>,
    /// Huge pages of 1 GiB, at least; `None`: as they are.
    pub hugepages_1g: Option<u64>,
    /// Whether interrupts and kernel work keep off the CPUs that poll.
    pub interrupts: bool,
    /// The frequency governor of the CPUs that poll; `None`: as it is.
    pub governor: Option<String>,
    /// Microseconds of each second that real-time tasks may run: 950,000, or -1 for all; `None`: as it is.
    pub rt_runtime_us: Option<i64>,
    /// The longest exit from an idle state, in microseconds, that `berth run` allows while it runs.
    pub cpu_dma_latency_us: Option<u32>,
    /// Interfaces of the kernel whose interrupts are put off.
    pub nics: Vec<Nic>,
}

/// `[[tune.nic]]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nic {
    /// Name of the interface, such as `eth0`; at most 15 characters.
    pub name: String,
    /// `napi_defer_hard_irqs`: how many empty polls in a row keep interrupts off.
    pub defer_hard_irqs: Option<u64>,
    /// `gro_flush_timeout`: nanoseconds after which deferred interrupts come after all.
    pub gro_flush_timeout_ns: Option<u64>,
}

pub(super) fn read(mut t: Table<'_, '_>) -> Tune {
    let number = |t: &mut Table<'_, '_>, key| t.integer(key).map(|at| at.value);
    let (hugepages_2m, hugepages_1g) = (number(&mut t, "hugepages_2m"), number(&mut t, "hugepages_1g"));
    let interrupts = t.is_on("interrupts");
    let governors = ["performance", "schedutil", "ondemand", "powersave"].map(|word| (word, word));
    let governor = t.choice("governor", &governors).map(|at| at.value.to_owned());
    let rt_runtime_us = t.flag("rt_throttling").map(|on| if on { 950_000 } else { -1 });
    let cpu_dma_latency_us = number(&mut t, "cpu_dma_latency_us").map(|us| us as u32);
    let mut nics = Vec::new();
    for mut t in t.tables("nic").into_iter().flatten() {
        let name = super::name(&mut t, "eth0");
        let defer_hard_irqs = number(&mut t, "defer_hard_irqs");
        let gro_flush_timeout_ns = number(&mut t, "gro_flush_timeout_ns");
        if let Some(name) = &name
            && (name.value.contains('/') || name.value.len() > 15)
        {
            t.sink().wrong(name, "is no interface; names have at most 15 characters and no slash");
        }
        t.finish();
        nics.extend(name.map(|name| Nic { name: name.value, defer_hard_irqs, gro_flush_timeout_ns }));
    }
    t.finish();
    Tune { hugepages_2m, hugepages_1g, interrupts, governor, rt_runtime_us, cpu_dma_latency_us, nics }
}
