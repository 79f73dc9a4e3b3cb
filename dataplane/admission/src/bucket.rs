//! Token buckets and their rates.

use berth_port::Nanos;

use crate::sync::{AtomicU64, Ordering};

/// Rate at which requests are admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// Nanoseconds between requests in the long run.
    interval: u64,
    /// How far in the future a bucket's time may lie: the time in which all but one of a burst's tokens refill.
    ahead: u64,
}

impl Rate {
    /// Allows `per_second` requests in the long run and `burst` at once after a pause; each is at least 1. The interval
    /// is rounded up to whole nanoseconds, so rates of 10 million and more are up to 1 % lower than asked for.
    pub fn new(per_second: u64, burst: u64) -> Self {
        let interval = 1_000_000_000_u64.div_ceil(per_second.max(1));
        Self { interval, ahead: interval.saturating_mul(burst.max(1) - 1) }
    }

    /// Whether a bucket that will be full at `full_at` has a token now.
    #[inline]
    pub(crate) fn admits(self, full_at: u64, now: Nanos) -> bool {
        full_at <= now.0.saturating_add(self.ahead)
    }

    /// The time at which the bucket will be full once a token is taken.
    #[inline]
    pub(crate) fn after(self, full_at: u64, now: Nanos) -> u64 {
        full_at.max(now.0).saturating_add(self.interval)
    }
}

/// A bucket, stored as the time at which it will be full. That time only rises, except when a token is given back.
#[derive(Debug, Default)]
pub(crate) struct Bucket(AtomicU64);

impl Bucket {
    #[inline]
    pub(crate) fn full_at(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Replaces the time that was read. False if another queue has changed it since; a queue that is `alone` does not
    /// check.
    #[inline]
    pub(crate) fn replace(&self, read: u64, full_at: u64, alone: bool) -> bool {
        if alone {
            self.0.store(full_at, Ordering::Relaxed);
            return true;
        }
        self.0.compare_exchange(read, full_at, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}
