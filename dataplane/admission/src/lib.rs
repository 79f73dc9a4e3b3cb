//! Admission: who may ask how often. A token bucket for a port, and one for each of its peers.
//!
//! A bucket is one number, the time at which it is full again (the generic cell rate algorithm): a request is admitted
//! while that lies no further ahead than a burst takes to refill, and moves it on by one interval. A bucket that is full
//! is therefore a bucket that was never used, which is what bounds the memory: the table of peers has a fixed size, and
//! a peer that has been quiet for long enough leaves its place to the next without anything being forgotten.
//!
//! Nothing here allocates after [`Admission::new`], reads a clock, or is shared between cores.
#![forbid(unsafe_code)]

mod peers;

use std::net::SocketAddr;

use berth_port::Nanos;

pub use peers::PEERS;
use peers::Peers;

/// How often requests are admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// Nanoseconds from one request to the next in the long run.
    interval: u64,
    /// How far ahead of now a bucket may be full: what the requests of a burst but the last take to refill.
    ahead: u64,
}

impl Rate {
    /// `per_second` requests in the long run, and `burst` at once after a pause; each at least 1. The interval between
    /// requests is rounded up to whole nanoseconds, so that rates from 10 million on are up to 1 % lower than asked for.
    pub fn new(per_second: u64, burst: u64) -> Self {
        let interval = 1_000_000_000_u64.div_ceil(per_second.max(1));
        Self { interval, ahead: interval.saturating_mul(burst.max(1) - 1) }
    }
}

/// A bucket: when it is full again.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Bucket(pub(crate) u64);

impl Bucket {
    #[inline]
    fn has_one(self, rate: Rate, now: Nanos) -> bool {
        self.0 <= now.0.saturating_add(rate.ahead)
    }

    #[inline]
    fn take(&mut self, rate: Rate, now: Nanos) {
        self.0 = self.0.max(now.0).saturating_add(rate.interval);
    }
}

/// What a queue of a port admits; `None` is everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limits {
    /// From each peer.
    pub per_peer: Option<Rate>,
    /// From all of them.
    pub all: Option<Rate>,
}

/// Which limit refuses a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// The peer's own.
    Peer,
    /// The one bucket that is left for peers beyond the table.
    Crowd,
    /// That of all peers.
    All,
}

/// The buckets of one queue of a port. Owned by its core.
#[derive(Debug)]
pub struct Admission {
    limits: Limits,
    peers: Peers,
    all: Bucket,
}

impl Admission {
    /// Full buckets. Allocates the table of peers, 64 KiB, where there is a limit for each.
    pub fn new(limits: Limits) -> Self {
        let peers = if limits.per_peer.is_some() { Peers::new() } else { Peers::none() };
        Self { limits, peers, all: Bucket::default() }
    }

    /// What it admits.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Admits one request, or says what refuses it; a refused one takes no token of either bucket.
    ///
    /// A peer is an IP address, whatever port it sends from. Peers of libfabric that have no address are told apart by
    /// their names.
    #[inline]
    pub fn admit(&mut self, peer: SocketAddr, now: Nanos) -> Result<(), Limit> {
        let Self { limits, peers, all } = self;
        let own = match limits.per_peer {
            None => None,
            Some(rate) => {
                let (bucket, limit) = peers.find(peer, now);
                if !bucket.has_one(rate, now) {
                    return Err(limit);
                }
                Some((bucket, rate))
            }
        };
        if let Some(rate) = limits.all {
            if !all.has_one(rate, now) {
                return Err(Limit::All);
            }
            all.take(rate, now);
        }
        if let Some((bucket, rate)) = own {
            bucket.take(rate, now);
        }
        Ok(())
    }
}
