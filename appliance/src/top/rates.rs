//! What happened between two readings of the status.

use berth_engine::{Counters, LaneSnapshot, LcoreSnapshot, Summary, WorkerSnapshot};

use crate::admin::{HipClass, Loss, Status};

/// Two readings, the earlier one missing at first.
#[derive(Debug)]
pub(super) struct Rates<'s> {
    pub(super) now: &'s Status,
    before: Option<&'s Status>,
    seconds: f64,
}

impl<'s> Rates<'s> {
    pub(super) fn new(now: &'s Status, before: Option<&'s Status>) -> Self {
        let seconds = before.map_or(0.0, |before| now.uptime_s - before.uptime_s);
        Self { now, before, seconds }
    }

    /// Per second; 0 where there is nothing to compare with.
    fn per_second(&self, now: u64, before: Option<u64>) -> f64 {
        let grown = before.map_or(0, |before| now.saturating_sub(before));
        if self.seconds > 0.0 { grown as f64 / self.seconds } else { 0.0 }
    }

    fn lcore(&self, name: &str) -> Option<&'s LcoreSnapshot> {
        self.before?.snapshot.lcores.iter().find(|lcore| lcore.name == name)
    }

    /// How fast a counter of a lane grew, per second.
    pub(super) fn lane(&self, lcore: &str, lane: &LaneSnapshot, counter: &str) -> f64 {
        let of = |lane: &LaneSnapshot| lane.counters.get(counter).copied();
        let before =
            self.lcore(lcore).and_then(|lcore| of(lcore.lanes.iter().find(|other| other.name == lane.name)?));
        self.per_second(of(lane).unwrap_or(0), before)
    }

    /// The part of the time that an lcore was busy: 1 is all of it.
    pub(super) fn busy(&self, lcore: &LcoreSnapshot) -> f64 {
        let before = self.lcore(&lcore.name).map(|before| nanos(&before.counters));
        self.per_second(nanos(&lcore.counters), before) / 1e9
    }

    /// The part of the time that a worker was busy with one ring.
    pub(super) fn worker_busy(&self, worker: &WorkerSnapshot) -> f64 {
        let same = |other: &&WorkerSnapshot| (&other.name, &other.port) == (&worker.name, &worker.port);
        let before = self.before.and_then(|before| before.snapshot.workers.iter().find(same));
        self.per_second(nanos(&worker.counters), before.map(|before| nanos(&before.counters))) / 1e9
    }

    /// Hiccups of an lcore per second.
    pub(super) fn hiccups(&self, lcore: &LcoreSnapshot) -> f64 {
        self.per_second(lcore.hiccups.count, self.lcore(&lcore.name).map(|before| before.hiccups.count))
    }

    /// How fast a counter of the control plane grew, per second.
    pub(super) fn control(&self, counter: &str) -> f64 {
        let of = |status: &Status| status.control.get(counter).copied();
        self.per_second(of(self.now).unwrap_or(0), self.before.and_then(of))
    }

    /// How fast something of a class of HIP operations grew, per second. What was not used before is not in the
    /// earlier reading.
    pub(super) fn hip(&self, class: &HipClass, of: impl Fn(&HipClass) -> u64) -> f64 {
        let same = |before: &Status| {
            let mut classes = before.hip.iter().flat_map(|hip| &hip.classes);
            classes.find(|other| other.name == class.name).map_or(0, &of)
        };
        self.per_second(of(class), self.before.map(same))
    }

    /// How often something was lost per second. What was not lost before is not in the earlier reading.
    pub(super) fn loss(&self, loss: &Loss) -> f64 {
        let same =
            |other: &&Loss| (&other.place, &other.what, &other.reason) == (&loss.place, &loss.what, &loss.reason);
        let before = self.before.map(|before| before.losses.iter().find(same).map_or(0, |before| before.count));
        self.per_second(loss.count, before)
    }

    /// A latency over the window; `None` where nothing was recorded.
    pub(super) fn recent(&self, lcore: &str, port: &str, stage: &str) -> Option<&'s Summary> {
        let mut all = self.now.recent.iter();
        let found = all.find(|one| one.thread == lcore && one.port.as_deref() == Some(port) && one.stage == stage);
        found.map(|one| &one.summary).filter(|summary| summary.count > 0)
    }
}

fn nanos(counters: &Counters) -> u64 {
    counters.get("busy_ns").copied().unwrap_or(0)
}
