//! Tasklets: what a node keeps of them, and what it has for whoever runs them.
//!
//! Runs do not outlive the process. Their ids begin with the number of the node's start, so none is used again.

use std::{
    collections::{BTreeMap, VecDeque},
    mem,
    sync::Arc,
    time::Duration,
};

use berth_lease::{LeaseId, Rights};
use berth_port::{Family, Nanos, Now};
use berth_tasklet::{
    capability::Capabilities,
    hostcall::MAX_ALLOCS,
    log::SharedLog,
    module::{Hash, Modules},
    result::{Ended, Results},
    run::{Executor, Limits, Module, Outcome as RunOutcome, Status as RunStatus},
    schedule::{self, Go, Room, RunId, Schedule},
};
use berth_wire::fabric::{ResourceType, Status, TaskletStatus};

use crate::{ending::Ending, host::Host, node::Node, ops::Submission, pending::Pending};

/// What runs tasklets, and how much of it there is.
#[derive(Debug, Clone)]
pub struct TaskletConfig {
    /// Compiles modules.
    pub executor: Arc<dyn Executor>,
    /// Cores of the pool.
    pub cores: u32,
    /// Linear memory of all runs and arenas, in bytes.
    pub memory: u64,
    /// How long TASKLET_SUBMIT waits for the end of a run.
    pub sync_wait: Duration,
    /// Compiled modules that are kept, in bytes.
    pub modules: u64,
    /// Results that are kept, in bytes.
    pub results: u64,
    /// How long a result is kept after the end of its run (T3).
    pub result_time: Duration,
    /// Limit on runs that wait for a core.
    pub queue: usize,
    /// The most that one run may ask for (T4).
    pub max: Limits,
    /// Longest wall time of a run, counted from its start (T4); then it is stopped.
    pub max_wall: Duration,
}

/// Limit on the bytes of inputs of runs that wait.
const INPUTS: u64 = 64 << 20;

impl TaskletConfig {
    /// A pool of `cores` with the defaults of T3 and T4.
    pub fn new(executor: Arc<dyn Executor>, cores: u32) -> Self {
        Self {
            executor,
            cores,
            memory: 256 << 20,
            sync_wait: Duration::from_secs(1),
            modules: 256 << 20,
            results: 64 << 20,
            result_time: Duration::from_mins(5),
            queue: 1024,
            max: Limits { fuel: 10_000_000_000, memory: 64 << 20, output: 512 << 10, hostcalls: 1_000_000 },
            max_wall: Duration::from_secs(10),
        }
    }
}

/// What comes next for a run, to be handed to its thread.
#[derive(Debug)]
pub enum Turn {
    /// Begin it, with [`Node::slice_over`] and [`Node::lease_call`] for its calls and [`Node::run_ended`] at its end.
    Start(Box<Start>),
    /// It waits for a turn and has it now.
    Resume(RunId),
    /// It waits for a turn and is to stop.
    Stop(RunId),
}

/// A run that begins.
#[derive(Debug)]
pub struct Start {
    /// Its `tasklet_id`.
    pub run: RunId,
    /// Id of the key that submitted it.
    pub presenter: u128,
    /// The compiled module; the run is a fresh instance of it.
    pub module: Arc<dyn Module>,
    /// Input of the submission, to be passed to the module.
    pub input: Vec<u8>,
    /// Limits of the submission, within [`TaskletConfig::max`].
    pub limits: Limits,
    /// Its capabilities at the start; leases that it allocates are to be added.
    pub capabilities: Capabilities,
    /// What it writes with `fb_log`.
    pub log: SharedLog,
}

/// Answer of [`Node::slice_over`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SliceOver {
    /// The run has the next slice, too.
    GoOn,
    /// It is another's turn: a [`Turn`] will name this run.
    Wait,
    /// It is to stop.
    Stop,
}

/// Why a run is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Why {
    Cancelled,
    Wall,
    Token,
    Expired,
    Ended,
}

impl Why {
    fn reason(self, config: &TaskletConfig) -> String {
        match self {
            Self::Cancelled => "cancelled".into(),
            Self::Wall => format!("wall time: more than {} ms", config.max_wall.as_millis()),
            Self::Token => "its token was revoked".into(),
            Self::Expired => "its composite lease expired".into(),
            Self::Ended => "its composite lease ended".into(),
        }
    }
}

/// The terms of the token under which a run was admitted: its end, or a fence, changes nothing for the run (T10).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Terms {
    pub(crate) token: u128,
    pub(crate) issued_at: u64,
    /// The resource that the token is for; 0 for any.
    pub(crate) resource: u128,
    pub(crate) rights: Rights,
    /// As that of a RANGE caveat.
    pub(crate) span: (u64, u64),
}

