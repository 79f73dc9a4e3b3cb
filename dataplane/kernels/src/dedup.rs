//! The last messages that a kernel answered, so that one that comes again is not run again.

use std::hash::{BuildHasher as _, RandomState};

use berth_port::Peer;
use foldhash::{SharedSeed, fast::SeedableRandomState};

/// Marks the end of a chain.
const NONE: u16 = u16::MAX;

/// Who sent a message, and its `MessageId`.
pub(crate) type Key = (Peer, [u8; 16]);

/// A window of answered messages, whoever sent them; the oldest gives way to the next. Never allocates after it was made.
#[derive(Debug)]
pub(crate) struct Dedup {
    hasher: SeedableRandomState,
    /// The first entry of each bucket.
    buckets: Box<[u16]>,
    entries: Box<[Entry]>,
    /// For each entry, room for the longest request, then for the longest answer.
    bytes: Box<[u8]>,
    request_max: usize,
    answer_max: usize,
    /// The entry that gives way next, and the number of those in use.
    next: usize,
    used: usize,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    key: Key,
    bucket: usize,
    /// The next entry of the bucket.
    chain: u16,
    request_len: usize,
    answer_len: usize,
}

impl Dedup {
    /// A window of `size` messages, at most 1024.
    pub(crate) fn new(size: usize, request_max: usize, answer_max: usize) -> Self {
        let nobody = (Peer::Connection { number: 0, host: None }, [0; 16]);
        let entry = Entry { key: nobody, bucket: 0, chain: NONE, request_len: 0, answer_len: 0 };
        // The standard library's is seeded by the kernel: nobody finds messages that share a bucket.
        let seed = RandomState::new().hash_one(());
        Self {
            hasher: SeedableRandomState::with_seed(seed, SharedSeed::global_random()),
            buckets: vec![NONE; (2 * size).next_power_of_two()].into(),
            entries: vec![entry; size].into(),
            bytes: vec![0; size * (request_max + answer_max)].into(),
            request_max,
            answer_max,
            next: 0,
            used: 0,
        }
    }

    fn bucket(&self, key: &Key) -> usize {
        self.hasher.hash_one(key) as usize & (self.buckets.len() - 1)
    }

    /// The request and the answer of the message with this key.
    #[inline]
    pub(crate) fn find(&self, key: &Key) -> Option<(&[u8], &[u8])> {
        let mut at = self.buckets[self.bucket(key)];
        while let Some(entry) = self.entries.get(usize::from(at)) {
            if entry.key == *key {
                let start = usize::from(at) * (self.request_max + self.answer_max);
                let (request, answer) = self.bytes[start..].split_at(self.request_max);
                return Some((&request[..entry.request_len], &answer[..entry.answer_len]));
            }
            at = entry.chain;
        }
        None
    }

    /// Keeps a message that is not kept yet.
    #[inline]
    pub(crate) fn insert(&mut self, key: Key, request: &[u8], answer: &[u8]) {
        let at = self.next;
        self.next = if at + 1 == self.entries.len() { 0 } else { at + 1 };
        if self.used == self.entries.len() {
            self.unlink(at);
        } else {
            self.used += 1;
        }
        let bucket = self.bucket(&key);
        let chain = self.buckets[bucket];
        self.buckets[bucket] = at as u16;
        let (request_len, answer_len) = (request.len(), answer.len());
        self.entries[at] = Entry { key, bucket, chain, request_len, answer_len };
        let room = &mut self.bytes[at * (self.request_max + self.answer_max)..];
        room[..request_len].copy_from_slice(request);
        room[self.request_max..][..answer_len].copy_from_slice(answer);
    }

    /// Takes an entry out of its bucket.
    fn unlink(&mut self, at: usize) {
        let Entry { bucket, chain, .. } = self.entries[at];
        let mut before = self.buckets[bucket];
        if usize::from(before) == at {
            self.buckets[bucket] = chain;
            return;
        }
        while let Some(entry) = self.entries.get_mut(usize::from(before)) {
            if usize::from(entry.chain) == at {
                entry.chain = chain;
                return;
            }
            before = entry.chain;
        }
    }
}
