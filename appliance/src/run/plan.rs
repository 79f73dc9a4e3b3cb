//! Which thread serves what: queues of all ports over the CPUs that poll them, their workers over the CPUs of workers.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    path::Path,
    sync::Arc,
    time::Duration,
};

use anyhow::Context as _;
use berth_control::Polled;
use berth_engine::Idle;
use berth_fabric::Binding as LeaseBinding;
use berth_gpu::{Choice, RingFile, RingFrames, RingVram, Vram};
use berth_hip_worker::HipCore;
use berth_host::numa_nodes;
use berth_memory::{Heap, Memory as _};
use berth_pages::{Backing, HugePage, Pages, PagesError};
use berth_ports::{
    Facts, OpenQueue as _, Opening,
    nvme::{Acceptor, NvmeBinding, NvmeCore, Opened},
};
use berth_qec::window::Pool;
use berth_ring::{Dispatcher, Elsewhere, Geometry, Producer};
use tracing::info;

use super::{
    gpus,
    queue::Queue,
    reload::{ProgramSlot, ProgramSlots},
    service,
};
use crate::config::{self, Binding, Config, Hip, Memory, Place, Port, Ring, Rpc, Service};

/// What an lcore thread needs to start.
pub(super) struct LcorePlan {
    pub(super) cpu: usize,
    pub(super) idle: Idle,
    pub(super) queues: Vec<Queue>,
    pub(super) workers: Vec<Worker>,
    pub(super) helpers: Vec<Helper>,
    pub(super) bound: Vec<Bound>,
}

/// Connections of a service that is no port.
pub(super) struct Bound {
    /// As what the ready line and telemetry know the service.
    pub(super) name: String,
    pub(super) core: Core,
}

/// What polls them.
pub(super) enum Core {
    /// Of leases that are bound to NVMe/TCP.
    Nvme(NvmeCore),
    /// Of HIP Remote.
    Hip(HipCore),
}

/// A transport whose connections are polled.
pub(super) struct Transport {
    pub(super) name: String,
    pub(super) addresses: Vec<SocketAddr>,
    pub(super) acceptor: Acceptor,
}

/// The worker for one ring of a queue of a port, by position in the configuration.
pub(super) struct Worker {
    pub(super) name: String,
    pub(super) port: usize,
    pub(super) ring: Dispatcher,
    pub(super) updates: service::Updates,
}

/// What decodes windows of the sessions of a port, by position in the configuration.
pub(super) struct Helper {
    pub(super) port: usize,
    pub(super) pool: Pool,
}

/// A ring, and where its file is if a GPU reads its requests in memory of the host.
type Made = (Producer, Option<Pinned>);

/// A ring of a GPU, by the positions of both.
struct Pinned {
    gpu: usize,
    ring: usize,
}

/// How many frames of a queue may be read where they lie.
fn kept(rings: &[Made]) -> u32 {
    rings.iter().filter(|(_, pinned)| pinned.is_some()).map(|(producer, _)| producer.slots()).sum()
}

/// What is planned so far.
struct Draft<'a> {
    config: &'a Config,
    /// The threads by their CPUs.
    lcores: BTreeMap<usize, LcorePlan>,
    /// Where functions of workers can be replaced.
    at_workers: Vec<ProgramSlot>,
    /// How many rings are in shared memory.
    shared: usize,
    /// Rings that GPUs serve, by their positions in the configuration.
    gpus: BTreeMap<usize, Vec<RingFile>>,
    /// GPUs whose memory the CPU cannot write, by the same.
    without_vram: BTreeSet<usize>,
}

/// Every thread of the dataplane.
pub(super) struct Plan {
    /// The threads by their CPUs.
    pub(super) lcores: BTreeMap<usize, LcorePlan>,
    /// What is known of each port, in the order of the configuration, beside its address.
    pub(super) facts: Vec<Facts>,
    /// By port, the windows that wait for a core.
    pub(super) pools: Vec<Pool>,
    /// Where functions can be replaced.
    pub(super) slots: ProgramSlots,
    /// Rings that GPUs serve, by their positions in the configuration.
    pub(super) gpus: BTreeMap<usize, Vec<RingFile>>,
    /// What accepts connections to leases.
    pub(super) transports: Vec<Transport>,
    /// What connects leases to them.
    bindings: Vec<NvmeBinding>,
}

