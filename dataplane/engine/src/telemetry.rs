//! Counters and histograms that any thread reads while a core writes them.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use serde::{Deserialize, Serialize};

use crate::histogram::Reader;

/// Every lcore's counters and histograms; clones are the same telemetry.
///
/// A core publishes by relaxed stores into cells of its own, at most once per [`PUBLISH_EVERY`](crate::PUBLISH_EVERY);
/// a reader loads them. Neither waits for the other: the lock inside is taken when an lcore or a lane is added and by
/// readers, never by a poll. A snapshot is not one instant: each value is exact, values differ by at most what
/// happened between two publications.
#[derive(Debug, Clone, Default)]
pub struct Telemetry {
    lcores: Arc<Mutex<Vec<LcoreBoard>>>,
}

/// A fixed set of counters, named once.
#[derive(Debug)]
pub(crate) struct Board {
    names: Box<[&'static str]>,
    cells: Box<[AtomicU64]>,
}

impl Board {
    /// A board with one cell for each counter that `report` visits.
    pub(crate) fn new(report: impl FnOnce(&mut dyn FnMut(&'static str, u64))) -> Arc<Self> {
        let mut names = Vec::new();
        report(&mut |name, _| names.push(name));
        Arc::new(Self { cells: names.iter().map(|_| AtomicU64::new(0)).collect(), names: names.into() })
    }

    /// Stores the values that `report` visits: the same counters, in the same order, as when the board was made.
    pub(crate) fn publish(&self, report: impl FnOnce(&mut dyn FnMut(&'static str, u64))) {
        let mut cells = self.names.iter().zip(&self.cells);
        report(&mut |name, value| {
            if let Some((known, cell)) = cells.next() {
                debug_assert_eq!(*known, name, "counters are reported in one order");
                cell.store(value, Relaxed);
            }
        });
    }

    fn read(&self) -> Counters {
        self.names.iter().zip(&self.cells).map(|(name, cell)| ((*name).to_owned(), cell.load(Relaxed))).collect()
    }
}

#[derive(Debug)]
struct LcoreBoard {
    name: String,
    counters: Arc<Board>,
    lanes: Vec<LaneBoard>,
}

#[derive(Debug)]
pub(crate) struct LaneBoard {
    pub(crate) name: String,
    pub(crate) counters: Arc<Board>,
    pub(crate) port: Arc<Board>,
    pub(crate) service: Arc<Board>,
    pub(crate) histograms: Vec<(&'static str, Reader)>,
}

impl Telemetry {
    /// Adds an lcore, and returns its index.
    pub(crate) fn add_lcore(&self, name: String, counters: Arc<Board>) -> usize {
        let mut lcores = self.lock();
        lcores.push(LcoreBoard { name, counters, lanes: Vec::new() });
        lcores.len() - 1
    }

    /// Adds a lane to the lcore of that index.
    pub(crate) fn add_lane(&self, lcore: usize, lane: LaneBoard) {
        self.lock()[lcore].lanes.push(lane);
    }

    /// The values of everything now.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot { lcores: self.lock().iter().map(LcoreBoard::read).collect() }
    }

    /// Every histogram now, with its lcore, its lane and its name.
    pub fn histograms(&self) -> Vec<(String, String, &'static str, hdrhistogram::Histogram<u64>)> {
        let lcores = self.lock();
        let lanes = lcores.iter().flat_map(|lcore| lcore.lanes.iter().map(move |lane| (lcore, lane)));
        let all = lanes.flat_map(|(lcore, lane)| {
            lane.histograms.iter().map(|(name, h)| (lcore.name.clone(), lane.name.clone(), *name, h.snapshot()))
        });
        all.collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<LcoreBoard>> {
        // The list is only ever pushed to: a panic elsewhere cannot leave it half changed.
        self.lcores.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LcoreBoard {
    fn read(&self) -> LcoreSnapshot {
        let counters = self.counters.read();
        let lanes: Vec<_> = self.lanes.iter().map(LaneBoard::read).collect();
        let busy: u64 = lanes.iter().map(|lane| lane.counters["busy_ns"]).sum();
        let busy_fraction = busy as f64 / counters["elapsed_ns"].max(1) as f64;
        LcoreSnapshot { name: self.name.clone(), busy_fraction, counters, lanes }
    }
}

impl LaneBoard {
    fn read(&self) -> LaneSnapshot {
        LaneSnapshot {
            name: self.name.clone(),
            counters: self.counters.read(),
            port: self.port.read(),
            service: self.service.read(),
            histograms: self.histograms.iter().map(|(name, h)| ((*name).to_owned(), h.snapshot().into())).collect(),
        }
    }
}

/// Counters by name.
pub type Counters = BTreeMap<String, u64>;

/// Everything that was counted and timed, by lcore and lane.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// In the order the lcores were made.
    pub lcores: Vec<LcoreSnapshot>,
}

/// One core's share of a [`Snapshot`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LcoreSnapshot {
    /// The lcore's name.
    pub name: String,
    /// The part of the elapsed time spent in turns that received or answered a frame, from 0 to 1.
    pub busy_fraction: f64,
    /// `elapsed_ns` since the first poll, `sleeps`, `slept_ns`, `drain_abandoned`: answers owed when a drain ran
    /// out of time.
    pub counters: Counters,
    /// In the order the lanes were added.
    pub lanes: Vec<LaneSnapshot>,
}

/// One lane's share of a [`Snapshot`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LaneSnapshot {
    /// The lane's name.
    pub name: String,
    /// `polls`; `empty_polls`, those that received and answered nothing; `busy_ns`, the time of the others;
    /// `frames_rx` and `frames_replied`, at once or later.
    pub counters: Counters,
    /// What the port counted.
    pub port: Counters,
    /// What the service counted.
    pub service: Counters,
    /// `service_time` and those added to the lane, in nanoseconds.
    pub histograms: BTreeMap<String, Summary>,
}

/// A histogram in eight numbers, in nanoseconds but for `count`; zeros where nothing was recorded.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Summary {
    pub count: u64,
    pub min: u64,
    pub mean: f64,
    pub p50: u64,
    pub p90: u64,
    pub p99: u64,
    pub p999: u64,
    pub max: u64,
}

impl From<hdrhistogram::Histogram<u64>> for Summary {
    fn from(h: hdrhistogram::Histogram<u64>) -> Self {
        let at = |quantile| h.value_at_quantile(quantile);
        Self {
            count: h.len(),
            min: h.min(),
            mean: h.mean(),
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max: h.max(),
        }
    }
}
