//! Which leases are connected, and what becomes of each connection.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use berth_fabric::{Binding, BoundLease, Preparation, TeardownFailed};
use berth_lease::{LeaseId, Rights};
use berth_port::Nanos;
use berth_wire::fabric::{BindKind, BindingTlv, ClientTlv, Status, Tlvs};

use crate::hca::{Hca, HcaError, Key, Local, Peer, Seen, Unconnected};

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
    hca: H,
    max_leases: usize,
    links: BTreeMap<LeaseId, State<H::Link>>,
    seen: Vec<Seen>,
    now: Nanos,
    /// Clients provoke refusals: one line a second tells of them, the counter of all.
    quiet_until: Nanos,
    counts: Counts,
}

/// Where a preparation leaves its queue pair.
type Place<L> = Arc<Mutex<Option<Result<(L, Key), Unconnected<L>>>>>;

#[derive(Debug)]
enum State<L> {
    /// The way to the client is being found, and its key made.
    Preparing(Place<L>),
    /// The client reaches the lease.
    Connected { link: L, probe: Probe },
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

#[derive(Debug, Default)]
struct Counts {
    binds: u64,
    binds_failed: u64,
    full: u64,
    peers_lost: u64,
    faults: u64,
    devices_removed: u64,
    links_removed: u64,
}

impl<H: Hca> RdmaBinding<H> {
    /// Connects at most `max_leases` at once.
    pub fn new(hca: H, max_leases: usize) -> Self {
        let (now, quiet_until) = (Nanos(0), Nanos(0));
        Self { hca, max_leases, links: BTreeMap::new(), seen: Vec::new(), now, quiet_until, counts: Counts::default() }
    }

    fn refuse(&mut self, error: &HcaError) -> Status {
        if self.now >= self.quiet_until {
            tracing::warn!("a lease is not connected over RDMA: {error}");
            self.quiet_until = self.now + Duration::from_secs(1);
        }
        self.counts.binds_failed += 1;
        error.status()
    }

    /// Ends a connection; false where it may go on.
    fn end(&mut self, id: LeaseId) -> bool {
        let mut link = match self.links.remove(&id) {
            // A queue pair that lets nobody reach anything; whoever prepares it drops it.
            None | Some(State::Preparing(_)) => return true,
            Some(State::Connected { link, .. } | State::Stuck(link)) => link,
        };
        match self.hca.end(&mut link) {
            Ok(()) => true,
            Err(error) => {
                tracing::error!("lease {id} may still be reached over RDMA: {error}");
                self.links.insert(id, State::Stuck(link));
                false
            }
        }
    }

    fn lease_of(&self, qp_num: u32) -> Option<LeaseId> {
        let is_it = |state: &State<H::Link>| match state {
            State::Connected { link, .. } => H::local(link).qp_num == qp_num,
            State::Preparing(_) | State::Stuck(_) => false,
        };
        self.links.iter().find(|(_, state)| is_it(state)).map(|(id, _)| *id)
    }

    fn saw(&mut self, seen: Seen) {
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
                if let Some(id) = self.lease_of(qp_num) {
                    self.counts.peers_lost += 1;
                    self.end(id);
                }
            }
            Seen::Faulted(qp_num) => {
                if let Some(id) = self.lease_of(qp_num) {
                    self.counts.faults += 1;
                    self.end(id);
                }
            }
            Seen::Removed => {
                tracing::warn!("the RDMA device is gone; leases can be connected again when it is back");
                self.counts.devices_removed += 1;
                for id in self.links.keys().copied().collect::<Vec<_>>() {
                    self.counts.links_removed += 1;
                    self.end(id);
                }
                self.hca.close();
            }
        }
    }

    fn probe(&mut self) {
        let mut failed = Vec::new();
        for (id, state) in &mut self.links {
            if let State::Connected { link, probe } = state
                && matches!(*probe, Probe::At(at) if at <= self.now)
            {
                match self.hca.probe(link) {
                    Ok(()) => *probe = Probe::Sent,
                    Err(_) => failed.push(*id),
                }
            }
        }
        for id in failed {
            self.counts.peers_lost += 1;
            self.end(id);
        }
    }
}

impl<H: Hca> Binding for RdmaBinding<H> {
    fn kind(&self) -> BindKind {
        BindKind::Rdma
    }

    fn prepare(&mut self, lease: &BoundLease, client: Tlvs<'_>) -> Result<Option<Preparation>, Status> {
        let peer = peer(client)?;
        if lease.rights == Rights::NONE {
            return Err(Status::InsufficientPerm);
        }
        if lease.bytes.len == 0 {
            return Err(Status::InvalidParams);
        }
        if self.links.len() >= self.max_leases {
            self.counts.full += 1;
            return Err(Status::CapacityExceeded);
        }
        let connect = self.hca.begin(peer, lease);
        let place = Place::<H::Link>::default();
        self.links.insert(lease.id, State::Preparing(place.clone()));
        Ok(Some(Preparation::new(move || {
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
        let first_byte = key.region_addr + lease.bytes.at - lease.first;
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

    fn teardown(&mut self, lease: LeaseId) -> Result<(), TeardownFailed> {
        if self.end(lease) { Ok(()) } else { Err(TeardownFailed) }
    }

    fn tick(&mut self, now: Nanos) {
        self.now = now;
        let mut seen = std::mem::take(&mut self.seen);
        self.hca.poll(&mut seen);
        for event in seen.drain(..) {
            self.saw(event);
        }
        self.seen = seen;
        self.probe();
    }

    fn counters(&self, visit: &mut dyn FnMut(&str, u64)) {
        let Counts { binds, binds_failed, full, peers_lost, faults, devices_removed, links_removed } = self.counts;
        visit("connected", self.links.len() as u64);
        visit("binds", binds);
        visit("binds_failed", binds_failed);
        visit("full", full);
        visit("peers_lost", peers_lost);
        visit("faults", faults);
        visit("devices_removed", devices_removed);
        visit("links_removed", links_removed);
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