pub(super) fn plan(config: &Config) -> anyhow::Result<Plan> {
    let mut draft = Draft {
        config,
        lcores: BTreeMap::new(),
        at_workers: Vec::new(),
        shared: 0,
        gpus: BTreeMap::new(),
        without_vram: BTreeSet::new(),
    };
    let (mut facts, mut pools, mut slots) = (Vec::new(), Vec::new(), Vec::new());
    let is_parallel = config.decoders.iter().any(|decoder| decoder.cores > 1);
    for (index, port) in config.ports.iter().enumerate() {
        let of_port = || format!("port {}", port.name);
        let rings = (0..port.cpus.len()).map(|number| draft.rings(index, port, number));
        let rings = rings.collect::<anyhow::Result<Vec<_>>>().with_context(of_port)?;
        let opening = Opening {
            queues: port.cpus.len(),
            max_frame: port.max_frame(),
            waiting: port.limits.queue,
            kept: rings.iter().map(|rings| kept(rings)).max().unwrap_or(0),
            runtime: &config.runtime,
        };
        let (sources, known) = port.driver.queues(&opening).with_context(of_port)?;
        facts.push(known);
        pools.push(draft.helpers(index, port, is_parallel));
        let mut admission = port.admission().into_iter();
        for (((number, &cpu), source), rings) in port.cpus.iter().enumerate().zip(sources).zip(rings) {
            let rings = draft.reading(port, &source, rings).with_context(of_port)?;
            let updates = port.rpc().map(|_| ProgramSlot::add(&mut slots, index, format!("cpu{cpu}")));
            draft.lcore(cpu, port.idle).queues.push(Queue {
                port: index,
                number,
                source,
                rings,
                updates,
                admission: admission.next(),
            });
        }
    }
    let (mut transports, mut bindings) = (Vec::new(), Vec::new());
    for binding in &config.bindings {
        let Binding::Nvme(nvme) = binding else { continue };
        let Opened { binding, acceptor, cores, addresses } = nvme.open()?;
        let name = if transports.is_empty() { "nvme-tcp".into() } else { format!("nvme-tcp.{}", transports.len()) };
        for (&cpu, core) in nvme.cpus.iter().zip(cores) {
            draft.lcore(cpu, nvme.idle).bound.push(Bound { name: name.clone(), core: Core::Nvme(core) });
        }
        bindings.push(binding);
        transports.push(Transport { name, addresses, acceptor });
    }
    let Draft { lcores, at_workers, gpus, .. } = draft;
    let slots = ProgramSlots { workers: at_workers, lcores: slots };
    Ok(Plan { lcores, facts, pools, slots, gpus, transports, bindings })
}

impl Plan {
    /// Has CPUs poll the sessions of HIP Remote.
    pub(super) fn poll_hip(&mut self, hip: &Hip, cores: Vec<HipCore>) {
        for (&cpu, core) in hip.cpus.iter().zip(cores) {
            lcore(&mut self.lcores, cpu, hip.idle).bound.push(Bound { name: "hip".into(), core: Core::Hip(core) });
        }
    }

    /// The control plane's ends of ports with connections.
    pub(super) fn polled(&mut self) -> Vec<Polled> {
        let queues = self.lcores.values_mut().flat_map(|lcore| &mut lcore.queues);
        queues.filter_map(|queue| queue.source.polled()).collect()
    }

    /// What connects leases to ports that serve them, and to transports, each in the order of the configuration.
    pub(super) fn bindings(&mut self, config: &Config) -> Vec<Box<dyn LeaseBinding>> {
        let queues = self.lcores.values().flat_map(|lcore| &lcore.queues);
        let serving = queues.map(|queue| (queue, &config.ports[queue.port]));
        let serving = serving.filter(|(_, port)| port.service == Service::LeaseIo);
        let bindings = serving.filter_map(|(queue, port)| Some((queue.port, queue.source.binding(&port.name)?)));
        let bindings: BTreeMap<_, _> = bindings.collect();
        let transports = self.bindings.drain(..).map(|binding| Box::new(binding) as Box<dyn LeaseBinding>);
        bindings.into_values().chain(transports).collect()
    }
}

