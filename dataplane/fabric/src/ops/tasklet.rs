//! Tasklets: TASKLET_SUBMIT, _STATUS, _FETCH_RESULT, _CANCEL and _FETCH_LOGS.

use std::{
    mem,
    sync::{Arc, OnceLock},
};

use berth_lease::{LeaseId, RegionKind, Rights, Status as LeaseStatus};
use berth_port::{Nanos, Now};
use berth_tasklet::{
    capability::{Capabilities, Object},
    hostcall::Kind,
    log::Log,
    module::Hash,
    result::Ended,
    run::{Limits, Module, Rejected},
    schedule::RunId,
};
use berth_wire::fabric::{
    Bytes, List, LogRecord, Op, Perms, ResourceType, Status, TargetRuntime, TaskletLimits, TaskletLogs, TaskletOutput,
    TaskletRef, TaskletRights, TaskletState, TaskletStatus, TaskletSubmit, TaskletSubmitted, Wire as _,
};
use sha2::{Digest as _, Sha256};

use super::{Reply, TimedRequest, params, wall_secs};
use crate::{
    blocking::BlockingWork,
    ending::Ending,
    host::Host,
    node::Node,
    pending::{Origin, Pending},
    request::{Carrier, Outcome, Step, Work},
    tasklet::{Terms, Why},
};

/// `negotiated_profile_version` of every answer (T5).
const PROFILE: u16 = 0;

/// What work on a module comes to.
type Slot<T> = Arc<OnceLock<T>>;

/// A tasklet on its way to its end.
#[derive(Debug, Clone)]
pub(crate) struct Submission {
    pub(crate) presenter: u128,
    pub(crate) terms: Terms,
    pub(crate) group: Option<LeaseId>,
    pub(crate) limits: Limits,
    pub(crate) capabilities: Capabilities,
    pub(crate) input: Vec<u8>,
    hash: Hash,
    /// The module's bytes; empty by hash.
    wasm: Arc<[u8]>,
    stage: Stage,
    /// How the run ended, if that was before the patience of its TASKLET_SUBMIT.
    pub(crate) ended: Option<Arc<Ended>>,
}

/// What a tasklet waits for.
#[derive(Debug, Clone)]
enum Stage {
    /// That its nonce is durable, as nothing may run twice.
    New,
    /// The hash of its module.
    Hashed(Slot<Hash>),
    /// That somebody else has compiled its module.
    Other,
    /// That its module is compiled.
    Compiled(Slot<Result<Arc<dyn Module>, Rejected>>),
    /// The end of the run.
    Runs(RunId),
}

impl Submission {
    pub(crate) fn is_new(&self) -> bool {
        matches!(self.stage, Stage::New)
    }
}

impl<H: Host> Node<H> {
    pub(super) fn tasklet_submit(&mut self, ask: &TimedRequest<'_>) -> Reply {
        let Some(tasklets) = &self.tasklets else { return Err(Status::UnsupportedOp) };
        let cpu = self.resource_ids[tasklets.resource];
        let granted = self.verify(ask, Perms::EXEC, cpu, None)?;
        let token = granted.token;
        let terms = Terms {
            token: token.token_id,
            issued_at: token.issued_at,
            resource: token.resource_id,
            rights: Rights::from_bits(token.perms.bits()),
            span: granted.span,
        };
        let may_allocate = token.perms.contains(Perms::ALLOC);
        let wanted: TaskletSubmit<'_> = params(ask)?;
        let group = self.group_of(&wanted, ask)?;
        let limits = self.within_limits(&wanted.limits, group)?;
        let listens = TaskletRights::SVC_LISTEN | TaskletRights::SVC_SESSION_IO;
        if wanted.caps.iter().any(|cap| cap.rights.and(listens) != TaskletRights::NONE) {
            return Ok(self.not_admitted(TaskletStatus::Unsupported).into());
        }
        let mut capabilities = Capabilities::default();
        for cap in wanted.caps {
            let object = self.object(cap.cap_token, ask, &terms, may_allocate);
            if object.is_none_or(|object| capabilities.add(cap.cap_token, object, cap.rights).is_err()) {
                return Ok(self.not_admitted(TaskletStatus::Unauthorized).into());
            }
        }
        let submission = Submission {
            presenter: ask.request.presenter,
            terms,
            group,
            limits,
            capabilities,
            input: wanted.input[..].to_vec(),
            hash: wanted.module_sha256,
            wasm: Arc::from(&wanted.wasm[..]),
            stage: Stage::New,
            ended: None,
        };
        let origin = Origin::of(Op::TaskletSubmit, &ask.request);
        match ask.request.carrier {
            Carrier::Quic => self.go_on_submitting(submission, origin, ask.now),
            // A copy that comes after a restart must not run again.
            Carrier::Udp { .. } => Ok(self.work(Pending::Submit(Box::new(submission)), origin).into()),
        }
    }

