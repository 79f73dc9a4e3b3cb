//! The threads that run tasklets. The node says which run goes on; each run has a thread for as long as it is under way, and
//! threads are used again.

use std::{
    collections::HashMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::Duration,
};

use berth_fabric::{LeaseCall, SliceOver, Start, Turn, answered};
use berth_host::keep_current_thread;
use berth_lease::LeaseId;
use berth_lease_io::{Gate, Served, TaskletLeases};
use berth_port::Nanos;
use berth_tasklet::{
    hostcall::{Call, Hostcalls, Kind, code},
    log::SharedLog,
    run::{Outcome, Status},
    schedule::RunId,
};
use berth_wire::fabric::TaskletRights;
use tokio::runtime::Handle;

use crate::Shared;

/// How long guest code runs before the node is asked whether it goes on.
const SLICE: Duration = Duration::from_millis(5);

/// Where a run waits for its turn.
#[derive(Debug, Default)]
struct Seat {
    /// Whether it goes on, once that is said.
    said: Mutex<Option<bool>>,
    heard: Condvar,
}

impl Seat {
    fn say(&self, on: bool) {
        *lock(&self.said) = Some(on);
        self.heard.notify_one();
    }

    fn wait(&self) -> bool {
        let said = lock(&self.said);
        let mut said = self.heard.wait_while(said, |said| said.is_none()).unwrap_or_else(PoisonError::into_inner);
        said.take().unwrap_or(false)
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

type Job = (Box<Start>, Arc<Seat>);

/// The threads of tasklets.
#[derive(Debug)]
pub(crate) struct Pool {
    cpus: Vec<usize>,
    runtime: Handle,
    shared: OnceLock<Weak<Shared>>,
    /// Runs under way.
    seats: Mutex<HashMap<RunId, Arc<Seat>>>,
    /// Threads without a run.
    idle: Mutex<Vec<mpsc::Sender<Job>>>,
    /// The node stops.
    closed: AtomicBool,
}

impl Pool {
    pub(crate) fn new(cpus: Vec<usize>, runtime: Handle) -> Self {
        let (shared, seats, idle) = Default::default();
        Self { cpus, runtime, shared, seats, idle, closed: AtomicBool::new(false) }
    }

    /// Runs are to be done for this node.
    pub(crate) fn serve(&self, shared: &Arc<Shared>) {
        // It is said once.
        let _ = self.shared.set(Arc::downgrade(shared));
    }

    /// Stops every run, and lets none begin.
    pub(crate) fn close(&self) {
        self.closed.store(true, Relaxed);
        lock(&self.seats).values().for_each(|seat| seat.say(false));
        lock(&self.idle).clear();
    }

    /// Does what the node says; never waits.
    pub(crate) fn take(&self, turn: Turn) {
        match turn {
            Turn::Start(start) => self.start(start),
            Turn::Resume(run) => self.say(run, true),
            Turn::Stop(run) => self.say(run, false),
        }
    }

    fn say(&self, run: RunId, on: bool) {
        if let Some(seat) = lock(&self.seats).get(&run) {
            seat.say(on);
        }
    }

    fn start(&self, start: Box<Start>) {
        let seat = Arc::<Seat>::default();
        lock(&self.seats).insert(start.run, seat.clone());
        let mut job = (start, seat);
        while let Some(thread) = lock(&self.idle).pop() {
            match thread.send(job) {
                Ok(()) => return,
                Err(mpsc::SendError(back)) => job = back,
            }
        }
        let (sender, jobs) = mpsc::channel::<Job>();
        let (cpus, shared) = (self.cpus.clone(), self.shared.get().cloned().unwrap_or_default());
        let run = job.0.run;
        let begun = thread::Builder::new().name("berth-tasklet".into()).spawn({
            let sender = sender.clone();
            move || {
                if let Err(e) = keep_current_thread(&cpus) {
                    tracing::warn!("a thread of tasklets is not pinned: {e}");
                }
                while let Ok((start, seat)) = jobs.recv() {
                    let Some(shared) = shared.upgrade() else { return };
                    run_one(&shared, *start, seat);
                    if shared.pool.closed.load(Relaxed) {
                        return;
                    }
                    lock(&shared.pool.idle).push(sender.clone());
                }
            }
        });
        match begun {
            // The receiver lives.
            Ok(_) => drop(sender.send(job)),
            // The node's lock is held here.
            Err(e) => {
                let shared = self.shared.get().cloned().unwrap_or_default();
                self.runtime.spawn(async move {
                    if let Some(shared) = shared.upgrade() {
                        end(&shared, run, failed(format!("no thread: {e}")));
                    }
                });
            }
        }
    }
}

fn failed(reason: String) -> Outcome {
    Outcome { status: Status::ExecFailed, output: Vec::new(), fuel: 0, hostcalls: 0, reason: Some(reason) }
}

/// Runs a tasklet to its end, on the caller's thread.
fn run_one(shared: &Arc<Shared>, start: Start, seat: Arc<Seat>) {
    let Start { run, presenter, module, input, limits, capabilities, log } = start;
    let gate = Gate::new(&shared.table, &shared.regions);
    let (leases, slice) = (TaskletLeases::new(capabilities, gate), shared.clock.mono());
    let mut session = Session { shared, run, presenter, leases, log, seat, slice };
    let outcome = catch_unwind(AssertUnwindSafe(|| module.run(&input, &limits, &mut session)));
    let Session { mut leases, .. } = session;
    shared.data.take(leases.gate().counts());
    drop(leases);
    end(shared, run, outcome.unwrap_or_else(|_| failed("the executor failed".into())));
}

fn end(shared: &Shared, run: RunId, outcome: Outcome) {
    lock(&shared.pool.seats).remove(&run);
    let mut node = shared.node();
    node.run_ended(run, outcome, shared.clock.now());
    shared.hand_on(&mut node);
}

/// A run under way.
struct Session<'a> {
    shared: &'a Arc<Shared>,
    run: RunId,
    presenter: u128,
    leases: TaskletLeases,
    log: SharedLog,
    seat: Arc<Seat>,
    /// When its slice began.
    slice: Nanos,
}

impl Session<'_> {
    fn now(&self) -> Nanos {
        self.shared.clock.mono()
    }

