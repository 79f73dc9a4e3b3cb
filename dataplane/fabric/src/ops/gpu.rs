//! GPU_SUBMIT: a kernel of a leased GPU, run beside the node.

use std::sync::{Arc, OnceLock};

use berth_lease::{Lease, LeaseId, RegionId, Rights, Status as Standing};
use berth_port::Now;
use berth_wire::fabric::{
    Bytes, GpuExclusivity, GpuStatus, GpuSubmit, GpuSubmitted, MAX_MESSAGE, Op, Perms, Status, Wire as _,
};

use super::{Reply, TimedRequest, params};
use crate::{
    blocking::BlockingWork,
    ending::Ending,
    gpu::{GpuExecutor, Kernel, Ran, Runner, code},
    host::Host,
    node::Node,
    pending::{Origin, Pending},
    request::{Carrier, Effects, Outcome, Step, Work},
};

/// Most output of a kernel, in bytes: what an answer has room for.
const MAX_OUTPUT: usize = MAX_MESSAGE - 1024;

/// Most kernels of a lease that wait or run.
const QUEUE: usize = 16;

/// Most leases of a holder, and of the node, that have a process for their kernels. Beyond them an idle one makes way.
const WORKERS: (usize, usize) = (8, 64);

/// A kernel on its way to its end.
#[derive(Debug, Clone)]
pub(crate) struct Submit {
    pub(crate) lease: LeaseId,
    kernel: Arc<Kernel>,
    stage: Stage,
}

/// What a kernel waits for.
#[derive(Debug, Clone)]
enum Stage {
    /// Its turn; over UDP, also that its nonce is durable, as nothing may run twice.
    Turn,
    /// That it is handed to what runs it.
    Begun(Arc<OnceLock<Ran>>, Ending),
    /// Its end.
    Runs(Arc<OnceLock<Ran>>),
}

/// A kernel of the node's queue. They are in the order of their arrival.
#[derive(Debug)]
pub(crate) struct Queued {
    submit_id: u64,
    lease: LeaseId,
    region: RegionId,
    /// No kernel of another lease may run meanwhile.
    alone: bool,
    turn: Ending,
}

impl Submit {
    pub(crate) fn is_new(&self) -> bool {
        matches!(self.stage, Stage::Turn)
    }
}

impl Queued {
    /// Whether two kernels must not run at once.
    fn excludes(&self, other: &Self) -> bool {
        self.region == other.region && (self.lease == other.lease || self.alone || other.alone)
    }
}

/// Tells of a kernel's end, however its runner goes about that.
struct Finish {
    ran: Arc<OnceLock<Ran>>,
    ending: Ending,
}

impl Drop for Finish {
    fn drop(&mut self) {
        self.ending.set(false);
    }
}

