//! Counters and histograms that any thread reads while a core writes them.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use berth_port::{DeviceCounters, Reader, Recorder, Tables};
use serde::{Deserialize, Serialize};

use crate::polled::Shown;

/// Counters and histograms of all lcores. Clones share the same telemetry.
///
/// A core publishes by relaxed stores into its own cells, at most once per [`PUBLISH_EVERY`](crate::PUBLISH_EVERY);
/// readers load them. Neither waits for the other. The lock inside is taken by readers, and when an lcore or a task is
/// added; a poll takes it only for the first publication after a reload. A snapshot is not of one instant: each value
/// is exact, and values differ by at most what happened between two publications.
#[derive(Debug, Clone, Default)]
pub struct Telemetry {
    lcores: Arc<Mutex<Vec<LcoreBoard>>>,
}

/// Counters by name, which one thread stores.
#[derive(Debug)]
struct Cells(Box<[(&'static str, AtomicU64)]>);

impl Cells {
    fn new(report: impl FnOnce(&mut dyn FnMut(&'static str, u64))) -> Arc<Self> {
        let mut cells = Vec::new();
        report(&mut |name, value| cells.push((name, AtomicU64::new(value))));
        Arc::new(Self(cells.into()))
    }
}

/// The readers' side of a set of counters.
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

/// The writer's side of a set of counters.
#[derive(Debug)]
pub(crate) struct Publisher {
    cells: Arc<Cells>,
    board: Arc<Board>,
}

impl Publisher {
    /// Makes one cell for each counter that `report` visits.
    pub(crate) fn new(report: impl FnOnce(&mut dyn FnMut(&'static str, u64))) -> Self {
        let cells = Cells::new(report);
        Self { board: Arc::new(Board(Mutex::new(cells.clone()))), cells }
    }

    pub(crate) fn board(&self) -> Arc<Board> {
        self.board.clone()
    }

    /// Stores the values that `report` visits by relaxed stores, in the order of the last publication. If the counters
    /// are not the same, as after a reload, they get new cells.
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

/// Histograms by name.
type Readers = Vec<(&'static str, Reader)>;

/// The writer's side of a set of histograms that come and go.
#[derive(Debug)]
pub(crate) struct Shelf {
    shown: Readers,
    board: Arc<Mutex<Readers>>,
}

impl Shelf {
    /// Shows the histograms that `report` visits.
    pub(crate) fn new(report: impl Fn(&mut dyn FnMut(&'static str, &Recorder))) -> Self {
        let mut shelf = Self { shown: Vec::new(), board: Arc::default() };
        shelf.publish(report);
        shelf
    }

    pub(crate) fn board(&self) -> Arc<Mutex<Readers>> {
        self.board.clone()
    }

    /// Shows the histograms that `report` visits from now on, if they are not the same as before.
    pub(crate) fn publish(&mut self, report: impl Fn(&mut dyn FnMut(&'static str, &Recorder))) {
        let (mut shown, mut same) = (self.shown.iter(), true);
        report(&mut |name, recorder| {
            same &= shown.next().is_some_and(|(known, reader)| *known == name && reader.reads(recorder));
        });
        if !same || shown.next().is_some() {
            self.shown.clear();
            report(&mut |name, recorder| self.shown.push((name, recorder.reader())));
            self.board.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&self.shown);
        }
    }
}

/// The last reading of the counters that a device keeps by itself.
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

/// Keeps a device's counters until its port is dropped; their last values stay.
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
    /// The lcore's own first.
    pub(crate) histograms: Readers,
    /// Those that come and go.
    pub(crate) changing: Arc<Mutex<Readers>>,
}

/// A histogram of times in nanoseconds, with its labels.
#[derive(Debug, Clone)]
pub struct Timed {
    /// Name of the lcore or worker.
    pub thread: String,
    /// Name of the lane, or of the port that a worker serves; `None` if the histogram is of the whole lcore.
    pub port: Option<String>,
    /// Name of the histogram, such as `service_time`.
    pub name: &'static str,
    /// Everything recorded since the start.
    pub histogram: hdrhistogram::Histogram<u64>,
}

impl Telemetry {
    /// Adds an lcore and returns its index.
    pub(crate) fn add_lcore(&self, name: String, counters: Arc<Board>, hiccups: Reader) -> usize {
        let mut lcores = self.lock();
        lcores.push(LcoreBoard { name, counters, hiccups, tasks: Vec::new() });
        lcores.len() - 1
    }

    /// Adds a task to the lcore with that index.
    pub(crate) fn add_task(&self, lcore: usize, task: TaskBoard) {
        self.lock()[lcore].tasks.push(task);
    }

    /// Reads the counters that devices keep by themselves. This costs system calls and device registers, so a
    /// housekeeping thread calls it now and then. In between, [`Telemetry::snapshot`] shows the last reading.
    pub fn read_devices(&self) {
        // Not under the lock: a device may take its time.
        let devices: Vec<_> =
            self.lock().iter().flat_map(|lcore| &lcore.tasks).filter_map(|task| task.device.clone()).collect();
        for device in devices {
            device.read();
        }
    }

    /// The present values; those of devices as they were last read.
    pub fn snapshot(&self) -> Snapshot {
        let mut workers = Vec::new();
        let lcores = self.lock().iter().map(|lcore| lcore.read(&mut workers)).collect();
        Snapshot { lcores, workers }
    }

    /// Copies of all histograms.
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
                task.histograms().iter().for_each(|(name, histogram)| add(thread, Some(port), name, histogram));
            }
        }
        all
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<LcoreBoard>> {
        // The lists are only ever pushed to: a panic elsewhere cannot leave them half changed.
        self.lcores.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// `busy_ns` as a fraction of `elapsed_ns`.
fn fraction(busy_ns: u64, elapsed_ns: u64) -> f64 {
    busy_ns as f64 / elapsed_ns.max(1) as f64
}

impl LcoreBoard {
    /// Reads the lcore and its lanes; appends its workers to `workers`.
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
    /// Counters per worker besides those that it reports.
    struct OfWorker {
        elapsed_ns: "time since its lcore's first poll",
        busy_ns: "time of turns that served something",
    }
}

/// Declarations of the counters per worker, besides those that it reports.
pub const WORKER_COUNTERS: Tables = &[OfWorker::TABLE];

impl TaskBoard {
    /// All of them at this time.
    fn histograms(&self) -> Readers {
        // Every reader is whole.
        let changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        self.histograms.iter().chain(&*changing).cloned().collect()
    }

    fn lane(&self, name: String) -> LaneSnapshot {
        let mut port = self.port.read();
        port.extend(self.device.iter().flat_map(|device| device.lock().values.clone()));
        LaneSnapshot {
            name,
            counters: self.counters.read(),
            port,
            service: self.service.read(),
            histograms: self.histograms().iter().map(|(name, h)| ((*name).to_owned(), h.snapshot().into())).collect(),
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

/// Counter values by name.
pub type Counters = BTreeMap<String, u64>;

/// Everything that was counted and timed, by lcore, lane and worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// In the order in which the lcores were made.
    pub lcores: Vec<LcoreSnapshot>,
    /// The workers; each serves the ring of one queue of a port.
    pub workers: Vec<WorkerSnapshot>,
}

/// One lcore's part of a [`Snapshot`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LcoreSnapshot {
    /// As configured.
    pub name: String,
    /// Fraction of the elapsed time spent in turns with work, from 0 to 1.
    pub busy_fraction: f64,
    /// Turns without work that took [`HICCUP`](crate::HICCUP) or longer: time that the host took from a spinning lcore.
    /// A sleeping lcore has none.
    pub hiccups: Summary,
    /// `elapsed_ns` since the first poll, `busy_ns` (the part of it with work), `sleeps`, `slept_ns`, and
    /// `drain_abandoned`: answers still owed when a drain ran out of time.
    pub counters: Counters,
    /// In the order in which they were added.
    pub lanes: Vec<LaneSnapshot>,
}

/// One lane's part of a [`Snapshot`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LaneSnapshot {
    /// As configured.
    pub name: String,
    /// `polls`; `empty_polls`, those without work; `busy_ns`, the time of the others; `frames_rx`; and
    /// `frames_replied`, at once or later.
    pub counters: Counters,
    /// Counters of the port, and those of its device.
    pub port: Counters,
    /// Counters of the service.
    pub service: Counters,
    /// `service_time`, the histograms added to the lane and those that its service has now, in nanoseconds.
    pub histograms: BTreeMap<String, Summary>,
}

/// One worker's part of a [`Snapshot`]: what it did for one queue of a port.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkerSnapshot {
    /// As configured.
    pub name: String,
    /// Name of the port whose requests it serves.
    pub port: String,
    /// Fraction of the elapsed time that it spent on them, from 0 to 1.
    pub busy_fraction: f64,
    /// `elapsed_ns` of its lcore, `busy_ns`, and the counters that the worker reports.
    pub counters: Counters,
    /// Time per request, of one turn in [`SAMPLE_EVERY`](berth_port::SAMPLE_EVERY). If a turn served several at once,
    /// their mean.
    pub worker_time: Summary,
}

/// Summary of a histogram, in nanoseconds except for `count`; all zeros if nothing was recorded.
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
