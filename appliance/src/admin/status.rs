//! What `/status` says, and how `berth status` prints it.

use std::{collections::BTreeMap, fmt::Write as _, sync::PoisonError};

use berth_engine::{Counters, Snapshot};
use serde::{Deserialize, Serialize};

use super::{HipStatus, Latency, Reloaded, Sources, catalog, family};

/// The appliance at one moment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Of this program.
    pub version: String,
    /// Whether requests are answered: from the ready line until the drain.
    pub ready: bool,
    /// Threads that do not poll; empty: all do.
    pub stuck: String,
    /// Seconds since the start.
    pub uptime_s: f64,
    /// What became of reloads.
    pub reloads: Reloaded,
    /// What lcores and ports counted.
    pub snapshot: Snapshot,
    /// The GPUs that serve rings, then those that are leased.
    #[serde(default)]
    pub gpus: Vec<GpuStatus>,
    /// The HIP Remote worker, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hip: Option<HipStatus>,
    /// What the control plane counted; empty without one.
    pub control: Counters,
    /// Seconds that [`Status::recent`] is about: since somebody last asked, and at least 0.9.
    pub window_s: f64,
    /// The summary of each histogram over the window.
    pub recent: Vec<Latency>,
    /// What was dropped or refused, by reason, where it was at all.
    pub losses: Vec<Loss>,
}

/// A GPU that serves rings, or whose memory is leased.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuStatus {
    /// As the configuration calls it.
    pub name: String,
    /// Which device it is: `soft`, or NVIDIA's by its PCI address.
    pub device: String,
    /// The process that has it; `None` while there is none, and always of leased GPUs.
    pub worker_pid: Option<u32>,
    /// What it counted.
    pub counters: Counters,
}

impl GpuStatus {
    /// What it counts of trouble, and how that is headed.
    pub(crate) const TROUBLE: [(&str, &str); 4] = [
        ("gpu_restarts", "restarts"),
        ("gpu_faults", "faults"),
        ("gpu_timeouts", "timeouts"),
        ("gpu_refused", "refused"),
    ];

    /// Whether its functions are run, in words.
    pub(crate) fn state(&self) -> &'static str {
        if self.count("gpu_up") == 1 { "runs" } else { "starts" }
    }

    /// The worker's process, in words.
    pub(crate) fn worker(&self) -> String {
        self.worker_pid.map_or_else(|| "-".into(), |pid| pid.to_string())
    }

    pub(crate) fn count(&self, name: &str) -> u64 {
        self.counters.get(name).copied().unwrap_or(0)
    }
}

/// A reason for which something was dropped or refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loss {
    /// Whose it is: the port, or the part of the appliance where it is no port's.
    pub place: String,
    /// The metric without prefix and suffix, such as `rx_dropped`.
    pub what: String,
    /// Its reason.
    pub reason: String,
    /// How often, since the start.
    pub count: u64,
}

