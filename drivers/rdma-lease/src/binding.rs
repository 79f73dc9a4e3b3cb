//! Which leases are connected, and what becomes of each connection.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use berth_fabric::{Binding, BlockingWork, BoundLease, OncePerSecond, Reach, TeardownFailed};
use berth_lease::{LeaseId, Rights};
use berth_port::{Family, Nanos, Tables};
use berth_wire::fabric::{BindKind, BindingTlv, ClientTlv, Status, Tlvs};

use crate::hca::{Hca, HcaError, Key, Local, Peer, Seen, Unconnected, Unended};

/// How long after LEASE_BIND a client is first asked for a sign of life: by then its queue pair must be connected.
pub const FIRST_PROBE: Duration = Duration::from_secs(3);

/// How long after a sign of life the next one is asked for.
pub const PROBE_EVERY: Duration = Duration::from_secs(1);

/// Connects leases of memory to clients over RDMA.
///
/// Each connected lease has a queue pair of its own and a remote key that is good on that queue pair only, for exactly
/// the lease's bytes and rights. The client's device is asked for a sign of life every [`PROBE_EVERY`]; a client that is
/// gone, or that did what it may not, loses its connection, and its lease can be bound again.
#[derive(Debug)]
pub struct RdmaBinding<H: Hca> {
    name: String,
    hca: H,
    max_leases: usize,
    links: BTreeMap<LeaseId, State<H::Link>>,
    seen: Vec<Seen>,
    now: Nanos,
    refusals: OncePerSecond,
    counts: Counts,
}

/// Where a preparation leaves its queue pair.
type Place<L> = Arc<Mutex<Option<Result<(L, Key), Unconnected<L>>>>>;

/// Where the end of a connection leaves what there is of it; empty as long as it is not done.
type Remains<L> = Arc<Mutex<Option<Result<(), Unended<L>>>>>;

#[derive(Debug)]
enum State<L> {
    /// The way to the client is being found, and its key made.
    Preparing(Place<L>),
    /// The client reaches the lease.
    Connected { link: L, probe: Probe },
    /// It is being kept from it.
    Ending(Remains<L>),
    /// The client is not to reach the lease any more, and may.
    Stuck(L),
}

#[derive(Debug, Clone, Copy)]
enum Probe {
    /// The next one is due then.
    At(Nanos),
    /// One is under way.
    Sent,
}

const BINDS_REFUSED: Family = Family::counter("rdma_binds_refused", "leases that were not connected over RDMA");
const EVENTS: Family = Family::counter("rdma_events", "what befell connections over RDMA");

berth_port::counters! {
    #[derive(Clone, Copy)]
    struct Counts {
        /// Set as it is reported.
        connected = rdma_connected: gauge "leases connected over RDMA",
        binds = rdma_binds: "leases that were connected over RDMA",
        binds_failed = rdma_binds_failed: BINDS_REFUSED { reason: "failed" },
        full = rdma_full: BINDS_REFUSED { reason: "full" },
        no_dma_bufs = rdma_no_dma_bufs: BINDS_REFUSED { reason: "no_dma_bufs" },
        peers_lost = rdma_peers_lost: EVENTS { event: "peer_lost" },
        faults = rdma_faults: EVENTS { event: "fault" },
        devices_removed = rdma_devices_removed: EVENTS { event: "device_removed" },
        links_removed = rdma_links_removed: EVENTS { event: "link_removed" },
    }
}

/// Declarations of the counters of bindings over RDMA.
pub const COUNTERS: Tables = &[Counts::TABLE];

impl<H: Hca> RdmaBinding<H> {
    /// Connects at most `max_leases` at once over the device `name`.
    pub fn new(name: String, hca: H, max_leases: usize) -> Self {
        Self {
            name,
            hca,
            max_leases,
            links: BTreeMap::new(),
            seen: Vec::new(),
            now: Nanos(0),
            refusals: OncePerSecond::default(),
            counts: Counts::default(),
        }
    }

