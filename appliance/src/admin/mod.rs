//! The admin address: what the appliance is doing, for people and for monitoring.
//!
//! | path | what |
//! |---|---|
//! | `/metrics` | every counter and histogram, for Prometheus |
//! | `/status` | the same in short, as JSON; `berth status` prints it |
//! | `/healthz` | 200 while every polling thread goes round its loop, else 503 and which does not |
//! | `/readyz` | 200 from the ready line until the drain, else 503 |
//!
//! It only reads. A request costs a copy of the counters on a housekeeping CPU; poll loops do not notice.

mod metrics;
mod reloads;
mod server;
mod status;

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicBool, Ordering::Relaxed},
};

pub use reloads::Reloaded;
pub(crate) use reloads::Reloads;
pub(crate) use server::Admin;
pub use status::Status;

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
    pub(crate) health: Arc<Health>,
    pub(crate) started: std::time::Instant,
}
