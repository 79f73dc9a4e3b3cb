//! The peers of a port.

use std::{
    cell::RefCell,
    collections::HashMap,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    rc::Rc,
    sync::Arc,
};

use berth_wire::{
    fabric::Status,
    rendezvous::{Answer, HostApi, Offer},
};
use tokio::sync::oneshot;

use crate::{Acceptor, Limits, PeerId, counters::Counters};

/// The peers of one port, on the rendezvous's thread.
pub(crate) struct Peers<A> {
    limits: Limits,
    pub(crate) counters: Arc<Counters>,
    acceptor: RefCell<A>,
    table: RefCell<Table>,
}

#[derive(Default)]
struct Table {
    /// Number of the next peer.
    next: u64,
    /// By peer, what ends its connection, if it has one.
    peers: HashMap<PeerId, Option<oneshot::Sender<()>>>,
    /// Host-API peers, by the address of their connection and the address that they gave.
    addressed: HashMap<(IpAddr, Ipv4Addr), PeerId>,
}

impl<A: Acceptor> Peers<A> {
    pub(crate) fn new(limits: Limits, counters: Arc<Counters>, acceptor: A) -> Self {
        Self { limits, counters, acceptor: RefCell::new(acceptor), table: RefCell::default() }
    }

    /// Takes a peer in the host-API form, which replaces the one with the same addresses.
    pub(crate) fn replace(&self, from: SocketAddr, request: &HostApi) -> Option<HostApi> {
        let key = (from.ip(), request.addr);
        let predecessor = self.table.borrow_mut().addressed.remove(&key);
        if let Some(predecessor) = predecessor {
            self.leave(predecessor);
        }
        let (id, answer) = self.take(from, &request.offer(), None).ok()?;
        self.table.borrow_mut().addressed.insert(key, id);
        let answer = HostApi::of_answer(&answer);
        if answer.is_none() {
            self.leave(id);
        }
        answer
    }

    /// Takes a peer that lives as long as the returned value.
    pub(crate) fn join(self: &Rc<Self>, from: SocketAddr, offer: &Offer<'_>) -> Result<(Joined<A>, Answer), Status> {
        let (end, ended) = oneshot::channel();
        let (id, answer) = self.take(from, offer, Some(end))?;
        Ok((Joined { peers: self.clone(), id, ended }, answer))
    }

    /// Takes a peer, if there is room and the port accepts it.
    fn take(
        &self,
        from: SocketAddr,
        offer: &Offer<'_>,
        end: Option<oneshot::Sender<()>>,
    ) -> Result<(PeerId, Answer), Status> {
        let mut table = self.table.borrow_mut();
        if table.peers.len() >= self.limits.peers {
            self.counters.full.add(1);
            return Err(Status::CapacityExceeded);
        }
        let id = PeerId(table.next);
        let mut answer = Answer::default();
        if let Err(status) = self.acceptor.borrow_mut().offer(id, from, offer, &mut answer) {
            self.counters.refused.add(1);
            return Err(status);
        }
        table.next += 1;
        table.peers.insert(id, end);
        self.counters.taken.add(1);
        Ok((id, answer))
    }

    /// Calls [`Acceptor::tick`].
    pub(crate) fn tick(&self) {
        let mut ended = Vec::new();
        self.acceptor.borrow_mut().tick(&mut |peer| ended.push(peer));
        for peer in ended {
            self.forget(peer);
        }
    }

    /// Tells the port that a peer has left, unless it knows.
    fn leave(&self, id: PeerId) {
        if self.forget(id) {
            self.acceptor.borrow_mut().gone(id);
        }
    }

    /// Removes a peer, which ends its connection; false if it was removed before.
    fn forget(&self, id: PeerId) -> bool {
        let mut table = self.table.borrow_mut();
        table.addressed.retain(|_, peer| *peer != id);
        let known = table.peers.remove(&id).is_some();
        if known {
            self.counters.gone.add(1);
        }
        known
    }
}

/// A peer that lives as long as this value.
pub(crate) struct Joined<A: Acceptor> {
    peers: Rc<Peers<A>>,
    id: PeerId,
    /// Completes when the port ends the peer.
    pub(crate) ended: oneshot::Receiver<()>,
}

impl<A: Acceptor> Drop for Joined<A> {
    fn drop(&mut self) {
        self.peers.leave(self.id);
    }
}