    fn refuse(&mut self, error: &HcaError) -> Status {
        let tell = if matches!(error, HcaError::NoDmaBufs(_)) {
            self.counts.no_dma_bufs += 1;
            // It stays so: once is enough.
            self.counts.no_dma_bufs == 1
        } else {
            self.counts.binds_failed += 1;
            self.refusals.is_due(self.now)
        };
        if tell {
            tracing::warn!("a lease is not connected over RDMA: {error}");
        }
        error.status()
    }

    fn lease_of(&self, qp_num: u32) -> Option<LeaseId> {
        let is_it = |state: &State<H::Link>| match state {
            State::Connected { link, .. } => H::local(link).qp_num == qp_num,
            State::Preparing(_) | State::Ending(_) | State::Stuck(_) => false,
        };
        self.links.iter().find(|(_, state)| is_it(state)).map(|(id, _)| *id)
    }

    /// Takes note of what was seen; adds the leases whose clients are gone.
    fn saw(&mut self, seen: Seen, lost: &mut Vec<LeaseId>) {
        match seen {
            Seen::Alive(qp_num) => {
                let next = self.now + PROBE_EVERY;
                if let Some(State::Connected { probe, .. }) =
                    self.lease_of(qp_num).and_then(|id| self.links.get_mut(&id))
                {
                    *probe = Probe::At(next);
                }
            }
            Seen::Lost(qp_num) => {
                if let Some(id) = self.lease_of(qp_num).filter(|id| !lost.contains(id)) {
                    self.counts.peers_lost += 1;
                    lost.push(id);
                }
            }
            Seen::Faulted(qp_num) => {
                if let Some(id) = self.lease_of(qp_num).filter(|id| !lost.contains(id)) {
                    self.counts.faults += 1;
                    lost.push(id);
                }
            }
            Seen::Removed => {
                tracing::warn!("the RDMA device is gone; leases can be connected again when it is back");
                self.counts.devices_removed += 1;
                self.counts.links_removed += self.links.len() as u64;
                lost.extend(self.links.keys());
                self.hca.close();
            }
        }
    }

    fn probe(&mut self, lost: &mut Vec<LeaseId>) {
        for (id, state) in &mut self.links {
            if let State::Connected { link, probe } = state
                && matches!(*probe, Probe::At(at) if at <= self.now)
            {
                if self.hca.probe(link).is_ok() {
                    *probe = Probe::Sent;
                } else {
                    self.counts.peers_lost += 1;
                    lost.push(*id);
                }
            }
        }
    }
}

