//! The lease plane: from the configuration to a node that is ready to serve.

use std::{
    fs::{DirBuilder, File},
    io::{Seek as _, SeekFrom},
    os::unix::fs::DirBuilderExt as _,
    path::Path,
    sync::Arc,
};

use anyhow::{Context as _, bail, ensure};
use berth_control::{Control, Listen, Settings};
use berth_fabric::{Binding, Config as NodeConfig, Policy, Rule, TaskletConfig, resource_id};
use berth_gpu::{Choice, LeaseSettings, LeasedGpu, LeasedMemory, VramBlocks};
use berth_host::TscClock;
use berth_identity::NodeId;
use berth_lease::{GRANULE, Quotas, Region, RegionId, RegionKind, Regions, Storage};
use berth_pages::{DmaMemory, HugePage, Pages};
use berth_ports::nvmet::Nvmet;
use berth_ports::sriov::PoolConfig;
use berth_store::BlockEngine;
use berth_tls::key_file;
use berth_wire::fabric::ResourceType;
use tracing::warn;

use super::{gpus, hip};
use crate::config::{self, Backing, Config, HipLease, Kind, Place};

/// The lease plane.
#[derive(Default)]
pub(super) struct Opened {
    /// The node; `None` without `[control]`.
    pub(super) control: Option<Control>,
    /// GPUs whose memory it leases.
    pub(super) gpus: Vec<LeasedGpu>,
}

/// Recovers the node and binds its sockets. Leases can be connected to
/// `bindings`, those of ports, and to those that the configuration lists. `addresses`: names of GPUs that serve rings or HIP
/// Remote, with their PCI addresses.
pub(super) fn open(
    config: &Config,
    clock: &TscClock,
    bindings: Vec<Box<dyn Binding>>,
    mut addresses: Vec<(String, String)>,
) -> anyhow::Result<Opened> {
    let Some(control) = &config.control else { return Ok(Opened::default()) };
    let node = &config.node;
    let made = DirBuilder::new().recursive(true).mode(0o700).create(&node.state_dir);
    made.with_context(|| format!("creating {}", node.state_dir.display()))?;
    let identity = key_file::read_or_create(&node.key_file).context("node.key_file")?;
    let bytes = config.regions.iter().filter(|region| region.kind != Kind::Functions);
    let opened = bytes.clone().map(|region| {
        let opened = OpenedRegion::new(region);
        opened.with_context(|| format!("region {}", region.name))
    });
    let (mut regions, mut memory, mut gpus) = (Vec::new(), Vec::new(), Vec::new());
    for (index, opened) in opened.enumerate() {
        let OpenedRegion { region, devices, gpu } = opened?;
        addresses.extend(gpu.as_ref().map(|gpu| (region.name.clone(), gpu.device().1)));
        gpus.extend(gpu.map(|gpu| (RegionId(index as u16), gpu)));
        regions.push(region);
        memory.push(devices);
    }
    let leased = config.hip.as_ref().filter(|hip| hip.lease != HipLease::Off);
    // Behind the others, whose ids are their places.
    let first = regions.len();
    let devices = leased.iter().flat_map(|hip| &hip.devices).map(|(name, bytes, _)| hip::region(name, *bytes));
    regions.extend(devices);
    let hip = (first..regions.len()).map(|index| RegionId(index as u16)).collect();
    let backing = |region: &config::Region| match &region.backing {
        Backing::Path(path) => Some(path.clone()),
        Backing::Ram | Backing::Hugepages | Backing::Gpu(_) | Backing::Functions(_) => None,
    };
    // By the ids of regions, which pools of functions have none of.
    let backings: Vec<_> = bytes.map(backing).collect();
    let nvmet = nvmet(&config.bindings)?;
    let mut resources = Vec::new();
    let listed = config.bindings.iter().filter_map(|binding| match binding {
        config::Binding::Rdma(rdma) => Some(rdma.open(&memory)),
        // Its poll cores have been planned with it.
        config::Binding::Nvme(_) => None,
        config::Binding::KernelNvme(kernel) => nvmet.as_ref().map(|nvmet| kernel.open(nvmet, backings.clone())),
        config::Binding::Sriov(sriov) => Some(sriov.open(pools(&config.regions), &node.state_dir).map(|opened| {
            resources = opened.pools;
            Box::new(opened.binding) as Box<dyn Binding>
        })),
    });
    let bindings = bindings.into_iter().map(Ok).chain(listed).collect::<anyhow::Result<_>>()?;
    let regions = Regions::new(regions);
    let policy = policy(&control.policies, &config.regions, identity.id());
    let config::Dataplane { fbmt, fbbt, fbmu } = config.dataplane;
    let settings = Settings {
        identity,
        listen: Listen { udp: control.udp, quic: control.quic, relay: control.relay, fbmu, fbmt, fbbt },
        announce: control.announce.clone(),
        state_dir: node.state_dir.clone(),
        cpus: config.runtime.housekeeping_cpus.clone(),
        clock: clock.clone(),
        regions,
        resources,
        bindings,
        tasklet_cpus: config.tasklet.as_ref().map_or_else(Vec::new, |of| of.cpus.clone()),
        node: NodeConfig {
            site: node.site,
            row: node.row,
            rack: node.rack,
            trust_domain: node.trust_domain.clone(),
            policy,
            quotas: quotas(&control.policies),
            enrolled: control.enrolled.clone(),
            enrolment: control.enroll,
            require_fence: control.require_fence,
            max_requests_per_sec: control.max_requests_per_sec,
            leases: berth_lease::Config { capacity: control.max_leases, ..berth_lease::Config::default() },
            gpus: gpus.iter().map(|(region, gpu)| (*region, Arc::new(gpu.clone()) as _)).collect(),
            hip,
            gpus_in_use: gpus_in_use(config),
            gpu_addresses: addresses,
            tasklets: config.tasklet.as_ref().map(tasklets).transpose()?,
            ..NodeConfig::default()
        },
    };
    let gpus = gpus.into_iter().map(|(_, gpu)| gpu).collect();
    Ok(Opened { control: Some(Control::open(settings)?), gpus })
}

