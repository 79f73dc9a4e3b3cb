//! Keeps each client's answers in the order of its requests.
//!
//! A ring answers in order, so only what is answered at once can overtake: inline functions, and refusals. Such an answer
//! waits behind the last request of the same client that a worker still has; nobody else's waits with it.
//!
//! ```text
//! latest[hash of the client] ─▶ slot 7 ─▶ slot 4 ─▶ ..   the requests that workers have, the newest first
//!                                 │
//!                                 └▶ held ─▶ held        answers that go out right after slot 7's
//! ```

use std::hash::{BuildHasher, RandomState};

use berth_port::{Peer, ReplyTo};
use foldhash::{SharedSeed, fast::SeedableRandomState};

/// In which order a client gets its answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// In that of its requests, wherever they ran.
    #[default]
    Arrival,
    /// As they become ready.
    Ready,
}

/// Answers that can wait for their turn, for each slot of the ring.
const ROOM: usize = 2;
/// No answer.
const NONE: u32 = u32::MAX;

/// Whose turn it is to be answered.
pub(crate) struct Turns {
    hasher: SeedableRandomState,
    /// Of the clients of each bucket, the number of the last request that was pushed, plus one.
    latest: Box<[u64]>,
    /// The request in each slot of the ring.
    waiting: Box<[Waiting]>,
    /// How many requests were pushed, and how many of them answered.
    pushed: u64,
    answered: u64,
    /// Who gets these answers next: the request that they waited behind has been answered.
    due: Option<(ReplyTo, List)>,
    held: Box<[Held]>,
    /// `slot_size` bytes for each of `held`.
    bytes: Box<[u8]>,
    slot_size: usize,
    /// Those of `held` that are free.
    free: List,
}

#[derive(Debug, Clone, Copy)]
struct Waiting {
    to: ReplyTo,
    /// The number, plus one, of the request before it in its bucket.
    before: u64,
    list: List,
}

#[derive(Debug, Clone, Copy)]
struct Held {
    next: u32,
    len: u32,
}

/// Answers in their order.
#[derive(Debug, Clone, Copy)]
struct List {
    first: u32,
    last: u32,
    len: u32,
}

/// Where a client stands.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    bucket: usize,
    /// What the client's next answer has to wait for.
    pub(crate) behind: Option<Behind>,
}

/// What an answer waits behind.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Behind {
    /// The request in this slot.
    Slot(usize),
    /// The client's answers that are due.
    Due,
}

impl Behind {
    fn list<'a>(self, waiting: &'a mut [Waiting], due: &'a mut Option<(ReplyTo, List)>) -> Option<&'a mut List> {
        match self {
            Self::Slot(slot) => Some(&mut waiting[slot].list),
            Self::Due => due.as_mut().map(|(_, list)| list),
        }
    }
}

impl List {
    const EMPTY: Self = Self { first: NONE, last: NONE, len: 0 };

    fn push(&mut self, at: u32, held: &mut [Held]) {
        held[at as usize].next = NONE;
        match self.last {
            NONE => self.first = at,
            last => held[last as usize].next = at,
        }
        self.last = at;
        self.len += 1;
    }

    fn pop(&mut self, held: &[Held]) -> Option<u32> {
        let at = self.first;
        if at == NONE {
            return None;
        }
        self.first = held[at as usize].next;
        if self.first == NONE {
            self.last = NONE;
        }
        self.len -= 1;
        Some(at)
    }
}

impl Turns {
    /// For a ring of so many slots and messages of up to `slot_size` bytes.
    pub(crate) fn new(slots: usize, slot_size: usize) -> Self {
        // The standard library's is seeded by the kernel: nobody finds clients that share a bucket.
        let seed = RandomState::new().hash_one(());
        let to = Peer::Connection { number: 0, host: None }.into();
        let mut held: Box<[_]> = vec![Held { next: NONE, len: 0 }; ROOM * slots].into();
        let mut free = List::EMPTY;
        (0..held.len() as u32).for_each(|at| free.push(at, &mut held));
        Self {
            hasher: SeedableRandomState::with_seed(seed, SharedSeed::global_random()),
            latest: vec![0; (2 * slots).next_power_of_two()].into(),
            waiting: vec![Waiting { to, before: 0, list: List::EMPTY }; slots].into(),
            pushed: 0,
            answered: 0,
            due: None,
            bytes: vec![0; held.len() * slot_size].into(),
            held,
            slot_size,
            free,
        }
    }

    /// Whether every client's next answer may go out at once.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.pushed == self.answered && self.due.is_none()
    }

    /// Where this client stands.
    #[inline]
    pub(crate) fn place(&self, peer: Peer) -> Place {
        let bucket = self.hasher.hash_one(peer) as usize & (self.latest.len() - 1);
        let mut after = self.latest[bucket];
        while after > self.answered {
            let slot = self.slot(after - 1);
            let waiting = &self.waiting[slot];
            if waiting.to.peer() == peer {
                return Place { bucket, behind: Some(Behind::Slot(slot)) };
            }
            after = waiting.before;
        }
        let is_due = self.due.is_some_and(|(client, _)| client.peer() == peer);
        Place { bucket, behind: is_due.then_some(Behind::Due) }
    }

    fn slot(&self, number: u64) -> usize {
        (number % self.waiting.len() as u64) as usize
    }

    /// A request of this client was pushed to the next slot.
    #[inline]
    pub(crate) fn push(&mut self, to: ReplyTo, Place { bucket, .. }: Place) {
        let slot = self.slot(self.pushed);
        self.pushed += 1;
        let before = std::mem::replace(&mut self.latest[bucket], self.pushed);
        self.waiting[slot] = Waiting { to, before, list: List::EMPTY };
    }

    /// The oldest request was answered: what waits behind it is due, and must be gone before the next one is.
    #[inline]
    pub(crate) fn answered(&mut self) {
        let Waiting { to, list, .. } = self.waiting[self.slot(self.answered)];
        self.answered += 1;
        self.due = (list.len > 0).then_some((to, list));
    }

    /// Whether one more answer may wait there: a client leaves others as much room as it takes.
    #[inline]
    pub(crate) fn has_room(&mut self, behind: Behind) -> bool {
        let len = behind.list(&mut self.waiting, &mut self.due).map_or(0, |list| list.len);
        len < self.free.len
    }

    /// Keeps an answer of at most the slot size until it is due; there is room.
    pub(crate) fn hold(&mut self, behind: Behind, answer: &[u8]) {
        let Self { held, waiting, due, free, bytes, slot_size, .. } = self;
        if let (Some(list), Some(at)) = (behind.list(waiting, due), free.pop(held)) {
            let start = at as usize * *slot_size;
            bytes[start..][..answer.len()].copy_from_slice(answer);
            held[at as usize].len = answer.len() as u32;
            list.push(at, held);
        }
    }

    /// The answer that is due, and who gets it.
    #[inline]
    pub(crate) fn due(&self) -> Option<(ReplyTo, &[u8])> {
        let (to, list) = self.due?;
        let start = list.first as usize * self.slot_size;
        Some((to, &self.bytes[start..][..self.held[list.first as usize].len as usize]))
    }

    /// The answer that was due is sent.
    pub(crate) fn sent(&mut self) {
        let Some((_, list)) = &mut self.due else { return };
        if let Some(at) = list.pop(&self.held) {
            self.free.push(at, &mut self.held);
        }
        if list.len == 0 {
            self.due = None;
        }
    }

    /// Answers that wait.
    pub(crate) fn len(&self) -> usize {
        self.held.len() - self.free.len as usize
    }
}
