//! The thread on which a session's software GPU does what takes time.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
        mpsc,
    },
    task::{Context, Poll, Waker},
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use berth_hip_session::{
    Done,
    soft::{Gpu, Host, Runner, Task},
};
use berth_host::keep_current_thread;
use berth_wire::hip::Code;

/// Added to the thread's nice value.
const LESS: i32 = 10;

/// Stack of the thread: a parser that nests is on it.
const STACK: usize = 8 << 20;

/// When a text that was not loaded was last told, in seconds after the epoch: one line a second is enough.
static TOLD: AtomicU64 = AtomicU64::new(0);

/// A thread that starts with the first task and ends with this. What runs then is stopped.
#[derive(Debug)]
pub(crate) struct Thread {
    shared: Arc<Shared>,
    tasks: Option<mpsc::Sender<Task>>,
    limit: Duration,
    cpus: Vec<usize>,
}

#[derive(Debug, Default)]
struct Shared {
    ended: Mutex<Ended>,
    stop: AtomicBool,
}

#[derive(Debug, Default)]
struct Ended {
    task: Option<(Box<Gpu>, Done)>,
    waker: Option<Waker>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Ended> {
        // It is changed by single assignments.
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self, task: Task, done: Done) {
        let mut ended = self.lock();
        ended.task = Some((task.into_gpu(), done));
        let waker = ended.waker.take();
        drop(ended);
        waker.into_iter().for_each(Waker::wake);
    }
}

impl Thread {
    /// A kernel may run for `limit`, on these CPUs; without any, where the calling thread may.
    pub(crate) fn new(limit: Duration, cpus: &[usize]) -> Self {
        Self { shared: Arc::default(), tasks: None, limit, cpus: cpus.to_vec() }
    }

    fn spawn(&self) -> Option<mpsc::Sender<Task>> {
        let (sender, tasks) = mpsc::channel::<Task>();
        let (shared, limit, cpus) = (self.shared.clone(), self.limit, self.cpus.clone());
        let body = move || {
            // It was started by a poll core. A CPU that is gone since the configuration was read costs speed alone.
            if !cpus.is_empty() {
                let _ = keep_current_thread(&cpus);
            }
            // Where it shares CPUs with those that serve sessions, they go first.
            let _ = rustix::process::nice(LESS);
            for task in tasks {
                run(task, &shared, limit);
            }
        };
        thread::Builder::new().name("berth-hip-gpu".into()).stack_size(STACK).spawn(body).ok()?;
        Some(sender)
    }
}

fn unix() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// What a task's kernel is told: the time, and when to stop.
struct Limited<'a> {
    stop: &'a AtomicBool,
    deadline: Option<Instant>,
}

impl Host for Limited<'_> {
    fn now(&mut self) -> u64 {
        unix().as_nanos() as u64
    }

    fn idle(&mut self, nanoseconds: u32) {
        // `nanosleep` sleeps a millisecond at most.
        thread::sleep(Duration::from_nanos(nanoseconds.min(1_000_000).into()));
    }

    fn stops(&mut self) -> bool {
        self.stop.load(Relaxed) || self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }
}

fn run(mut task: Task, shared: &Shared, limit: Duration) {
    let deadline = task.is_launch().then(|| Instant::now() + limit);
    let mut host = Limited { stop: &shared.stop, deadline };
    // What a task works on is its session's alone, and is freed in any state.
    let done = catch_unwind(AssertUnwindSafe(|| task.run(&mut host)));
    let done = done.unwrap_or_else(|_| task.failed(Code::UNKNOWN));
    if let Some(complaint) = task.complaint()
        && TOLD.swap(unix().as_secs(), Relaxed) != unix().as_secs()
    {
        tracing::info!("a code object was not loaded: {}", complaint.to_string().escape_debug());
    }
    shared.end(task, done);
}

impl Runner for Thread {
    fn start(&mut self, task: Task) {
        if self.tasks.is_none() {
            self.tasks = self.spawn();
        }
        let refused = match &self.tasks {
            Some(tasks) => tasks.send(task).err().map(|refused| refused.0),
            None => Some(task),
        };
        if let Some(task) = refused {
            let done = task.failed(Code::OUT_OF_MEMORY);
            self.shared.end(task, done);
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<(Box<Gpu>, Done)> {
        let mut ended = self.shared.lock();
        if let Some(task) = ended.task.take() {
            return Poll::Ready(task);
        }
        ended.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.shared.stop.store(true, Relaxed);
    }
}