/// A run that has not ended.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) presenter: u128,
    pub(crate) terms: Terms,
    pub(crate) group: Option<LeaseId>,
    /// Until it begins.
    start: Option<Box<Start>>,
    began: Option<Nanos>,
    stopped: Option<Why>,
    /// It waits for a turn.
    waits: bool,
    pub(crate) log: SharedLog,
    pub(crate) ending: Ending,
    /// Ticket of the TASKLET_SUBMIT that waits for it.
    pub(crate) waiter: Option<u64>,
    /// Leases that it may still allocate.
    pub(crate) allocs: u32,
}

const RUNS: Family = Family::counter("tasklet_runs", "tasklets that were admitted and ended, by status");
const REFUSED: Family = Family::counter("tasklets_refused", "tasklets that were not admitted, by status");

berth_port::counters! {
    #[derive(Clone, Copy)]
    pub(crate) struct Counters {
        tasklet_runs_ok: RUNS { status: "OK" },
        tasklet_runs_fuel: RUNS { status: "FUEL_EXHAUSTED" },
        tasklet_runs_oom: RUNS { status: "OOM" },
        tasklet_runs_failed: RUNS { status: "EXEC_FAILED" },
        tasklet_runs_hostcalls: RUNS { status: "HOSTCALL_LIMIT" },
        tasklets_refused_invalid: REFUSED { status: "INVALID" },
        tasklets_refused_unauthorized: REFUSED { status: "UNAUTHORIZED" },
        tasklets_refused_profile: REFUSED { status: "UNSUPPORTED_PROFILE" },
        tasklets_refused_no_module: REFUSED { status: "MODULE_NOT_FOUND" },
        tasklets_refused_unsupported: REFUSED { status: "UNSUPPORTED" },
        tasklets_refused_busy: REFUSED { status: "RESOURCE_BUSY" },
        tasklet_fuel: "fuel that tasklets used",
        tasklet_hostcalls: "hostcalls that tasklets made",
        tasklets_compiled: "modules that were compiled, or refused by the compiler",
        tasklets_waiting: gauge "tasklets that wait for a core",
        tasklets_under_way: gauge "tasklets that have begun and not ended",
        tasklet_cores_leased: gauge "cores that composite leases hold",
        tasklet_modules: gauge "compiled modules in the cache",
        tasklet_module_bytes: gauge "bytes of compiled modules in the cache",
        tasklet_results: gauge "results that are kept",
        tasklet_result_bytes: gauge "bytes of results that are kept",
        tasklet_executor_cgroups: gauge "1 where each executor process has a cgroup of its own",
        tasklet_executors_started: "executor processes that were started, one of them ahead",
        tasklet_executors_lost: "executor processes that crashed or were killed by others",
        tasklet_executors_killed: "executor processes that did not stop their run, or said what they must not",
    }
}

/// Everything about tasklets.
#[derive(Debug)]
pub(crate) struct Tasklets {
    pub(crate) config: TaskletConfig,
    /// Position of the CPU among the node's resources.
    pub(crate) resource: usize,
    pub(crate) schedule: Schedule,
    pub(crate) modules: Modules,
    /// Compilations under way.
    pub(crate) compiling: BTreeMap<Hash, Ending>,
    pub(crate) results: Results,
    pub(crate) runs: BTreeMap<RunId, Run>,
    /// Composite leases by each of their resource ids.
    pub(crate) resource_ids: BTreeMap<u128, (ResourceType, LeaseId)>,
    turns: VecDeque<Turn>,
    last: u64,
    pub(crate) counts: Counters,
}

impl Tasklets {
    pub(crate) fn new(config: TaskletConfig, resource: usize) -> Self {
        let schedule = Schedule::new(schedule::Config {
            room: Room { cores: config.cores, memory: config.memory },
            queue: config.queue,
            inputs: INPUTS,
        });
        Self {
            resource,
            schedule,
            modules: Modules::new(config.modules),
            compiling: BTreeMap::new(),
            results: Results::new(config.results, config.result_time),
            runs: BTreeMap::new(),
            resource_ids: BTreeMap::new(),
            turns: VecDeque::new(),
            last: 0,
            counts: Counters::default(),
            config,
        }
    }

    pub(crate) fn counters(&self) -> Counters {
        let (waiting, under_way) = self.schedule.counts();
        let processes = self.config.executor.processes();
        Counters {
            tasklets_waiting: waiting as u64,
            tasklets_under_way: under_way as u64,
            tasklet_cores_leased: (self.config.cores - self.schedule.free().cores).into(),
            tasklet_modules: self.modules.len() as u64,
            tasklet_module_bytes: self.modules.bytes(),
            tasklet_results: self.results.len() as u64,
            tasklet_result_bytes: self.results.bytes(),
            tasklet_executor_cgroups: processes.cgroup.into(),
            tasklet_executors_started: processes.started,
            tasklet_executors_lost: processes.lost,
            tasklet_executors_killed: processes.killed,
            ..self.counts
        }
    }

