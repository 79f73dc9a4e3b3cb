//! HIP Remote: from the configuration to a worker, and its counters at the end.

use std::collections::BTreeMap;

use anyhow::Context as _;
use berth_hip_worker::{HipCore, Settings, Worker};
use berth_host::TscClock;
use berth_port::Clock as _;

use crate::config::Hip;

/// Binds the socket and accepts; the cores serve.
pub(super) fn start(hip: &Hip, housekeeping: &[usize], clock: &TscClock) -> anyhow::Result<(Worker, Vec<HipCore>)> {
    let settings = Settings {
        listen: hip.listen,
        cores: hip.cpus.len(),
        kernels: housekeeping.to_vec(),
        max_sessions: hip.max_sessions,
        per_peer: hip.per_peer,
        session: berth_hip_worker::SessionSettings {
            max_payload: hip.max_payload,
            handles: hip.handles,
            idle: hip.idle_timeout,
        },
        memory: hip.memory,
        kernel_timeout: hip.kernel_timeout,
        devices: hip.devices.iter().map(|(_, bytes)| *bytes).collect(),
    };
    let clock = clock.clone();
    Worker::start(settings, move || clock.now().mono).with_context(|| format!("hip.listen {}", hip.listen))
}

/// Every counter, for the stopped line.
pub(super) fn stop(worker: &Worker) -> BTreeMap<String, u64> {
    let mut counters = BTreeMap::new();
    worker.monitor().report(&mut |name, value| {
        counters.insert(name.to_owned(), value);
    });
    counters
}