impl<H: Host> Node<H> {
    pub(super) fn gpu_submit(&mut self, ask: &TimedRequest<'_>) -> Reply {
        if self.config.gpus.is_empty() && self.config.hip.is_empty() && self.config.gpus_in_use.is_empty() {
            return Err(Status::UnsupportedOp);
        }
        let granted = self.verify(ask, Perms::EXEC, 0, None)?;
        let wanted: GpuSubmit<'_> = params(ask)?;
        let gpus = &self.config.gpus;
        let gpu = gpus.iter().find(|(region, _)| self.region_resource(*region) == wanted.resource_id);
        let Some((region, gpu)) = gpu.cloned() else {
            if self.config.hip.iter().any(|device| self.region_resource(*device) == wanted.resource_id) {
                return Ok(not_run(GpuStatus::Unsupported));
            }
            let in_use = wanted.resource_id != 0 && self.is_in_use(wanted.resource_id);
            return Err(if in_use { Status::ResourceFenced } else { Status::ResourceNotFound });
        };
        let named = (!granted.covers(wanted.resource_id)).then_some(LeaseId(granted.token.resource_id));
        let Some(lease) = self.lease_to_run_in(region, named, ask)? else {
            return Ok(not_run(GpuStatus::Unauthorized));
        };
        let (first, end) = granted.span;
        let may = [Rights::READ, Rights::WRITE].iter().all(|right| lease.rights.contains(*right));
        // What a kernel reaches cannot be narrowed for one submit.
        if !may || first > lease.first || end < lease.len {
            return Ok(not_run(GpuStatus::Unauthorized));
        }
        if !gpu.takes(&wanted.binary) {
            return Ok(not_run(GpuStatus::Unsupported));
        }
        let args = match arguments(&wanted) {
            Ok(args) => args,
            Err(status) => return Ok(not_run(status)),
        };
        let output_end = wanted.output_offset.checked_add(wanted.output_size.into());
        let readable = wanted.output_offset >= lease.first && output_end.is_some_and(|end| end <= lease.len);
        if wanted.output_size > 0 && (!readable || wanted.output_size as usize > MAX_OUTPUT) {
            return Ok(not_run(GpuStatus::ReadFailed));
        }
        let of_lease = self.kernels.queue.iter().filter(|queued| queued.lease == lease.id);
        if self.endings.contains_key(&lease.id) || of_lease.count() >= QUEUE {
            return Err(Status::ResourceBusy);
        }
        let submit_id = self.kernels.next(self.epoch);
        let effects = self.run_by(&*gpu, &lease, submit_id, ask.now)?;
        let kernel = Kernel {
            submit_id,
            binary: wanted.binary[..].to_vec(),
            name: wanted.kernel_name.get().to_owned(),
            grid: wanted.grid_dim,
            block: wanted.block_dim,
            args,
            output: (wanted.output_offset, wanted.output_size),
        };
        let class = self.units.get(&lease.id).and_then(|unit| unit.first().copied());
        let alone = class.is_some_and(|class| class != GpuExclusivity::Shared.code());
        let turn = Ending::default();
        self.kernels.queue.push(Queued { submit_id, lease: lease.id, region, alone, turn: turn.clone() });
        self.kernels.give_turns();
        let submit = Submit { lease: lease.id, kernel: Arc::new(kernel), stage: Stage::Turn };
        let origin = Origin::of(Op::GpuSubmit, &ask.request);
        if turn.is_over() && ask.request.carrier == Carrier::Quic && effects.teardowns.is_empty() {
            return self.go_on_with_kernel(submit, origin, ask.now);
        }
        let work = self.work(Pending::Kernel(Box::new(submit)), origin);
        Ok(Work { ending: Some(turn), effects, ..work }.into())
    }

    /// The lease that a kernel runs in: the one that the token names, else the presenter's only one of the GPU. `None`
    /// if there is none, or more than one.
    fn lease_to_run_in(
        &self,
        region: RegionId,
        named: Option<LeaseId>,
        ask: &TimedRequest<'_>,
    ) -> Result<Option<Lease>, Status> {
        let of_gpu = self.units.keys().filter_map(|id| self.leases.get(*id));
        let mut mine = of_gpu.filter(|lease| {
            let is_named = named.is_none_or(|named| named == lease.id);
            lease.region() == Some(region) && lease.holder == ask.request.presenter && is_named
        });
        let (first, second) = (mine.next(), mine.next());
        let Some(lease) = first.filter(|_| second.is_none()) else { return Ok(None) };
        match self.leases.query(lease.id, ask.now.mono) {
            Some((Standing::Active, _)) if self.is_being_zeroed(lease.id) => Ok(None),
            Some((Standing::Active, _)) => Ok(Some(lease)),
            _ => Err(Status::LeaseExpired),
        }
    }

    /// Makes sure that there is something that runs a kernel of a lease.
    fn run_by(&mut self, gpu: &dyn GpuExecutor, lease: &Lease, submit_id: u64, now: Now) -> Result<Effects, Status> {
        let mut outcome = Outcome::default();
        if let Some(runner) = self.kernels.workers.get_mut(&lease.id) {
            runner.last = submit_id;
            return Ok(Effects::default());
        }
        if let Some(idle) = self.makes_way(lease.holder)? {
            self.end_idle(idle, now, &mut outcome);
        }
        let first = lease.first.min(lease.len);
        let worker = gpu.open(lease.base, first..lease.len);
        self.kernels.workers.insert(lease.id, Runner { worker, last: submit_id });
        Ok(outcome.into_effects())
    }

    /// Whose process makes way for one more of this holder's, if one must: of those that have no kernel, the one whose last
    /// kernel came first.
    fn makes_way(&self, holder: u128) -> Result<Option<LeaseId>, Status> {
        let workers = &self.kernels.workers;
        let is_own = |id: &LeaseId| self.leases.get(*id).is_some_and(|other| other.holder == holder);
        let own_only = workers.keys().filter(|id| is_own(id)).count() >= WORKERS.0;
        if !own_only && workers.len() < WORKERS.1 {
            return Ok(None);
        }
        let is_idle = |id: &LeaseId| self.kernels.queue.iter().all(|queued| queued.lease != *id);
        let idle = workers.iter().filter(|(id, _)| (!own_only || is_own(id)) && is_idle(id));
        let first = idle.min_by_key(|(_, runner)| runner.last);
        first.map(|(id, _)| Some(*id)).ok_or(Status::CapacityExceeded)
    }