    /// The composite lease that a tasklet is to run in; `None` for what is not leased.
    fn group_of(&self, wanted: &TaskletSubmit<'_>, ask: &TimedRequest<'_>) -> Result<Option<LeaseId>, Status> {
        let mem = self.composite_of(wanted.resource_id, ResourceType::Mem, ask.now.mono)?;
        let cpu = self.composite_of(wanted.cpu_resource_id, ResourceType::Cpu, ask.now.mono)?;
        if let (Some(mem), Some(cpu)) = (mem, cpu)
            && mem != cpu
        {
            return Err(Status::InvalidParams);
        }
        let Some(id) = mem.or(cpu) else { return Ok(None) };
        if self.leases.get(id).is_none_or(|lease| lease.holder != ask.request.presenter) {
            return Err(Status::InsufficientPerm);
        }
        self.is_open(id, ask.now.mono)?;
        Ok(Some(id))
    }

    /// The composite lease that has this resource id, if it is not one of the inventory.
    fn composite_of(&self, id: u128, kind: ResourceType, now: Nanos) -> Result<Option<LeaseId>, Status> {
        let mut of_node = self.resources.iter().zip(&self.resource_ids);
        if id == 0 || of_node.any(|(resource, known)| *known == id && resource.kind() == kind) {
            return Ok(None);
        }
        let known = self.tasklets.as_ref().and_then(|tasklets| tasklets.resource_ids.get(&id));
        let lease = known.filter(|(of, _)| *of == kind).map(|(_, lease)| *lease);
        lease.filter(|lease| self.leases.query(*lease, now).is_some()).map(Some).ok_or(Status::ResourceNotFound)
    }

    /// Checks that a composite lease admits runs.
    fn is_open(&self, id: LeaseId, now: Nanos) -> Result<(), Status> {
        let active = self.leases.query(id, now).is_some_and(|(status, _)| status == LeaseStatus::Active);
        if active { Ok(()) } else { Err(Status::LeaseExpired) }
    }

    fn within_limits(&self, wanted: &TaskletLimits, group: Option<LeaseId>) -> Result<Limits, Status> {
        let tasklets = self.tasklets.as_ref().ok_or(Status::UnsupportedOp)?;
        let limits = Limits {
            fuel: wanted.max_fuel,
            memory: wanted.max_linear_memory.into(),
            output: wanted.max_output_bytes.into(),
            hostcalls: wanted.max_hostcalls.into(),
        };
        let max = &tasklets.config.max;
        // A lease that has no arena here had more than this start of the node has.
        let arena = tasklets.schedule.room(group.map(|lease| lease.0)).map_or(0, |room| room.memory);
        let fits = limits.fuel <= max.fuel
            && limits.memory <= max.memory.min(arena)
            && limits.output <= max.output
            && limits.hostcalls <= max.hostcalls;
        if fits { Ok(limits) } else { Err(Status::CapacityExceeded) }
    }

    /// What a `cap_token` names (T6).
    fn object(&self, name: u128, ask: &TimedRequest<'_>, terms: &Terms, may_allocate: bool) -> Option<Object> {
        let now = ask.now.mono;
        let active = |id| {
            let lease = self.leases.get(id)?;
            let kind = match self.regions().get(lease.region()?)?.kind {
                RegionKind::Memory | RegionKind::Vram => Kind::Memory,
                RegionKind::Block => Kind::Block,
            };
            let active = self.leases.query(id, now)?.0 == LeaseStatus::Active;
            (active && !self.is_being_zeroed(id)).then_some((lease, kind))
        };
        if let Some((lease, kind)) = active(LeaseId(name)) {
            return (lease.holder == ask.request.presenter).then_some(Object::Lease { lease: name, kind });
        }
        if let Some(handle) = self.leases.handle(name, now) {
            let for_us = handle.kind == TargetRuntime::Tasklet.code()
                && (handle.target == 0 || handle.target == ask.request.presenter);
            let (lease, kind) = active(handle.lease).filter(|_| for_us)?;
            let (rights, until) = (handle.rights, handle.expires);
            return Some(Object::Handle { lease: lease.id.0, kind, rights, until });
        }
        (name == terms.token).then_some(Object::Token { alloc: may_allocate })
    }

