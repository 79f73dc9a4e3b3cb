//! The accept loop, and what a poll core runs.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use berth_engine::Polled;
use berth_nvme::{Connection, Latencies, Target};
use berth_port::{Family, Nanos, Task};
use berth_stream::{Event, Limits, Listener};
use berth_uring::{Handover, Host, ToCore, UringError, UringStreams};

use crate::{Later, arithmetic::Arithmetic};

/// Room for what a connection receives and sends at once, in bytes: several commands with their data.
const ROOM: usize = 160 << 10;

const _: () = assert!(Connection::room(*crate::IN_CAPSULE.end() as u32) <= ROOM);

/// Until Connect: connections that have said nothing give way to new ones.
const PENDING: usize = 512;

/// As long as Linux waits for `ICResp`.
const IDENTIFY_WITHIN: Duration = Duration::from_secs(10);

/// With authentication, for which all queues of all hosts may come at once.
const PROVE_WITHIN: Duration = Duration::from_secs(30);

/// A poll core's end, to which connections are handed after Connect. [`NvmeCore::open`] makes a task of it.
pub struct NvmeCore {
    from: Handover<Connection>,
    most: usize,
}

impl fmt::Debug for NvmeCore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NvmeCore({} connections)", self.most)
    }
}

impl NvmeCore {
    pub(crate) fn new(from: Handover<Connection>, most: usize) -> Self {
        Self { from, most }
    }

    /// What the core polls, named so in telemetry; it stays on the thread that calls this.
    ///
    /// # Errors
    /// The kernel gives no ring.
    pub fn open(self, name: &str) -> Result<Polled<impl Task + use<>>, UringError> {
        let latencies = Latencies::default();
        let timed = latencies.clone();
        let task = UringStreams::new(self.from, self.most)?.on_arrival(move |connection| connection.time(&timed));
        let histograms = latencies.histograms();
        Ok(histograms.iter().fold(Polled::port(name, task), |task, (name, recorder)| task.histogram(name, recorder)))
    }
}

/// Accepts connections and hands them to the poll cores.
pub struct Acceptor {
    listeners: Vec<Listener>,
    cores: Vec<ToCore<Connection>>,
    most: usize,
    later: Later,
    arithmetic: Option<Arc<Arithmetic>>,
    counts: Arc<Counts>,
}

impl fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Acceptor({:?})", self.listeners)
    }
}

const REFUSED: Family =
    Family::counter("nvme_connections_refused", "connections over NVMe/TCP that were refused or ended before Connect");

berth_port::counters! {
    pub(crate) struct Counts of Count {
        accepted = nvme_connections: "connections over NVMe/TCP that were accepted",
        refused = nvme_connections_full: REFUSED { reason: "full" },
        displaced = nvme_connections_displaced: REFUSED { reason: "displaced" },
        timed_out = nvme_connections_timed_out: REFUSED { reason: "timed_out" },
    }
}

impl Acceptor {
    pub(crate) fn new(
        listeners: Vec<Listener>,
        cores: Vec<ToCore<Connection>>,
        most: usize,
        later: Later,
        arithmetic: Option<Arc<Arithmetic>>,
        counts: Arc<Counts>,
    ) -> Self {
        Self { listeners, cores, most, later, arithmetic, counts }
    }

    /// Accepts until the runtime ends; `now` is what leases are timed by. The node has to have started.
    pub async fn run(self, now: impl Fn() -> Nanos + Send + Sync + 'static) {
        let Self { listeners, cores, most, later, arithmetic, counts } = self;
        let now = Box::new(now);
        let Some(target) = later.get().cloned() else { return };
        let _running = match arithmetic.as_ref().map(Arithmetic::start).transpose() {
            Ok(running) => running,
            Err(e) => return tracing::error!("NVMe/TCP hosts cannot authenticate: {e}"),
        };
        let identify_within = if arithmetic.is_some() { PROVE_WITHIN } else { IDENTIFY_WITHIN };
        let limits = Limits { pending: PENDING, identify_within, admitted: most, per_peer: most };
        berth_uring::serve(listeners, limits, cores, Arc::new(Nvme { target, now, counts })).await;
    }
}

struct Nvme {
    target: Target,
    now: Box<dyn Fn() -> Nanos + Send + Sync>,
    counts: Arc<Counts>,
}

impl Host for Nvme {
    type Session = Connection;

    fn session(&self, local: SocketAddr, peer: IpAddr) -> Option<Connection> {
        Some(Connection::new(&self.target, local).with_peer(peer))
    }

    fn room(&self) -> usize {
        ROOM
    }

    fn now(&self) -> Nanos {
        (self.now)()
    }

    fn accepted(&self) {
        self.counts.accepted.add(1);
    }

    fn ended(&self, event: Event) {
        let count = match event {
            Event::Displaced => &self.counts.displaced,
            Event::Refused => &self.counts.refused,
            Event::Expired => &self.counts.timed_out,
        };
        count.add(1);
    }
}
