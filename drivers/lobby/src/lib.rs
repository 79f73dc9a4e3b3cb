//! The way into a listener: strangers, who have not said yet who they are or what they want, and guests, who have.
//!
//! A listener that refuses newcomers while it is full is closed by whoever fills it with connections that say nothing.
//! Here every newcomer gets in, and the stranger who has waited longest gives way: whoever speaks at once is served,
//! however many stay silent. Guests are limited in all and for each peer; where there are as many as may be, a guest of
//! the peer with the most gives way to one of a peer who then has fewer.
#![forbid(unsafe_code)]

mod shares;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt::Debug,
    hash::Hash,
    io,
    net::{SocketAddr, TcpListener},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

pub use shares::{Place, Shares};
use socket2::{Domain, Socket, Type};
use tokio::sync::oneshot;

/// Connections that the kernel holds until they are accepted, where `net.core.somaxconn` allows as many. Beyond, it drops
/// what begins them, which costs whoever comes then a second; 128, as is usual, is a flood of a few milliseconds.
const BACKLOG: i32 = 4096;

/// Listens on an address, for a runtime: the listener does not block.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM.nonblocking().cloexec(), None)?;
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// How many may be inside at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Strangers; at least one.
    pub strangers: usize,
    /// Guests.
    pub guests: usize,
    /// Guests who are one peer.
    pub per_peer: usize,
}

/// Who is inside. Guests are told apart by `K`.
#[derive(Debug)]
pub struct Lobby<K> {
    limits: Limits,
    inside: Mutex<Inside<K>>,
}

#[derive(Debug)]
struct Inside<K> {
    /// By the order in which they came; dropping the sender tells a stranger to go.
    strangers: BTreeMap<u64, oneshot::Sender<()>>,
    next: u64,
    guests: usize,
    /// The guests of each peer, in the same way.
    of_peer: HashMap<K, BTreeMap<u64, oneshot::Sender<()>>>,
    /// Every peer by the number of its guests.
    by_count: BTreeSet<(usize, K)>,
}

/// Why a stranger does not become a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// There are too many guests who are this peer, or too many in all of whom no peer has more.
    Full,
    /// A newcomer has taken its place.
    Displaced,
}

impl<K: Eq + Hash + Ord + Clone> Inside<K> {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// How many guests are this peer.
    fn count(&self, peer: &K) -> usize {
        self.of_peer.get(peer).map_or(0, BTreeMap::len)
    }

    /// Changes the guests who are this peer.
    fn change<T>(&mut self, peer: &K, change: impl FnOnce(&mut BTreeMap<u64, oneshot::Sender<()>>) -> T) -> T {
        let guests = self.of_peer.entry(peer.clone()).or_default();
        let before = guests.len();
        let changed = change(guests);
        let after = guests.len();
        if after == 0 {
            self.of_peer.remove(peer);
        }
        self.guests = self.guests - before + after;
        self.by_count.remove(&(before, peer.clone()));
        if after > 0 {
            self.by_count.insert((after, peer.clone()));
        }
        changed
    }

    /// Has the newest guest of the peer with the most give way to one of `peer`; false where that would not be fairer.
    fn displace_for(&mut self, peer: &K) -> bool {
        let Some((most, greediest)) = self.by_count.last().cloned() else { return false };
        let fairer = most > self.count(peer) + 1;
        if fairer {
            self.change(&greediest, BTreeMap::pop_last);
        }
        fairer
    }
}

impl<K: Eq + Hash + Ord + Clone> Lobby<K> {
    /// An empty one.
    pub fn new(limits: Limits) -> Arc<Self> {
        let inside = Inside {
            strangers: BTreeMap::new(),
            next: 0,
            guests: 0,
            of_peer: HashMap::new(),
            by_count: BTreeSet::new(),
        };
        Arc::new(Self { limits, inside: Mutex::new(inside) })
    }

    /// Lets a newcomer in, and says whether another stranger had to give way.
    pub fn enter(self: &Arc<Self>) -> (Stranger<K>, bool) {
        let mut inside = self.lock();
        let crowded = inside.strangers.len() >= self.limits.strangers;
        if crowded {
            inside.strangers.pop_first();
        }
        let number = inside.number();
        let (stays, displaced) = oneshot::channel();
        inside.strangers.insert(number, stays);
        drop(inside);
        (Stranger { lobby: self.clone(), number, displaced }, crowded)
    }

    /// Strangers and guests.
    pub fn population(&self) -> usize {
        let inside = self.lock();
        inside.strangers.len() + inside.guests
    }

    fn lock(&self) -> MutexGuard<'_, Inside<K>> {
        // Nothing that runs under the lock leaves it half changed.
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Somebody who is inside until this is dropped, or a newcomer takes the place.
#[derive(Debug)]
pub struct Stranger<K: Eq + Hash + Ord + Clone> {
    lobby: Arc<Lobby<K>>,
    number: u64,
    displaced: oneshot::Receiver<()>,
}

impl<K: Eq + Hash + Ord + Clone> Stranger<K> {
    /// Waits until a newcomer takes the place. May be cancelled and called again.
    pub async fn displaced(&mut self) {
        // Nothing is ever sent.
        let _ = (&mut self.displaced).await;
    }

    /// Makes the stranger, who turned out to be `peer`, a guest.
    pub fn admit(self, peer: K) -> Result<Guest<K>, Refused> {
        let Limits { guests, per_peer, .. } = self.lobby.limits;
        let mut inside = self.lobby.lock();
        if inside.strangers.remove(&self.number).is_none() {
            return Err(Refused::Displaced);
        }
        if inside.count(&peer) >= per_peer || inside.guests >= guests && !inside.displace_for(&peer) {
            return Err(Refused::Full);
        }
        let number = inside.number();
        let (stays, displaced) = oneshot::channel();
        inside.change(&peer, |guests| guests.insert(number, stays));
        drop(inside);
        Ok(Guest { lobby: self.lobby.clone(), peer, number, displaced })
    }
}

impl<K: Eq + Hash + Ord + Clone> Drop for Stranger<K> {
    fn drop(&mut self) {
        self.lobby.lock().strangers.remove(&self.number);
    }
}

/// Somebody who is served until this is dropped, or gives way to a peer with fewer guests.
#[derive(Debug)]
pub struct Guest<K: Eq + Hash + Ord + Clone> {
    lobby: Arc<Lobby<K>>,
    peer: K,
    number: u64,
    displaced: oneshot::Receiver<()>,
}

impl<K: Eq + Hash + Ord + Clone> Guest<K> {
    /// Waits until another peer's guest takes the place. May be cancelled and called again.
    pub async fn displaced(&mut self) {
        // Nothing is ever sent.
        let _ = (&mut self.displaced).await;
    }
}

impl<K: Eq + Hash + Ord + Clone> Drop for Guest<K> {
    fn drop(&mut self) {
        self.lobby.lock().change(&self.peer, |guests| guests.remove(&self.number));
    }
}
