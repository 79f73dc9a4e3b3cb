//! The table of published leases: a fixed array, a seqlock per entry, one writer, any number of readers.
//!
//! An entry is one cache line: a sequence word, which is odd while the rest changes, and seven words of data. All are
//! atomics, so a torn read yields a value to be discarded, not undefined behaviour.
//!
//! Keys are random, so a multiplicative hash spreads them, and the table is at most two thirds full. An entry lies at
//! its home line or in the first free line after it. Each line also stores how far away the entries may lie that are at
//! home there. This bounds every probe, above all those of unknown keys. Entries never move while they live.

use std::sync::Arc;

use crate::{
    Entry, LeaseKey, Quiescence, Reader,
    entry::WORDS,
    reader::Readers,
    sync::{AtomicU64, Ordering, fence, spin},
};

/// Key of a free line.
const EMPTY: u64 = 0;
/// Lines after its home in which an entry may lie. At two thirds full, hardly any key finds all of them taken.
const FURTHEST: usize = reach_of(REACH_CODES - 1);
/// Shift of the entry's `max_io` within the sequence word.
const MAX_IO_SHIFT: u32 = 32;
/// Index of the word that also stores the line's reach, in 5 bits that entries leave free.
const REACH_WORD: usize = 2;
const REACH_SHIFT: u32 = 59;
const REACH_CODES: u64 = 32;

/// Number of lines that a reach code stands for: exact up to 8, then in steps of a quarter of a power of two, so that
/// a probe goes little further than the furthest entry.
const fn reach_of(code: u64) -> usize {
    if code < 4 { code as usize } else { (4 + code as usize % 4) << (code / 4 - 1) }
}

/// The smallest code that stands for at least `reach` lines.
fn code_of(reach: usize) -> u64 {
    (0..REACH_CODES).find(|code| reach_of(*code) >= reach).expect("no entry lies further")
}

/// One cache line.
#[repr(align(64))]
struct Line {
    /// The sequence number, odd while the words change; above it `max_io`.
    sequence: AtomicU64,
    words: [AtomicU64; WORDS],
}

impl Line {
    fn new() -> Self {
        Self { sequence: AtomicU64::new(0), words: std::array::from_fn(|_| AtomicU64::new(EMPTY)) }
    }

    /// Low half of the id, which a probe compares.
    #[inline(always)]
    fn key(&self) -> u64 {
        self.words[0].load(Ordering::Relaxed)
    }

    #[inline]
    fn code(&self) -> u64 {
        self.words[REACH_WORD].load(Ordering::Relaxed) >> REACH_SHIFT
    }

    /// Upper bound on the distance, in lines, of entries that are at home here.
    #[inline]
    fn reach(&self) -> usize {
        reach_of(self.code())
    }

    /// Sets the reach alone, so that no reader of this line's entry has to read again.
    fn set_reach(&self, reach: usize) {
        let others = self.words[REACH_WORD].load(Ordering::Relaxed) & ((1 << REACH_SHIFT) - 1);
        self.words[REACH_WORD].store(others | code_of(reach) << REACH_SHIFT, Ordering::Relaxed);
    }

    /// A consistent copy; `None` if the line now belongs to another key.
    #[inline]
    fn read(&self, key: LeaseKey) -> Option<Entry> {
        loop {
            let before = self.sequence.load(Ordering::Acquire);
            let words = self.words.each_ref().map(|word| word.load(Ordering::Relaxed));
            fence(Ordering::Acquire);
            if before & 1 == 0 && self.sequence.load(Ordering::Relaxed) == before {
                return (words[0] == key.0).then(|| Entry::unpack(words, (before >> MAX_IO_SHIFT) as u32));
            }
            spin();
        }
    }

    /// Replaces the entry; readers see the change at once or not at all. Only the one writer calls this.
    fn write(&self, mut words: [u64; WORDS], max_io: u32) {
        words[REACH_WORD] |= self.words[REACH_WORD].load(Ordering::Relaxed) >> REACH_SHIFT << REACH_SHIFT;
        let sequence = self.sequence.load(Ordering::Relaxed) as u32;
        self.sequence.store(u64::from(sequence.wrapping_add(1)), Ordering::Relaxed);
        fence(Ordering::Release);
        for (word, value) in self.words.iter().zip(words) {
            word.store(value, Ordering::Relaxed);
        }
        let after = u64::from(sequence.wrapping_add(2)) | u64::from(max_io) << MAX_IO_SHIFT;
        self.sequence.store(after, Ordering::Release);
    }
}

pub(crate) struct Lines {
    /// The home lines, followed by as many as an entry may lie away from its home, so that no probe wraps around.
    lines: Box<[Line]>,
    homes: u64,
}

impl Lines {
    #[inline]
    fn home(&self, key: LeaseKey) -> usize {
        let hash = key.0.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        ((u128::from(hash) * u128::from(self.homes)) >> 64) as usize
    }

    #[inline]
    fn line(&self, index: usize) -> &Line {
        &self.lines[index]
    }

