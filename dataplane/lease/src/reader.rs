//! Readers of the table, and how the writer knows that nobody acts on outdated answers.
//!
//! Each reader has its own counter, odd while it is inside a guard. The writer publishes, then reads the counters; a
//! reader counts up, then probes. A sequentially consistent fence on both sides ensures that one sees the other: either
//! the probe sees what was published, or the writer sees the guard and waits for it.

use std::sync::Arc;

use crate::{
    Entry, LeaseKey,
    sync::{AtomicU64, Mutex, Ordering, fence},
    table::Lines,
};

/// Counter of one reader. Two lines long, because processors fetch lines in pairs.
#[repr(align(128))]
struct Turns(AtomicU64);

/// Counters of all readers of a table.
#[derive(Default)]
pub(crate) struct Readers(Mutex<Vec<Arc<Turns>>>);

impl Readers {
    pub(crate) fn quiescence(&self) -> Quiescence {
        fence(Ordering::SeqCst);
        let readers = self.0.lock().expect("nothing panics under this lock");
        let inside = |turns: &Arc<Turns>| {
            let turn = turns.0.load(Ordering::Acquire);
            (turn % 2 == 1).then(|| (turns.clone(), turn))
        };
        Quiescence(readers.iter().filter_map(inside).collect())
    }
}

/// The guards that existed at one moment, and whether they are gone.
///
/// Keep it with whatever has to wait for them: an answer that must not leave yet, or bytes that must not be leased yet.
pub struct Quiescence(Vec<(Arc<Turns>, u64)>);

impl Quiescence {
    /// Whether all of them are gone. Once true, it stays true.
    pub fn is_over(&mut self) -> bool {
        self.0.retain(|(turns, turn)| turns.0.load(Ordering::Acquire) == *turn);
        self.0.is_empty()
    }

    /// Waits until all of them are gone.
    ///
    /// Never call this on a thread that itself has to end a guard: it would wait for itself.
    pub fn wait(&mut self) {
        while !self.is_over() {
            crate::sync::yield_now();
        }
    }
}

impl std::fmt::Debug for Quiescence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Quiescence({} guards)", self.0.len())
    }
}

/// Probes a table, one guard at a time. Making a reader takes a lock; entering a guard does not.
pub struct Reader {
    lines: Arc<Lines>,
    all: Arc<Readers>,
    turns: Arc<Turns>,
    turn: u64,
}

impl Reader {
    pub(crate) fn new(lines: Arc<Lines>, all: &Arc<Readers>) -> Self {
        let turns = Arc::new(Turns(AtomicU64::new(0)));
        all.0.lock().expect("nothing panics under this lock").push(turns.clone());
        Self { lines, all: all.clone(), turns, turn: 0 }
    }

    /// Starts a burst of accesses: what is probed stays usable until the guard is dropped.
    ///
    /// Keep it short, because revocations wait for it: drop the guard when the burst's bytes have been copied.
    #[inline]
    pub fn enter(&mut self) -> Guard<'_> {
        self.begin();
        Guard(self)
    }

    /// The entry of a lease or attachment now, under no guard: nothing may be done on the strength of it but to refuse, or to
    /// ask again under one.
    #[inline]
    pub fn peek(&self, key: LeaseKey) -> Option<Entry> {
        self.lines.probe(key)
    }

    /// Starts one access that outlives this call, under a guard that owns its reader.
    pub fn hold(mut self) -> Held {
        self.begin();
        Held(self)
    }

    #[inline]
    fn begin(&mut self) {
        // The next odd number, even after a guard that was leaked.
        self.turn = (self.turn + 1) | 1;
        // On x86 an exchange is a full fence, at half the price of the instruction that a fence becomes.
        if cfg!(all(target_arch = "x86_64", not(loom), not(miri))) {
            self.turns.0.swap(self.turn, Ordering::SeqCst);
        } else {
            self.turns.0.store(self.turn, Ordering::Release);
            fence(Ordering::SeqCst);
        }
    }

    #[inline]
    fn end(&mut self) {
        self.turn += 1;
        self.turns.0.store(self.turn, Ordering::Release);
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.turns.0.store(0, Ordering::Release);
        if let Ok(mut all) = self.all.0.lock() {
            let position = all.iter().position(|turns| Arc::ptr_eq(turns, &self.turns));
            all.swap_remove(position.expect("a reader is registered until it is dropped"));
        }
    }
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Reader({})", self.turn)
    }
}

/// Permission to act on probes. The writer waits for it to end.
#[derive(Debug)]
pub struct Guard<'a>(&'a mut Reader);

impl Guard<'_> {
    /// The entry of a lease or attachment; `None` if the key is unknown.
    #[inline]
    pub fn probe(&self, key: LeaseKey) -> Option<Entry> {
        self.0.lines.probe(key)
    }
}

impl Drop for Guard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.end();
    }
}

/// A guard for one operation that completes later, such as block I/O. It ends when dropped or given back.
///
/// The code that completes the operation must end it, never a thread that may be waiting for quiescence.
#[derive(Debug)]
pub struct Held(Reader);

impl Held {
    /// The entry of a lease or attachment; `None` if the key is unknown.
    pub fn probe(&self, key: LeaseKey) -> Option<Entry> {
        self.0.lines.probe(key)
    }

    /// Ends the guard, and returns the reader for the next operation.
    pub fn end(mut self) -> Reader {
        self.0.end();
        self.0
    }
}
