//! Keeps each client's answers in the order of its requests.
//!
//! A ring answers in order, but what is answered at once (inline functions, refusals) can overtake it, and so can
//! another ring. Such an answer waits for earlier requests of the same client. Answers of other clients do not wait.
//!
//! ```text
//! buckets[hash of the client] ─▶ client ─▶ client ─▶ ..
//!                                  │
//!                                  └▶ request ─▶ answer ─▶ request ─▶ answer     in the order of arrival
//! ```
//!
//! A client's first entry is either a request that a worker still has, or an answer that is due.

use std::hash::{BuildHasher, RandomState};

use berth_port::{Peer, ReplyTo};
use foldhash::{SharedSeed, fast::SeedableRandomState};

use crate::RingIndex;

/// The order in which a client gets its answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// The order of its requests, wherever they ran.
    #[default]
    Arrival,
    /// The order in which they become ready.
    Ready,
}

/// Number of answers that can wait, per slot of the rings.
const ROOM: usize = 2;
/// Marks the absence of a client or an entry.
const NONE: u32 = u32::MAX;

/// Decides whose answer is next, and keeps those that must wait.
pub(crate) struct Turns {
    hasher: SeedableRandomState,
    /// First client of each bucket.
    buckets: Box<[u32]>,
    clients: Box<[Client]>,
    /// First free client place, and the number of those taken.
    vacant: u32,
    waiting: usize,
    /// Entries with room for an answer, then, from `slots` on, one for each slot of the rings.
    entries: Box<[Entry]>,
    slots: u32,
    /// Buffers of `slot_size` bytes, one for each entry with room.
    bytes: Box<[u8]>,
    slot_size: usize,
    /// First free entry with room, and the number of free ones.
    free: u32,
    room: u32,
    /// Number of answers that wait.
    held: usize,
    /// The client whose first entry is an answer; `NONE` if there is none.
    due: u32,
}

/// A client that waits for an answer.
#[derive(Debug, Clone, Copy)]
struct Client {
    peer: Peer,
    bucket: u32,
    /// The next client of the bucket, or the next free place.
    next: u32,
    first: u32,
    last: u32,
    /// Number of its entries with room.
    taken: u32,
    /// The only ring that has its requests, if there is only one: then none of their answers can be early.
    ring: Option<RingIndex>,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    client: u32,
    /// The client's next entry, or the next free entry.
    next: u32,
    /// Length of the answer that waits here; `None` if a worker still has the request.
    len: Option<u32>,
    /// Destination of that answer.
    to: ReplyTo,
}

/// A client's state when a request arrives.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    bucket: u32,
    /// `Some` if the client's next answer has to wait for others.
    pub(crate) behind: Option<Behind>,
}

/// A client whose earlier answers an answer has to wait for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Behind(u32);

/// A request that a worker still has.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pending(u32);

impl Turns {
    /// For rings with `slots` slots in all, and messages of up to `slot_size` bytes.
    pub(crate) fn new(slots: usize, slot_size: usize) -> Self {
        // The standard library's is seeded by the kernel: nobody finds clients that share a bucket.
        let seed = RandomState::new().hash_one(());
        let peer = Peer::Connection { number: 0, host: None };
        let after = |at: usize, len: usize| if at + 1 < len { at as u32 + 1 } else { NONE };
        // Each waits for a slot, but for the one whose answers are due.
        let places = slots + 1;
        let client =
            |at| Client { peer, bucket: 0, next: after(at, places), first: NONE, last: NONE, taken: 0, ring: None };
        let room = ROOM * slots;
        let entry = |at| Entry { client: NONE, next: after(at, room), len: None, to: peer.into() };
        Self {
            hasher: SeedableRandomState::with_seed(seed, SharedSeed::global_random()),
            buckets: vec![NONE; (2 * slots).next_power_of_two()].into(),
            clients: (0..places).map(client).collect(),
            vacant: 0,
            waiting: 0,
            entries: (0..room + slots).map(entry).collect(),
            slots: room as u32,
            bytes: vec![0; room * slot_size].into(),
            slot_size,
            free: 0,
            room: room as u32,
            held: 0,
            due: NONE,
        }
    }

