//! Messages that wait for a kernel.

use std::time::Duration;

use berth_port::Nanos;

use crate::dedup::Key;

/// What becomes of a message that finds as many waiting as may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Backpressure {
    /// It is refused as over a limit.
    #[default]
    Reject,
    /// It is dropped, with status 1.
    DropNew,
    /// The message that has waited longest is dropped, with status 1.
    DropOldest,
}

/// How messages wait for a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueSettings {
    /// Messages that may wait; those that a worker has do not count.
    pub waiting: usize,
    /// Whether higher priorities go first; equal ones always go in the order of their arrival.
    pub priority: bool,
    /// What happens when there is no room.
    pub backpressure: Backpressure,
    /// How long a message waits before it is dropped, with status 1.
    pub timeout: Duration,
}

/// Messages of one kernel that a worker may have at a time. More of them would pass a message of higher priority by.
pub const UNDER_WAY: usize = 8;

/// Dropped messages whose senders have not been told yet, because the transmit queue is full.
const UNTOLD: usize = 64;

/// Marks the end of a list.
const NONE: u32 = u32::MAX;

/// A message in a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place(pub(crate) u32);

/// Why there is no room for a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Full {
    Rejected,
    Dropped,
}

/// Entries in a list of their own order.
#[derive(Debug, Clone, Copy)]
struct List {
    first: u32,
    last: u32,
}

const EMPTY: List = List { first: NONE, last: NONE };

#[derive(Debug, Clone, Copy)]
struct Entry<T> {
    ticket: Option<T>,
    key: Option<Key>,
    len: usize,
    level: u8,
    arrived: Nanos,
    /// The next of the level, of those under way, of those to be told or of the free ones.
    next: u32,
    /// Those that arrived before and after it and wait, too.
    older: u32,
    newer: u32,
}

/// Messages that wait, that a worker has, and that were dropped and not told so. Never allocates after it was made, and does
/// nothing that takes longer the more there are.
///
/// `T` is what it takes to answer a message.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    settings: QueueSettings,
    /// Those that wait, by priority, and a bit for each priority that some have.
    levels: Box<[List; 256]>,
    taken: [u64; 4],
    /// Those that wait, by arrival.
    arrivals: List,
    under_way: Vec<Place>,
    dropped: List,
    free: u32,
    waiting: usize,
    untold: usize,
    entries: Box<[Entry<T>]>,
    /// For each entry, room for the longest message.
    bytes: Box<[u8]>,
    longest: usize,
}

impl<T: Copy> Queue<T> {
    /// A queue of messages of at most `longest` bytes.
    pub(crate) fn new(settings: QueueSettings, longest: usize) -> Self {
        let len = settings.waiting + UNDER_WAY + UNTOLD;
        let entry = |at| Entry {
            ticket: None,
            key: None,
            len: 0,
            level: 0,
            arrived: Nanos(0),
            next: if at + 1 < len { at as u32 + 1 } else { NONE },
            older: NONE,
            newer: NONE,
        };
        Self {
            settings,
            levels: Box::new([EMPTY; 256]),
            taken: [0; 4],
            arrivals: EMPTY,
            under_way: Vec::with_capacity(UNDER_WAY),
            dropped: EMPTY,
            free: 0,
            waiting: 0,
            untold: 0,
            entries: (0..len).map(entry).collect(),
            bytes: vec![0; len * longest].into(),
            longest,
        }
    }

    /// Adds a message of at most the longest's length; `key` is what it is remembered by.
    #[inline]
    pub(crate) fn push(
        &mut self,
        ticket: T,
        key: Option<Key>,
        priority: u8,
        message: &[u8],
        now: Nanos,
    ) -> Result<(), Full> {
        if self.waiting == self.settings.waiting {
            match self.settings.backpressure {
                Backpressure::Reject => return Err(Full::Rejected),
                Backpressure::DropNew => return Err(Full::Dropped),
                Backpressure::DropOldest => {}
            }
        }
        let at = self.free;
        if at == NONE {
            return Err(Full::Rejected);
        }
        if self.waiting == self.settings.waiting {
            self.drop_oldest();
        }
        let level = if self.settings.priority { priority } else { 0 };
        let entry = &mut self.entries[at as usize];
        self.free = entry.next;
        *entry = Entry {
            ticket: Some(ticket),
            key,
            len: message.len(),
            level,
            arrived: now,
            next: NONE,
            older: self.arrivals.last,
            newer: NONE,
        };
        self.bytes[at as usize * self.longest..][..message.len()].copy_from_slice(message);
        match self.arrivals.last {
            NONE => self.arrivals.first = at,
            last => self.entries[last as usize].newer = at,
        }
        self.arrivals.last = at;
        let mut list = self.levels[usize::from(level)];
        self.append(&mut list, at);
        self.levels[usize::from(level)] = list;
        self.taken[usize::from(level / 64)] |= 1 << (level % 64);
        self.waiting += 1;
        Ok(())
    }