    /// The lease that a call names and needs a right for.
    fn lease(&mut self, kind: Kind, lease: u128, right: TaskletRights) -> Result<LeaseId, i64> {
        let now = self.now();
        self.leases.lease(kind, Some(lease), right, now)
    }

    /// A call that goes to the node; what it writes fills `out`.
    fn ask(&mut self, call: LeaseCall, out: &mut [u8]) -> i64 {
        let answer = self.shared.pool.runtime.block_on(self.shared.lease_call(self.run, call));
        let Some((found, written)) = answer.as_ref().map(answered) else { return code::INTERNAL };
        match (found, out.len() == written.len()) {
            (0, true) => out.copy_from_slice(written),
            (0, false) => return code::INTERNAL,
            _ => {}
        }
        found
    }

    fn alloc(&mut self, kind: Kind, min: u64, secs: u32, out: &mut [u8]) -> i64 {
        if !self.leases.capabilities().may_allocate(kind) {
            return code::DENIED;
        }
        let found = self.ask(LeaseCall::Alloc { kind, min, secs }, out);
        if let (0, Some((hi, lo))) =
            (found, out.split_first_chunk().and_then(|(hi, rest)| Some((hi, rest.first_chunk()?))))
        {
            let id = u128::from(u64::from_le_bytes(*hi)) << 64 | u128::from(u64::from_le_bytes(*lo));
            self.leases.capabilities().allocated(id, kind);
        }
        found
    }
}

impl Hostcalls for Session<'_> {
    fn call(&mut self, call: Call<'_>) -> i64 {
        let now = self.now();
        let runtime = self.shared.pool.runtime.clone();
        let done = match call {
            Call::Hello(kind) => self.leases.size(kind, now).map(|_| 0),
            Call::GetSize(kind) => self.leases.size(kind, now).map(|size| i64::try_from(size).unwrap_or(i64::MAX)),
            Call::Read { kind, lease, at, out } => match self.leases.read(kind, lease, at, out, now) {
                Ok(Served::Done) => Ok(0),
                Ok(Served::Blocks) => runtime.block_on(self.leases.read_blocks(kind, lease, at, out, now)).map(|()| 0),
                Err(refused) => Err(refused),
            },
            Call::Write { kind, lease, at, data } => match self.leases.write(kind, lease, at, data, now) {
                Ok(Served::Done) => Ok(0),
                Ok(Served::Blocks) => {
                    runtime.block_on(self.leases.write_blocks(kind, lease, at, data, now)).map(|()| 0)
                }
                Err(refused) => Err(refused),
            },
            Call::Alloc { kind, min, secs, out } => Ok(self.alloc(kind, min, secs, out)),
            Call::Query { kind, lease, out } => {
                self.lease(kind, lease, TaskletRights::QUERY).map(|lease| self.ask(LeaseCall::Query(lease), out))
            }
            Call::Renew { kind, lease, secs, out } => {
                self.lease(kind, lease, kind.alloc()).map(|lease| self.ask(LeaseCall::Renew { lease, secs }, out))
            }
            Call::Free { kind, lease } => {
                self.lease(kind, lease, TaskletRights::REVOKE).map(|lease| self.ask(LeaseCall::Free(lease), &mut []))
            }
            Call::Log { level, message } => {
                self.log.with(|log| log.write(level, message));
                Ok(0)
            }
        };
        done.unwrap_or_else(|refused| refused)
    }

    fn turn(&mut self) -> bool {
        if self.shared.pool.closed.load(Relaxed) {
            return false;
        }
        let now = self.now();
        if now < self.slice + SLICE {
            return true;
        }
        let said = {
            let mut node = self.shared.node();
            let said = node.slice_over(self.run, self.shared.clock.now());
            self.shared.hand_on(&mut node);
            said
        };
        let on = match said {
            SliceOver::GoOn => true,
            SliceOver::Stop => false,
            SliceOver::Wait => self.seat.wait(),
        };
        self.slice = self.now();
        on
    }

    fn presenter(&self) -> u128 {
        self.presenter
    }
}
