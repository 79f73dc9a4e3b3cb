//! The sequence tracker against a model that remembers everything.

use std::collections::HashSet;

use berth_ring::{Arrival, Sequence, SequenceCounts};
use proptest::prelude::*;

const WINDOW: i64 = Sequence::WINDOW as i64;

/// Numbers without a width, and the set of all that arrived.
struct Model {
    first: i64,
    highest: i64,
    came: HashSet<i64>,
}

impl Model {
    fn arrive(&mut self, number: i64) -> Arrival {
        if number > self.highest {
            let missing = number - self.highest - 1;
            self.highest = number;
            self.came.insert(number);
            return if missing == 0 { Arrival::InOrder } else { Arrival::Gap(missing as u32) };
        }
        if number <= self.highest - WINDOW {
            Arrival::Stale
        } else if self.came.insert(number) {
            Arrival::Late
        } else {
            Arrival::Duplicate
        }
    }

    fn lost(&self) -> u64 {
        (self.first..=self.highest).filter(|number| !self.came.contains(number)).count() as u64
    }
}

/// Distance of the next number from the highest so far: mostly one; at times lost, late, doubled or far off.
fn step() -> impl Strategy<Value = i64> {
    prop_oneof![
        20 => Just(1_i64),
        4 => 2..6_i64,
        4 => -8..=0_i64,
        1 => -WINDOW - 3..=-WINDOW + 3,
        1 => WINDOW - 3..=WINDOW + 3,
        1 => -4000..4000_i64,
    ]
}

proptest! {
    #[test]
    fn agrees_with_the_model(
        bits in prop_oneof![Just(14_u32), Just(20), Just(24), Just(32)],
        known_start: bool,
        from_wrap in -50..50_i64,
        steps in prop::collection::vec(step(), 1..400),
    ) {
        let wrap = |number: i64| (number as u64 & ((1_u64 << bits) - 1)) as u32;
        let mut sequence =
            if known_start { Sequence::starting_at(bits, wrap(from_wrap)) } else { Sequence::new(bits) };
        let mut model = Model { first: from_wrap, highest: from_wrap - 1, came: HashSet::new() };
        let mut expected = SequenceCounts::default();
        for (i, step) in steps.into_iter().enumerate() {
            let number = if i == 0 && !known_start { from_wrap } else { model.highest + step };
            let arrival = model.arrive(number);
            prop_assert_eq!(sequence.arrive(wrap(number)), arrival, "number {}", number);
            expected.received += 1;
            match arrival {
                Arrival::InOrder => {}
                Arrival::Gap(_) => expected.gaps += 1,
                Arrival::Late => expected.reordered += 1,
                Arrival::Duplicate => expected.duplicates += 1,
                Arrival::Stale => expected.stale += 1,
            }
        }
        expected.lost = model.lost();
        prop_assert_eq!(sequence.counts(), expected);
    }
}

#[test]
fn counts_a_loss_until_it_arrives_across_the_wrap() {
    let mut psn = Sequence::new(24);
    let arrivals = [0xFF_FFFE, 0, 1, 0xFF_FFFF, 0xFF_FFFF, 2].map(|number| psn.arrive(number));
    assert_eq!(
        arrivals,
        [Arrival::InOrder, Arrival::Gap(1), Arrival::InOrder, Arrival::Late, Arrival::Duplicate, Arrival::InOrder,]
    );
    assert_eq!(psn.counts(), SequenceCounts { received: 6, lost: 0, gaps: 1, reordered: 1, duplicates: 1, stale: 0 });
}

#[test]
fn many_laps_of_a_20_bit_psn_stay_in_order() {
    let mut psn = Sequence::starting_at(20, 0);
    for n in 0..3 << 20 {
        assert_eq!(psn.arrive(n & 0xF_FFFF), Arrival::InOrder);
    }
    assert_eq!(psn.counts(), SequenceCounts { received: 3 << 20, ..Default::default() });
}

#[test]
#[should_panic(expected = "13 to 32 bits, not 12")]
fn a_width_that_cannot_hold_the_window_is_refused() {
    Sequence::new(12);
}