/// The thread of a CPU; the eagerest port that it polls or works for sets how it idles.
fn lcore(lcores: &mut BTreeMap<usize, LcorePlan>, cpu: usize, idle: Idle) -> &mut LcorePlan {
    let new =
        || LcorePlan { cpu, idle, queues: Vec::new(), workers: Vec::new(), helpers: Vec::new(), bound: Vec::new() };
    let lcore = lcores.entry(cpu).or_insert_with(new);
    lcore.idle = lcore.idle.max(idle);
    lcore
}

impl Draft<'_> {
    fn lcore(&mut self, cpu: usize, idle: Idle) -> &mut LcorePlan {
        lcore(&mut self.lcores, cpu, idle)
    }

    /// The windows of a port's sessions that wait, for the CPUs of its workers to decode them if there are such.
    fn helpers(&mut self, index: usize, port: &Port, is_parallel: bool) -> Pool {
        let rings = port.rpc().into_iter().flat_map(Rpc::rings);
        let cpus: BTreeSet<usize> = rings.flat_map(|ring| &ring.worker_cpus).copied().collect();
        let pool = Pool::new(if is_parallel { cpus.len() } else { 0 });
        for cpu in cpus.into_iter().filter(|_| is_parallel) {
            self.lcore(cpu, port.idle).helpers.push(Helper { port: index, pool: pool.clone() });
        }
        pool
    }

    /// The rings from one queue to workers.
    fn rings(&mut self, index: usize, port: &Port, number: usize) -> anyhow::Result<Vec<Made>> {
        let Some(rpc) = port.rpc() else { return Ok(Vec::new()) };
        let all = rpc.rings().map(|ring| {
            let geometry = Geometry::new(ring.slots as u32, rpc.slot_size)?;
            self.ring(index, port, number, ring, geometry)
        });
        all.collect()
    }

    /// One of them; the queues of a port go to the CPUs of the ring's workers in turn. A shared ring has no worker here.
    fn ring(
        &mut self,
        index: usize,
        port: &Port,
        number: usize,
        Ring { name, worker_cpus, memory, .. }: &Ring,
        geometry: Geometry,
    ) -> anyhow::Result<Made> {
        let internal = geometry.internal_size();
        let (producer, dispatcher) = match memory {
            Memory::Heap => berth_ring::pair_in(Heap::new(internal), geometry)?,
            Memory::Hugepages => {
                berth_ring::pair_in(pages(internal, &Backing::Huge(HugePage::Size2M), port.cpus[number])?, geometry)?
            }
            Memory::Shared { name, patience } => {
                let name = if number == 0 { format!("berth-{name}") } else { format!("berth-{name}.{number}") };
                let memory = pages(geometry.shared_size(), &Backing::Shared(name), port.cpus[number])?;
                let base = shared_base(self.shared);
                self.shared += 1;
                return Ok((berth_ring::shared(memory, geometry, base)?.patient(*patience), None));
            }
            Memory::Gpu(gpu, place) => {
                let memory = pages(geometry.shared_size(), &Backing::Unnamed, port.cpus[number])?;
                let file = memory.file().context("no file")?.try_clone()?;
                let header = port.rpc().map_or(0, |rpc| rpc.header.len()) as u32;
                let base = shared_base(self.shared);
                let vram = self.vram(*gpu, *place, geometry)?;
                self.shared += 1;
                let (producer, vram) = match vram {
                    // Its dispatcher is ours, and answers before it frees.
                    None => (berth_ring::shared(memory, geometry, base)?.patient(Duration::ZERO), None),
                    Some(vram) => {
                        let (producer, out) = berth_ring::posted(memory, base, vram.clone(), vram.at(), geometry)?;
                        (producer, Some(RingVram { memory: vram, slots: geometry.posted_slots(), out }))
                    }
                };
                let rings = self.gpus.entry(*gpu).or_default();
                let pinned = vram.is_none().then_some(Pinned { gpu: *gpu, ring: rings.len() });
                rings.push(RingFile { file, header, vram, frames: None });
                return Ok((producer.trusted(), pinned));
            }
        };
        let cpu = worker_cpus[number % worker_cpus.len()];
        let updates = ProgramSlot::add(&mut self.at_workers, index, format!("cpu{cpu}"));
        let name = name.as_ref().map_or_else(|| format!("worker{cpu}"), |name| format!("worker{cpu}.{name}"));
        self.lcore(cpu, port.idle).workers.push(Worker { name, port: index, ring: dispatcher, updates });
        Ok((producer, None))
    }

    /// Has GPUs read requests where the queue received them, if its frames lie in memory that other processes can have.
    fn reading(&mut self, port: &Port, source: &berth_ports::Queue, rings: Vec<Made>) -> anyhow::Result<Vec<Producer>> {
        let frames = match source.frames().filter(|_| kept(&rings) > 0) {
            Some(Err(why)) => {
                info!("port {}: requests are copied into their slots: {why}", port.name);
                None
            }
            frames => frames.and_then(Result::ok),
        };
        let Some(frames) = frames else { return Ok(rings.into_iter().map(|(producer, _)| producer).collect()) };
        let mut reading = Vec::new();
        for (producer, pinned) in rings {
            let Some(Pinned { gpu, ring }) = pinned else {
                reading.push(producer);
                continue;
            };
            let base = frames_base(self.shared) as u64;
            self.shared += 1;
            let elsewhere = Elsewhere { base, size: frames.size(), is_read: Arc::default() };
            let file = frames.file().context("no file")?.try_clone()?;
            let files = self.gpus.get_mut(&gpu).and_then(|rings| rings.get_mut(ring)).context("no such ring")?;
            files.frames = Some(RingFrames { file, elsewhere: elsewhere.clone() });
            reading.push(producer.reading(elsewhere));
        }
        Ok(reading)
    }

    /// Memory of a GPU for the requests of a ring, where they are to lie there.
    fn vram(&mut self, gpu: usize, place: Place, geometry: Geometry) -> anyhow::Result<Option<Arc<Vram>>> {
        let config::Gpu { name, device, .. } = &self.config.gpus[gpu];
        // Those of graphs are read by the worker.
        let are_graphs = || self.config.gpu_functions(gpu).0.all.iter().any(|function| function.graph);
        let is_given_up = || self.without_vram.contains(&gpu) || are_graphs();
        if place == Place::Pinned || *device == Choice::Soft || place == Place::Auto && is_given_up() {
            return Ok(None);
        }
        let found = match Vram::allocate(&gpus::worker()?, device, geometry.posted_size(), vram_base(self.shared)) {
            Ok(memory) => memory,
            Err(why) if place == Place::Auto => {
                info!("gpu {name}: requests lie in memory of the host, which it reads: {why}");
                self.without_vram.insert(gpu);
                return Ok(None);
            }
            Err(why) => return Err(why).with_context(|| format!("gpu {name}, memory = \"vram\"")),
        };
        Ok(Some(Arc::new(found)))
    }
}

/// Memory of the NUMA node of a CPU.
fn pages(size: usize, backing: &Backing, cpu: usize) -> Result<Pages, PagesError> {
    let node = numa_nodes(Path::new("/sys")).into_iter().find(|node| node.cpus.contains(&cpu));
    Pages::new(size as u64, backing, node.map(|node| node.id))
}

/// Where the process that serves this one of all shared rings had best map it: where nothing lies by itself, and, as a
/// ring has 8.6 GB at most, apart from the others.
fn shared_base(nth: usize) -> usize {
    (0x2000 << 32) + (nth << 34)
}

/// Where it maps the frames of a queue, in the same way.
fn frames_base(nth: usize) -> usize {
    (0x2800 << 32) + (nth << 34)
}

/// Where a GPU sees its memory with this ring's requests, in the same way.
fn vram_base(nth: usize) -> usize {
    (0x3000 << 32) + (nth << 34)
}
