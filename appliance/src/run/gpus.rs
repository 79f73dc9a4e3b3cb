//! The GPUs that serve rings, each by a worker process beside this one.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use anyhow::Context as _;
use berth_engine::Counters;
use berth_gpu::{Gpu, GpuCounts, LeasedGpu, RingFile, Settings};
use serde::Serialize;

use crate::{
    admin::GpuStatus,
    config::{self, Config},
};

/// The program that has a GPU, beside this one.
const WORKER: &str = "berth-gpu-worker";

/// Where that program is.
pub(crate) fn worker() -> anyhow::Result<PathBuf> {
    Ok(std::env::current_exe().context("where this program is")?.with_file_name(WORKER))
}

/// As the ready line tells a GPU.
#[derive(Serialize)]
pub(super) struct ReadyGpu {
    name: String,
    device: String,
    kind: String,
    memory: &'static str,
    worker_pid: Option<u32>,
}

/// As the stopped line does.
#[derive(Serialize)]
pub(super) struct StoppedGpu {
    name: String,
    counters: BTreeMap<&'static str, u64>,
}

/// The GPUs that serve any ring, with their positions in the configuration, and those that are leased.
#[derive(Debug, Clone, Default)]
pub(crate) struct Gpus(Arc<Vec<(usize, Gpu)>>, Arc<Vec<LeasedGpu>>);

impl Gpus {
    /// Starts the workers of these rings, and waits until they serve.
    pub(super) fn start(config: &Config, rings: BTreeMap<usize, Vec<RingFile>>) -> anyhow::Result<Self> {
        let worker = worker()?;
        let start = |(index, rings): (usize, Vec<RingFile>)| {
            let gpu = &config.gpus[index];
            let config::Gpu { name, device, blocks, limit } = gpu.clone();
            let settings = Settings { name, worker: worker.clone(), device, blocks, limit };
            let started = Gpu::start(settings, config.gpu_functions(index).0, rings);
            Ok((index, started.with_context(|| format!("gpu {}", gpu.name))?))
        };
        Ok(Self(Arc::new(rings.into_iter().map(start).collect::<anyhow::Result<_>>()?), Arc::default()))
    }

    /// Those that are leased, too.
    pub(super) fn with_leased(self, leased: Vec<LeasedGpu>) -> Self {
        Self(self.0, Arc::new(leased))
    }

    /// Names of those that serve rings, each with its PCI address, or `soft`.
    pub(super) fn addresses(&self) -> impl Iterator<Item = (String, String)> {
        self.0.iter().map(|(_, gpu)| (gpu.name().to_owned(), gpu.device().1))
    }

    /// The counters of each.
    fn counts(&self) -> impl Iterator<Item = (&str, GpuCounts)> {
        let serving = self.0.iter().map(|(_, gpu)| (gpu.name(), gpu.counts()));
        serving.chain(self.1.iter().map(|gpu| (gpu.name(), gpu.counts())))
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
            let (name, (kind, device), worker_pid) = (gpu.name().to_owned(), gpu.device(), gpu.pid());
            ReadyGpu { name, device, kind, memory: gpu.memory(), worker_pid }
        };
        let leased = self.1.iter().map(|gpu| {
            let (name, (kind, device)) = (gpu.name().to_owned(), gpu.device());
            // One worker for each lease that runs kernels.
            ReadyGpu { name, device, kind, memory: gpu.memory(), worker_pid: None }
        });
        self.0.iter().map(ready).chain(leased).collect()
    }

    /// What the stopped line says.
    pub(super) fn stopped(&self) -> Vec<StoppedGpu> {
        let stopped = |(name, counts): (&str, GpuCounts)| {
            let mut counters = BTreeMap::new();
            counts.report(&mut |name, value| {
                counters.insert(name, value);
            });
            StoppedGpu { name: name.to_owned(), counters }
        };
        self.counts().map(stopped).collect()
    }

    /// What `berth status` says.
    pub(crate) fn status(&self) -> Vec<GpuStatus> {
        let serving = self.0.iter().map(|(_, gpu)| (gpu.name(), gpu.device().1, gpu.pid(), gpu.counts()));
        let leased = self.1.iter().map(|gpu| (gpu.name(), gpu.device().1, None, gpu.counts()));
        let status = |(name, device, worker_pid, counts): (&str, String, Option<u32>, GpuCounts)| {
            let mut counters = Counters::new();
            counts.report(&mut |name, value| {
                counters.insert(name.to_owned(), value);
            });
            GpuStatus { name: name.to_owned(), device, worker_pid, counters }
        };
        serving.chain(leased).map(status).collect()
    }

    /// Visits the counters of each.
    pub(crate) fn counters(&self, visit: &mut dyn FnMut(&str, &'static str, u64)) {
        for (gpu, counts) in self.counts() {
            counts.report(&mut |name, value| visit(gpu, name, value));
        }
    }
}
