//! `berth run`: starts a thread for each polled CPU, waits for a signal, drains, and reports.
//!
//! # Threads
//!
//! - One *lcore* thread for each CPU that polls ports, runs the handlers of workers, or both, pinned to it (see
//!   `lcore`). It opens its own queues, so that what a driver binds to a thread is bound to the right one, and owns its
//!   decoders and sessions: two queues of one port do not share a decoding session.
//! - The *housekeeping* thread, which is the one that called [`run`], on the first housekeeping CPU: it disciplines the
//!   clock and reads what devices count once a second, and starts the drain when a signal arrives or an lcore fails. It
//!   tells the service manager that the appliance is ready and alive, the latter only while every thread that polls goes
//!   round its loop and the node is served.
//! - A thread that waits for signals, and one for the time of each reload (see `reload`).
//! - With `[control]`, the threads of the lease plane on the housekeeping CPUs (see `berth_control`), one that writes the
//!   journal, and one for each region of blocks in a file or device.
//!
//! An lcore that fails takes the appliance down with it: the others drain, and the exit status says so. A part of the
//! ports that keeps answering while another is dead would look healthy to whoever watches the process.

pub(crate) mod gpus;
mod heartbeat;
mod hip;
mod lcore;
mod leases;
mod notify;
mod plan;
mod queue;
mod reload;
mod service;

use std::{
    any::Any,
    collections::BTreeMap,
    fs::File,
    io::{self, Write as _},
    net::SocketAddr,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc::{self, Receiver, Sender},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, anyhow};
use berth_control::{Control, Polled};
use berth_engine::{Snapshot, Telemetry};
use berth_hip_worker::Worker;
use berth_host::{TscClock, Waker, pin_current_thread, raise_file_limit};
use berth_lease::{Regions, Table};
use berth_port::Clock as _;
use berth_ports::Facts;
use berth_qec::window::Pool;
use berth_wire::fabric::EndpointKind;
use serde::Serialize;
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    iterator::Signals,
};
use tracing::{error, info, warn};

pub(crate) use self::gpus::Gpus;
use self::{
    gpus::{ReadyGpu, StoppedGpu},
    heartbeat::Heartbeats,
    plan::Transport,
    reload::{Prepared, Reloader},
};
use crate::{
    admin::{Admin, Health, Sources},
    config::{self, Config, Loaded, Service},
};

/// How long a drain may take. Lcores that have not ended after twice as long fail the run.
pub const DRAIN: Duration = Duration::from_secs(2);

/// How often the clock is compared with the kernel's, and every polling thread is looked at.
const SUPERVISE_EVERY: Duration = Duration::from_secs(1);

/// What the threads tell the housekeeping thread.
enum Event {
    /// An lcore has opened everything: each queue's port and address, and what wakes the thread.
    Ready(Vec<(usize, SocketAddr)>, Waker),
    /// An lcore has ended, as it should or not.
    LcoreEnded(anyhow::Result<()>),
    /// SIGTERM, SIGINT or SIGHUP.
    Signal(i32),
    /// A new configuration is ready to take effect, or wrong.
    Prepared(anyhow::Result<Box<Prepared>>),
}

/// What all threads share.
#[derive(Clone)]
struct Shared {
    config: Arc<Config>,
    clock: TscClock,
    telemetry: Telemetry,
    /// Lcores drain and end.
    stop: Arc<AtomicBool>,
    /// By port, the windows of its sessions that wait for a core.
    pools: Arc<[Pool]>,
    /// What the control plane grants leases of, where there is one.
    leased: Option<Leased>,
}

/// The leases there are, and the regions that their bytes lie in.
#[derive(Clone)]
struct Leased {
    table: Table,
    regions: Regions,
}

#[derive(Serialize)]
struct ReadyLine<'a> {
    ports: Vec<ReadyPort<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    gpus: Vec<ReadyGpu>,
    endpoints: BTreeMap<String, SocketAddr>,
}

#[derive(Serialize)]
struct ReadyPort<'a> {
    name: &'a str,
    driver: &'static str,
    addr: String,
    #[serde(flatten)]
    facts: &'a Facts,
}

#[derive(Serialize)]
struct StoppedLine {
    #[serde(flatten)]
    snapshot: Snapshot,
    gpus: Vec<StoppedGpu>,
    #[serde(skip_serializing_if = "Option::is_none")]
    control: Option<BTreeMap<String, u64>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hip: Option<BTreeMap<String, u64>>,
}

