//! The buckets of peers: a table of fixed size, keyed by a hash that peers cannot predict.

use std::{
    array,
    hash::{BuildHasher as _, RandomState},
    net::IpAddr,
};

use berth_port::{Nanos, Peer};
use foldhash::{SharedSeed, quality::SeedableRandomState};

use crate::{
    Limit, Line,
    bucket::Bucket,
    sync::{AtomicBool, AtomicU64, Ordering},
};

/// Number of peers that can have their own bucket at a time.
pub const PEERS: usize = if cfg!(loom) { WAYS } else { 4096 };

/// Peers per set: as many as fit in a cache line.
const WAYS: usize = if cfg!(loom) { 2 } else { 4 };

/// The tag of an empty place.
const NOBODY: u64 = 0;

/// Places for peers whose hashes end alike.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Set {
    /// Whole hashes of the peers that own the buckets. Their seed is secret, so nobody can find two addresses with the
    /// same hash.
    tags: [AtomicU64; WAYS],
    buckets: [Bucket; WAYS],
}

/// A bucket to take a token from.
pub(crate) struct Found<'a> {
    pub(crate) bucket: &'a Bucket,
    /// Its time when it was found to be the peer's.
    pub(crate) full_at: u64,
    /// The limit that it stands for.
    pub(crate) limit: Limit,
}

/// Result of giving a newcomer a place.
enum Settled {
    At(usize),
    /// Every bucket is in use.
    Nowhere,
    /// Another queue changed the bucket first.
    TooLate,
}

#[derive(Debug)]
pub(crate) struct Peers {
    hasher: SeedableRandomState,
    sets: Box<[Set]>,
    /// For each set, whether a queue is giving away a place: one at a time, so that no peer gets two.
    giving: Box<[AtomicBool]>,
    /// Shared by peers whose set is full of others that have asked lately.
    crowd: Line,
}

impl Peers {
    pub(crate) fn new(peers: usize) -> Self {
        // The standard library's is seeded by the kernel.
        let seed = RandomState::new().hash_one(());
        let sets = peers / WAYS;
        Self {
            hasher: SeedableRandomState::with_seed(seed, SharedSeed::global_random()),
            sets: (0..sets).map(|_| Set::default()).collect(),
            giving: (0..sets).map(|_| AtomicBool::default()).collect(),
            crowd: Line::default(),
        }
    }

    /// Hash of the peer's host, which all peers of that host share.
    #[inline]
    pub(crate) fn tag(&self, peer: &Peer) -> u64 {
        let tag = match peer.host() {
            Some(IpAddr::V4(ip)) => self.hasher.hash_one(u128::from(ip.to_ipv6_mapped())),
            Some(IpAddr::V6(ip)) => self.hasher.hash_one(u128::from(ip)),
            None => self.hasher.hash_one(peer.number()),
        };
        tag.max(NOBODY + 1)
    }

    #[inline]
    fn place(&self, tag: u64) -> usize {
        tag as usize & (self.sets.len() - 1)
    }

    /// The bucket of a peer that has one, and keeps it while it is looked at.
    #[inline]
    pub(crate) fn find(&self, tag: u64, alone: bool) -> Option<Found<'_>> {
        let set = &self.sets[self.place(tag)];
        let way = set.way_of(tag)?;
        let (bucket, limit) = (&set.buckets[way], Limit::Peer);
        let full_at = bucket.full_at();
        // Looked at after the bucket, for who takes a place changes its tag before: see `Set::settle`.
        let still = alone || set.tags[way].load(Ordering::Relaxed) == tag;
        still.then_some(Found { bucket, full_at, limit })
    }

    /// Gives a newcomer the place that has been quiet for longest if its bucket is full, as a full bucket says nothing
    /// about its peer; otherwise returns the crowd's bucket. `None` if another queue interfered.
    #[inline]
    pub(crate) fn settle(&self, tag: u64, now: Nanos, alone: bool) -> Option<Found<'_>> {
        let place = self.place(tag);
        let set = &self.sets[place];
        let settled = if alone {
            set.settle(tag, now, true)
        } else {
            let giving = &self.giving[place];
            giving.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).ok()?;
            let settled = set.settle(tag, now, false);
            giving.store(false, Ordering::Release);
            settled
        };
        match settled {
            Settled::At(way) => Some(Found { bucket: &set.buckets[way], full_at: now.0, limit: Limit::Peer }),
            Settled::Nowhere => {
                Some(Found { bucket: &self.crowd.0, full_at: self.crowd.0.full_at(), limit: Limit::Crowd })
            }
            Settled::TooLate => None,
        }
    }
}

impl Set {
    #[inline]
    fn way_of(&self, tag: u64) -> Option<usize> {
        self.tags.iter().position(|other| other.load(Ordering::Relaxed) == tag)
    }

    /// Gives away a place with a full bucket, if there is one.
    ///
    /// A request may have read the bucket as that of the peer before. Then it takes its token first, and this fails; or
    /// its own `replace` fails, because the bucket has changed; or it reads the changed bucket, and then sees that the
    /// tag is not its own.
    #[inline]
    fn settle(&self, tag: u64, now: Nanos, alone: bool) -> Settled {
        if !alone && self.way_of(tag).is_some() {
            // From another queue, meanwhile.
            return Settled::TooLate;
        }
        let full_at: [_; WAYS] = array::from_fn(|way| self.buckets[way].full_at());
        let quietest = (1..WAYS).fold(0, |best, way| if full_at[way] < full_at[best] { way } else { best });
        let owner = self.tags[quietest].load(Ordering::Relaxed);
        // It has to change, unless it is nobody's.
        if full_at[quietest] > now.0 || full_at[quietest] == now.0 && owner != NOBODY {
            return Settled::Nowhere;
        }
        self.tags[quietest].store(NOBODY, Ordering::Relaxed);
        let full = self.buckets[quietest].replace(full_at[quietest], now.0, alone);
        self.tags[quietest].store(if full { tag } else { owner }, Ordering::Relaxed);
        if full { Settled::At(quietest) } else { Settled::TooLate }
    }
}
