//! The histogram counts as `HdrHistogram` does.

use berth_port::{HIGHEST_NS, Recorder, SIGNIFICANT_DIGITS};
use hdrhistogram::Histogram;
use proptest::prelude::*;

fn reference() -> Histogram<u64> {
    Histogram::new_with_bounds(1, HIGHEST_NS, SIGNIFICANT_DIGITS).unwrap()
}

proptest! {
    #[test]
    fn equals_hdrhistogram(values in prop::collection::vec((0..64_u32, any::<u64>(), 1..1000_u64), 0..200)) {
        let (ours, mut theirs) = (Recorder::default(), reference());
        for (shift, value, n) in values {
            let value = value >> shift;
            ours.record_n(value, n);
            theirs.saturating_record_n(value.min(HIGHEST_NS), n);
        }
        prop_assert_eq!(ours.snapshot(), theirs);
    }
}

#[test]
fn every_bucket_boundary_falls_where_hdrhistogram_puts_it() {
    let (ours, mut theirs) = (Recorder::default(), reference());
    for octave in 0..36 {
        for value in [1_u64 << octave, (1 << octave) - 1, (1 << octave) + 1, (1 << octave) * 255 / 128] {
            ours.record(value);
            theirs.record(value.min(HIGHEST_NS)).unwrap();
        }
    }
    ours.record(u64::MAX);
    theirs.record(HIGHEST_NS).unwrap();
    assert_eq!(ours.snapshot(), theirs);
}
