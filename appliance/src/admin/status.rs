//! What `/status` says, and how `berth status` prints it.

use std::{collections::BTreeMap, fmt::Write as _};

use berth_engine::{Counters, Snapshot};
use serde::{Deserialize, Serialize};

use super::{Reloaded, Sources};

/// The appliance at one moment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Of this program.
    pub version: String,
    /// Whether requests are answered.
    pub ready: bool,
    /// Threads that do not poll; empty: all do.
    pub stuck: String,
    /// Seconds since the start.
    pub uptime_s: f64,
    /// What became of reloads.
    pub reloads: Reloaded,
    /// What lcores and ports counted.
    pub snapshot: Snapshot,
    /// What the control plane counted; empty without one.
    pub control: Counters,
}

impl Status {
    pub(super) fn now(sources: &Sources) -> Self {
        let Sources { telemetry, control, health, started } = sources;
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ready: health.is_ready(),
            stuck: health.stuck(),
            uptime_s: started.elapsed().as_secs_f64(),
            reloads: health.reloads.now(),
            snapshot: telemetry.snapshot(),
            control: control.iter().flat_map(berth_control::Monitor::counters).collect(),
        }
    }

    /// A table for people.
    pub fn table(&self) -> String {
        let state = match (self.ready, &*self.stuck) {
            (_, stuck) if !stuck.is_empty() => format!("{stuck} does not poll"),
            (true, _) => "serving".to_owned(),
            (false, _) => "not ready".to_owned(),
        };
        let mut out = format!("berth {}: {state}, up {:.0} s\n", self.version, self.uptime_s);
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
        let control: BTreeMap<_, _> = self.control.iter().filter(|(_, value)| **value > 0).collect();
        if !control.is_empty() {
            out.push_str("\ncontrol\n");
        }
        for (name, value) in control {
            let _ = writeln!(out, "  {name:<40} {value:>14}");
        }
        out
    }
}
