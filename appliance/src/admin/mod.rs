//! The admin address: what the appliance is doing, for people and for monitoring.
//!
//! | path | what |
//! |---|---|
//! | `/` | a page that shows `/status` each second |
//! | `/metrics` | every counter and histogram, for Prometheus |
//! | `/status` | the same in short, as JSON; `berth status` and `berth top` print it |
//! | `/healthz` | 200 while every polling thread and `control` go on, else 503 and which does not |
//! | `/readyz` | 200 from the ready line until the drain, else 503 |
//!
//! It only reads. A request costs a copy of the counters on a housekeeping CPU; poll loops do not notice.

mod catalog;
mod counts;
mod hip;
mod metrics;
mod reloads;
mod server;
mod status;
mod window;

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use crate::run::Gpus;
use counts::Counts;
pub(crate) use hip::HipClass;
pub use hip::HipStatus;
pub(crate) use metrics::family;
pub use reloads::Reloaded;
pub(crate) use reloads::Reloads;
pub(crate) use server::Admin;
pub use status::{GpuStatus, Loss, Status};
pub(crate) use status::{Nvme, NvmeTarget};
pub use window::{Latency, Window};

/// How the appliance stands; the supervisor keeps it, the admin address tells it.
#[derive(Debug, Default)]
pub(crate) struct Health {
    ready: AtomicBool,
    stuck: Mutex<String>,
    pub(crate) reloads: Reloads,
}

impl Health {
    /// From now on requests are answered, or no more.
    pub(crate) fn set_ready(&self, ready: bool) {
        self.ready.store(ready, Relaxed);
    }

    /// Which threads do not poll; empty: all do.
    pub(crate) fn set_stuck(&self, stuck: &str) {
        stuck.clone_into(&mut self.lock());
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.ready.load(Relaxed)
    }

    fn stuck(&self) -> String {
        self.lock().clone()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, String> {
        // It holds one value, which is whole.
        self.stuck.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the admin address reads.
#[derive(Debug, Clone)]
pub(crate) struct Sources {
    pub(crate) telemetry: berth_engine::Telemetry,
    pub(crate) control: Option<berth_control::Monitor>,
    pub(crate) gpus: Gpus,
    pub(crate) hip: Option<berth_hip_worker::Monitor>,
    pub(crate) health: Arc<Health>,
    pub(crate) started: std::time::Instant,
    /// Of the admin address itself.
    pub(crate) own: Arc<Counts>,
    pub(crate) window: Arc<Mutex<Window>>,
}

type Labels<'l> = &'l [(&'static str, String)];

impl Sources {
    pub(crate) fn new(
        telemetry: berth_engine::Telemetry,
        control: Option<berth_control::Monitor>,
        gpus: Gpus,
        hip: Option<berth_hip_worker::Monitor>,
        health: Arc<Health>,
    ) -> Self {
        let started = std::time::Instant::now();
        Self { telemetry, control, gpus, hip, health, started, own: Arc::default(), window: Arc::default() }
    }

    /// Visits every counter: the part that counts (as in [`catalog::locate`]), whose it is, its name and value.
    fn counters(&self, visit: &mut dyn FnMut(&str, Labels<'_>, &str, u64)) {
        let snapshot = self.telemetry.snapshot();
        for lcore in snapshot.lcores {
            let thread = ("lcore", lcore.name);
            lcore.counters.iter().for_each(|(name, value)| visit("lcore", std::slice::from_ref(&thread), name, *value));
            for lane in lcore.lanes {
                let labels = [thread.clone(), ("port", lane.name)];
                for (part, all) in [("lane", lane.counters), ("port", lane.port), ("service", lane.service)] {
                    for (name, value) in &all {
                        visit(part, &labels, name, *value);
                    }
                }
            }
        }
        for worker in snapshot.workers {
            let labels = [("worker", worker.name), ("port", worker.port)];
            worker.counters.iter().for_each(|(name, value)| visit("worker", &labels, name, *value));
        }
        for (name, value) in self.control.iter().flat_map(berth_control::Monitor::counters) {
            let planes = ["data", "pages"].map(|plane| (plane, name.strip_prefix(plane)));
            let plane = planes.into_iter().find_map(|(plane, rest)| Some((plane, rest?.strip_prefix('_')?)));
            match plane {
                Some((plane, name)) => visit("data", &[("plane", plane.to_owned())], name, value),
                None => visit("control", &[], &name, value),
            }
        }
        self.gpus.counters(&mut |gpu, name, value| visit("gpu", &[("gpu", gpu.to_owned())], name, value));
        if let Some(hip) = &self.hip {
            hip.report(&mut |name, value| visit("hip", &[], name, value));
        }
        self.own.report(&mut |name, value| visit("admin", &[], name, value));
    }
}
