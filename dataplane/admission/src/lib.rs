//! Admission control: a token bucket for a port, and one for each of its peers.
//!
//! A bucket is one number, the time at which it is full again (the generic cell rate algorithm). A request is admitted
//! while that time is no further ahead than a burst takes to refill; it moves the time by one interval. A full bucket
//! is therefore the same as one that was never used. This bounds the memory: the table of peers has a fixed size, and a
//! peer that has been quiet for long enough gives its place to the next without loss.
//!
//! The queues of a port share its buckets, so it does not matter which of them a request arrives at. If a port has a
//! single queue, that does without atomic exchanges, as nobody else changes what it reads.
//!
//! Nothing here allocates after [`Admission::of_port`], reads a clock, or waits for another core.
#![forbid(unsafe_code)]

mod bucket;
mod peers;
mod sync;

use berth_port::{Nanos, Peer};

use bucket::Bucket;
pub use bucket::Rate;
pub use peers::PEERS;
use peers::{Found, Peers};
use sync::{Arc, spin};

/// Rate limits of a port; `None` means no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limits {
    /// Limit on each peer.
    pub per_peer: Option<Rate>,
    /// Limit on all peers together.
    pub all: Option<Rate>,
}

/// The limit that refused a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// That of its peer.
    Peer,
    /// That of the bucket shared by all peers that have no place in the table.
    Crowd,
    /// That of all peers together.
    All,
}

/// How often a request tries again if other queues have changed what it read. Each failure means that another request
/// was admitted, or a newcomer got its place. A request that never succeeds is refused.
const TRIES: usize = if cfg!(loom) { 4 } else { 64 };

/// Admission at one queue of a port. Owned by its core.
#[derive(Debug)]
pub struct Admission {
    limits: Limits,
    /// Whether the port has no other queue.
    alone: bool,
    buckets: Arc<Buckets>,
}

/// The buckets of a port.
#[derive(Debug)]
struct Buckets {
    peers: Peers,
    all: Line,
}

/// A bucket in a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Line(Bucket);

impl Admission {
    /// One for each of a port's queues, with full buckets. Allocates the table of peers, 65 KiB, if there is a limit
    /// per peer.
    pub fn of_port(limits: Limits, queues: usize) -> Vec<Self> {
        let peers = Peers::new(if limits.per_peer.is_some() { PEERS } else { 0 });
        let buckets = Arc::new(Buckets { peers, all: Line::default() });
        let queue = || Self { limits, alone: queues == 1, buckets: buckets.clone() };
        std::iter::repeat_with(queue).take(queues).collect()
    }

    /// The limits it was made with.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Admits one request, or returns the limit that refuses it. A refused request takes no token from either bucket.
    ///
    /// All peers of one host count as one, see [`Peer::host`].
    #[inline]
    pub fn admit(&mut self, peer: Peer, now: Nanos) -> Result<(), Limit> {
        let Some(rate) = self.limits.per_peer else { return self.admit_whoever(now) };
        let peers = &self.buckets.peers;
        let tag = peers.tag(&peer);
        if self.alone
            && let Some(Found { bucket, full_at, limit }) = peers.find(tag, true)
        {
            if !rate.admits(full_at, now) {
                return Err(limit);
            }
            self.take_of_all(now, true)?;
            bucket.replace(full_at, rate.after(full_at, now), true);
            return Ok(());
        }
        self.admit_by_tries(tag, rate, now)
    }

    /// For newcomers, and if other queues may change what was read.
    #[inline(never)]
    fn admit_by_tries(&self, tag: u64, rate: Rate, now: Nanos) -> Result<(), Limit> {
        let (Buckets { peers, all }, alone) = (&*self.buckets, self.alone);
        let mut of_all = None;
        let mut refused = Limit::Peer;
        for _ in 0..TRIES {
            let found = peers.find(tag, alone).or_else(|| peers.settle(tag, now, alone));
            let Some(Found { bucket, full_at, limit }) = found else {
                spin();
                continue;
            };
            refused = limit;
            if !rate.admits(full_at, now) {
                break;
            }
            if of_all.is_none() {
                of_all = Some(self.take_of_all(now, alone)?);
            }
            if bucket.replace(full_at, rate.after(full_at, now), alone) {
                return Ok(());
            }
        }
        if let Some(Some((before, after))) = of_all {
            // Unless other queues have gone on from there: then it stays taken.
            all.0.replace(after, before, alone);
        }
        Err(refused)
    }

    /// For ports without a limit per peer.
    #[inline(never)]
    fn admit_whoever(&self, now: Nanos) -> Result<(), Limit> {
        self.take_of_all(now, self.alone).map(drop)
    }

    /// Takes a token from the bucket of all peers. Returns its state before and after, if there is such a limit.
    #[inline]
    fn take_of_all(&self, now: Nanos, alone: bool) -> Result<Option<(u64, u64)>, Limit> {
        let Some(rate) = self.limits.all else { return Ok(None) };
        let bucket = &self.buckets.all.0;
        for _ in 0..TRIES {
            let full_at = bucket.full_at();
            if !rate.admits(full_at, now) {
                break;
            }
            let after = rate.after(full_at, now);
            if bucket.replace(full_at, after, alone) {
                return Ok(Some((full_at, after)));
            }
        }
        Err(Limit::All)
    }
}
