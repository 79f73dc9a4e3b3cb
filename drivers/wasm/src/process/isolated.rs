//! Executors as a whole: modules that any of them loads, and a process for each run under way.

use std::{
    fmt, io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread,
    time::Duration,
};

use berth_tasklet::{
    channel::Walls,
    hostcall::Hostcalls,
    run::{Executor, Limits, Module, Outcome, Processes, Rejected, Status},
};

use super::{
    start::{Parent, Share, Starter},
    worker::{Gone, Worker},
};
use crate::{
    code_memory::sealed,
    compile::Compiler,
    engine, hostcalls,
    profile::{self, Role, Signatures},
    run::{Entry, signatures},
};

/// Executors without a run that are kept, each for the presenter whose code it ran.
const IDLE: usize = 8;

/// Rest of who starts executors, after one that did not start.
const REST: Duration = Duration::from_millis(200);

/// How executors are run.
#[derive(Debug, Clone)]
pub struct Isolation {
    /// Who starts them.
    pub starter: Starter,
    /// The CPUs that they may use; empty is all.
    pub cpus: Vec<usize>,
    /// Bytes of linear memory that a run may have; a multiple of 64 KiB.
    pub memory: u64,
}

/// Compiles tasklets, and runs each in a process of its own.
pub struct Isolated {
    signatures: Signatures,
    compiler: Compiler,
    crew: Arc<Crew>,
    parent: Parent,
    walls: Walls,
    modules: AtomicU64,
}

impl fmt::Debug for Isolated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Isolated").field("crew", &self.crew).finish_non_exhaustive()
    }
}

impl Isolated {
    /// Starts the first executor.
    ///
    /// # Errors
    /// If it does not start, or cannot shut itself in.
    pub fn new(isolation: Isolation, compiler: Compiler) -> io::Result<Self> {
        let signatures = engine::compiler().and_then(|engine| Ok(signatures(&hostcalls::linker(&engine)?)));
        let signatures = signatures.map_err(|error| io::Error::other(format!("{error:#}")))?;
        let crew = Arc::new(Crew::start(isolation)?);
        let first = crew.fresh()?;
        let (parent, walls) = (first.parent(), first.walls);
        crew.give_back(first);
        Ok(Self { signatures, compiler, crew, parent, walls, modules: AtomicU64::new(0) })
    }

    /// Whose children executors are.
    pub fn parent(&self) -> Parent {
        self.parent
    }

    /// What stands around executors, beside their filter of system calls.
    pub fn walls(&self) -> Walls {
        self.walls
    }
}

impl Executor for Isolated {
    fn compile(&self, wasm: &[u8]) -> Result<Arc<dyn Module>, Rejected> {
        let checked = profile::check(wasm, Role::Tasklet, &self.signatures)?;
        let bytes = self.compiler.compile(&checked.wasm).map_err(Rejected::Invalid)?;
        let file = sealed(&bytes).map_err(|error| Rejected::Invalid(format!("no memory for its code: {error}")))?;
        let entry = Entry { start: checked.start, alloc: checked.alloc, initialize: checked.initialize };
        let id = self.modules.fetch_add(1, Relaxed);
        Ok(Arc::new(Code { id, file, len: bytes.len() as u64, entry, crew: self.crew.clone() }))
    }

    fn processes(&self) -> Processes {
        let Counts { started, lost, killed } = &*self.crew.counts;
        let cgroup = self.parent == Parent::Unit { cgroup: true };
        Processes { started: started.load(Relaxed), lost: lost.load(Relaxed), killed: killed.load(Relaxed), cgroup }
    }
}

/// A compiled module: a sealed file, which executors map.
#[derive(Debug)]
pub(super) struct Code {
    /// No other module's.
    pub(super) id: u64,
    file: OwnedFd,
    len: u64,
    pub(super) entry: Entry,
    crew: Arc<Crew>,
}

impl Code {
    pub(super) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Module for Code {
    fn size(&self) -> u64 {
        self.len
    }

    fn takes_input(&self) -> bool {
        self.entry.alloc
    }

    fn run(&self, input: &[u8], limits: &Limits, host: &mut dyn Hostcalls) -> Outcome {
        let reason = match self.crew.take(host.presenter()) {
            Ok(mut worker) => match worker.run(self, input, limits, host) {
                Ok(outcome) => {
                    self.crew.give_back(worker);
                    return outcome;
                }
                Err(gone) => {
                    let count =
                        if matches!(gone, Gone::Ended(_)) { &self.crew.counts.lost } else { &self.crew.counts.killed };
                    count.fetch_add(1, Relaxed);
                    (gone != Gone::Stopped).then(|| gone.to_string())
                }
            },
            Err(error) => Some(format!("no executor: {error}")),
        };
        Outcome { status: Status::ExecFailed, output: Vec::new(), fuel: 0, hostcalls: 0, reason }
    }
}

#[derive(Debug, Default)]
struct Counts {
    started: AtomicU64,
    lost: AtomicU64,
    killed: AtomicU64,
}

/// The executors that have no run.
#[derive(Debug)]
struct Crew {
    idle: Mutex<Vec<Worker>>,
    /// One that is ready and ran nothing, or why there is none.
    fresh: Mutex<Receiver<io::Result<Worker>>>,
    counts: Arc<Counts>,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Crew {
    fn start(isolation: Isolation) -> io::Result<Self> {
        let (ready, fresh) = sync_channel(0);
        let counts = Arc::<Counts>::default();
        // Executors end with this thread, so it is none of those that come and go.
        thread::Builder::new().name("berth-executors".into()).spawn({
            let counts = counts.clone();
            move || keep_one_ready(&isolation, &ready, &counts)
        })?;
        Ok(Self { idle: Mutex::default(), fresh: Mutex::new(fresh), counts })
    }

    fn fresh(&self) -> io::Result<Worker> {
        lock(&self.fresh).recv().unwrap_or_else(|_| Err(io::Error::other("nobody starts them any more")))
    }

    /// An executor that ran nothing, or only code of this presenter.
    fn take(&self, presenter: u128) -> io::Result<Worker> {
        loop {
            let found = {
                let mut idle = lock(&self.idle);
                let own = idle.iter().rposition(|worker| worker.presenter == Some(presenter));
                let at = own.or_else(|| idle.iter().position(|worker| worker.presenter.is_none()));
                at.map(|at| idle.remove(at))
            };
            // One that was killed while it started says nothing of the next.
            let mut worker = found.map_or_else(|| self.fresh().or_else(|_| self.fresh()), Ok)?;
            if worker.ended().is_some() {
                self.counts.lost.fetch_add(1, Relaxed);
                continue;
            }
            worker.presenter = Some(presenter);
            return Ok(worker);
        }
    }

    fn give_back(&self, worker: Worker) {
        let mut idle = lock(&self.idle);
        idle.push(worker);
        // The one that was idle for longest; it is killed without the lock.
        let over = if idle.len() > IDLE { Some(idle.remove(0)) } else { None };
        drop(idle);
        drop(over);
    }
}

/// Starts executors, one ahead, until nobody takes them any more.
fn keep_one_ready(isolation: &Isolation, ready: &SyncSender<io::Result<Worker>>, counts: &Counts) {
    let share = Share::new(isolation.memory, &isolation.cpus);
    loop {
        let worker = Worker::start(&isolation.starter, &share);
        let failed = worker.is_err();
        counts.started.fetch_add(1, Relaxed);
        let named = worker.map_err(|error| io::Error::other(format!("{}: {error}", isolation.starter)));
        if ready.send(named).is_err() {
            return;
        }
        if failed {
            thread::sleep(REST);
        }
    }
}