    /// The message whose sender is to be told that it was dropped: to make room, or because it has waited for too long.
    #[inline]
    pub(crate) fn dropped(&mut self, now: Nanos) -> Option<T> {
        let oldest = self.entries.get(self.arrivals.first as usize);
        if self.dropped.first == NONE && oldest.is_some_and(|oldest| now > oldest.arrived + self.settings.timeout) {
            self.drop_oldest();
        }
        self.entries.get(self.dropped.first as usize)?.ticket
    }

    /// That sender was told.
    pub(crate) fn told(&mut self) {
        let at = self.dropped.first;
        self.dropped.first = self.entries[at as usize].next;
        if self.dropped.first == NONE {
            self.dropped.last = NONE;
        }
        self.untold -= 1;
        self.release(at);
    }

    /// The message whose turn is next.
    #[inline]
    pub(crate) fn next(&self) -> Option<Place> {
        let word = self.taken.iter().rposition(|word| *word != 0)?;
        let level = word * 64 + self.taken[word].ilog2() as usize;
        Some(Place(self.levels[level].first))
    }

    /// Whether a worker may have one more, and has none with the key of this one.
    #[inline]
    pub(crate) fn may_start(&self, Place(at): Place) -> bool {
        let key = &self.entries[at as usize].key;
        let has_key = |Place(other): &Place| key.is_some() && self.entries[*other as usize].key == *key;
        self.under_way.len() < UNDER_WAY && !self.under_way.iter().any(has_key)
    }

    /// The message whose turn is next goes to a worker.
    pub(crate) fn start(&mut self, place: Place) {
        self.stop_waiting(place.0);
        self.under_way.push(place);
    }

    /// What is known of a message.
    #[inline]
    pub(crate) fn get(&self, Place(at): Place) -> (Option<T>, Option<&Key>, &[u8]) {
        let entry = &self.entries[at as usize];
        (entry.ticket, entry.key.as_ref(), &self.bytes[at as usize * self.longest..][..entry.len])
    }

    /// When a message arrived.
    #[inline]
    pub(crate) fn arrival(&self, Place(at): Place) -> Nanos {
        self.entries[at as usize].arrived
    }

    /// The end of a message that waits, or that a worker had.
    pub(crate) fn end(&mut self, Place(at): Place) {
        if let Some(found) = self.under_way.iter().position(|place| place.0 == at) {
            self.under_way.swap_remove(found);
        } else {
            self.stop_waiting(at);
        }
        self.release(at);
    }

    /// Whether a worker has this message.
    pub(crate) fn is_under_way(&self, place: Place) -> bool {
        self.under_way.contains(&place)
    }

    /// Messages that wait, or whose senders are to be told that they were dropped.
    pub(crate) fn len(&self) -> usize {
        self.waiting + self.untold
    }

    fn append(&mut self, list: &mut List, at: u32) {
        match list.last {
            NONE => list.first = at,
            last => self.entries[last as usize].next = at,
        }
        list.last = at;
        self.entries[at as usize].next = NONE;
    }

    /// The message that arrived first is the first of its level, too.
    fn drop_oldest(&mut self) {
        let at = self.arrivals.first;
        self.stop_waiting(at);
        let mut dropped = self.dropped;
        self.append(&mut dropped, at);
        self.dropped = dropped;
        self.untold += 1;
    }

    /// Takes the first message of a level out of the lists of those that wait.
    fn stop_waiting(&mut self, at: u32) {
        let Entry { level, next, older, newer, .. } = self.entries[at as usize];
        let list = &mut self.levels[usize::from(level)];
        debug_assert_eq!(list.first, at);
        list.first = next;
        if next == NONE {
            list.last = NONE;
            self.taken[usize::from(level / 64)] &= !(1 << (level % 64));
        }
        match older {
            NONE => self.arrivals.first = newer,
            older => self.entries[older as usize].newer = newer,
        }
        match newer {
            NONE => self.arrivals.last = older,
            newer => self.entries[newer as usize].older = older,
        }
        self.waiting -= 1;
    }

    fn release(&mut self, at: u32) {
        let entry = &mut self.entries[at as usize];
        entry.ticket = None;
        entry.next = std::mem::replace(&mut self.free, at);
    }
}
