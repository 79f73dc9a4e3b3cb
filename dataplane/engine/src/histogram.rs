//! A histogram that one core writes and any thread reads.

use std::{
    cell::Cell,
    marker::PhantomData,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

/// The longest time a histogram tells apart from longer ones, in nanoseconds: 68.7 s.
pub const HIGHEST_NS: u64 = (1 << 36) - 1;

/// Significant decimal digits of a recorded value, as `HdrHistogram` counts them: buckets are at most 1/128 wide.
///
/// Two digits spread an octave of latencies over 1 KiB of counters, three over 8 KiB: a quarter of many L1 caches,
/// taken from the service whose time is being measured. Two also make the whole histogram 30 KiB instead of 216.
pub const SIGNIFICANT_DIGITS: u8 = 2;

/// Log2 of the linear buckets in the first octaves: the least power of two that holds 2 x 10^digits.
const LINEAR_BITS: u32 = 8;
const HALF: usize = 1 << (LINEAR_BITS - 1);
const BUCKETS: usize = (36 - LINEAR_BITS as usize + 2) * HALF;

/// Counts of nanosecond values in the buckets of an [`hdrhistogram::Histogram`] of [`SIGNIFICANT_DIGITS`].
///
/// Written through a [`Recorder`], which is a relaxed load and store: no read-modify-write, no fence.
#[derive(Debug)]
struct Histogram {
    buckets: Box<[AtomicU64]>,
}

/// The bucket of a value, as `HdrHistogram` numbers them: octave x 128 + the value's eight leading bits.
#[inline]
fn bucket(nanos: u64) -> usize {
    let nanos = nanos.min(HIGHEST_NS);
    let octave = (u64::BITS - LINEAR_BITS) - (nanos | ((1 << LINEAR_BITS) - 1)).leading_zeros();
    octave as usize * HALF + (nanos >> octave) as usize
}

/// The least value of a bucket.
fn lowest(bucket: usize) -> u64 {
    let octave = (bucket / HALF).saturating_sub(1);
    ((bucket - octave * HALF) as u64) << octave
}

/// A handle that records into one histogram; cheap to clone.
///
/// All clones belong to one core: two that record at the same time lose counts of each other (and do nothing worse).
/// Reading, by [`Recorder::snapshot`], is safe and exact from any thread at any time. A recorder is `Send`, so that
/// a service can be built on one thread and run on another, and not `Sync`.
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
    /// Counts one value; beyond [`HIGHEST_NS`] it is counted there.
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

    /// The counts so far. What is recorded meanwhile may or may not be in it.
    pub fn snapshot(&self) -> hdrhistogram::Histogram<u64> {
        self.reader().snapshot()
    }

    /// The reading end alone, which any thread may hold.
    pub(crate) fn reader(&self) -> Reader {
        Reader(self.histogram.clone())
    }
}

/// Reads a histogram that a [`Recorder`] writes.
#[derive(Debug)]
pub(crate) struct Reader(Arc<Histogram>);

impl Reader {
    pub(crate) fn snapshot(&self) -> hdrhistogram::Histogram<u64> {
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