/// Runs what was loaded until SIGTERM or SIGINT, and loads it again at SIGHUP. Writes the ready line and the stopped line
/// to standard output.
pub fn run(loaded: Loaded) -> anyhow::Result<()> {
    // Before the threads: a signal from now on is an event and kills nobody.
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).context("installing signal handlers")?;
    let loaded = Arc::new(loaded);
    let config = &loaded.config;
    if let Err(e) = raise_file_limit() {
        warn!("connections may be refused: the limit on open files stays: {e}");
    }
    // Threads that are not pinned to a CPU of their own inherit this one.
    if let Some(&cpu) = config.runtime.housekeeping_cpus.first() {
        pin_current_thread(cpu)?;
    }
    let (events, inbox) = mpsc::channel();
    let _awake = config.tune.cpu_dma_latency_us.and_then(hold_latency);
    let mut plan = plan::plan(config)?;
    let clock = TscClock::calibrate(Duration::from_millis(50));
    let gpus = Gpus::start(config, std::mem::take(&mut plan.gpus))?;
    let hip = config.hip.as_ref().map(|hip| Ok::<_, anyhow::Error>((hip, hip::devices(hip)?))).transpose()?;
    let of_hip = hip.iter().flat_map(|(hip, devices)| hip::addresses(hip, devices));
    let addresses = gpus.addresses().chain(of_hip).collect();
    let leases::Opened { control, gpus: leased } = leases::open(config, &clock, plan.bindings(config), addresses)?;
    let gpus = gpus.with_leased(leased);
    let leased = |control: &Control| Leased { table: control.table().clone(), regions: control.regions().clone() };
    let shared = Shared {
        config: Arc::new(config.clone()),
        clock,
        telemetry: Telemetry::default(),
        stop: Arc::default(),
        pools: std::mem::take(&mut plan.pools).into(),
        leased: control.as_ref().map(leased),
    };
    let hip = match hip {
        Some((settings, devices)) => {
            let housekeeping = &shared.config.runtime.housekeeping_cpus;
            let leases = control.as_ref().map(Control::hip_leases);
            let (worker, cores) = hip::start(settings, devices, housekeeping, &shared.clock, leases)?;
            plan.poll_hip(settings, cores);
            Some(worker)
        }
        None => None,
    };
    let sender = events.clone();
    thread::Builder::new().name("berth-signals".into()).spawn(move || {
        // The receiver lives as long as the process does anything.
        signals.forever().all(|signal| sender.send(Event::Signal(signal)).is_ok());
    })?;
    let health = Arc::<Health>::default();
    let admin = shared.config.admin.clone().map(|settings| {
        let listen = settings.listen;
        let monitor = control.as_ref().map(Control::monitor);
        let hip = hip.as_ref().map(Worker::monitor);
        let sources = Sources::new(shared.telemetry.clone(), monitor, gpus.clone(), hip, health.clone());
        Admin::start(settings, sources).with_context(|| format!("admin {listen}"))
    });
    let polled = plan.polled();
    let plan::Plan { lcores, facts, slots, transports, .. } = plan;
    let pools = shared.pools.clone();
    let mut supervisor = Supervisor {
        shared,
        inbox,
        events,
        reloader: Reloader::new(loaded, slots, pools, gpus.clone()),
        reload: Reload::Idle,
        control,
        hip,
        admin: admin.transpose()?,
        health,
        gpus,
        wakers: Vec::new(),
        heartbeats: Heartbeats::default(),
        lcores: 0,
        failure: None,
    };
    supervisor.start(lcores.into_values().collect(), &facts, polled, transports)?;
    supervisor.supervise();
    supervisor.reloader.log_kernels();
    let control = supervisor.control.take().map(|control| control.stop(DRAIN).into_iter().collect());
    let hip = supervisor.hip.take().map(|worker| hip::stop(&worker));
    let mut snapshot = supervisor.shared.telemetry.snapshot();
    snapshot.lcores.sort_by(|a, b| a.name.cmp(&b.name));
    snapshot.workers.sort_by(|a, b| (&a.name, &a.port).cmp(&(&b.name, &b.port)));
    line("berth stopped", &StoppedLine { snapshot, gpus: supervisor.gpus.stopped(), control, hip })?;
    supervisor.failure.map_or(Ok(()), Err)
}

/// Keeps CPUs out of idle states that take longer than this to leave, for as long as the file is open.
fn hold_latency(us: u32) -> Option<File> {
    let open = File::options().write(true).open("/dev/cpu_dma_latency");
    let held = open.and_then(|mut file| file.write_all(&us.to_ne_bytes()).map(|()| file));
    held.inspect_err(|e| warn!("tune.cpu_dma_latency_us: /dev/cpu_dma_latency: {e}")).ok()
}