    /// Whether no client waits for an answer.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.waiting == 0
    }

    /// State of this client.
    #[inline]
    pub(crate) fn place(&self, peer: Peer) -> Place {
        let bucket = self.hasher.hash_one(peer) as usize & (self.buckets.len() - 1);
        let mut at = self.buckets[bucket];
        while at != NONE && self.clients[at as usize].peer != peer {
            at = self.clients[at as usize].next;
        }
        Place { bucket: bucket as u32, behind: (at != NONE).then_some(Behind(at)) }
    }

    /// Whether one more answer may wait there. A client may take at most as much room as it leaves to others.
    #[inline]
    pub(crate) fn has_room(&self, Behind(client): Behind) -> bool {
        self.clients[client as usize].taken < self.room
    }

    /// Whether a request of the client may go to this ring. If its others are in another ring, its answer may be early.
    #[inline]
    pub(crate) fn admits(&self, behind: Behind, ring: RingIndex) -> bool {
        self.clients[behind.0 as usize].ring == Some(ring) || self.has_room(behind)
    }

    /// Adds a client's request, which [`Self::admits`] allowed into this ring. `slot` is its slot's number over all
    /// rings.
    #[inline]
    pub(crate) fn push(&mut self, peer: Peer, place: Place, ring: RingIndex, slot: usize) -> Pending {
        let own = self.slots + slot as u32;
        let Some(Behind(client)) = place.behind else {
            let client = self.enter(peer, place.bucket, ring);
            self.append(client, own);
            return Pending(own);
        };
        let known = &mut self.clients[client as usize];
        let entry = if known.ring == Some(ring) {
            own
        } else {
            known.ring = None;
            self.take_room(client)
        };
        self.append(client, entry);
        Pending(entry)
    }

    /// Keeps an answer, of at most the slot size, until it is due. There must be room.
    pub(crate) fn hold(&mut self, Behind(client): Behind, to: ReplyTo, answer: &[u8]) {
        let entry = self.take_room(client);
        self.append(client, entry);
        self.keep(Pending(entry), to, |buf| {
            buf[..answer.len()].copy_from_slice(answer);
            answer.len()
        });
    }

    /// Whether other answers must go out before this request's.
    #[inline]
    pub(crate) fn is_early(&self, Pending(entry): Pending) -> bool {
        self.clients[self.entries[entry as usize].client as usize].first != entry
    }

    /// Keeps a request's early answer until it is due. `fill` writes it and returns its length.
    pub(crate) fn keep(&mut self, Pending(entry): Pending, to: ReplyTo, fill: impl FnOnce(&mut [u8]) -> usize) {
        let len = fill(&mut self.bytes[entry as usize * self.slot_size..][..self.slot_size]);
        let entry = &mut self.entries[entry as usize];
        (entry.to, entry.len) = (to, Some(len as u32));
        self.held += 1;
    }

    /// A request was answered, not early: the answers that wait behind it are due, and must go out before any other.
    #[inline]
    pub(crate) fn answered(&mut self, Pending(entry): Pending) {
        self.advance(self.entries[entry as usize].client);
    }

    /// The answer that is due, and its destination.
    #[inline]
    pub(crate) fn due(&self) -> Option<(ReplyTo, &[u8])> {
        let first = self.clients.get(self.due as usize)?.first as usize;
        let Entry { to, len, .. } = self.entries[first];
        Some((to, &self.bytes[first * self.slot_size..][..len? as usize]))
    }

    /// Removes the answer that was due, once it is sent.
    pub(crate) fn sent(&mut self) {
        self.held -= 1;
        self.advance(self.due);
    }

    /// Number of answers that wait.
    pub(crate) fn len(&self) -> usize {
        self.held
    }

    /// Adds a client to its bucket.
    fn enter(&mut self, peer: Peer, bucket: u32, ring: RingIndex) -> u32 {
        let at = self.vacant;
        let client = &mut self.clients[at as usize];
        self.vacant = client.next;
        let next = std::mem::replace(&mut self.buckets[bucket as usize], at);
        *client = Client { peer, bucket, next, first: NONE, last: NONE, taken: 0, ring: Some(ring) };
        self.waiting += 1;
        at
    }

    /// Removes a client from its bucket.
    fn leave(&mut self, at: u32) {
        let Client { bucket, next, .. } = self.clients[at as usize];
        let mut link = &mut self.buckets[bucket as usize];
        while *link != at {
            link = &mut self.clients[*link as usize].next;
        }
        *link = next;
        self.clients[at as usize].next = std::mem::replace(&mut self.vacant, at);
        self.waiting -= 1;
    }

    /// Takes a free entry with room.
    fn take_room(&mut self, client: u32) -> u32 {
        let entry = self.free;
        self.free = self.entries[entry as usize].next;
        self.room -= 1;
        self.clients[client as usize].taken += 1;
        entry
    }

    fn append(&mut self, client: u32, entry: u32) {
        let of = &mut self.clients[client as usize];
        match of.last {
            NONE => of.first = entry,
            last => self.entries[last as usize].next = entry,
        }
        of.last = entry;
        let entry = &mut self.entries[entry as usize];
        (entry.client, entry.next, entry.len) = (client, NONE, None);
    }

    /// Removes the first entry of a client.
    fn advance(&mut self, at: u32) {
        let client = &mut self.clients[at as usize];
        let first = client.first;
        let next = self.entries[first as usize].next;
        client.first = next;
        if first < self.slots {
            client.taken -= 1;
            self.entries[first as usize].next = std::mem::replace(&mut self.free, first);
            self.room += 1;
        }
        self.due = NONE;
        if next == NONE {
            self.leave(at);
        } else if self.entries[next as usize].len.is_some() {
            self.due = at;
        }
    }
}
