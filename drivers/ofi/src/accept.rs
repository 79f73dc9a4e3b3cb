//! The two ways for peers to be admitted: the rendezvous, and LEASE_BIND.

use std::{
    collections::{HashMap, VecDeque},
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use berth_fabric::{Binding, BlockingWork, BoundLease, Reach, TeardownFailed};
use berth_lease::LeaseId;
use berth_port::Nanos;
use berth_rendezvous::{Acceptor, Answer, Offer, PeerId};
use berth_wire::{
    fabric::{BindKind, BindingTlv, Status, Tlvs},
    rendezvous::{Peer, PeerKind},
};

use crate::peers::{Admitted, Peers};

/// Admits peers that come to a port's rendezvous, for as long as they stay connected.
#[derive(Debug)]
pub struct OfiAcceptor {
    peers: Peers,
    admitted: HashMap<PeerId, Admitted>,
}

impl OfiAcceptor {
    /// `peers` are those of the port behind the rendezvous.
    pub fn new(peers: Peers) -> Self {
        Self { peers, admitted: HashMap::new() }
    }
}

impl Acceptor for OfiAcceptor {
    fn offer(&mut self, peer: PeerId, from: SocketAddr, offer: &Offer<'_>, answer: &mut Answer) -> Result<(), Status> {
        let (PeerKind::Ofi, Peer::Ofi { addr }) = (offer.kind, offer.peer) else { return Err(Status::UnsupportedOp) };
        let admitted = self.peers.admit(addr, Some(from.ip()))?;
        for tlv in self.peers.facts().into_iter().flat_map(|facts| facts.tlvs(None)) {
            answer.push(&tlv);
        }
        self.admitted.insert(peer, admitted);
        Ok(())
    }

    fn gone(&mut self, peer: PeerId) {
        self.admitted.remove(&peer);
    }
}

/// Admits the clients of leases. The lease table decides what they may do, message by message, as on every port of
/// two-sided messages: disconnecting a lease is not what protects its bytes. The client of a lease that has ended may
/// therefore still send, and is told what became of the lease, for as long as the table remembers a revocation or until
/// its place is needed.
#[derive(Debug)]
pub struct OfiBinding {
    name: String,
    peers: Peers,
    bound: HashMap<LeaseId, Arc<Mutex<ClientState>>>,
    /// Clients whose leases have ended, with the time, oldest first.
    ended: VecDeque<(Nanos, Arc<Mutex<ClientState>>)>,
    now: Nanos,
}

/// How long the client of a lease that has ended may still send.
const REMEMBERED: Duration = Duration::from_mins(5);

/// A client, from LEASE_BIND on. Dropped with the last of its two holders, the binding and the preparation.
#[derive(Debug)]
enum ClientState {
    /// The port's core has not answered yet.
    Asked,
    /// The port's core has admitted the client.
    In(#[expect(dead_code, reason = "held for its end")] Admitted),
    Refused(Status),
}

impl OfiBinding {
    /// `name` is the port's, and its service must answer two-sided messages.
    pub fn new(name: String, peers: Peers) -> Self {
        Self { name, peers, bound: HashMap::new(), ended: VecDeque::new(), now: Nanos(0) }
    }
}

impl Binding for OfiBinding {
    fn kind(&self) -> BindKind {
        BindKind::Ofi
    }

    fn name(&self) -> &str {
        &self.name
    }

    /// Clients of endpoints without connections continue to send to the same address.
    fn resumes(&self) -> bool {
        true
    }

    fn describe(&self, lease: LeaseId, out: &mut Vec<u8>) {
        for tlv in self.peers.facts().into_iter().flat_map(|facts| facts.tlvs(Some(lease.key().0))) {
            tlv.write(out);
        }
    }

    fn prepare(&mut self, lease: &BoundLease, client: Tlvs<'_>) -> Result<Option<BlockingWork>, Status> {
        let address = client.iter().find_map(|tlv| match BindingTlv::read(tlv) {
            Ok(Some(BindingTlv::OfiAddr(address))) => Some(address.to_vec()),
            _ => None,
        });
        let address = address.filter(|_| matches!(lease.reach, Reach::Bytes { .. })).ok_or(Status::InvalidParams)?;
        if self.peers.is_full() {
            self.ended.pop_front();
        }
        let coming = Arc::new(Mutex::new(ClientState::Asked));
        self.bound.insert(lease.id, coming.clone());
        let peers = self.peers.clone();
        Ok(Some(BlockingWork::new(move || {
            // Control messages may come from another host.
            let admitted = peers.admit(&address, None);
            *lock(&coming) = admitted.map_or_else(ClientState::Refused, ClientState::In);
        })))
    }

    fn bind(&mut self, lease: &BoundLease, _: Tlvs<'_>, out: &mut Vec<u8>) -> Result<(), Status> {
        let status = match self.bound.get(&lease.id).map(|coming| lock(coming)).as_deref() {
            Some(ClientState::In(_)) => None,
            Some(ClientState::Refused(status)) => Some(*status),
            Some(ClientState::Asked) | None => Some(Status::InternalError),
        };
        if let Some(status) = status {
            self.bound.remove(&lease.id);
            return Err(status);
        }
        self.describe(lease.id, out);
        Ok(())
    }

    fn teardown(&mut self, lease: LeaseId) -> Result<Option<BlockingWork>, TeardownFailed> {
        self.ended.extend(self.bound.remove(&lease).map(|client| (self.now, client)));
        Ok(None)
    }

    fn tick(&mut self, now: Nanos, _: &mut Vec<LeaseId>) {
        self.now = now;
        while self.ended.front().is_some_and(|(at, _)| now - *at > REMEMBERED) {
            self.ended.pop_front();
        }
    }
}

fn lock(coming: &Mutex<ClientState>) -> MutexGuard<'_, ClientState> {
    coming.lock().unwrap_or_else(PoisonError::into_inner)
}