impl Status {
    pub(super) fn now(sources: &Sources) -> Self {
        let Sources { telemetry, control, health, started, own: _, window, gpus, hip } = sources;
        let (window_s, recent) = window.lock().unwrap_or_else(PoisonError::into_inner).look(telemetry, *started);
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ready: health.is_ready(),
            stuck: health.stuck(),
            uptime_s: started.elapsed().as_secs_f64(),
            reloads: health.reloads.now(),
            snapshot: telemetry.snapshot(),
            gpus: gpus.status(),
            hip: hip.as_ref().map(|hip| hip.seen().into()),
            control: control.iter().flat_map(berth_control::Monitor::counters).collect(),
            window_s,
            recent,
            losses: losses(sources),
        }
    }

    /// Whether it serves, in words.
    pub fn state(&self) -> String {
        match (self.ready, &*self.stuck) {
            (_, stuck) if !stuck.is_empty() => format!("{stuck} does not poll"),
            (true, _) => "serving".to_owned(),
            (false, _) => "not ready".to_owned(),
        }
    }

    /// The latencies of ports besides their service time, since the start.
    fn stages(&self, out: &mut String) {
        let lanes = self.snapshot.lcores.iter().flat_map(|lcore| lcore.lanes.iter().map(move |lane| (lcore, lane)));
        let mut timed = lanes
            .flat_map(|(lcore, lane)| lane.histograms.iter().map(move |(stage, summary)| (lcore, lane, stage, summary)))
            .filter(|(_, _, stage, summary)| *stage != "service_time" && summary.count > 0)
            // A ring kernel's by its name.
            .map(|(lcore, lane, stage, summary)| (lcore, lane, family(stage).1.unwrap_or(stage), summary))
            .peekable();
        if timed.peek().is_some() {
            let _ = writeln!(
                out,
                "\n{:<12} {:<16} {:<14} {:>14} {:>10} {:>10} {:>10}",
                "lcore", "port", "stage", "samples", "p50 us", "p99 us", "p99.9 us"
            );
        }
        for (lcore, lane, stage, summary) in timed {
            let [p50, p99, p999] = [summary.p50, summary.p99, summary.p999].map(|nanos| nanos as f64 / 1000.0);
            let _ = writeln!(
                out,
                "{:<12} {:<16} {stage:<14} {:>14} {p50:>10.2} {p99:>10.2} {p999:>10.2}",
                lcore.name, lane.name, summary.count
            );
        }
    }

    /// A line for each GPU.
    fn gpus(&self, out: &mut String) {
        if !self.gpus.is_empty() {
            let _ = write!(out, "\n{:<12} {:<16} {:<8} {:>8}", "gpu", "device", "state", "worker");
            for (_, head) in GpuStatus::TROUBLE {
                let _ = write!(out, " {head:>10}");
            }
            out.push('\n');
        }
        for gpu in &self.gpus {
            let _ = write!(out, "{:<12} {:<16} {:<8} {:>8}", gpu.name, gpu.device, gpu.state(), gpu.worker());
            for (name, _) in GpuStatus::TROUBLE {
                let _ = write!(out, " {:>10}", gpu.count(name));
            }
            out.push('\n');
        }
    }

    /// A table for people.
    pub fn table(&self) -> String {
        let mut out = format!("berth {}: {}, up {:.0} s\n", self.version, self.state(), self.uptime_s);
        // Writing to a string succeeds.
        for line in self.reloads.refusal.lines() {
            let _ = writeln!(out, "reload refused: {line}");
        }
        let _ = writeln!(
            out,
            "\n{:<12} {:<16} {:>6} {:>14} {:>14} {:>10} {:>10} {:>10}",
            "lcore", "port", "busy", "frames rx", "answered", "p50 us", "p99 us", "p99.9 us"
        );
        for lcore in &self.snapshot.lcores {
            for lane in &lcore.lanes {
                let us = |pick: fn(&berth_engine::Summary) -> u64| {
                    lane.histograms.get("service_time").map_or(0.0, |summary| pick(summary) as f64 / 1000.0)
                };
                let _ = writeln!(
                    out,
                    "{:<12} {:<16} {:>5.1}% {:>14} {:>14} {:>10.2} {:>10.2} {:>10.2}",
                    lcore.name,
                    lane.name,
                    lcore.busy_fraction * 100.0,
                    lane.counters.get("frames_rx").unwrap_or(&0),
                    lane.counters.get("frames_replied").unwrap_or(&0),
                    us(|summary| summary.p50),
                    us(|summary| summary.p99),
                    us(|summary| summary.p999),
                );
            }
        }
        self.stages(&mut out);
        self.gpus(&mut out);
        if let Some(hip) = &self.hip {
            hip.table(&mut out);
        }
        if let Some(nvme) = Nvme::of(&self.control) {
            let Nvme { berth, kernel_leases } = nvme;
            let _ = writeln!(
                out,
                "\n{:<12} {:>8} {:>8} {:>12} {:>8} {:>14} {:>14} {:>16} {:>16}",
                "nvme", "leases", "hosts", "controllers", "queues", "reads", "writes", "bytes read", "bytes written"
            );
            if let Some(NvmeTarget { leases, hosts, controllers, queues, io }) = berth {
                let [reads, writes, read, written] = io;
                let _ = writeln!(
                    out,
                    "{:<12} {leases:>8} {hosts:>8} {controllers:>12} {queues:>8} {reads:>14} {writes:>14} {read:>16} \
                     {written:>16}",
                    "berth"
                );
            }
            if let Some(leases) = kernel_leases {
                let _ = writeln!(out, "{:<12} {leases:>8}", "kernel");
            }
        }
        let (quotas, control): (BTreeMap<_, _>, BTreeMap<_, _>) =
            self.control.iter().filter(|(_, value)| **value > 0).partition(|(name, _)| name.starts_with("holder_"));
        if !control.is_empty() {
            out.push_str("\ncontrol\n");
        }
        for (name, value) in control {
            let _ = writeln!(out, "  {name:<40} {value:>14}");
        }
        let mut used =
            quotas.iter().filter_map(|(name, value)| Some((name.strip_suffix("_used")?, **value))).peekable();
        if used.peek().is_some() {
            out.push_str("\nused of quotas; of presenters without a policy of their own, the most that one has\n");
        }
        for (name, value) in used {
            let quota = self.control.get(&format!("{name}_quota")).copied().unwrap_or_default();
            let name = name.trim_start_matches("holder_");
            let _ = writeln!(out, "  {name:<46} {value:>14} of {quota}");
        }
        out
    }
}

