//! Buckets and how fast they refill.

use berth_port::Nanos;

use crate::sync::{AtomicU64, Ordering};

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
    /// requests is rounded up to whole nanoseconds, so that rates from 10 million on are up to 1 % lower than asked
    /// for.
    pub fn new(per_second: u64, burst: u64) -> Self {
        let interval = 1_000_000_000_u64.div_ceil(per_second.max(1));
        Self { interval, ahead: interval.saturating_mul(burst.max(1) - 1) }
    }

    /// Whether a bucket that is full again at that time has a token.
    #[inline]
    pub(crate) fn admits(self, full_at: u64, now: Nanos) -> bool {
        full_at <= now.0.saturating_add(self.ahead)
    }

    /// When the bucket is full again once a token was taken.
    #[inline]
    pub(crate) fn after(self, full_at: u64, now: Nanos) -> u64 {
        full_at.max(now.0).saturating_add(self.interval)
    }
}

/// A bucket: when it is full again. That only grows, but for a token that is given back.
#[derive(Debug, Default)]
pub(crate) struct Bucket(AtomicU64);

impl Bucket {
    #[inline]
    pub(crate) fn full_at(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Replaces what was read; false if another queue has changed it since. Who is `alone` need not look.
    #[inline]
    pub(crate) fn replace(&self, read: u64, full_at: u64, alone: bool) -> bool {
        if alone {
            self.0.store(full_at, Ordering::Relaxed);
            return true;
        }
        self.0.compare_exchange(read, full_at, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}
