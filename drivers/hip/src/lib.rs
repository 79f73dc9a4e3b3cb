//! HIP Remote over TCP.
//!
//! ```text
//! connections -> Listener -> pending until the first whole request -> a Session on a HipCore, with its devices (`Gpus`)
//!                              software GPUs: kernels, loads, large copies have a thread of their own
//!                              each GPU with a driver: a process of its own, of those that are kept ready (`Pool`)
//! ```
//!
//! The sessions themselves are `berth_hip_session`. Newcomers are on threads that sleep; who is identified is served by
//! a poll core.
#![forbid(unsafe_code)]

mod apart;
mod books;
mod core;
mod gpus;
mod held;
mod lease;
mod parts;
mod pool;
mod runner;
mod seen;
mod stream;

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use berth_hip_session::{
    Activity, Counters, Properties, Random, Session,
    soft::{self, Budget, Soft, Windows},
};
pub use berth_hip_session::{Claim, Settings as SessionSettings};
use berth_port::{Family, Nanos, Tables};
use berth_stream::{Event, Limits, Listener};
use berth_tls::stream::ServerConfig;
use berth_uring::handover;
use tokio::runtime::{Handle, Runtime};

use self::{
    apart::Apart,
    books::Books,
    core::{HipSession, Sessions},
    gpus::Gpus,
    lease::{Claims, Places},
    parts::Parts,
    runner::Thread,
    seen::Seen,
};
pub use self::{
    core::HipCore,
    lease::{Leased, Leases, Occupant},
    pool::Driven,
    seen::{SessionSeen, WorkerSeen},
};

/// Connections that have sent no request yet, and how long they may be silent.
const PENDING: (usize, Duration) = (512, Duration::from_secs(10));

/// Threads that look at claims on leases.
const CLAIMS: usize = 8;

/// Threads that start and end workers of sessions.
const STARTS: usize = 24;

/// What a worker is set up with.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Where clients connect; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Poll cores that serve sessions; at least one.
    pub cores: usize,
    /// CPUs on which kernels run. Empty: those of the poll core that serves the session.
    pub kernels: Vec<usize>,
    /// Most sessions at once, of all cores together.
    pub max_sessions: usize,
    /// Most sessions at once of one IP address; more are refused.
    pub per_peer: usize,
    /// What sessions are limited to.
    pub session: SessionSettings,
    /// Most bytes of device memory of a session.
    pub memory: u64,
    /// How long a kernel may run before it is stopped.
    pub kernel_timeout: Duration,
    /// The devices, at least one: the bytes of each that sessions may use, and what it is if not a software GPU.
    pub devices: Vec<(u64, Option<Driven>)>,
    /// Who leases the devices, and whether sessions need a lease; `None` if nobody does.
    pub leases: Option<(Arc<dyn Leases>, bool)>,
    /// What connections are encrypted with; `None` if they are not.
    pub tls: Option<Arc<ServerConfig>>,
}

impl Settings {
    fn driven(&self) -> impl Iterator<Item = &Driven> {
        self.devices.iter().filter_map(|(_, driven)| driven.as_ref())
    }
}

/// A device, as sessions of so many bytes see it.
fn properties((bytes, driven): &(u64, Option<Driven>), quota: u64) -> Properties {
    match driven {
        Some(driven) => driven.properties(*bytes, quota),
        None => soft::properties(*bytes, quota),
    }
}

const ENDED: Family = Family::counter("sessions_ended", "HIP connections that ended before their time, by reason");

berth_port::counters! {
    /// What the listener counts.
    struct Counts of Count {
        connections: "HIP connections that were accepted",
        displaced: ENDED { reason: "displaced" },
        refused: ENDED { reason: "refused" },
        timed_out: ENDED { reason: "timed_out" },
        full: ENDED { reason: "no_addresses" },
        tls: ENDED { reason: "tls" },
        stranger: ENDED { reason: "tls_key" },
    }
}

/// Declarations of a worker's counters and gauges.
pub const COUNTERS: Tables = &[Counters::TABLE, Counters::OF_CLASS, Counts::TABLE, pool::WORKERS, seen::GAUGES];

/// A worker that serves until it is dropped. Dropping waits a second at most for its threads.
#[derive(Debug)]
pub struct Worker {
    address: SocketAddr,
    shared: Arc<Shared>,
    runtime: Option<Runtime>,
}

/// What all sessions share.
struct Shared {
    settings: Settings,
    session: Arc<SessionSettings>,
    properties: Arc<[Properties]>,
    windows: Arc<Windows>,
    /// Where allocations on GPUs with a driver lie.
    addresses: Arc<books::Places>,
    budgets: Vec<Arc<Budget>>,
    random: Random,
    counters: Arc<Counters>,
    counts: Counts,
    threads: Handle,
    places: Arc<Places>,
    seen: Seen,
    now: Box<dyn Fn() -> Nanos + Send + Sync>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Shared({:?})", self.settings)
    }
}

