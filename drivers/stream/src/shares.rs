//! Places that peers share: a total, a limit for each, and always some left for the next peer.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt::Debug,
    hash::Hash,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::{Notify, oneshot};

/// Places of one kind, such as permits or buffers. `K` identifies peers.
///
/// A peer gets another place while it holds fewer than `each`, and fewer than are free. Therefore `n` greedy peers
/// leave one part in `n + 1` of all places free, and a peer with none is never behind peers with many. Waiting peers
/// are served in the order of what they hold, then of who was served longest ago.
#[derive(Debug)]
pub struct Shares<K> {
    total: usize,
    each: usize,
    inner: Mutex<Inner<K>>,
    /// Notified when all places are free, once [`Shares::close`] was called.
    emptied: Notify,
}

#[derive(Debug)]
struct Inner<K> {
    free: usize,
    /// Peers that hold a place or wait for one.
    peers: HashMap<K, Peer>,
    /// Waiting peers, by what they hold and by their turn.
    waiting: BTreeSet<(usize, u64, K)>,
    next: u64,
    closed: bool,
}

#[derive(Debug, Default)]
struct Peer {
    held: usize,
    /// Its turn among peers that hold as many, while it waits.
    turn: u64,
    /// Its waiters in order. Dropping the sender tells a waiter that it has a place.
    queue: BTreeMap<u64, oneshot::Sender<()>>,
}

impl<K: Eq + Hash + Ord + Clone> Shares<K> {
    /// `total` places, of which each peer holds at most `each`.
    pub fn new(total: usize, each: usize) -> Arc<Self> {
        let inner = Inner { free: total, peers: HashMap::new(), waiting: BTreeSet::new(), next: 0, closed: false };
        Arc::new(Self { total, each, inner: Mutex::new(inner), emptied: Notify::new() })
    }

    /// Waits for a place for `peer`, behind others that `peer` waits for already. May be cancelled.
    pub async fn enter(self: &Arc<Self>, peer: K) -> Place<K> {
        let (number, granted) = {
            let mut inner = self.lock();
            if inner.take(&peer, self.each) {
                return Place { shares: self.clone(), peer };
            }
            inner.enqueue(&peer)
        };
        let mut waiter = Waiter { shares: self, peer: Some(peer), number };
        // Nothing is ever sent.
        let _ = granted.await;
        let peer = waiter.peer.take().expect("taken here alone");
        Place { shares: self.clone(), peer }
    }

    /// A place for `peer`, if it can have one at once; `None` after [`Shares::close`], too.
    pub fn try_enter(self: &Arc<Self>, peer: K) -> Option<Place<K>> {
        let taken = self.lock().take(&peer, self.each);
        taken.then(|| Place { shares: self.clone(), peer })
    }

    /// Whether anybody waits for a place.
    pub fn is_wanted(&self) -> bool {
        !self.lock().waiting.is_empty()
    }

    /// Hands out no more places, and waits until all are returned. Who waits in [`Shares::enter`] then waits for ever.
    pub async fn close(&self) {
        self.lock().closed = true;
        while self.lock().free < self.total {
            self.emptied.notified().await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner<K>> {
        // Nothing that runs under the lock leaves it half changed.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Eq + Hash + Ord + Clone> Inner<K> {
    /// Takes a place, unless `peer` has its share or others of it wait.
    fn take(&mut self, peer: &K, each: usize) -> bool {
        let (held, waits) = self.peers.get(peer).map_or((0, false), |peer| (peer.held, !peer.queue.is_empty()));
        if self.closed || waits || held >= each.min(self.free) {
            return false;
        }
        self.free -= 1;
        self.peers.entry(peer.clone()).or_default().held += 1;
        true
    }

    fn enqueue(&mut self, who: &K) -> (u64, oneshot::Receiver<()>) {
        let number = self.next;
        self.next += 1;
        let (granted, waiting) = oneshot::channel();
        let peer = self.peers.entry(who.clone()).or_default();
        if peer.queue.is_empty() {
            peer.turn = number;
            self.waiting.insert((peer.held, number, who.clone()));
        }
        peer.queue.insert(number, granted);
        (number, waiting)
    }

    /// Removes a waiter. One that has been given a place returns it.
    fn cancel(&mut self, who: &K, number: u64, each: usize) {
        let Some(peer) = self.peers.get_mut(who) else { return };
        if peer.queue.remove(&number).is_none() {
            return self.give_back(who, each);
        }
        if peer.queue.is_empty() {
            self.waiting.remove(&(peer.held, peer.turn, who.clone()));
            if peer.held == 0 {
                self.peers.remove(who);
            }
        }
    }

    fn give_back(&mut self, who: &K, each: usize) {
        let Some(peer) = self.peers.get_mut(who) else { return };
        let before = (peer.held, peer.turn, who.clone());
        peer.held -= 1;
        self.free += 1;
        if !peer.queue.is_empty() {
            self.waiting.remove(&before);
            self.waiting.insert((peer.held, peer.turn, who.clone()));
        } else if peer.held == 0 {
            self.peers.remove(who);
        }
        self.hand_out(each);
    }

    /// Hands free places to those who wait.
    fn hand_out(&mut self, each: usize) {
        while !self.closed
            && let Some((held, ..)) = self.waiting.first()
            && *held < each.min(self.free)
            && let Some((_, _, who)) = self.waiting.pop_first()
            && let Some(peer) = self.peers.get_mut(&who)
        {
            peer.queue.pop_first();
            peer.held += 1;
            self.free -= 1;
            if !peer.queue.is_empty() {
                peer.turn = self.next;
                self.next += 1;
                self.waiting.insert((peer.held, peer.turn, who));
            }
        }
    }
}

/// One wait for a place.
struct Waiter<'a, K: Eq + Hash + Ord + Clone> {
    shares: &'a Shares<K>,
    /// `None` once it has its place.
    peer: Option<K>,
    number: u64,
}

impl<K: Eq + Hash + Ord + Clone> Drop for Waiter<'_, K> {
    fn drop(&mut self) {
        if let Some(peer) = &self.peer {
            self.shares.lock().cancel(peer, self.number, self.shares.each);
        }
    }
}

/// A place, held until this is dropped.
#[derive(Debug)]
pub struct Place<K: Eq + Hash + Ord + Clone> {
    shares: Arc<Shares<K>>,
    peer: K,
}

impl<K: Eq + Hash + Ord + Clone> Drop for Place<K> {
    fn drop(&mut self) {
        let Self { shares, peer } = self;
        let mut inner = shares.lock();
        inner.give_back(peer, shares.each);
        if inner.closed && inner.free == shares.total {
            shares.emptied.notify_one();
        }
    }
}