/// What runs tasklets.
#[cfg(feature = "wasm")]
fn tasklets(config: &config::Tasklet) -> anyhow::Result<TaskletConfig> {
    use berth_tasklet::{
        run::{Executor, Limits},
        schedule::SHARING,
    };
    use berth_wasm::{Isolated, Isolation, Parent, Pool, Wasm};
    use tracing::info;

    use crate::wasm;

    let cores = config.cpus.len() as u32;
    let executor: Arc<dyn Executor> = if config.isolated {
        let (starter, cpus) = (wasm::starter(config.executors)?, config.cpus.clone());
        let isolation = Isolation { starter, cpus, memory: config.max_memory };
        let isolated = Isolated::new(isolation, wasm::compiler()).context("tasklet: an executor")?;
        let (parent, walls) = (isolated.parent(), isolated.walls());
        info!("executors of tasklets: {parent}; namespaces {}, landlock {}", walls.namespaces, walls.landlock);
        if parent == Parent::Node && !walls.namespaces && !walls.landlock {
            warn!(
                "executors of tasklets have their filter of system calls alone: neither namespaces nor Landlock here"
            );
        }
        Arc::new(isolated)
    } else {
        let pool = Pool { instances: SHARING + cores, memory: config.max_memory };
        Arc::new(Wasm::new(pool, wasm::compiler()).map_err(|e| anyhow::anyhow!("tasklet: {e:#}"))?)
    };
    let max = Limits {
        fuel: config.max_fuel,
        memory: config.max_memory,
        output: config.max_output,
        hostcalls: config.max_hostcalls,
    };
    Ok(TaskletConfig {
        executor,
        cores,
        memory: config.memory,
        sync_wait: config.sync_wait,
        modules: config.modules,
        results: config.results,
        result_time: config.result_time,
        queue: config.queue,
        max,
        max_wall: config.max_wall,
    })
}

/// A build without WASM refuses the section.
#[cfg(not(feature = "wasm"))]
fn tasklets(_: &config::Tasklet) -> anyhow::Result<TaskletConfig> {
    bail!("tasklet: this build has no WASM")
}

/// The kernel's NVMe target, where a binding is served by it.
fn nvmet(bindings: &[config::Binding]) -> anyhow::Result<Option<Arc<Nvmet>>> {
    let is_wanted = bindings.iter().any(|binding| matches!(binding, config::Binding::KernelNvme(_)));
    let nvmet = is_wanted.then(Nvmet::open).transpose();
    Ok(nvmet.context("binding nvme: the kernel's NVMe target")?.map(Arc::new))
}

/// Puts these keys, policies, quotas and limits in the place of those that are in force.
pub(super) fn reconfigure(control: &Control, settings: &config::Control, regions: &[config::Region]) {
    control.reconfigure(berth_fabric::Settings {
        policy: policy(&settings.policies, regions, control.id()),
        quotas: quotas(&settings.policies),
        enrolled: settings.enrolled.clone(),
        enrolment: settings.enroll,
        max_requests_per_sec: settings.max_requests_per_sec,
    });
}

/// A region that has bytes.
struct OpenedRegion {
    region: Region,
    /// What one-sided transports register; `None` of blocks.
    devices: Option<DmaMemory>,
    /// The GPU whose memory it is.
    gpu: Option<LeasedGpu>,
}

