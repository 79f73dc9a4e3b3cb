//! Connections of a listener: pending ones, whose peer has not identified itself, and admitted ones.
//!
//! If a listener refused newcomers when it is full, anyone could close it with connections that say nothing. Here every
//! newcomer gets in, and the connection that has been pending for longest is displaced: a peer that speaks at once is
//! served, however many stay silent. Admitted connections are limited in all and per peer. At the limit, a connection
//! of the peer with the most is displaced by one of a peer that then has fewer.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
    hash::Hash,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{select, sync::oneshot, time::timeout};

/// Limits on the connections at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Limit on pending connections; at least one.
    pub pending: usize,
    /// How long a connection may be pending.
    pub identify_within: Duration,
    /// Limit on admitted connections, of all peers together.
    pub admitted: usize,
    /// Limit on admitted connections of one peer.
    pub per_peer: usize,
}

/// Why a connection was ended early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// It was displaced by another one.
    Displaced,
    /// Its peer has too many, or there are too many in all and no peer has more.
    Refused,
    /// Its peer did not identify itself in time.
    Expired,
}

/// The connections of one listener or of several. `K` identifies peers.
pub struct Connections<K> {
    limits: Limits,
    observe: Box<dyn Fn(Event) + Send + Sync>,
    inner: Mutex<Inner<K>>,
}

#[derive(Debug)]
struct Inner<K> {
    /// By order of arrival. Dropping the sender ends the connection.
    pending: BTreeMap<u64, oneshot::Sender<()>>,
    next: u64,
    admitted: usize,
    /// The admitted connections of each peer, in the same way.
    of_peer: HashMap<K, BTreeMap<u64, oneshot::Sender<()>>>,
    /// Pairs of a peer's number of connections and the peer.
    by_count: BTreeSet<(usize, K)>,
}

impl<K> fmt::Debug for Connections<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Connections({:?})", self.limits)
    }
}

impl<K: Eq + Hash + Ord + Clone> Inner<K> {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Number of the peer's connections.
    fn count(&self, peer: &K) -> usize {
        self.of_peer.get(peer).map_or(0, BTreeMap::len)
    }

    /// Changes the set of a peer's connections, and keeps `by_count` in step.
    fn change<T>(&mut self, peer: &K, change: impl FnOnce(&mut BTreeMap<u64, oneshot::Sender<()>>) -> T) -> T {
        let connections = self.of_peer.entry(peer.clone()).or_default();
        let before = connections.len();
        let changed = change(connections);
        let after = connections.len();
        if after == 0 {
            self.of_peer.remove(peer);
        }
        self.admitted = self.admitted - before + after;
        self.by_count.remove(&(before, peer.clone()));
        if after > 0 {
            self.by_count.insert((after, peer.clone()));
        }
        changed
    }

    /// Displaces the newest connection of the peer with the most in favour of `peer`. False if that would not be
    /// fairer.
    fn displace_for(&mut self, peer: &K) -> bool {
        let Some((most, greediest)) = self.by_count.last().cloned() else { return false };
        let fairer = most > self.count(peer) + 1;
        if fairer {
            self.change(&greediest, BTreeMap::pop_last);
        }
        fairer
    }
}

impl<K: Eq + Hash + Ord + Clone> Connections<K> {
    /// Starts empty. `observe` is told of connections that end early, and must return at once.
    pub fn new(limits: Limits, observe: impl Fn(Event) + Send + Sync + 'static) -> Arc<Self> {
        let inner = Inner {
            pending: BTreeMap::new(),
            next: 0,
            admitted: 0,
            of_peer: HashMap::new(),
            by_count: BTreeSet::new(),
        };
        Arc::new(Self { limits, observe: Box::new(observe), inner: Mutex::new(inner) })
    }

    /// Takes a new connection. If there are too many, the oldest pending one is displaced.
    pub fn enter(self: &Arc<Self>) -> Pending<K> {
        let mut inner = self.lock();
        let crowded = inner.pending.len() >= self.limits.pending;
        if crowded {
            inner.pending.pop_first();
        }
        let number = inner.number();
        let (stays, displaced) = oneshot::channel();
        inner.pending.insert(number, stays);
        drop(inner);
        if crowded {
            (self.observe)(Event::Displaced);
        }
        Pending { connections: self.clone(), number, displaced }
    }

    /// Number of pending and of admitted connections.
    pub fn count(&self) -> usize {
        let inner = self.lock();
        inner.pending.len() + inner.admitted
    }

    /// Whether the next connection will displace another.
    pub(crate) fn is_full(&self) -> bool {
        self.lock().pending.len() >= self.limits.pending
    }

    fn lock(&self) -> MutexGuard<'_, Inner<K>> {
        // Nothing that runs under the lock leaves it half changed.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection whose peer has not identified itself yet.
#[derive(Debug)]
pub struct Pending<K: Eq + Hash + Ord + Clone> {
    connections: Arc<Connections<K>>,
    number: u64,
    displaced: oneshot::Receiver<()>,
}

impl<K: Eq + Hash + Ord + Clone> Pending<K> {
    /// Waits for `identified`, which ends when the peer has identified itself. `None` if the connection ended before:
    /// it was displaced, or was too late.
    pub async fn identify<T>(&mut self, identified: impl Future<Output = T>) -> Option<T> {
        select! {
            identified = timeout(self.connections.limits.identify_within, identified) => {
                if identified.is_err() {
                    (self.connections.observe)(Event::Expired);
                }
                identified.ok()
            }
            // Nothing is ever sent.
            _ = &mut self.displaced => None,
        }
    }

    /// Admits the connection as one of `peer`. `None` if it was displaced before, its peer has too many, or there are
    /// too many in all and no peer has more.
    pub fn admit(self, peer: K) -> Option<Admitted<K>> {
        let Limits { admitted, per_peer, .. } = self.connections.limits;
        let observe = &self.connections.observe;
        let mut inner = self.connections.lock();
        inner.pending.remove(&self.number)?;
        let full = inner.admitted >= admitted;
        if inner.count(&peer) >= per_peer || full && !inner.displace_for(&peer) {
            drop(inner);
            observe(Event::Refused);
            return None;
        }
        let number = inner.number();
        let (stays, displaced) = oneshot::channel();
        inner.change(&peer, |connections| connections.insert(number, stays));
        drop(inner);
        if full {
            observe(Event::Displaced);
        }
        Some(Admitted { connections: self.connections.clone(), peer, number, displaced })
    }
}

impl<K: Eq + Hash + Ord + Clone> Drop for Pending<K> {
    fn drop(&mut self) {
        self.connections.lock().pending.remove(&self.number);
    }
}

/// A connection that is served until this is dropped, or until it is displaced by a peer with fewer.
#[derive(Debug)]
pub struct Admitted<K: Eq + Hash + Ord + Clone> {
    connections: Arc<Connections<K>>,
    peer: K,
    number: u64,
    displaced: oneshot::Receiver<()>,
}

impl<K: Eq + Hash + Ord + Clone> Admitted<K> {
    /// Waits until the connection is displaced. May be cancelled and called again.
    pub async fn displaced(&mut self) {
        // Nothing is ever sent.
        let _ = (&mut self.displaced).await;
    }
}

impl<K: Eq + Hash + Ord + Clone> Drop for Admitted<K> {
    fn drop(&mut self) {
        self.connections.lock().change(&self.peer, |connections| connections.remove(&self.number));
    }
}
