//! GPUs whose memory is leased: exclusivity classes, and what runs the kernels of their leases.

use std::{
    collections::BTreeMap,
    fmt::Debug,
    ops::Range,
    sync::{Arc, OnceLock},
};

use berth_lease::{Lease, LeaseId, RegionId, RegionKind};
use berth_wire::fabric::{GpuExclusivity, GpuStatus, Intents, ResourceType, Status, Tlvs};

use crate::{
    blocking::BlockingWork,
    host::Host,
    node::Node,
    ops::{HipSession, Queued},
    resource::resource_id,
    scrub,
};

/// The classes that leases of a GPU can have. A partition (class 3) is reserved, and refused where it is read.
pub(crate) const CLASSES: [GpuExclusivity; 3] =
    [GpuExclusivity::Shared, GpuExclusivity::SessionExclusive, GpuExclusivity::DeviceExclusive];

/// Set once some work on a lease has been done.
pub(crate) type Done = Arc<OnceLock<()>>;

/// Exit codes of kernels: what CUDA calls the errors.
pub mod code {
    /// Arguments or a grid that the kernel or the device does not take.
    pub const INVALID_VALUE: i32 = 1;
    /// The text is no PTX that this device runs.
    pub const INVALID_PTX: i32 = 218;
    /// The module has no such kernel.
    pub const NOT_FOUND: i32 = 500;
    /// An access to what the kernel may not touch.
    pub const ILLEGAL_ADDRESS: i32 = 700;
    /// The time limit is over.
    pub const TIMEOUT: i32 = 702;
    /// An access that is not aligned to its size.
    pub const MISALIGNED: i32 = 716;
    /// Whatever else a kernel did that it must not.
    pub const LAUNCH_FAILED: i32 = 719;
    /// What ran the kernel is gone.
    pub const UNKNOWN: i32 = 999;
}

/// The kernels of a node.
#[derive(Debug, Default)]
pub(crate) struct Kernels {
    /// What runs those of each lease.
    pub(crate) workers: BTreeMap<LeaseId, Runner>,
    /// Sessions of HIP Remote.
    pub(crate) sessions: BTreeMap<LeaseId, Arc<dyn HipSession>>,
    /// Those that wait or run.
    pub(crate) queue: Vec<Queued>,
    pub(crate) last: u64,
}

/// What runs the kernels of one lease.
#[derive(Debug)]
pub(crate) struct Runner {
    pub(crate) worker: Arc<dyn GpuWorker>,
    /// The number of its last kernel.
    pub(crate) last: u64,
}

impl Kernels {
    /// Whether anything uses a lease's device.
    pub(crate) fn any_of(&self, id: LeaseId) -> bool {
        self.workers.contains_key(&id) || self.sessions.contains_key(&id)
    }
}

/// A GPU whose memory is leased.
pub trait GpuExecutor: Debug + Send + Sync {
    /// Where kernels see the first byte of its region. It stays the same, whichever process runs them.
    fn base(&self) -> u64;

    /// Whether a binary may be one that it runs. Of one that is not, no worker is told.
    fn takes(&self, _binary: &[u8]) -> bool {
        true
    }

    /// What runs the kernels of a lease that begins at `base` of the region; they reach these of its bytes. Nothing is
    /// started yet.
    fn open(&self, base: u64, reach: Range<u64>) -> Arc<dyn GpuWorker>;
}

/// Runs the kernels of one lease, one at a time.
pub trait GpuWorker: Debug + Send + Sync {
    /// Loads and runs a kernel, and says how that went: in time, whatever the kernel does, or at [`GpuWorker::stop`]. It
    /// waits for nothing but for the kernel to be handed over.
    fn launch(&self, kernel: &Kernel, done: GpuDone);

    /// Ends what runs, for good. It may take a while; after that, nothing of the lease's memory is touched.
    fn stop(&self);
}

/// What is called once a kernel has ended.
pub type GpuDone = Box<dyn FnOnce(Ran) + Send>;

