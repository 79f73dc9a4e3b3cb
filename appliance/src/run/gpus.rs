//! The GPUs that serve rings, each by a worker process beside this one.

use std::{collections::BTreeMap, sync::Arc};

use anyhow::Context as _;
use berth_engine::Counters;
use berth_gpu::{Gpu, RingFile, Settings};
use serde::Serialize;

use crate::{
    admin::GpuStatus,
    config::{self, Config},
};

/// The program that has a GPU, beside this one.
const WORKER: &str = "berth-gpu-worker";

/// The device of each, and its kind: no other is built.
const DEVICE: &str = "soft";

/// As the ready line tells a GPU.
#[derive(Serialize)]
pub(super) struct ReadyGpu {
    name: String,
    device: &'static str,
    kind: &'static str,
    memory: &'static str,
    worker_pid: Option<u32>,
}

/// As the stopped line does.
#[derive(Serialize)]
pub(super) struct StoppedGpu {
    name: String,
    counters: BTreeMap<&'static str, u64>,
}

/// The GPUs that serve any ring, with their positions in the configuration.
#[derive(Debug, Clone, Default)]
pub(crate) struct Gpus(Arc<Vec<(usize, Gpu)>>);

impl Gpus {
    /// Starts the workers of these rings, and waits until they serve.
    pub(super) fn start(config: &Config, rings: BTreeMap<usize, Vec<RingFile>>) -> anyhow::Result<Self> {
        let worker = std::env::current_exe().context("where this program is")?.with_file_name(WORKER);
        let start = |(index, rings): (usize, Vec<RingFile>)| {
            let gpu = &config.gpus[index];
            let settings =
                Settings { name: gpu.name.clone(), worker: worker.clone(), blocks: gpu.blocks, limit: gpu.limit };
            let started = Gpu::start(settings, config.gpu_functions(index).0, rings);
            Ok((index, started.with_context(|| format!("gpu {}", gpu.name))?))
        };
        Ok(Self(Arc::new(rings.into_iter().map(start).collect::<anyhow::Result<_>>()?)))
    }

    /// Has each run what the new configuration says; if one cannot, none does.
    pub(super) fn reload(&self, old: &Config, new: &Config) -> anyhow::Result<()> {
        for (nth, (index, gpu)) in self.0.iter().enumerate() {
            let (before, mut after) = (old.gpu_functions(*index).0, new.gpu_functions(*index).0);
            if before == after {
                continue;
            }
            after.lost = config::has_sessions(&before);
            if let Err(e) = gpu.reload(after) {
                for (index, gpu) in &self.0[..nth] {
                    // It ran them before.
                    let mut before = old.gpu_functions(*index).0;
                    before.lost = true;
                    let _ = gpu.reload(before);
                }
                return Err(e).with_context(|| format!("gpu {}", gpu.name()));
            }
        }
        Ok(())
    }

    /// What the ready line says.
    pub(super) fn ready(&self) -> Vec<ReadyGpu> {
        let ready = |(_, gpu): &(usize, Gpu)| {
            let (name, worker_pid) = (gpu.name().to_owned(), gpu.pid());
            ReadyGpu { name, device: DEVICE, kind: DEVICE, memory: "pinned", worker_pid }
        };
        self.0.iter().map(ready).collect()
    }

    /// What the stopped line says.
    pub(super) fn stopped(&self) -> Vec<StoppedGpu> {
        let stopped = |(_, gpu): &(usize, Gpu)| {
            let mut counters = BTreeMap::new();
            gpu.counts().report(&mut |name, value| {
                counters.insert(name, value);
            });
            StoppedGpu { name: gpu.name().to_owned(), counters }
        };
        self.0.iter().map(stopped).collect()
    }

    /// What `berth status` says.
    pub(crate) fn status(&self) -> Vec<GpuStatus> {
        let status = |(_, gpu): &(usize, Gpu)| {
            let mut counters = Counters::new();
            gpu.counts().report(&mut |name, value| {
                counters.insert(name.to_owned(), value);
            });
            GpuStatus { name: gpu.name().to_owned(), device: DEVICE.to_owned(), worker_pid: gpu.pid(), counters }
        };
        self.0.iter().map(status).collect()
    }

    /// Visits the counters of each.
    pub(crate) fn counters(&self, visit: &mut dyn FnMut(&str, &'static str, u64)) {
        for (_, gpu) in self.0.iter() {
            gpu.counts().report(&mut |name, value| visit(gpu.name(), name, value));
        }
    }
}
