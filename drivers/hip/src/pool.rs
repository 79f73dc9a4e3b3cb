//! Workers of sessions that are ready before there is a session.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::Ordering::Relaxed},
};

use berth_gpu::{Facts, GpuError, SessionGpu, SessionSettings};
use berth_hip_session::Properties;
use berth_port::Family;
use tokio::runtime::Handle;
use tracing::warn;

/// Workers that are kept for the next sessions.
const WARM: usize = 2;

/// How workers ended before their session did, as they are reported.
pub(crate) const ENDS: [&str; 3] = ["workers_fault", "workers_timeout", "workers_gone"];

const WORKER_ENDS: Family =
    Family::counter("worker_ends", "worker processes of HIP sessions that ended before their session, by reason");

berth_port::counters! {
    /// Those of GPUs with a driver.
    pub(crate) const WORKERS {
        "workers_fault": WORKER_ENDS { reason: "fault" },
        "workers_timeout": WORKER_ENDS { reason: "timeout" },
        "workers_gone": WORKER_ENDS { reason: "gone" },
    }
}

/// A GPU with a driver, NVIDIA's or AMD's, that sessions use, each in a worker process of its own.
#[derive(Clone)]
pub struct Driven {
    pool: Arc<Pool>,
    facts: Facts,
}

impl std::fmt::Debug for Driven {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Driven({})", self.facts.address)
    }
}

impl Driven {
    /// Starts the first worker, and waits until it has the device.
    ///
    /// # Errors
    /// The driver or the GPU is not there, or too old: in the driver's words.
    pub fn open(settings: SessionSettings) -> Result<Self, GpuError> {
        let (pool, facts) = Pool::open(settings)?;
        Ok(Self { pool, facts })
    }

    /// What the driver says of it.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    pub(crate) fn pool(&self) -> Arc<Pool> {
        self.pool.clone()
    }

    pub(crate) fn close(&self) {
        self.pool.close();
    }

    pub(crate) fn ends(&self) -> [u64; 3] {
        let counts = &self.pool.settings.counts;
        [&counts.faults, &counts.timeouts, &counts.ended].map(|count| count.load(Relaxed))
    }

    /// As sessions see it, with so many bytes for all of them, of which each may have `quota`.
    pub(crate) fn properties(&self, memory: u64, quota: u64) -> Properties {
        let facts = self.facts.clone();
        Properties {
            name: facts.name,
            arch: facts.arch,
            memory: memory.min(quota),
            shared_memory: facts.shared,
            block_threads: facts.block_threads,
            block: facts.block,
            grid: facts.grid,
            warp: facts.warp,
            resident: facts.resident,
            processors: facts.processors,
            version: facts.version,
        }
    }
}

/// Workers of one GPU.
pub(crate) struct Pool {
    pub(crate) settings: Arc<SessionSettings>,
    /// `None` once no session begins any more.
    warm: Mutex<Option<VecDeque<SessionGpu>>>,
}

impl Pool {
    /// Starts the first worker; what its device is.
    pub(crate) fn open(settings: SessionSettings) -> Result<(Arc<Self>, Facts), GpuError> {
        let settings = Arc::new(settings);
        let first = SessionGpu::start(&settings)?;
        let facts = first.facts()?;
        let warm = Mutex::new(Some(VecDeque::from([first])));
        Ok((Arc::new(Self { settings, warm }), facts))
    }

    fn warm(&self) -> MutexGuard<'_, Option<VecDeque<SessionGpu>>> {
        self.warm.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The worker of a new session; `None` if none can be started. Another one is started in its place.
    pub(crate) fn take(self: &Arc<Self>, threads: &Handle) -> Option<SessionGpu> {
        let taken = self.warm().as_mut().and_then(VecDeque::pop_front);
        let pool = self.clone();
        threads.spawn_blocking(move || pool.fill());
        taken.or_else(|| self.start())
    }

    fn start(&self) -> Option<SessionGpu> {
        SessionGpu::start(&self.settings).inspect_err(|e| warn!("{}: no worker: {e}", self.settings.name)).ok()
    }

    fn fill(&self) {
        while self.warm().as_ref().is_some_and(|warm| warm.len() < WARM) {
            let Some(started) = self.start() else { return };
            let refused = match &mut *self.warm() {
                Some(warm) => {
                    warm.push_back(started);
                    None
                }
                None => Some(started),
            };
            drop(refused);
        }
    }

    /// Ends those that no session has.
    pub(crate) fn close(&self) {
        let warm = self.warm().take();
        drop(warm);
    }
}
