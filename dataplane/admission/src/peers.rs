//! The buckets of peers: a table of fixed size, keyed by a hash that peers cannot foresee.

use std::{
    hash::{BuildHasher as _, RandomState},
    net::{IpAddr, SocketAddr},
};

use berth_port::Nanos;
use foldhash::{SharedSeed, quality::SeedableRandomState};

use crate::{Bucket, Limit};

/// How many peers have buckets of their own at a time.
pub const PEERS: usize = 4096;

/// Peers of one set: as many as a cache line holds.
const WAYS: usize = 4;

/// Peers whose hashes end alike.
#[derive(Debug, Clone, Copy, Default)]
#[repr(align(64))]
struct Set {
    /// Whose buckets these are: their whole hashes, of which the seed is secret, so that nobody finds two addresses
    /// that share one.
    tags: [u64; WAYS],
    buckets: [Bucket; WAYS],
}

#[derive(Debug)]
pub(crate) struct Peers {
    hasher: SeedableRandomState,
    sets: Box<[Set]>,
    /// For peers that find their set taken by others who have asked lately.
    crowd: Bucket,
}

impl Peers {
    pub(crate) fn new() -> Self {
        Self { sets: vec![Set::default(); PEERS / WAYS].into(), ..Self::none() }
    }

    /// A table that nobody looks into.
    pub(crate) fn none() -> Self {
        // The standard library's is seeded by the kernel.
        let seed = RandomState::new().hash_one(());
        let hasher = SeedableRandomState::with_seed(seed, SharedSeed::global_random());
        Self { hasher, sets: Box::default(), crowd: Bucket::default() }
    }

    /// A peer's bucket, and the limit that it stands for.
    #[inline]
    pub(crate) fn find(&mut self, peer: SocketAddr, now: Nanos) -> (&mut Bucket, Limit) {
        let tag = self.hasher.hash_one(key(peer));
        let place = tag as usize & (self.sets.len() - 1);
        let Set { tags, buckets } = &mut self.sets[place];
        if let Some(way) = tags.iter().position(|other| *other == tag) {
            return (&mut buckets[way], Limit::Peer);
        }
        // The one that has been quiet for longest; a bucket that is full says nothing about its peer.
        let quietest = (1..WAYS).fold(0, |best, way| if buckets[way].0 < buckets[best].0 { way } else { best });
        if buckets[quietest].0 > now.0 {
            return (&mut self.crowd, Limit::Crowd);
        }
        tags[quietest] = tag;
        (&mut buckets[quietest], Limit::Peer)
    }
}

/// What a peer is told apart by.
#[inline]
fn key(peer: SocketAddr) -> u128 {
    let ip = match peer.ip() {
        IpAddr::V4(ip) => u128::from(ip.to_ipv6_mapped()),
        IpAddr::V6(ip) => u128::from(ip),
    };
    // No packet comes from the unspecified address: these are the names of peers without one.
    if peer.ip().is_unspecified() { ip + u128::from(peer.port()) } else { ip }
}