    /// Goes on with a kernel that no longer waits for its stage.
    pub(crate) fn go_on_with_kernel(&mut self, mut submit: Submit, origin: Origin, now: Now) -> Reply {
        match submit.stage {
            Stage::Turn => {
                let is_active = self.leases.query(submit.lease, now.mono).is_some_and(|(of, _)| of == Standing::Active);
                let runner = self.kernels.workers.get(&submit.lease).filter(|_| is_active);
                let Some(worker) = runner.map(|runner| runner.worker.clone()) else {
                    self.kernel_over(submit.kernel.submit_id);
                    return Err(Status::LeaseExpired);
                };
                let (ran, ending) = (Arc::<OnceLock<Ran>>::default(), Ending::default());
                let finish = Finish { ran: ran.clone(), ending: ending.clone() };
                let kernel = submit.kernel.clone();
                let launch = BlockingWork::new(move || {
                    worker.launch(&kernel, Box::new(move |ran| drop(finish.ran.set(ran))));
                });
                submit.stage = Stage::Begun(ran, ending);
                let work = self.work(Pending::Kernel(Box::new(submit)), origin);
                Ok(Work { prepare: Some(launch), ..work }.into())
            }
            Stage::Begun(ran, ending) => {
                submit.stage = Stage::Runs(ran);
                let work = self.work(Pending::Kernel(Box::new(submit)), origin);
                Ok(Work { ending: Some(ending), ..work }.into())
            }
            Stage::Runs(ran) => {
                self.kernel_over(submit.kernel.submit_id);
                let lost = Ran { status: GpuStatus::LaunchFailed, exit_code: code::UNKNOWN, output: Vec::new() };
                let Ran { status, exit_code, output } = ran.get().cloned().unwrap_or(lost);
                let output = Bytes::of(&output).map_err(|_| Status::InternalError)?;
                let submit_id = submit.kernel.submit_id;
                Ok(Outcome::with(GpuSubmitted { status, submit_id, exit_code, output }.to_vec()).into())
            }
        }
    }

    /// Lets others have their turn.
    fn kernel_over(&mut self, submit_id: u64) {
        self.kernels.queue.retain(|queued| queued.submit_id != submit_id);
        self.kernels.give_turns();
    }

    /// Gives up a kernel whose work failed.
    pub(crate) fn kernel_failed(&mut self, submit: &Submit) -> Status {
        self.kernel_over(submit.kernel.submit_id);
        Status::InternalError
    }
}

impl crate::gpu::Kernels {
    /// The number of the next kernel: higher than that of any before, also of earlier starts.
    fn next(&mut self, epoch: u64) -> u64 {
        self.last += 1;
        epoch << 40 | self.last
    }

    /// Gives each kernel its turn that no earlier one excludes.
    fn give_turns(&mut self) {
        for (index, queued) in self.queue.iter().enumerate() {
            if !queued.turn.is_over() && !self.queue[..index].iter().any(|earlier| earlier.excludes(queued)) {
                queued.turn.set(false);
            }
        }
    }
}

/// The arguments of a kernel, one by one, unless the request cannot be meant.
fn arguments(wanted: &GpuSubmit<'_>) -> Result<Vec<Vec<u8>>, GpuStatus> {
    if !wanted.adds_up() || wanted.binary.is_empty() || wanted.kernel_name.get().is_empty() {
        return Err(GpuStatus::Invalid);
    }
    let mut left = &wanted.args[..];
    let args = wanted.arg_sizes.iter().map(|size| {
        let (arg, rest) = left.split_at(size as usize);
        left = rest;
        arg.to_vec()
    });
    Ok(args.collect())
}

/// The answer to a kernel that is not run.
fn not_run(status: GpuStatus) -> Step {
    // Not what success has.
    let exit_code = if status == GpuStatus::Invalid { code::INVALID_VALUE } else { 0 };
    Outcome::ok(GpuSubmitted { status, submit_id: 0, exit_code, output: Bytes::default() }.to_vec())
}