/// Starts a thread; how it ended, a panic included, becomes an event.
fn spawn<T: 'static>(
    name: &str,
    events: &Sender<Event>,
    ended: fn(anyhow::Result<T>) -> Event,
    body: impl FnOnce(&Sender<Event>) -> anyhow::Result<T> + Send + 'static,
) -> anyhow::Result<()> {
    let events = events.clone();
    let label = name.to_string();
    thread::Builder::new().name(format!("berth-{name}")).spawn(move || {
        let result = catch_unwind(AssertUnwindSafe(|| body(&events)));
        let panicked = |panic: Box<dyn Any + Send>| Err(anyhow!("{label}: panicked: {}", panic_message(&*panic)));
        // Without a receiver the process is over anyway.
        let _ = events.send(ended(result.unwrap_or_else(panicked)));
    })?;
    Ok(())
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a message")
}

/// Writes one line of the contract to standard output.
fn line(word: &str, value: &impl Serialize) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{word} {}", serde_json::to_string(value)?)?;
    out.flush().context("writing to standard output")
}

struct Supervisor {
    shared: Shared,
    inbox: Receiver<Event>,
    events: Sender<Event>,
    reloader: Reloader,
    reload: Reload,
    control: Option<Control>,
    hip: Option<Worker>,
    admin: Option<Admin>,
    health: Arc<Health>,
    gpus: Gpus,
    wakers: Vec<Waker>,
    heartbeats: Heartbeats,
    /// Lcore threads that have not ended.
    lcores: usize,
    /// Why the exit status will not be 0.
    failure: Option<anyhow::Error>,
}

/// How a reload stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reload {
    Idle,
    /// The configuration is being read.
    Reading,
    /// It may have changed since, and is to be read once more.
    Again,
}

impl Supervisor {
    /// Starts all threads, waits until each has opened what it serves, and says so.
    fn start(
        &mut self,
        lcores: Vec<plan::LcorePlan>,
        facts: &[Facts],
        polled: Vec<Polled>,
        transports: Vec<Transport>,
    ) -> anyhow::Result<()> {
        for plan in lcores {
            let (name, shared) = (format!("cpu{}", plan.cpu), self.shared.clone());
            let heartbeat = self.heartbeats.add(&name);
            let label = name.clone();
            let body = move |events: &_| lcore::run(plan, &shared, &heartbeat, events).context(label);
            spawn(&name, &self.events, Event::LcoreEnded, body)?;
            self.lcores += 1;
        }
        let mut addresses = BTreeMap::new();
        let mut waiting = self.lcores;
        while waiting > 0 {
            match self.inbox.recv()? {
                Event::Ready(opened, waker) => {
                    addresses.extend(opened);
                    self.wakers.push(waker);
                    waiting -= 1;
                }
                event => self.take(event),
            }
            if let Some(failure) = self.failure.take() {
                // Nobody was told that anything is ready.
                return Err(failure);
            }
        }
        let ports = || self.shared.config.ports.iter().enumerate().map(|(index, port)| (port, addresses[&index]));
        let two_sided: Vec<_> =
            ports().filter(|(port, _)| port.service == Service::LeaseIo && port.driver.traits().speaks_udp).collect();
        let mut endpoints = BTreeMap::new();
        if let Some(control) = &mut self.control {
            control.serve(&two_sided.iter().map(|(_, addr)| *addr).collect::<Vec<_>>(), polled);
            for Transport { name, addresses, acceptor } in transports {
                control.add_endpoints(addresses.iter().map(|addr| (EndpointKind::NvmeTcp, *addr)));
                endpoints.insert(name, addresses[0]);
                let clock = self.shared.clock.clone();
                control.spawn(acceptor.run(move || clock.now().mono));
            }
            let kernel = self.shared.config.bindings.iter().filter_map(|binding| match binding {
                config::Binding::KernelNvme(kernel) => kernel.rdma.first(),
                config::Binding::Rdma(_) | config::Binding::Nvme(_) | config::Binding::Sriov(_) => None,
            });
            for (nth, address) in kernel.enumerate() {
                let name = if nth == 0 { "nvme-rdma".to_string() } else { format!("nvme-rdma.{nth}") };
                endpoints.insert(name, *address);
            }
            self.heartbeats.add_control(control.beats());
            endpoints.extend(control.endpoints().iter().map(|(name, addr)| ((*name).to_string(), *addr)));
        }
        if let Some(hip) = &self.hip {
            let address = hip.local_addr();
            endpoints.insert("hip".to_string(), address);
            if let Some(control) = &self.control {
                control.add_endpoints([(EndpointKind::HipTcp, address)]);
            }
        }
        for (nth, (port, addr)) in two_sided.iter().enumerate() {
            let name = if nth == 0 { "two-sided".to_string() } else { format!("two-sided.{}", port.name) };
            endpoints.insert(name, *addr);
        }
        let ports = ports().zip(facts).map(|((port, addr), facts)| ReadyPort {
            name: &port.name,
            driver: port.driver.word(),
            addr: addr.to_string(),
            facts,
        });
        endpoints.extend(self.admin.as_ref().map(|admin| ("admin".to_string(), admin.local_addr())));
        line("berth ready", &ReadyLine { ports: ports.collect(), gpus: self.gpus.ready(), endpoints })?;
        self.health.set_ready(true);
        notify::ready("serving");
        if self.reload == Reload::Again {
            self.read_again();
        }
        if self.shared.stop.load(Relaxed) {
            // A signal came before there was anything to wake.
            self.stop();
        }
        Ok(())
    }