impl Worker {
    /// Binds the socket and accepts, on a thread of its own; the cores, which have to be polled, serve. `now` is the time
    /// since any moment, by the clock of the cores.
    ///
    /// # Errors
    /// What the system said of the address, or of a thread.
    pub fn start(
        settings: Settings,
        now: impl Fn() -> Nanos + Send + Sync + 'static,
    ) -> io::Result<(Self, Vec<HipCore>)> {
        let listener = Listener::bind(settings.listen)?;
        let address = listener.local_addr()?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .max_blocking_threads(CLAIMS + STARTS)
            .thread_name("berth-hip")
            .enable_all()
            .build()?;
        let shared = Arc::new(Shared {
            threads: runtime.handle().clone(),
            session: Arc::new(settings.session.clone()),
            properties: settings.devices.iter().map(|device| properties(device, settings.memory)).collect(),
            windows: Arc::default(),
            addresses: Arc::default(),
            budgets: settings.devices.iter().map(|(bytes, _)| Budget::new(*bytes)).collect(),
            random: Arc::new(|| getrandom::u64().expect("the system has random numbers")),
            counters: Arc::default(),
            counts: Counts::default(),
            places: Arc::default(),
            seen: Seen::default(),
            now: Box::new(now),
            settings,
        });
        let Settings { max_sessions: most, per_peer, cores, .. } = shared.settings;
        let (mut to_cores, mut polled) = (Vec::new(), Vec::new());
        for _ in 0..cores {
            let (to_core, from) = handover(most)?;
            to_cores.push(to_core);
            polled.push(HipCore { from, most });
        }
        let limits = Limits { pending: PENDING.0, identify_within: PENDING.1, admitted: most, per_peer };
        let host = Arc::new(Sessions(shared.clone()));
        runtime.spawn(berth_uring::serve(vec![listener], limits, to_cores, host));
        Ok((Self { address, shared, runtime: Some(runtime) }, polled))
    }

    /// The bound address, with the port that the kernel chose where 0 was asked for.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Reports every counter, here and on any thread.
    pub fn monitor(&self) -> Monitor {
        Monitor(self.shared.clone())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.shared.settings.driven().for_each(Driven::close);
        // Sessions end with their tasks, and stop what they run.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(Duration::from_secs(1));
        }
    }
}

/// The counters of a worker; they can be read after the worker was dropped, too.
#[derive(Debug, Clone)]
pub struct Monitor(Arc<Shared>);

impl Monitor {
    /// Calls `visit` with name and value of each counter, of `sessions`, and of `device_N_used_bytes` for each device.
    pub fn report(&self, visit: &mut dyn FnMut(&str, u64)) {
        self.0.counters.report(visit);
        self.0.counts.report(&mut |name, value| visit(name, value));
        let sum = |all: [u64; 3], more: [u64; 3]| std::array::from_fn(|end| all[end] + more[end]);
        let ends = self.0.settings.driven().map(Driven::ends).fold([0; 3], sum);
        pool::ENDS.into_iter().zip(ends).for_each(|(name, count)| visit(name, count));
        visit("sessions", self.0.seen.sessions((self.0.now)()).len() as u64);
        for (device, used) in self.used().into_iter().enumerate() {
            visit(&format!("device_{device}_used_bytes"), used);
        }
    }

    /// Bytes that sessions use of each device, in the order of [`Settings::devices`].
    pub fn used(&self) -> Vec<u64> {
        self.0.budgets.iter().map(|budget| budget.used()).collect()
    }

    /// The sessions and what they have done.
    pub fn seen(&self) -> WorkerSeen {
        let devices = self.0.budgets.iter().map(|budget| [budget.used(), budget.total()]).collect();
        let classes = self.0.counters.classes().map(|(name, counts)| (name.to_owned(), counts)).collect();
        WorkerSeen { devices, classes, sessions: self.0.seen.sessions((self.0.now)()) }
    }
}

impl Shared {
    fn session(&self, peer: IpAddr) -> Option<HipSession> {
        let device = self.gpus()?;
        let (settings, counters) = (self.session.clone(), self.counters.clone());
        let now = (self.now)();
        let session = Session::new(device, settings, counters, self.random.clone(), now);
        let activity = Arc::<Activity>::default();
        self.seen.add(peer, now, &activity);
        let session = session.watched_by(activity);
        let Some((leases, required)) = &self.settings.leases else { return Some(session) };
        let claims = Claims::new(leases.clone(), peer, self.threads.clone(), self.places.clone());
        Some(session.leasing(Box::new(claims), *required))
    }

    fn gpus(&self) -> Option<Gpus> {
        let (properties, budgets) = (self.properties.clone(), self.budgets.clone());
        let quota = Budget::new(self.settings.memory);
        let runner = Thread::new(self.settings.kernel_timeout, &self.settings.kernels);
        let soft = Soft::new(properties.clone(), &self.windows, budgets, quota.clone(), &self.random, runner);
        let Some(soft) = soft else {
            self.counts.full.add(1);
            return None;
        };
        if self.settings.driven().next().is_none() {
            return Some(Gpus::Soft(soft));
        }
        let apart = |(device, (_, driven)): (usize, &(u64, Option<Driven>))| {
            let pool = driven.as_ref()?.pool();
            let books = Books::new(self.budgets[device].clone(), quota.clone(), self.addresses.clone());
            Some(Apart::new(device, pool, books, self.threads.clone()))
        };
        let apart = self.settings.devices.iter().enumerate().map(apart).collect();
        Some(Gpus::Parts(Parts::new(properties, soft, apart)))
    }

    fn ended(&self, event: Event) {
        match event {
            Event::Displaced => self.counts.displaced.add(1),
            Event::Refused => self.counts.refused.add(1),
            Event::Expired => self.counts.timed_out.add(1),
        }
    }
}