    #[inline]
    pub(crate) fn probe(&self, key: LeaseKey) -> Option<Entry> {
        if key.0 == EMPTY {
            return None;
        }
        let home = self.home(key);
        // The neighbour's key is read before it is known to be needed: both lines are fetched at the same time.
        let (first, second) = (self.line(home).key(), self.line(home + 1).key());
        if first == key.0 {
            return self.line(home).read(key);
        }
        if second == key.0 {
            return self.line(home + 1).read(key);
        }
        let reach = self.line(home).reach();
        let found = (home + 2..=home + reach).find(|index| self.line(*index).key() == key.0)?;
        self.line(found).read(key)
    }

    /// Index of the line with this key's entry.
    fn find(&self, key: LeaseKey) -> Option<usize> {
        if key.0 == EMPTY {
            return None;
        }
        let home = self.home(key);
        (home..=home + self.line(home).reach()).find(|index| self.line(*index).key() == key.0)
    }
}

/// The shared side of the table. Cheap to clone; makes readers.
#[derive(Clone)]
pub struct Table {
    lines: Arc<Lines>,
    readers: Arc<Readers>,
}

impl Table {
    /// Makes a table for `capacity` entries, at 96 bytes each, and its only writer.
    pub fn new(capacity: usize) -> (Self, TableWriter) {
        let homes = capacity.max(1) + capacity.div_ceil(2);
        let furthest = reach_of(code_of(homes.min(FURTHEST)));
        // Lines are written here, though they begin as zeros, so that no probe is the first to touch a page.
        let lines = std::iter::repeat_with(Line::new).take(homes + furthest).collect();
        let table = Self { lines: Arc::new(Lines { lines, homes: homes as u64 }), readers: Arc::default() };
        (table.clone(), TableWriter { table, capacity, used: 0 })
    }

    /// A new reader, for one thread or for one operation that completes later.
    pub fn reader(&self) -> Reader {
        Reader::new(self.lines.clone(), &self.readers)
    }

    /// Tells when every guard entered before this call is gone.
    ///
    /// What was stored before this call, here or elsewhere, is visible under every guard entered after it.
    pub fn quiescence(&self) -> Quiescence {
        self.readers.quiescence()
    }
}

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Table({} lines)", self.lines.lines.len())
    }
}

/// Why an entry was not inserted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InsertError {
    /// The table holds as many entries as it was made for.
    #[error("the lease table is full")]
    Full,
    /// The key is in use or not usable, or there is no free line near its home: draw another id.
    #[error("the lease key cannot be used")]
    Taken,
}

/// The only writer of a table.
#[derive(Debug)]
pub struct TableWriter {
    table: Table,
    capacity: usize,
    used: usize,
}

impl TableWriter {
    /// Publishes a new entry.
    pub fn insert(&mut self, entry: &Entry) -> Result<(), InsertError> {
        if self.used == self.capacity {
            return Err(InsertError::Full);
        }
        if !entry.id.is_usable() || self.line_of(entry.key()).is_some() {
            return Err(InsertError::Taken);
        }
        let lines = &self.table.lines;
        let home = lines.home(entry.key());
        let furthest = lines.lines.len() - lines.homes as usize;
        let free =
            (home..=home + furthest).find(|index| lines.line(*index).key() == EMPTY).ok_or(InsertError::Taken)?;
        lines.line(free).write(entry.pack(), entry.max_io);
        if free - home > lines.line(home).reach() {
            lines.line(home).set_reach(free - home);
        }
        self.used += 1;
        Ok(())
    }

    /// Replaces the entry with the same key; false if there is none.
    pub fn update(&mut self, entry: &Entry) -> bool {
        let found = self.line_of(entry.key());
        if let Some(index) = found {
            self.table.lines.line(index).write(entry.pack(), entry.max_io);
        }
        found.is_some()
    }

    /// Removes an entry; false if there is none.
    pub fn remove(&mut self, key: LeaseKey) -> bool {
        let Some(index) = self.line_of(key) else { return false };
        let lines = &self.table.lines;
        lines.line(index).write([EMPTY; WORDS], 0);
        let home = lines.home(key);
        let reach = lines.line(home).reach();
        if code_of(index - home) == lines.line(home).code() {
            let at_home_here = |distance: &usize| match lines.line(home + distance).key() {
                EMPTY => false,
                key => lines.home(LeaseKey(key)) == home,
            };
            lines.line(home).set_reach((0..=reach).rev().find(at_home_here).unwrap_or(0));
        }
        self.used -= 1;
        true
    }

    /// The entry with this key, as readers see it.
    pub fn get(&self, key: LeaseKey) -> Option<Entry> {
        self.table.lines.probe(key)
    }

    /// Number of entries in the table.
    pub fn len(&self) -> usize {
        self.used
    }

    /// Whether the table has no entries.
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// The shared side, to make readers from.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// Tells when every guard entered before this call is gone.
    ///
    /// Changes made before this call are visible under every guard entered after it.
    pub fn quiescence(&self) -> Quiescence {
        self.table.quiescence()
    }

    /// Waits until every guard entered before this call is gone.
    ///
    /// Never call this on a thread that itself has to end a guard: it would wait for itself.
    pub fn quiesce(&self) {
        self.quiescence().wait();
    }

    /// Number of lines, free ones included.
    pub(crate) fn lines(&self) -> usize {
        self.table.lines.lines.len()
    }

    /// Index of the line with this key's entry, constant while the entry is in the table.
    pub(crate) fn line_of(&self, key: LeaseKey) -> Option<usize> {
        self.table.lines.find(key)
    }
}