    /// An id that no run had, in this start of the node or in another: never 0.
    fn id(&mut self, epoch: u64) -> RunId {
        self.last += 1;
        epoch << 40 | self.last
    }

    /// Counts a tasklet that was not admitted.
    pub(crate) fn count_refused(&mut self, status: TaskletStatus) {
        let counts = &mut self.counts;
        *match status {
            TaskletStatus::Unauthorized => &mut counts.tasklets_refused_unauthorized,
            TaskletStatus::UnsupportedProfile => &mut counts.tasklets_refused_profile,
            TaskletStatus::ModuleNotFound => &mut counts.tasklets_refused_no_module,
            TaskletStatus::Unsupported => &mut counts.tasklets_refused_unsupported,
            _ => &mut counts.tasklets_refused_invalid,
        } += 1;
    }

    /// Queues an admitted tasklet.
    pub(crate) fn enqueue(
        &mut self,
        submission: &mut Submission,
        module: Arc<dyn Module>,
        epoch: u64,
    ) -> Result<(RunId, Ending), Status> {
        let run = self.id(epoch);
        let queued = schedule::Queued {
            run,
            group: submission.group.map(|lease| lease.0),
            presenter: submission.presenter,
            memory: submission.limits.memory,
            input: submission.input.len() as u64,
        };
        self.schedule.submit(queued).map_err(|_| {
            self.counts.tasklets_refused_busy += 1;
            Status::ResourceBusy
        })?;
        let (log, ending) = (SharedLog::default(), Ending::default());
        let start = Start {
            run,
            presenter: submission.presenter,
            module,
            input: mem::take(&mut submission.input),
            limits: submission.limits,
            capabilities: mem::take(&mut submission.capabilities),
            log: log.clone(),
        };
        let Submission { presenter, terms, group, .. } = *submission;
        self.runs.insert(
            run,
            Run {
                presenter,
                terms,
                group,
                start: Some(Box::new(start)),
                began: None,
                stopped: None,
                waits: false,
                log,
                ending: ending.clone(),
                waiter: None,
                allocs: MAX_ALLOCS,
            },
        );
        Ok((run, ending))
    }

    /// Moves what the schedule decides to `turns`.
    fn decide(&mut self, now: Nanos) {
        while let Some(go) = self.schedule.next_go() {
            match go {
                Go::Start(id) => {
                    let run = self.runs.get_mut(&id);
                    let Some((run, start)) = run.and_then(|run| run.start.take().map(|start| (run, start))) else {
                        continue;
                    };
                    run.began = Some(now);
                    self.turns.push_back(Turn::Start(start));
                }
                Go::Resume(id) => {
                    let Some(run) = self.runs.get_mut(&id) else { continue };
                    // One that was told to stop waits no more.
                    if mem::take(&mut run.waits) {
                        self.turns.push_back(Turn::Resume(id));
                    }
                }
            }
        }
    }
}

impl<H: Host> Node<H> {
    /// What comes next for runs; to be called after every other call, and each to be handed on at once.
    pub fn take_turns(&mut self, now: Now) -> impl Iterator<Item = Turn> + use<H> {
        let tasklets = self.tasklets.as_mut();
        let turns = tasklets.map(|tasklets| {
            tasklets.decide(now.mono);
            mem::take(&mut tasklets.turns)
        });
        turns.into_iter().flatten()
    }

    /// Ids of the runs that have not ended, those that wait for a core included.
    pub fn runs(&self) -> impl Iterator<Item = RunId> {
        self.tasklets.iter().flat_map(|tasklets| tasklets.runs.keys().copied())
    }

    /// A run has used its slice. After [`SliceOver::Wait`] its thread waits for a [`Turn`].
    pub fn slice_over(&mut self, id: RunId, now: Now) -> SliceOver {
        let Some(tasklets) = &mut self.tasklets else { return SliceOver::Stop };
        let wall = tasklets.config.max_wall;
        let Some(run) = tasklets.runs.get_mut(&id) else { return SliceOver::Stop };
        if run.stopped.is_none() && run.began.is_some_and(|began| now.mono >= began + wall) {
            run.stopped = Some(Why::Wall);
        }
        if run.stopped.is_some() {
            return SliceOver::Stop;
        }
        run.waits = true;
        tasklets.schedule.slice_over(id);
        tasklets.decide(now.mono);
        let own = tasklets.turns.iter().position(|turn| matches!(turn, Turn::Resume(run) if *run == id));
        match own {
            Some(at) => {
                tasklets.turns.remove(at);
                SliceOver::GoOn
            }
            None => SliceOver::Wait,
        }
    }