    /// Goes on with a tasklet that no longer waits for its stage.
    pub(crate) fn go_on_submitting(&mut self, mut submission: Submission, origin: Origin, now: Now) -> Reply {
        let Some(tasklets) = &mut self.tasklets else { return Err(Status::UnsupportedOp) };
        let (hash, presenter) = (submission.hash, submission.presenter);
        match mem::replace(&mut submission.stage, Stage::Other) {
            Stage::New if submission.wasm.is_empty() => match tasklets.modules.find(&hash, presenter) {
                Some(module) => self.admit_run(submission, module, origin, now),
                None => Ok(self.not_admitted(TaskletStatus::ModuleNotFound).into()),
            },
            Stage::New => {
                let (slot, wasm) = (Slot::<Hash>::default(), submission.wasm.clone());
                submission.stage = Stage::Hashed(slot.clone());
                let hashing = BlockingWork::new(move || {
                    let _ = slot.set(Sha256::digest(&wasm).into());
                });
                Ok(self.wait_to_submit(submission, origin, None, Some(hashing)))
            }
            Stage::Hashed(slot) => match slot.get() {
                Some(found) if *found == hash => self.compile(submission, origin, now),
                Some(_) => Ok(self.not_admitted(TaskletStatus::Invalid).into()),
                None => Err(Status::InternalError),
            },
            Stage::Other => self.compile(submission, origin, now),
            Stage::Compiled(slot) => {
                if let Some(compiling) = tasklets.compiling.remove(&hash) {
                    compiling.set(false);
                }
                tasklets.counts.tasklets_compiled += 1;
                match slot.get() {
                    Some(Ok(module)) => {
                        tasklets.modules.insert(hash, presenter, module.clone());
                        self.admit_run(submission, module.clone(), origin, now)
                    }
                    Some(Err(Rejected::Invalid(_))) => Ok(self.not_admitted(TaskletStatus::Invalid).into()),
                    Some(Err(Rejected::UnsupportedProfile(_))) => {
                        Ok(self.not_admitted(TaskletStatus::UnsupportedProfile).into())
                    }
                    None => Err(Status::InternalError),
                }
            }
            Stage::Runs(run) => {
                if let Some(run) = tasklets.runs.get_mut(&run) {
                    run.waiter = None;
                }
                let pending = submitted(TaskletStatus::Unknown, run, None);
                Ok(Outcome::with(submission.ended.map_or(pending, |ended| submitted(ended.status, run, Some(&ended))))
                    .into())
            }
        }
    }

    /// Has a module compiled whose hash is right, unless that was done or is being done.
    fn compile(&mut self, mut submission: Submission, origin: Origin, now: Now) -> Reply {
        let Some(tasklets) = &mut self.tasklets else { return Err(Status::UnsupportedOp) };
        if let Some(module) = tasklets.modules.claim(&submission.hash, submission.presenter) {
            return self.admit_run(submission, module, origin, now);
        }
        if let Some(compiling) = tasklets.compiling.get(&submission.hash).cloned() {
            submission.stage = Stage::Other;
            return Ok(self.wait_to_submit(submission, origin, Some(compiling), None));
        }
        tasklets.compiling.insert(submission.hash, Ending::default());
        let (slot, executor, wasm) = (Slot::default(), tasklets.config.executor.clone(), submission.wasm.clone());
        submission.stage = Stage::Compiled(slot.clone());
        let compiling = BlockingWork::new(move || {
            let _ = slot.set(executor.compile(&wasm));
        });
        Ok(self.wait_to_submit(submission, origin, None, Some(compiling)))
    }

    /// Queues a tasklet whose module is there, and waits a while for its end.
    fn admit_run(&mut self, mut submission: Submission, module: Arc<dyn Module>, origin: Origin, now: Now) -> Reply {
        if !submission.input.is_empty() && !module.takes_input() {
            return Ok(self.not_admitted(TaskletStatus::Invalid).into());
        }
        let Submission { presenter, terms, group, .. } = submission;
        // Compiling takes a while.
        let secs = wall_secs(now);
        let revoked = &self.verifier.revoked;
        if revoked.contains(terms.token, secs)
            || revoked.contains_holder(presenter, terms.issued_at, secs)
            || !self.knows(presenter)
        {
            return Err(Status::InvalidToken);
        }
        if let Some(lease) = group {
            self.is_open(lease, now.mono)?;
        }
        let epoch = self.epoch;
        let Some(tasklets) = &mut self.tasklets else { return Err(Status::UnsupportedOp) };
        let (run, ending) = tasklets.enqueue(&mut submission, module, epoch)?;
        let patience = tasklets.config.sync_wait;
        submission.wasm = Arc::default();
        submission.stage = Stage::Runs(run);
        let work = self.work(Pending::Submit(Box::new(submission)), origin);
        if let Some(run) = self.tasklets.as_mut().and_then(|tasklets| tasklets.runs.get_mut(&run)) {
            run.waiter = Some(work.ticket);
        }
        Ok(Work { ending: Some(ending), patience: Some(patience), ..work }.into())
    }

    fn wait_to_submit(
        &mut self,
        submission: Submission,
        origin: Origin,
        ending: Option<Ending>,
        prepare: Option<BlockingWork>,
    ) -> Step {
        let work = self.work(Pending::Submit(Box::new(submission)), origin);
        Work { ending, prepare, ..work }.into()
    }

