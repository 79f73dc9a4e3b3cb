//! A histogram that one core writes and any thread reads.

use std::{
    cell::Cell,
    marker::PhantomData,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

/// Upper end of the histogram in nanoseconds, 68.7 s. Longer times are counted here.
pub const HIGHEST_NS: u64 = (1 << 36) - 1;

/// Significant decimal digits of a recorded value, as `HdrHistogram` counts them: buckets are at most 1/128 wide.
///
/// Two digits spread one octave of latencies over 1 KiB of counters; three would need 8 KiB, a quarter of many L1
/// caches, taken from the service that is being measured. Two also keep the whole histogram at 30 KiB instead of 216.
pub const SIGNIFICANT_DIGITS: u8 = 2;

/// Log2 of the number of linear buckets in the first octaves: the least power of two that is at least 2 x 10^digits.
const LINEAR_BITS: u32 = 8;
const HALF: usize = 1 << (LINEAR_BITS - 1);
const BUCKETS: usize = (36 - LINEAR_BITS as usize + 2) * HALF;

/// Counts of nanosecond values in the buckets of an [`hdrhistogram::Histogram`] of [`SIGNIFICANT_DIGITS`].
///
/// A [`Recorder`] writes it by a relaxed load and store: no read-modify-write, no fence.
#[derive(Debug)]
struct Histogram {
    buckets: Box<[AtomicU64]>,
}

/// Index of a value's bucket, as in `HdrHistogram`: octave x 128 + the eight leading bits of the value.
#[inline]
fn bucket(nanos: u64) -> usize {
    let nanos = nanos.min(HIGHEST_NS);
    let octave = (u64::BITS - LINEAR_BITS) - (nanos | ((1 << LINEAR_BITS) - 1)).leading_zeros();
    octave as usize * HALF + (nanos >> octave) as usize
}

/// The least value that falls into a bucket.
fn lowest(bucket: usize) -> u64 {
    let octave = (bucket / HALF).saturating_sub(1);
    ((bucket - octave * HALF) as u64) << octave
}

/// Records into one histogram; cheap to clone.
///
/// All clones belong to one core. Two that record at the same time lose each other's counts (and do nothing worse).
/// [`Recorder::snapshot`] is safe and exact on any thread at any time. A recorder is `Send`, so that a service can be
/// built on one thread and run on another, and not `Sync`.
#[derive(Debug, Clone)]
pub struct Recorder {
    histogram: Arc<Histogram>,
    one_core: PhantomData<Cell<()>>,
}

impl Default for Recorder {
    fn default() -> Self {
        let buckets = (0..BUCKETS).map(|_| AtomicU64::new(0)).collect();
        Self { histogram: Arc::new(Histogram { buckets }), one_core: PhantomData }
    }
}

impl Recorder {
    /// Counts one value; those above [`HIGHEST_NS`] count as that.
    #[inline]
    pub fn record(&self, nanos: u64) {
        self.record_n(nanos, 1);
    }

    /// Counts the same value `n` times.
    #[inline]
    pub fn record_n(&self, nanos: u64, n: u64) {
        if cfg!(feature = "no-telemetry") {
            return;
        }
        let count = &self.histogram.buckets[bucket(nanos)];
        count.store(count.load(Relaxed).wrapping_add(n), Relaxed);
    }

    /// A copy of the counts. Values recorded during the call may or may not be included.
    pub fn snapshot(&self) -> hdrhistogram::Histogram<u64> {
        self.reader().snapshot()
    }

    /// A handle that only reads, for any thread.
    pub fn reader(&self) -> Reader {
        Reader(self.histogram.clone())
    }
}

/// Reads a histogram that a [`Recorder`] writes.
#[derive(Debug, Clone)]
pub struct Reader(Arc<Histogram>);

impl Reader {
    /// Whether this is the histogram that `recorder` writes.
    pub fn reads(&self, recorder: &Recorder) -> bool {
        Arc::ptr_eq(&self.0, &recorder.histogram)
    }

    /// A copy of the counts, as [`Recorder::snapshot`].
    pub fn snapshot(&self) -> hdrhistogram::Histogram<u64> {
        let mut copy = hdrhistogram::Histogram::new_with_bounds(1, HIGHEST_NS, SIGNIFICANT_DIGITS)
            .expect("the bounds are constants that HdrHistogram accepts");
        for (index, count) in self.0.buckets.iter().enumerate() {
            let count = count.load(Relaxed);
            if count > 0 {
                copy.record_n(lowest(index), count).expect("every bucket is within the bounds");
            }
        }
        copy
    }
}
