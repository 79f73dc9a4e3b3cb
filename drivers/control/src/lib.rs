//! The listeners of a node: control over UDP and QUIC; dataplanes over UDP, TCP and QUIC.
//!
//! ```text
//! udp, quic      frames -> berth_identity::link -> Shared::execute -> one Node, one lock -> journal -> answer
//! tcp, quic      FBMT, FBBT -> Pump -> berth_lease_io::Stream     bytes of leases, past the node:
//! shim           FBMU, FBBU -> berth_lease_io::answer             the lease table decides
//! tick           time -> Node::tick, announcements, compaction
//! ```
//!
//! Everything runs on one tokio runtime on the housekeeping CPUs. The node's lock is held while an operation is
//! computed, but never while waiting: an answer waits for its journal commit and for readers of the lease table without
//! it. What peers can make the node hold is bounded: connections, streams, operations, buffers, and how long each may
//! be silent.
#![forbid(unsafe_code)]
#![allow(clippy::doc_markdown)] // the documents' names of ops

mod clock;
mod counters;
mod debts;
mod facts;
mod machine;
mod message;
mod permits;
mod proxy;
mod quic;
mod shared;
mod shim;
mod tasklet;
mod tcp;
mod tick;
mod udp;
mod work;

use std::{
    io, iter,
    net::{SocketAddr, UdpSocket as StdUdpSocket},
    path::{Path, PathBuf},
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use berth_fabric::{
    Binding, BlockingWork, Config, HipClaim, HipGrant, HipSession, Node, RecoverError, Recovered, Resource, Started,
    Starting, Teardown, Work,
};
use berth_host::{TscClock, pin_current_thread, release_free_memory};
use berth_identity::{Identity, NodeId, link::Server};
use berth_journal::{Journal, JournalError, Opened};
use berth_lease::{Entry, Regions, State, Table};
use berth_port::Nanos;
use berth_stream::Listener;
use berth_tls::quic::TlsError;
use berth_wire::fabric::{EndpointKind, MsgType, Status, WithdrawReason, data::stream::Kind};
use quinn::{Endpoint, EndpointConfig, TokioRuntime, VarInt};
use tokio::{net::UdpSocket, runtime::Runtime, sync::mpsc, time::timeout};

use clock::{Clock, highest_nonce};
pub use counters::COUNTERS;
use counters::Counters;
use machine::{Machine, Sensors};
use message::Role;
use permits::{BLOCKING, TEARDOWNS, WALKS};
use proxy::Proxies;
use shared::Shared;
use tasklet::Pool;
pub use tcp::{POLLED, Polled};

/// Limit on the records that a start commits at once. There may be one per lease, and a commit's length is bounded.
const RECORDS: usize = 1 << 14;

/// Time limit for closing QUIC connections.
const GOODBYE: Duration = Duration::from_millis(300);

/// Addresses that a node listens on. Port 0 takes a free one.
#[derive(Debug, Clone)]
pub struct Listen {
    /// Control over UDP.
    pub udp: SocketAddr,
    /// Control and data over QUIC.
    pub quic: SocketAddr,
    /// The discovery relay; `None` if the node is not one.
    pub relay: Option<SocketAddr>,
    /// FBMU and FBBU share a port; `None` if they are not served.
    pub fbmu: Option<SocketAddr>,
    /// FBMT; `None` if it is not served.
    pub fbmt: Option<SocketAddr>,
    /// FBBT; `None` if it is not served.
    pub fbbt: Option<SocketAddr>,
}

/// Everything that a node is started with.
#[derive(Debug)]
pub struct Settings {
    /// The node's key, which is its identity.
    pub identity: Identity,
    /// Addresses to listen on.
    pub listen: Listen,
    /// Relays to which the node announces itself.
    pub announce: Vec<SocketAddr>,
    /// Directory of the journal.
    pub state_dir: PathBuf,
    /// CPUs for the node's threads.
    pub cpus: Vec<usize>,
    /// The clock of the poll loops.
    pub clock: TscClock,
    /// Memory and blocks to be leased.
    pub regions: Regions,
    /// Resources that are leased one by one: pools of virtual functions.
    pub resources: Vec<Box<dyn Resource>>,
    /// Transports beside the lease table that leases can be connected over.
    pub bindings: Vec<Box<dyn Binding>>,
    /// CPUs that tasklets run on, where the node has any.
    pub tasklet_cpus: Vec<usize>,
    /// Settings of the node. Its endpoints and the facts about the host are filled in here.
    pub node: Config,
}

/// Why a node does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An address cannot be listened on.
    #[error("{what} {address}: {source}")]
    Listen {
        /// Name of the listener.
        what: &'static str,
        /// The address.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// Threads cannot be started.
    #[error("starting the control plane's threads: {0}")]
    Threads(io::Error),
    /// The journal cannot be opened.
    #[error(transparent)]
    Journal(#[from] berth_journal::OpenError),
    /// The journal's records do not make a consistent state.
    #[error("the journal {0}")]
    Recover(#[from] RecoverError),
    /// The start could not be journaled.
    #[error("journaling the start: {0}")]
    Commit(#[from] JournalError),
    /// TLS cannot be set up.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// A node with bound sockets and recovered leases.
#[derive(Debug)]
pub struct Control {
    runtime: Runtime,
    shared: Arc<Shared>,
    listeners: Listeners,
    announce: Vec<SocketAddr>,
    /// Present until it serves.
    begun: Option<Begun>,
    sensors: Arc<Sensors>,
}

/// Work that the node began when it was opened, to be continued once it serves.
#[derive(Debug)]
struct Begun {
    broadcasts: mpsc::UnboundedReceiver<Vec<u8>>,
    teardowns: mpsc::UnboundedReceiver<Teardown>,
    works: Vec<Work>,
}

/// Reads the counters of a [`Control`].
#[derive(Debug, Clone)]
pub struct Monitor(Weak<Shared>);

impl Monitor {
    /// All counters with their names; empty once the node has stopped.
    pub fn counters(&self) -> Vec<(String, u64)> {
        self.0.upgrade().map_or_else(Vec::new, |shared| shared.counters())
    }
}

/// Decides on claims of sessions of HIP Remote; see [`Node::bind_hip`].
#[derive(Debug, Clone)]
pub struct HipLeases(Weak<Shared>);

impl HipLeases {
    /// Gives a session the device of a lease. Returned are its index, its bytes, the session that the lease had, and what
    /// says whether the lease lives at a moment of the node's clock.
    ///
    /// # Errors
    /// Why not, as an op would be answered.
    pub fn bind(&self, claim: &HipClaim<'_>, session: Arc<dyn HipSession>) -> Result<(HipGrant, IsLive), Status> {
        let shared = self.0.upgrade().ok_or(Status::InternalError)?;
        let granted = shared.node().bind_hip(claim, session, shared.clock.now())?;
        let (reader, key, generation) = (shared.table.reader(), granted.key, granted.generation);
        let is_live = move |now| {
            let is_live = |entry: &Entry| entry.state == State::Active && entry.generation == generation;
            reader.peek(key).filter(is_live).is_some_and(|entry| now < entry.expires)
        };
        Ok((granted, Box::new(is_live)))
    }
}

/// Says whether a lease lives at a moment.
pub type IsLive = Box<dyn Fn(Nanos) -> bool + Send>;

#[derive(Debug)]
struct Listeners {
    udp: Arc<UdpSocket>,
    quic: Endpoint,
    relay: Option<Arc<UdpSocket>>,
    fbmu: Option<Arc<UdpSocket>>,
    fbmt: Option<Listener>,
    fbbt: Option<Listener>,
    /// Address of each listener, by its name in the ready line.
    bound: Vec<(&'static str, SocketAddr)>,
}

impl Control {
    /// Binds all sockets, opens the journal and recovers the node. It serves nothing before [`Control::serve`].
    pub fn open(settings: Settings) -> Result<Self, StartError> {
        let Settings {
            identity,
            listen,
            announce,
            state_dir,
            cpus,
            clock,
            regions,
            resources,
            bindings,
            tasklet_cpus,
            node,
        } = settings;
        let runtime = runtime(cpus).map_err(StartError::Threads)?;
        let clock = Clock::new(clock);
        let counters = Arc::<Counters>::default();
        let proxies: Box<dyn Resource> = Box::new(Proxies::new(runtime.handle().clone(), counters.clone()));
        let resources = iter::once(proxies).chain(resources).collect();
        let sensors = Arc::new(Sensors::new());
        let listeners = {
            let _within = runtime.enter();
            Listeners::bind(&listen)?
        };
        let mut recovered = Recovered::default();
        let Opened { journal, torn } = Journal::open(&state_dir, |record| recovered.apply(record))?;
        if let Some(torn) = torn {
            tracing::warn!("the journal ended in a commit that was never answered, which is cut off: {torn:?}");
        }
        let config = Config { endpoints: listeners.endpoints(), facts: facts::facts(Path::new("/sys")), ..node };
        let machine = Machine { sensors: sensors.clone() };
        let (starting, works) = Starting::new(recovered, bindings);
        all(&runtime, works);
        let started =
            Node::start(identity.clone(), config, machine, regions.clone(), resources, starting, clock.now())?;
        // What was read back of many leases is freed among what they need now.
        release_free_memory();
        let Started { node, journal: first, seen, works } = started;
        for records in first.chunks(RECORDS) {
            journal.commit(records).wait()?;
        }
        let mut link = Server::default();
        link.replay.accept_up_to(highest_nonce(clock.now().wall));
        for (sender, nonce) in seen {
            link.replay.refuse_up_to(NodeId(sender), nonce);
        }
        let ((broadcasts, to_send), (teardowns, to_do)) = (mpsc::unbounded_channel(), mpsc::unbounded_channel());
        let pool = Pool::new(tasklet_cpus, runtime.handle().clone());
        let shared = Shared::new(identity, clock, regions, counters, journal, broadcasts, teardowns, link, node, pool);
        let shared = Arc::new(shared);
        shared.pool.serve(&shared);
        listeners.quic.set_server_config(Some(quic::config(&shared)?));
        let begun = Some(Begun { broadcasts: to_send, teardowns: to_do, works });
        Ok(Self { runtime, shared, listeners, announce, begun, sensors })
    }

    /// The node's id.
    pub fn id(&self) -> NodeId {
        self.shared.identity.id()
    }

    /// Replaces keys, policy and quotas. Connections of keys that are no longer served are closed; tokens that were
    /// issued before stay valid until they expire.
    pub fn reconfigure(&self, settings: berth_fabric::Settings) {
        self.shared.node().reconfigure(settings);
        self.shared.look_at_keys();
    }

    /// The table by which dataplanes decide on accesses.
    pub fn table(&self) -> &Table {
        &self.shared.table
    }

    /// The regions that leases are placed in.
    pub fn regions(&self) -> &Regions {
        &self.shared.regions
    }

    /// A counter that rises about a hundred times a second while the node works: while its threads run tasks and its
    /// lock is available.
    pub fn beats(&self) -> Arc<AtomicU64> {
        self.shared.beats.clone()
    }

    /// Every bound address, by its name in the ready line.
    pub fn endpoints(&self) -> &[(&'static str, SocketAddr)] {
        &self.listeners.bound
    }

    /// A handle that reads the node's counters from other threads, for as long as it runs.
    pub fn monitor(&self) -> Monitor {
        Monitor(Arc::downgrade(&self.shared))
    }

    /// Lets sessions of HIP Remote claim leases, for as long as the node runs.
    pub fn hip_leases(&self) -> HipLeases {
        HipLeases(Arc::downgrade(&self.shared))
    }

    /// Begins to serve. `two_sided` are the dataplane's ports, which binding TLVs name; `polled` are those of FBMT.
    pub fn serve(&mut self, two_sided: &[SocketAddr], polled: Vec<Polled>) {
        let Self { runtime, shared, listeners, announce, begun, sensors } = self;
        let two_sided = two_sided.iter().map(|addr| (EndpointKind::TwoSidedUdp, *addr));
        let fbmt_polled = polled.iter().filter_map(|polled| polled.listener.local_addr().ok());
        shared.node().add_endpoints(two_sided.chain(fbmt_polled.map(|addr| (EndpointKind::Fbmt, addr))));
        for polled in polled {
            runtime.spawn(tcp::serve_polled(polled, shared.clone()));
        }
        let Listeners { udp, quic, relay, fbmu, fbmt, fbbt, bound: _ } = listeners;
        runtime.spawn(udp::serve(udp.clone(), Role::Node, shared.clone()));
        runtime.spawn(quic::serve(quic.clone(), shared.clone()));
        if let Some(socket) = relay {
            runtime.spawn(udp::serve(socket.clone(), Role::Relay, shared.clone()));
        }
        if let Some(socket) = fbmu {
            runtime.spawn(shim::serve(socket.clone(), shared.clone()));
        }
        for (listener, kind) in [(fbmt.take(), Kind::Memory), (fbbt.take(), Kind::Block)] {
            if let Some(listener) = listener {
                runtime.spawn(tcp::serve(listener, kind, shared.clone()));
            }
        }
        runtime.spawn(sensors.clone().watch());
        runtime.spawn(tick::time(shared.clone()));
        if let Some(Begun { broadcasts, teardowns, works }) = begun.take() {
            runtime.spawn(tick::speak(udp.clone(), announce.clone(), broadcasts, shared.clone()));
            runtime.spawn(tick::tear_down(teardowns, shared.clone()));
            for work in works {
                let shared = shared.clone();
                runtime.spawn(async move { shared.work_alone(work).await });
            }
        }
    }

    /// Runs a task of the dataplane, such as an accept loop, on the node's threads until the node stops.
    pub fn spawn(&self, serve: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(serve);
    }

    /// Adds addresses of bindings to the announcements.
    pub fn add_endpoints(&self, endpoints: impl IntoIterator<Item = (EndpointKind, SocketAddr)>) {
        self.shared.node().add_endpoints(endpoints);
    }

    /// Lets operations under way end within `patience`, closes connections, and returns every counter. Leases stay: the
    /// next start serves them again.
    pub fn stop(self, patience: Duration) -> Vec<(String, u64)> {
        let Self { runtime, shared, listeners, announce, .. } = self;
        let quic = listeners.quic.clone();
        shared.pool.close();
        runtime.block_on(async {
            if timeout(patience, shared.permits.close()).await.is_err() {
                tracing::warn!("ops that did not end in time are given up");
            }
            shared.keep_nonces();
            if !announce.is_empty() {
                let farewell = shared.node().withdrawal(WithdrawReason::GracefulShutdown, shared.clock.now());
                tick::tell(&listeners.udp, &announce, MsgType::Withdraw, farewell, &shared).await;
            }
            quic.close(VarInt::from_u32(0), b"the node stops");
            let _ = timeout(GOODBYE, quic.wait_idle()).await;
        });
        let counters = shared.counters();
        drop(listeners);
        // Dropping the last reference to the journal commits what is queued.
        runtime.shutdown_timeout(GOODBYE);
        drop(shared);
        counters
    }
}

impl Listeners {
    /// Binds every listener. Must be called within a runtime.
    fn bind(listen: &Listen) -> Result<Self, StartError> {
        let mut bound = Vec::new();
        let mut udp = |what, address| {
            let failed = |source| StartError::Listen { what, address, source };
            let socket = StdUdpSocket::bind(address).map_err(failed)?;
            socket.set_nonblocking(true).map_err(failed)?;
            bound.push((what, socket.local_addr().map_err(failed)?));
            Ok::<_, StartError>((socket, address))
        };
        let tokio_udp = |(socket, address): (StdUdpSocket, SocketAddr), what| {
            let socket = UdpSocket::from_std(socket);
            socket.map(Arc::new).map_err(|source| StartError::Listen { what, address, source })
        };
        let control = tokio_udp(udp("control-udp", listen.udp)?, "control-udp")?;
        let (quic, address) = udp("quic", listen.quic)?;
        let quic = Endpoint::new(EndpointConfig::default(), None, quic, Arc::new(TokioRuntime))
            .map_err(|source| StartError::Listen { what: "quic", address, source })?;
        let relay = listen.relay.map(|address| tokio_udp(udp("relay", address)?, "relay")).transpose()?;
        let fbmu = listen.fbmu.map(|address| tokio_udp(udp("fbmu", address)?, "fbmu")).transpose()?;
        let mut tcp = |what, address| {
            let failed = |source| StartError::Listen { what, address, source };
            let listener = Listener::bind(address).map_err(failed)?;
            bound.push((what, listener.local_addr().map_err(failed)?));
            Ok::<_, StartError>(listener)
        };
        let fbmt = listen.fbmt.map(|address| tcp("fbmt", address)).transpose()?;
        let fbbt = listen.fbbt.map(|address| tcp("fbbt", address)).transpose()?;
        Ok(Self { udp: control, quic, relay, fbmu, fbmt, fbbt, bound })
    }

    /// Addresses for announcements and binding TLVs.
    fn endpoints(&self) -> Vec<(EndpointKind, SocketAddr)> {
        let kinds = |name| match name {
            "control-udp" => &[EndpointKind::ControlUdp][..],
            "quic" => &[EndpointKind::Quic, EndpointKind::QuicMem, EndpointKind::QuicBlock],
            "fbmu" => &[EndpointKind::Fbmu, EndpointKind::Fbbu],
            "fbmt" => &[EndpointKind::Fbmt],
            "fbbt" => &[EndpointKind::Fbbt],
            _ => &[],
        };
        self.bound.iter().flat_map(|(name, address)| kinds(*name).iter().map(|kind| (*kind, *address))).collect()
    }
}

/// Runs all of these concurrently, and waits for them.
fn all(runtime: &Runtime, works: Vec<BlockingWork>) {
    let begun: Vec<_> = works.into_iter().map(|work| runtime.spawn_blocking(|| work.run())).collect();
    for work in begun {
        // Where it panics, the node finds it still there.
        let _ = runtime.block_on(work);
    }
}

/// A runtime with one thread on each of these CPUs.
fn runtime(cpus: Vec<usize>) -> io::Result<Runtime> {
    let next = AtomicUsize::new(0);
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(cpus.len().max(1))
        // One more reads the sensors.
        .max_blocking_threads(BLOCKING + TEARDOWNS + WALKS + 1)
        .thread_name("berth-control")
        .enable_all()
        .on_thread_start(move || {
            let cpu = cpus.get(next.fetch_add(1, Relaxed) % cpus.len().max(1));
            if let Some(Err(e)) = cpu.map(|cpu| pin_current_thread(*cpu)) {
                tracing::warn!("a thread of the control plane is not pinned: {e}");
            }
        })
        .build()
}