impl<H: Hca> Binding for RdmaBinding<H> {
    fn kind(&self) -> BindKind {
        BindKind::Rdma
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn prepare(&mut self, lease: &BoundLease, client: Tlvs<'_>) -> Result<Option<BlockingWork>, Status> {
        let peer = peer(client)?;
        if lease.rights == Rights::NONE {
            return Err(Status::InsufficientPerm);
        }
        if !matches!(lease.reach, Reach::Bytes { span, .. } if span.len > 0) {
            return Err(Status::InvalidParams);
        }
        if self.links.len() >= self.max_leases {
            self.counts.full += 1;
            return Err(Status::CapacityExceeded);
        }
        let connect = self.hca.begin(peer, lease);
        let place = Place::<H::Link>::default();
        self.links.insert(lease.id, State::Preparing(place.clone()));
        Ok(Some(BlockingWork::new(move || {
            let connected = connect();
            *place.lock().unwrap_or_else(PoisonError::into_inner) = Some(connected);
        })))
    }

    fn bind(&mut self, lease: &BoundLease, _: Tlvs<'_>, out: &mut Vec<u8>) -> Result<(), Status> {
        let Some(State::Preparing(place)) = self.links.remove(&lease.id) else { return Err(Status::InternalError) };
        let connected = place.lock().unwrap_or_else(PoisonError::into_inner).take();
        let granted = match connected.ok_or(Status::InternalError)? {
            Ok((mut link, key)) => match self.hca.grant(&mut link, lease.rights) {
                Ok(()) => Ok((link, key)),
                Err(error) => Err(Unconnected { error, left: Some(Box::new(link)) }),
            },
            Err(unconnected) => Err(unconnected),
        };
        let (link, key) = match granted {
            Ok(granted) => granted,
            Err(Unconnected { error, left }) => {
                self.links.extend(left.map(|link| (lease.id, State::Stuck(*link))));
                return Err(self.refuse(&error));
            }
        };
        let Local { qp_num, gid, port, psn } = H::local(&link);
        let Reach::Bytes { span, first } = lease.reach else { return Err(Status::InternalError) };
        let first_byte = key.region_addr + span.at - first;
        for tlv in [
            BindingTlv::RdmaRkey(key.rkey),
            BindingTlv::RdmaRemoteAddr(first_byte),
            BindingTlv::RdmaQpNum(qp_num),
            BindingTlv::RdmaGid(gid),
            BindingTlv::RdmaPort(port.into()),
            BindingTlv::RdmaPsn(psn),
        ] {
            tlv.write(out);
        }
        self.counts.binds += 1;
        self.links.insert(lease.id, State::Connected { link, probe: Probe::At(self.now + FIRST_PROBE) });
        Ok(())
    }

    fn teardown(&mut self, lease: LeaseId) -> Result<Option<BlockingWork>, TeardownFailed> {
        let link = match self.links.remove(&lease) {
            // A queue pair that lets nobody reach anything; whoever prepares it drops it.
            None | Some(State::Preparing(_)) => return Ok(None),
            Some(State::Connected { link, .. } | State::Stuck(link)) => link,
            // Its end has panicked.
            Some(ending @ State::Ending(_)) => {
                self.links.insert(lease, ending);
                return Err(TeardownFailed);
            }
        };
        let (end, remains) = (self.hca.end(link), Remains::default());
        self.links.insert(lease, State::Ending(remains.clone()));
        Ok(Some(BlockingWork::new(move || {
            let ended = end();
            *remains.lock().unwrap_or_else(PoisonError::into_inner) = Some(ended);
        })))
    }

    fn torn_down(&mut self, lease: LeaseId) -> Result<(), TeardownFailed> {
        let Some(State::Ending(remains)) = self.links.get(&lease) else { return Ok(()) };
        let ended = remains.lock().unwrap_or_else(PoisonError::into_inner).take();
        match ended {
            Some(Ok(())) => {
                self.links.remove(&lease);
                Ok(())
            }
            Some(Err(Unended { error, link })) => {
                tracing::error!("lease {lease} may still be reached over RDMA: {error}");
                self.links.insert(lease, State::Stuck(*link));
                Err(TeardownFailed)
            }
            None => Err(TeardownFailed),
        }
    }

    fn tick(&mut self, now: Nanos, lost: &mut Vec<LeaseId>) {
        self.now = now;
        let mut seen = std::mem::take(&mut self.seen);
        self.hca.poll(&mut seen);
        for event in seen.drain(..) {
            self.saw(event, lost);
        }
        self.seen = seen;
        self.probe(lost);
    }

    fn counters(&self, visit: &mut dyn FnMut(&str, u64)) {
        Counts { connected: self.links.len() as u64, ..self.counts }.report(&mut |name, value| visit(name, value));
    }
}

/// The client that RDMA_PEER describes.
fn peer(client: Tlvs<'_>) -> Result<Peer, Status> {
    let described = client.iter().find_map(|tlv| match ClientTlv::read(tlv) {
        Ok(Some(ClientTlv::RdmaPeer { qp_num, gid, psn, mtu })) => Some(Peer { qp_num, gid, psn, mtu }),
        _ => None,
    });
    let peer = described.ok_or(Status::InvalidParams)?;
    let numbers = [peer.qp_num, peer.psn].iter().all(|number| *number < 1 << 24);
    let mtu = (256..=4096).contains(&peer.mtu) && peer.mtu.is_power_of_two();
    if numbers && mtu { Ok(peer) } else { Err(Status::InvalidParams) }
}