    /// Supervises until every thread has ended.
    fn supervise(&mut self) {
        let mut deadline = None;
        // Twice within what the service manager grants.
        let every = notify::watchdog().map_or(SUPERVISE_EVERY, |longest| SUPERVISE_EVERY.min(longest / 2));
        let mut stuck = String::new();
        while self.lcores > 0 || self.sleeps() && !self.shared.stop.load(Relaxed) {
            if let Ok(event) = self.inbox.recv_timeout(every) {
                self.take(event);
            } else {
                self.reloader.collect();
                self.reloader.log_kernels();
                self.shared.clock.discipline();
                self.shared.telemetry.read_devices();
                self.check_heartbeats(&mut stuck);
            }
            if self.shared.stop.load(Relaxed) {
                // A thread that hangs in a handler never sees its own deadline.
                let deadline = *deadline.get_or_insert_with(|| Instant::now() + 2 * DRAIN);
                if Instant::now() > deadline {
                    self.fail(anyhow!("{} lcores do not stop", self.lcores));
                    return;
                }
            }
        }
    }

    /// Whether threads that sleep serve anything.
    fn sleeps(&self) -> bool {
        self.control.is_some() || self.hip.is_some()
    }

    /// Tells the service manager that every polling thread goes round its loop, or who does not; `known` is who was
    /// stuck before.
    fn check_heartbeats(&mut self, known: &mut String) {
        let stuck = self.heartbeats.stuck().join(", ");
        if stuck.is_empty() {
            notify::alive();
        }
        if stuck != *known {
            if stuck.is_empty() {
                info!("{known} polls again");
                notify::status("serving");
            } else {
                error!("{stuck} does not poll");
                notify::status(&format!("{stuck} does not poll"));
            }
            self.health.set_stuck(&stuck);
            *known = stuck;
        }
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Ready(..) => {}
            Event::Signal(SIGHUP) if self.reload == Reload::Idle && self.health.is_ready() => self.read_again(),
            // Done with the reload under way, or with the start.
            Event::Signal(SIGHUP) => self.reload = Reload::Again,
            Event::Prepared(prepared) => self.reload(prepared),
            Event::Signal(signal) => {
                info!(signal, "draining");
                self.stop();
            }
            Event::LcoreEnded(result) => {
                self.lcores -= 1;
                result.unwrap_or_else(|e| self.fail(e));
            }
        }
    }

    /// Begins a reload: reads the configuration, which may take long, on a thread of its own.
    fn read_again(&mut self) {
        notify::reloading();
        self.reload = Reload::Reading;
        let prepare = self.reloader.preparation();
        let prepared = |prepared: anyhow::Result<_>| Event::Prepared(prepared.map(Box::new));
        if let Err(e) = spawn("reload", &self.events, prepared, |_| prepare()) {
            self.reload(Err(e));
        }
    }

    /// Ends a reload.
    fn reload(&mut self, prepared: anyhow::Result<Box<Prepared>>) {
        if self.shared.stop.load(Relaxed) {
            return;
        }
        let (control, wakers) = (self.control.as_ref(), &self.wakers);
        match prepared.and_then(|prepared| self.reloader.apply(*prepared, control, wakers)) {
            Ok(()) => {
                self.health.reloads.done();
                notify::ready("serving");
            }
            Err(e) => {
                let why = format!("{e:#}");
                error!("reload refused, all goes on as it was:");
                why.lines().for_each(|line| error!("{line}"));
                let told = format!("serving; reload refused: {}", why.lines().next().unwrap_or_default());
                // Who is told may ask at once.
                self.health.reloads.refused(why);
                notify::ready(&told);
            }
        }
        if std::mem::replace(&mut self.reload, Reload::Idle) == Reload::Again {
            self.read_again();
        }
    }

    fn fail(&mut self, e: anyhow::Error) {
        error!("{e:#}");
        self.failure.get_or_insert(e);
        self.stop();
    }

    fn stop(&self) {
        self.health.set_ready(false);
        notify::stopping();
        self.shared.stop.store(true, Relaxed);
        self.wakers.iter().for_each(Waker::wake);
    }
}