/// Leases over NVMe, by who serves them; where there is no binding of it, nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Nvme {
    /// By this program.
    pub(crate) berth: Option<NvmeTarget>,
    /// By the kernel, which does not tell more.
    pub(crate) kernel_leases: Option<u64>,
}

/// What this program serves over NVMe/TCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NvmeTarget {
    pub(crate) leases: u64,
    pub(crate) hosts: u64,
    pub(crate) controllers: u64,
    pub(crate) queues: u64,
    /// As [`NvmeTarget::IO`] names it, since the start.
    pub(crate) io: [u64; 4],
}

impl NvmeTarget {
    /// Counters of the control plane: commands that read and write, and their bytes.
    pub(crate) const IO: [&str; 4] = ["nvme_reads", "nvme_writes", "nvme_bytes_read", "nvme_bytes_written"];
}

impl Nvme {
    pub(crate) fn of(control: &Counters) -> Option<Self> {
        let count = |name: &str| control.get(name).copied();
        let of = |name: &str| count(name).unwrap_or(0);
        let berth = count("nvme_leases").map(|leases| NvmeTarget {
            leases,
            hosts: of("nvme_hosts"),
            controllers: of("nvme_controllers"),
            queues: of("nvme_queues"),
            io: NvmeTarget::IO.map(of),
        });
        let kernel_leases = count("nvme_kernel_leases");
        (berth.is_some() || kernel_leases.is_some()).then_some(Self { berth, kernel_leases })
    }
}

/// All queues of a port are one place.
fn losses(sources: &Sources) -> Vec<Loss> {
    let mut found = BTreeMap::new();
    sources.counters(&mut |part, labels, counter, value| {
        let Some(place) = catalog::locate(part, counter).filter(|place| value > 0 && place.is_loss()) else {
            return;
        };
        let whose = labels.iter().find(|(key, _)| *key == "port").map_or(part, |(_, port)| port);
        let reason: Vec<_> = place.labels.iter().map(|(_, value)| value.as_str()).collect();
        // A worker refuses on behalf of the service, which counts it too.
        if part != "worker" {
            *found.entry((whose.to_owned(), place.family.name, reason.join(" "))).or_default() += value;
        }
    });
    let losses = found.into_iter().map(|((place, what, reason), count)| {
        let what = what.to_owned();
        Loss { place, what, reason, count }
    });
    losses.collect()
}