    /// A run has ended, and its thread touches nothing of it any more.
    pub fn run_ended(&mut self, id: RunId, outcome: RunOutcome, now: Now) {
        let Some(tasklets) = &mut self.tasklets else { return };
        let Some(run) = tasklets.runs.get(&id) else { return };
        tasklets.counts.tasklet_fuel += outcome.fuel;
        tasklets.counts.tasklet_hostcalls += outcome.hostcalls;
        let stopped = run.stopped;
        self.end_run(id, stopped, Some(outcome), now);
    }

    fn end_run(&mut self, id: RunId, stopped: Option<Why>, outcome: Option<RunOutcome>, now: Now) {
        let Some(tasklets) = &mut self.tasklets else { return };
        let Some(run) = tasklets.runs.remove(&id) else { return };
        tasklets.schedule.ended(id);
        let (status, output, reason) = match (stopped, outcome) {
            (Some(why), _) => (TaskletStatus::ExecFailed, Vec::new(), Some(why.reason(&tasklets.config))),
            (None, Some(outcome)) => (status(outcome.status), outcome.output, outcome.reason),
            (None, None) => (TaskletStatus::ExecFailed, Vec::new(), None),
        };
        let counts = &mut tasklets.counts;
        *match status {
            TaskletStatus::Ok => &mut counts.tasklet_runs_ok,
            TaskletStatus::FuelExhausted => &mut counts.tasklet_runs_fuel,
            TaskletStatus::Oom => &mut counts.tasklet_runs_oom,
            TaskletStatus::HostcallLimit => &mut counts.tasklet_runs_hostcalls,
            _ => &mut counts.tasklet_runs_failed,
        } += 1;
        let log = run.log.with(|log| {
            // Where nobody gave a reason, the node is stopping.
            let reason = reason.as_deref().unwrap_or("the node stops");
            log.end(Some(reason).filter(|_| status != TaskletStatus::Ok));
            mem::take(log)
        });
        let ended = Arc::new(Ended { presenter: run.presenter, status, output, log });
        if let Some(waiting) = run.waiter.and_then(|ticket| self.pending.get_mut(&ticket))
            && let Pending::Submit(submission) = &mut waiting.pending
        {
            submission.ended = Some(ended.clone());
        }
        tasklets.results.insert(id, ended, now.mono);
        run.ending.set(false);
    }

    /// Stops runs: those that wait for a core at once, the others soon. `endings` are over when they have stopped.
    pub(crate) fn stop_runs(&mut self, which: impl Fn(&Run) -> bool, why: Why, now: Now, endings: &mut Vec<Ending>) {
        let Some(tasklets) = &mut self.tasklets else { return };
        let chosen = tasklets.runs.iter().filter(|(_, run)| which(run)).map(|(id, _)| *id);
        for id in chosen.collect::<Vec<_>>() {
            endings.extend(self.stop_run(id, why, now));
        }
    }

    /// Whether a run was told to stop.
    pub(crate) fn is_stopped(&self, id: RunId) -> bool {
        let run = self.tasklets.as_ref().and_then(|tasklets| tasklets.runs.get(&id));
        run.is_none_or(|run| run.stopped.is_some())
    }

    /// Stops one run. Returns its ending, if it takes time.
    pub(crate) fn stop_run(&mut self, id: RunId, why: Why, now: Now) -> Option<Ending> {
        let tasklets = self.tasklets.as_mut()?;
        let run = tasklets.runs.get_mut(&id)?;
        if tasklets.schedule.is_waiting(id) {
            self.end_run(id, Some(why), None, now);
            return None;
        }
        run.stopped.get_or_insert(why);
        if mem::take(&mut run.waits) {
            tasklets.turns.push_back(Turn::Stop(id));
        }
        Some(run.ending.clone())
    }

    /// Stops runs whose wall time is over, and forgets results.
    pub(crate) fn tick_tasklets(&mut self, now: Now) {
        let Some(tasklets) = &mut self.tasklets else { return };
        tasklets.results.tick(now.mono);
        let wall = tasklets.config.max_wall;
        let late = |run: &Run| run.stopped.is_none() && run.began.is_some_and(|began| now.mono >= began + wall);
        self.stop_runs(late, Why::Wall, now, &mut Vec::new());
    }
}

fn status(status: RunStatus) -> TaskletStatus {
    match status {
        RunStatus::Ok => TaskletStatus::Ok,
        RunStatus::FuelExhausted => TaskletStatus::FuelExhausted,
        RunStatus::OutOfMemory => TaskletStatus::Oom,
        RunStatus::ExecFailed => TaskletStatus::ExecFailed,
        RunStatus::HostcallLimit => TaskletStatus::HostcallLimit,
    }
}