impl OpenedRegion {
    fn new(region: &config::Region) -> anyhow::Result<Self> {
        let mut gpu = None;
        let pages = |backing: &_| -> anyhow::Result<_> {
            let len = region.size.context("memory of the host has a size, and this region has none")?;
            Ok(Arc::new(Pages::new(len, backing, region.numa)?))
        };
        let of_host = |pages: Arc<Pages>| (Storage::Bytes(pages.clone()), Some(DmaMemory::Mapped(pages)));
        let (storage, devices) = match &region.backing {
            Backing::Ram => of_host(pages(&berth_pages::Backing::Ordinary)?),
            Backing::Hugepages => of_host(pages(&berth_pages::Backing::Huge(HugePage::Size2M))?),
            Backing::Path(path) => {
                let len = match region.size {
                    Some(len) => len,
                    None => len_of(path)?,
                };
                (Storage::Blocks(Arc::new(BlockEngine::open(path, len)?)), None)
            }
            Backing::Gpu(leased) => {
                let memory = match vram(leased, region.size)? {
                    Some(vram) => LeasedMemory::Vram(vram),
                    None => LeasedMemory::Host(pages(&berth_pages::Backing::Unnamed)?),
                };
                let config::LeasedGpu { name, device, limit, .. } = leased.clone();
                let settings = LeaseSettings { name, worker: gpus::worker()?, device, limit };
                let opened = LeasedGpu::open(settings, memory.clone());
                gpu = Some(opened.with_context(|| format!("gpu {}", leased.name))?);
                match memory {
                    LeasedMemory::Host(pages) => of_host(pages),
                    LeasedMemory::Vram(vram) => (Storage::Blocks(vram.clone()), Some(DmaMemory::DmaBufs(vram))),
                }
            }
            Backing::Functions(_) => bail!("has no bytes"),
        };
        let kind = match region.kind {
            Kind::Block => RegionKind::Block,
            Kind::Vram => RegionKind::Vram,
            Kind::Memory | Kind::Functions => RegionKind::Memory,
        };
        // A number that fits no NUMA node of this kind of machine was refused with the configuration.
        let numa = region.numa.and_then(|node| u16::try_from(node).ok());
        Ok(Self { region: Region { name: region.name.clone(), kind, numa, storage }, devices, gpu })
    }
}

/// Memory of a GPU's own, where leases of it are to lie there.
fn vram(gpu: &config::LeasedGpu, size: Option<u64>) -> anyhow::Result<Option<Arc<VramBlocks>>> {
    let config::LeasedGpu { name, device, memory, .. } = gpu;
    // The one in software has no other memory than the host's.
    if *memory == Place::Pinned || *device == Choice::Soft {
        return Ok(None);
    }
    match VramBlocks::open(name, &gpus::worker()?, device, size) {
        Ok(vram) => Ok(Some(Arc::new(vram))),
        Err(why) if *memory == Place::Auto => {
            warn!("gpu {name}: leases lie in memory of the host, which it reads: {why}");
            Ok(None)
        }
        Err(why) => Err(why).with_context(|| format!("gpu {name}, memory = \"vram\"")),
    }
}

/// GPUs that serve rings, or sessions of HIP Remote without leases.
fn gpus_in_use(config: &Config) -> Vec<String> {
    let unleased = config.hip.iter().filter(|hip| hip.lease == HipLease::Off);
    let hip = unleased.flat_map(|hip| hip.devices.iter().map(|(name, ..)| name));
    config.gpus.iter().map(|gpu| &gpu.name).chain(hip).cloned().collect()
}

/// The pools of virtual functions.
fn pools(regions: &[config::Region]) -> Vec<PoolConfig> {
    let pool = |region: &config::Region| match &region.backing {
        Backing::Functions(pool) => Some(pool.clone()),
        _ => None,
    };
    regions.iter().filter_map(pool).collect()
}

/// The length of a file or device, in whole granules.
fn len_of(path: &Path) -> anyhow::Result<u64> {
    let end = File::open(path).and_then(|mut file| file.seek(SeekFrom::End(0)));
    let len = end.with_context(|| format!("{} has no length yet; give the region a size", path.display()))?;
    ensure!(len >= GRANULE, "{} has {len} bytes; give the region a size", path.display());
    Ok(len - len % GRANULE)
}

fn policy(policies: &[config::Policy], regions: &[config::Region], node: NodeId) -> Policy {
    let resource = |region: &config::Region| {
        let kind = match region.kind {
            Kind::Memory => ResourceType::Mem,
            Kind::Block => ResourceType::Block,
            Kind::Vram => ResourceType::Gpu,
            Kind::Functions => ResourceType::Net,
        };
        resource_id(node.0, kind, &region.name)
    };
    let rule = |policy: &config::Policy| Rule {
        presenter: policy.presenter.map(|id| id.0),
        perms: policy.perms,
        resources: policy.regions.as_ref().map(|list| {
            let cpu = policy.cpu.then(|| resource_id(node.0, ResourceType::Cpu, "cpu"));
            list.iter().map(|region| resource(&regions[*region])).chain(cpu).collect()
        }),
    };
    Policy::new(policies.iter().map(rule).collect())
}

fn quotas(policies: &[config::Policy]) -> Quotas {
    let limits = policies.iter().map(|policy| (policy.presenter.map(|id| id.0), policy.limits.clone()));
    Quotas::new(&limits.collect::<Vec<_>>())
}
