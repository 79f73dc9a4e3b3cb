//! Counters and histograms that any thread reads while a core writes them.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use berth_port::{DeviceCounters, Tables};
use serde::{Deserialize, Serialize};

use crate::{histogram::Reader, polled::Shown};

/// Every lcore's counters and histograms; clones are the same telemetry.
///
/// A core publishes by relaxed stores into cells of its own, at most once per [`PUBLISH_EVERY`](crate::PUBLISH_EVERY);
/// a reader loads them. Neither waits for the other: the lock inside is taken when an lcore or a task is added and by
/// readers, never by a poll but for the first after a reload. A snapshot is not one instant: each value is exact, and
/// values differ by at most what happened between two publications.
#[derive(Debug, Clone, Default)]
pub struct Telemetry {
    lcores: Arc<Mutex<Vec<LcoreBoard>>>,
}

/// Counters by their names, as one thread stores them.
#[derive(Debug)]
struct Cells(Box<[(&'static str, AtomicU64)]>);

impl Cells {
    fn new(report: impl FnOnce(&mut dyn FnMut(&'static str, u64))) -> Arc<Self> {
        let mut cells = Vec::new();
        report(&mut |name, value| cells.push((name, AtomicU64::new(value))));
        Arc::new(Self(cells.into()))
    }
}

/// What readers have of counters.
#[derive(Debug)]
pub(crate) struct Board(Mutex<Arc<Cells>>);

impl Board {
    fn cells(&self) -> std::sync::MutexGuard<'_, Arc<Cells>> {
        // It holds one pointer, which is whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self) -> Counters {
        let cells = self.cells().clone();
        cells.0.iter().map(|(name, cell)| ((*name).to_owned(), cell.load(Relaxed))).collect()
    }
}

/// What the thread that counts has of them.
#[derive(Debug)]
pub(crate) struct Publisher {
    cells: Arc<Cells>,
    board: Arc<Board>,
}

impl Publisher {
    /// With one cell for each counter that `report` visits.
    pub(crate) fn new(report: impl FnOnce(&mut dyn FnMut(&'static str, u64))) -> Self {
        let cells = Cells::new(report);
        Self { board: Arc::new(Board(Mutex::new(cells.clone()))), cells }
    }

    pub(crate) fn board(&self) -> Arc<Board> {
        self.board.clone()
    }

    /// Stores the values that `report` visits: relaxed stores into the cells of the last publication, in whose order
    /// they come. Other counters than then, as after a reload, get cells of their own.
    pub(crate) fn publish(&mut self, report: impl Fn(&mut dyn FnMut(&'static str, u64))) {
        let mut cells = self.cells.0.iter();
        let mut same = true;
        report(&mut |name, value| match cells.next() {
            Some((known, cell)) if std::ptr::eq(*known, name) || *known == name => cell.store(value, Relaxed),
            _ => same = false,
        });
        if !same || cells.next().is_some() {
            self.cells = Cells::new(report);
            *self.board.cells() = self.cells.clone();
        }
    }
}

/// What a device counts by itself, as it was last read.
pub(crate) struct DeviceBoard(Mutex<Device>);

struct Device {
    /// `None` once its port is gone.
    counters: Option<Box<dyn DeviceCounters>>,
    values: Counters,
}

impl DeviceBoard {
    fn lock(&self) -> std::sync::MutexGuard<'_, Device> {
        // Each value is whole, whatever happened to the others.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self) {
        let Device { counters, values } = &mut *self.lock();
        if let Some(counters) = counters {
            counters.read(&mut |name, value| {
                values.insert(name.to_owned(), value);
            });
        }
    }
}

impl fmt::Debug for DeviceBoard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DeviceBoard").field(&self.lock().values).finish()
    }
}

/// Holds a device's counters for as long as its port lives; their last values stay.
#[derive(Debug)]
pub(crate) struct Attached(Arc<DeviceBoard>);

impl Attached {
    pub(crate) fn new(counters: Box<dyn DeviceCounters>) -> Self {
        let device = Device { counters: Some(counters), values: Counters::new() };
        let board = DeviceBoard(Mutex::new(device));
        board.read();
        Self(Arc::new(board))
    }

    pub(crate) fn board(&self) -> Arc<DeviceBoard> {
        self.0.clone()
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        self.0.read();
        self.0.lock().counters = None;
    }
}

#[derive(Debug)]
struct LcoreBoard {
    name: String,
    counters: Arc<Board>,
    hiccups: Reader,
    tasks: Vec<TaskBoard>,
}

#[derive(Debug)]
pub(crate) struct TaskBoard {
    pub(crate) shown: Shown,
    pub(crate) counters: Arc<Board>,
    pub(crate) port: Arc<Board>,
    pub(crate) device: Option<Arc<DeviceBoard>>,
    pub(crate) service: Arc<Board>,
    /// Its own first.
    pub(crate) histograms: Vec<(&'static str, Reader)>,
}

/// A histogram of nanoseconds, and whose it is.
#[derive(Debug, Clone)]
pub struct Timed {
    /// The name of the lcore or worker.
    pub thread: String,
    /// The name of the lane, or of the port that a worker serves; `None` is the whole lcore.
    pub port: Option<String>,
    /// The name of the histogram.
    pub name: &'static str,
    /// What was recorded since the start.
    pub histogram: hdrhistogram::Histogram<u64>,
}

impl Telemetry {
    /// Adds an lcore, and returns its index.
    pub(crate) fn add_lcore(&self, name: String, counters: Arc<Board>, hiccups: Reader) -> usize {
        let mut lcores = self.lock();
        lcores.push(LcoreBoard { name, counters, hiccups, tasks: Vec::new() });
        lcores.len() - 1
    }

    /// Adds a task to the lcore of that index.
    pub(crate) fn add_task(&self, lcore: usize, task: TaskBoard) {
        self.lock()[lcore].tasks.push(task);
    }

    /// Reads what devices count by themselves, which costs system calls and device registers: for a housekeeping
    /// thread, once in a while. Until the next time, [`Telemetry::snapshot`] shows what was read.
    pub fn read_devices(&self) {
        // Not under the lock: a device may take its time.
        let devices: Vec<_> =
            self.lock().iter().flat_map(|lcore| &lcore.tasks).filter_map(|task| task.device.clone()).collect();
        for device in devices {
            device.read();
        }
    }

    /// The values of everything now; those of devices as they were last read.
    pub fn snapshot(&self) -> Snapshot {
        let mut workers = Vec::new();
        let lcores = self.lock().iter().map(|lcore| lcore.read(&mut workers)).collect();
        Snapshot { lcores, workers }
    }

    /// Every histogram now.
    pub fn histograms(&self) -> Vec<Timed> {
        let mut all = Vec::new();
        let mut add = |thread: &str, port: Option<&str>, name, histogram: &Reader| {
            let (thread, port) = (thread.to_owned(), port.map(str::to_owned));
            all.push(Timed { thread, port, name, histogram: histogram.snapshot() });
        };
        for lcore in &*self.lock() {
            add(&lcore.name, None, "hiccup", &lcore.hiccups);
            for task in &lcore.tasks {
                let (thread, port) = match &task.shown {
                    Shown::Lane(name) => (&lcore.name, name),
                    Shown::Worker { name, port } => (name, port),
                };
                task.histograms.iter().for_each(|(name, histogram)| add(thread, Some(port), name, histogram));
            }
        }
        all
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<LcoreBoard>> {
        // The lists are only ever pushed to: a panic elsewhere cannot leave them half changed.
        self.lcores.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The part of the elapsed time.
fn fraction(busy_ns: u64, elapsed_ns: u64) -> f64 {
    busy_ns as f64 / elapsed_ns.max(1) as f64
}

impl LcoreBoard {
    /// Its own values and its lanes'; those of its workers are added to `workers`.
    fn read(&self, workers: &mut Vec<WorkerSnapshot>) -> LcoreSnapshot {
        let counters = self.counters.read();
        let mut lanes = Vec::new();
        for task in &self.tasks {
            match &task.shown {
                Shown::Lane(name) => lanes.push(task.lane(name.clone())),
                Shown::Worker { name, port } => {
                    workers.push(task.worker(name.clone(), port.clone(), counters["elapsed_ns"]));
                }
            }
        }
        LcoreSnapshot {
            name: self.name.clone(),
            busy_fraction: fraction(counters["busy_ns"], counters["elapsed_ns"]),
            hiccups: self.hiccups.snapshot().into(),
            counters,
            lanes,
        }
    }
}

berth_port::counters! {
    /// What is counted of each worker beside what it counts.
    struct OfWorker {
        elapsed_ns: "time since its lcore's first poll",
        busy_ns: "time of turns that served something",
    }
}

/// What is counted of each worker beside what it counts.
pub const WORKER_COUNTERS: Tables = &[OfWorker::TABLE];

impl TaskBoard {
    fn lane(&self, name: String) -> LaneSnapshot {
        let mut port = self.port.read();
        port.extend(self.device.iter().flat_map(|device| device.lock().values.clone()));
        LaneSnapshot {
            name,
            counters: self.counters.read(),
            port,
            service: self.service.read(),
            histograms: self.histograms.iter().map(|(name, h)| ((*name).to_owned(), h.snapshot().into())).collect(),
        }
    }

    fn worker(&self, name: String, port: String, elapsed_ns: u64) -> WorkerSnapshot {
        let busy_ns = self.counters.read()["busy_ns"];
        let mut counters = self.service.read();
        OfWorker { elapsed_ns, busy_ns }.report(&mut |name, value| {
            counters.insert(name.to_owned(), value);
        });
        let (_, worker_time) = &self.histograms[0];
        WorkerSnapshot {
            name,
            port,
            busy_fraction: fraction(busy_ns, elapsed_ns),
            counters,
            worker_time: worker_time.snapshot().into(),
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
    /// The workers, each serving the ring from one queue of a port.
    pub workers: Vec<WorkerSnapshot>,
}

/// One core's share of a [`Snapshot`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LcoreSnapshot {
    /// The lcore's name.
    pub name: String,
    /// The part of the elapsed time spent in turns that received or answered something, from 0 to 1.
    pub busy_fraction: f64,
    /// Turns that did nothing and took [`HICCUP`](crate::HICCUP) or longer all the same: what the host took from a
    /// spinning lcore. A sleeping one has none.
    pub hiccups: Summary,
    /// `elapsed_ns` since the first poll, `busy_ns` of it, `sleeps`, `slept_ns`, `drain_abandoned`: answers owed when a
    /// drain ran out of time.
    pub counters: Counters,
    /// In the order that they were added.
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
    /// What the port counted, and its device.
    pub port: Counters,
    /// What the service counted.
    pub service: Counters,
    /// `service_time` and those added to the lane, in nanoseconds.
    pub histograms: BTreeMap<String, Summary>,
}

/// One worker's share of a [`Snapshot`]: what it did for one queue of a port.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkerSnapshot {
    /// The worker's name.
    pub name: String,
    /// The port whose requests it serves.
    pub port: String,
    /// The part of the elapsed time that it spent on them, from 0 to 1.
    pub busy_fraction: f64,
    /// `elapsed_ns` of its lcore, `busy_ns`, and what the worker counted.
    pub counters: Counters,
    /// Time for one request, where several were served at once their mean; of one turn in
    /// [`SAMPLE_EVERY`](berth_port::SAMPLE_EVERY).
    pub worker_time: Summary,
}

/// A histogram in eight numbers, in nanoseconds but for `count`; zeros if nothing was recorded.
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