/// A kernel to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kernel {
    /// Its number on this node: higher than that of any before, also of earlier starts.
    pub submit_id: u64,
    /// The binary that it is in; not empty.
    pub binary: Vec<u8>,
    /// Name of the kernel in `binary`.
    pub name: String,
    /// Blocks in x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y and z.
    pub block: [u32; 3],
    /// The bytes of each argument, in the order of the submission.
    pub args: Vec<Vec<u8>>,
    /// Offset in the lease, and length, of what is read when it has ended; they lie within the lease.
    pub output: (u64, u32),
}

/// How a kernel ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ran {
    /// As GPU_SUBMIT answers it.
    pub status: GpuStatus,
    /// 0, or what CUDA calls the error, such as one of [`code`].
    pub exit_code: i32,
    /// What was asked for; or why the binary is not loaded.
    pub output: Vec<u8>,
}

impl<H: Host> Node<H> {
    /// The GPU that a region is the memory of.
    pub(crate) fn gpu_of(&self, region: RegionId) -> Option<&Arc<dyn GpuExecutor>> {
        self.config.gpus.iter().find(|(of, _)| *of == region).map(|(_, gpu)| gpu)
    }

    /// The lease of a GPU's memory with this id.
    pub(crate) fn gpu_lease(&self, id: u128) -> Option<Lease> {
        self.leases.get(LeaseId(id)).filter(|lease| self.is_vram(lease))
    }

    /// Whether a lease is of a GPU's memory.
    pub(crate) fn is_vram(&self, lease: &Lease) -> bool {
        let region = lease.region().and_then(|region| self.regions().get(region));
        region.is_some_and(|region| region.kind == RegionKind::Vram)
    }

    /// Whether this GPU, or for 0 any, is one that serves something else.
    pub(crate) fn is_in_use(&self, resource: u128) -> bool {
        let id = |name: &String| resource_id(self.id(), ResourceType::Gpu, name);
        self.config.gpus_in_use.iter().any(|name| resource == 0 || id(name) == resource)
    }

    /// The class that a lease is to have. Only those regions are left that can give it.
    pub(crate) fn admit_class(&self, regions: &mut Vec<RegionId>, intents: Tlvs<'_>) -> Result<GpuExclusivity, Status> {
        let intents = Intents::read(intents).map_err(|_| Status::InvalidParams)?;
        let class = intents.gpu_exclusivity.unwrap_or(GpuExclusivity::Shared);
        let has_room = |region: &RegionId| {
            let mut others = self
                .units
                .iter()
                .filter(|(id, _)| self.leases.get(**id).is_some_and(|lease| lease.region() == Some(*region)));
            let device = GpuExclusivity::DeviceExclusive;
            others.all(|(_, unit)| class != device && unit[..] != [device.code()])
        };
        regions.retain(has_room);
        if regions.is_empty() { Err(Status::ResourceBusy) } else { Ok(class) }
    }

    /// Zeroes all granules of a GPU lease that is over, once nobody accesses them any more.
    pub(crate) fn scrub(&self, lease: &Lease) -> Option<(Done, BlockingWork)> {
        let region = self.regions().get(lease.region()?).filter(|region| region.kind == RegionKind::Vram)?;
        let (storage, extent) = (region.storage.clone(), self.leases.extent(lease)?);
        let (mut quiescence, scrubbed) = (self.leases.quiescence(), Done::default());
        let done = scrubbed.clone();
        let work = BlockingWork::new(move || {
            quiescence.wait();
            if scrub::zero(&storage, extent, scrub::PATIENCE) {
                let _ = done.set(());
            }
        });
        Some((scrubbed, work))
    }

    /// Ends what runs the kernels of a lease, or the session that has its device.
    pub(crate) fn stop_kernels(&mut self, id: LeaseId) -> Option<(Done, BlockingWork)> {
        let (worker, session) = (self.kernels.workers.remove(&id), self.kernels.sessions.remove(&id));
        if worker.is_none() && session.is_none() {
            return None;
        }
        let stopped = Done::default();
        let done = stopped.clone();
        let work = BlockingWork::new(move || {
            if let Some(Runner { worker, .. }) = worker {
                worker.stop();
            }
            if let Some(session) = session {
                session.stop();
            }
            let _ = done.set(());
        });
        Some((stopped, work))
    }
}
