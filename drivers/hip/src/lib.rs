//! HIP Remote over TCP.
//!
//! ```text
//! connections -> Listener -> pending until the first whole request -> a Session on a Soft device, moved by a Pump
//!                                                                      kernels, loads, large copies: a thread of its own
//! ```
//!
//! The sessions themselves are `berth_hip_session`. They run on threads that sleep, on the CPUs that they are given.
#![forbid(unsafe_code)]

mod runner;

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

pub use berth_hip_session::Settings as SessionSettings;
use berth_hip_session::{
    Counters, Properties, Random, Session,
    soft::{self, Budget, Soft, Windows},
};
use berth_host::pin_current_thread;
use berth_port::{Family, Nanos, Tables};
use berth_stream::{Connections, End, Event, LONG, Limits, Listener, Pending, Pump, Shares};
use tokio::{net::TcpStream, runtime::Runtime, select};

use self::runner::Thread;

/// Connections that have sent no request yet, and how long they may be silent.
const PENDING: (usize, Duration) = (512, Duration::from_secs(10));

/// What a worker is set up with.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Where clients connect; port 0 takes a free one.
    pub listen: SocketAddr,
    /// CPUs of the threads that serve sessions; at least one.
    pub cpus: Vec<usize>,
    /// Sessions at once.
    pub max_sessions: usize,
    /// Sessions of one address at once.
    pub per_peer: usize,
    /// What sessions are limited to.
    pub session: SessionSettings,
    /// Bytes of memory of a session.
    pub memory: u64,
    /// How long a kernel may run.
    pub kernel_timeout: Duration,
    /// Software GPUs: the bytes of each that sessions may use. At least one.
    pub devices: Vec<u64>,
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
    }
}

/// What a worker counts.
pub const COUNTERS: Tables = &[Counters::TABLE, Counts::TABLE];

/// A worker that serves until it is dropped.
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
    budgets: Vec<Arc<Budget>>,
    random: Random,
    counters: Arc<Counters>,
    counts: Counts,
    now: Box<dyn Fn() -> Nanos + Send + Sync>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Shared({:?})", self.settings)
    }
}

impl Worker {
    /// Binds the socket and serves on threads of its own. `now` is the time since any moment.
    ///
    /// # Errors
    /// What the system said of the address, or of a thread.
    pub fn start(settings: Settings, now: impl Fn() -> Nanos + Send + Sync + 'static) -> io::Result<Self> {
        let listener = Listener::bind(settings.listen)?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            session: Arc::new(settings.session.clone()),
            properties: settings.devices.iter().map(|bytes| soft::properties(*bytes, settings.memory)).collect(),
            windows: Arc::default(),
            budgets: settings.devices.iter().map(|bytes| Budget::new(*bytes)).collect(),
            random: Arc::new(|| getrandom::u64().expect("the system has random numbers")),
            counters: Arc::default(),
            counts: Counts::default(),
            now: Box::new(now),
            settings,
        });
        let cpus = shared.settings.cpus.clone();
        let next = std::sync::atomic::AtomicUsize::new(0);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(cpus.len())
            .thread_name("berth-hip")
            .on_thread_start(move || {
                let nth = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                if let Some(cpu) = cpus.get(nth % cpus.len().max(1)) {
                    // A CPU that is gone since the configuration was read costs speed alone.
                    let _ = pin_current_thread(*cpu);
                }
            })
            .enable_all()
            .build()?;
        runtime.spawn(serve(listener, shared.clone()));
        Ok(Self { address, shared, runtime: Some(runtime) })
    }

    /// Where clients connect.
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
        // Sessions end with their tasks, and stop what they run.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(Duration::from_secs(1));
        }
    }
}

/// The counters of a worker.
#[derive(Debug, Clone)]
pub struct Monitor(Arc<Shared>);

impl Monitor {
    /// Calls `visit` with the name and value of each counter.
    pub fn report(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        self.0.counters.report(visit);
        self.0.counts.report(visit);
    }

    /// Bytes of each device that sessions use.
    pub fn used(&self) -> Vec<u64> {
        self.0.budgets.iter().map(|budget| budget.used()).collect()
    }
}

impl Shared {
    fn session(&self) -> Option<Session<Soft<Thread>>> {
        let runner = Thread::new(self.settings.kernel_timeout);
        let (properties, budgets) = (self.properties.clone(), self.budgets.clone());
        let device = Soft::new(properties, &self.windows, budgets, self.settings.memory, &self.random, runner)?;
        let (settings, counters) = (self.session.clone(), self.counters.clone());
        Some(Session::new(device, settings, counters, self.random.clone(), (self.now)()))
    }
}

/// Accepts until the runtime ends.
async fn serve(listener: Listener, shared: Arc<Shared>) {
    let Settings { max_sessions: admitted, per_peer, .. } = shared.settings;
    let limits = Limits { pending: PENDING.0, identify_within: PENDING.1, admitted, per_peer };
    let observer = shared.clone();
    let connections = Connections::new(limits, move |event| match event {
        Event::Displaced => observer.counts.displaced.add(1),
        Event::Refused => observer.counts.refused.add(1),
        Event::Expired => observer.counts.timed_out.add(1),
    });
    let long = Shares::new(LONG.0, LONG.1);
    let served = listener.serve(connections, |socket, from, pending| {
        shared.counts.connections.add(1);
        let (shared, pump) = (shared.clone(), Pump::new(from.ip(), long.clone()));
        tokio::spawn(async move {
            // A connection that breaks has nobody left to tell.
            if let Ok(End::TimedOut) = connection(socket, from.ip(), pending, pump, &shared).await {
                shared.counts.timed_out.add(1);
            }
        });
    });
    if let Err(e) = served.await {
        tracing::error!("HIP over TCP is not served: {e}");
    }
}

async fn connection(
    mut socket: TcpStream,
    from: IpAddr,
    mut pending: Pending<IpAddr>,
    mut pump: Pump<IpAddr>,
    shared: &Shared,
) -> io::Result<End> {
    let Some(mut session) = shared.session() else {
        shared.counts.full.add(1);
        return Ok(End::Closed);
    };
    let (mut reader, mut writer) = socket.split();
    let now = || (shared.now)();
    let first = pump.identify(&mut session, (&mut reader, &mut writer), &now, None);
    let Some(end) = pending.identify(first).await else { return Ok(End::Closed) };
    let end = end?;
    if end != End::Identified {
        return Ok(end);
    }
    let Some(mut admitted) = pending.admit(from) else { return Ok(End::Closed) };
    select! {
        end = pump.serve(&mut session, (&mut reader, &mut writer), &now, None) => end,
        () = admitted.displaced() => Ok(End::Closed),
    }
}