    /// The answer to a tasklet that was not admitted: nothing of it is kept.
    fn not_admitted(&mut self, status: TaskletStatus) -> Outcome {
        if let Some(tasklets) = &mut self.tasklets {
            tasklets.count_refused(status);
        }
        Outcome::with(submitted(status, 0, None))
    }

    pub(super) fn tasklet_status(&mut self, ask: &TimedRequest<'_>) -> Reply {
        let (status, _) = self.state_of(ask)?;
        Ok(Outcome::ok(TaskletState { status }.to_vec()))
    }

    pub(super) fn tasklet_fetch_result(&mut self, ask: &TimedRequest<'_>) -> Reply {
        let (status, ended) = self.state_of(ask)?;
        let output = ended.as_ref().map_or(&[][..], |ended| &ended.output);
        let output = Bytes::of(output).map_err(|_| Status::InternalError)?;
        Ok(Outcome::ok(TaskletOutput { status, output }.to_vec()))
    }

    pub(super) fn tasklet_fetch_logs(&mut self, ask: &TimedRequest<'_>) -> Reply {
        let (status, ended) = self.state_of(ask)?;
        let TaskletRef { tasklet_id } = params(ask)?;
        let logs = |log: &Log| with_records(log, |logs| TaskletLogs { status, logs }.to_vec());
        let own = |tasklets: &crate::tasklet::Tasklets| {
            let run = tasklets.runs.get(&tasklet_id).filter(|run| run.presenter == ask.request.presenter)?;
            Some(run.log.with(|log| logs(log)))
        };
        let result = match ended {
            Some(ended) => Some(logs(&ended.log)),
            None => self.tasklets.as_ref().and_then(own),
        };
        Ok(Outcome::ok(result.unwrap_or_else(|| logs(&Log::default()))))
    }

    pub(super) fn tasklet_cancel(&mut self, ask: &TimedRequest<'_>) -> Reply {
        let (status, _) = self.state_of(ask)?;
        let TaskletRef { tasklet_id } = params(ask)?;
        match status {
            TaskletStatus::Unknown => {}
            TaskletStatus::NotFound => return Ok(Outcome::ok(TaskletState { status }.to_vec())),
            _ => return Ok(Outcome::ok(TaskletState { status: TaskletStatus::Finished }.to_vec())),
        }
        match self.stop_run(tasklet_id, Why::Cancelled, ask.now) {
            None => Ok(Outcome::ok(cancelled())),
            Some(ending) => {
                let work = self.work(Pending::Cancel, Origin::of(Op::TaskletCancel, &ask.request));
                Ok(Work { ending: Some(ending), ..work }.into())
            }
        }
    }

    /// How one of the presenter's runs stands, and how it ended.
    fn state_of(&self, ask: &TimedRequest<'_>) -> Result<(TaskletStatus, Option<Arc<Ended>>), Status> {
        let tasklets = self.tasklets.as_ref().ok_or(Status::UnsupportedOp)?;
        let TaskletRef { tasklet_id } = params(ask)?;
        let presenter = ask.request.presenter;
        if tasklets.runs.get(&tasklet_id).is_some_and(|run| run.presenter == presenter) {
            return Ok((TaskletStatus::Unknown, None));
        }
        let ended = tasklets.results.find(tasklet_id, presenter, ask.now.mono).cloned();
        Ok((ended.as_ref().map_or(TaskletStatus::NotFound, |ended| ended.status), ended))
    }
}

/// Result of a TASKLET_CANCEL that stopped the run.
pub(crate) fn cancelled() -> Vec<u8> {
    TaskletState { status: TaskletStatus::Ok }.to_vec()
}

/// Result of TASKLET_SUBMIT.
fn submitted(status: TaskletStatus, tasklet_id: RunId, ended: Option<&Ended>) -> Vec<u8> {
    let nothing = Log::default();
    let (output, log) = ended.map_or((&[][..], &nothing), |ended| (&ended.output, &ended.log));
    with_records(log, |logs| {
        let output = Bytes::of(output).unwrap_or_default();
        TaskletSubmitted { negotiated_profile_version: PROFILE, status, tasklet_id, output, logs }.to_vec()
    })
}

/// A log as it goes on the wire.
fn with_records(
    log: &Log,
    to: impl FnOnce(List<'_, LogRecord<'_>, { berth_wire::fabric::MAX_LOGS }>) -> Vec<u8>,
) -> Vec<u8> {
    let records = log.records().iter();
    let records: Vec<LogRecord<'_>> = records
        .map(|one| LogRecord { level: one.level, message: Bytes::of(&one.message).unwrap_or_default() })
        .collect();
    to(List::of(&records).unwrap_or(List::EMPTY))
}
