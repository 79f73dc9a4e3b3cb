//! The arena against a model that knows the state of each granule.

use berth_lease::{Arena, Extent, GRANULE};
use proptest::prelude::*;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Granule {
    Zero,
    Dirty,
    Leased,
}

#[derive(Debug, Clone)]
enum Step {
    /// So many parts of a granule.
    Allocate(u64),
    /// In granules.
    AllocateAt(u64, u64),
    Release(prop::sample::Index),
    /// So many parts of a granule.
    Clean(u64),
}

/// A length is drawn in parts of a granule, [`GRANULE`] of them.
fn bytes(parts: u64, granule: u64) -> u64 {
    parts * (granule / GRANULE)
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1..12 * GRANULE).prop_map(Step::Allocate),
        1 => (0..50_u64, 0..12_u64).prop_map(|(at, len)| Step::AllocateAt(at, len)),
        3 => any::<prop::sample::Index>().prop_map(Step::Release),
        1 => (0..5 * GRANULE).prop_map(Step::Clean),
    ]
}

struct Model {
    granule: u64,
    states: Vec<Granule>,
}

impl Model {
    fn of(&mut self, extent: Extent) -> &mut [Granule] {
        let granule = self.granule;
        assert!(extent.at.is_multiple_of(granule) && extent.len.is_multiple_of(granule), "{extent:?}");
        &mut self.states[(extent.at / granule) as usize..(extent.end() / granule) as usize]
    }

    fn count(&self, which: &[Granule]) -> u64 {
        self.states.iter().filter(|granule| which.contains(granule)).count() as u64 * self.granule
    }

    /// The longest run of free granules.
    fn longest(&self) -> u64 {
        let runs = self.states.split(|granule| !matches!(granule, Granule::Zero | Granule::Dirty));
        runs.map(|run| run.len() as u64 * self.granule).max().unwrap_or(0)
    }

    /// Leases free granules, and checks that exactly the dirty ones are to be zeroed.
    fn lease(&mut self, extent: Extent, dirty: &[Extent]) {
        for part in dirty {
            assert!(extent.at <= part.at && part.end() <= extent.end() && part.len > 0, "{part:?} of {extent:?}");
            let part = self.of(*part);
            assert!(part.iter().all(|granule| *granule == Granule::Dirty), "zeroed twice, or not free");
            part.fill(Granule::Zero);
        }
        let all = self.of(extent);
        assert!(all.iter().all(|granule| *granule == Granule::Zero), "leased twice, or not zero: {all:?}");
        all.fill(Granule::Leased);
    }
}

proptest! {
    #[test]
    fn behaves_as_granules_of_a_list(
        zeroed: bool,
        granule in prop_oneof![Just(GRANULE), Just(2 << 20)],
        steps in proptest::collection::vec(step(), 1..120),
    ) {
        const GRANULES: usize = 48;
        let mut arena = Arena::new((GRANULES as u64 + 1) * granule - 17, granule, zeroed);
        let states = vec![if zeroed { Granule::Zero } else { Granule::Dirty }; GRANULES];
        let mut model = Model { granule, states };
        prop_assert_eq!((arena.len(), arena.granule()), (GRANULES as u64 * granule, granule));
        let mut leased: Vec<Extent> = Vec::new();
        for step in steps {
            match step {
                Step::Allocate(parts) => {
                    let len = bytes(parts, granule) - granule / GRANULE / 2;
                    let longest = model.longest();
                    match arena.allocate(len) {
                        Some((extent, dirty)) => {
                            prop_assert_eq!(extent.len, len.next_multiple_of(granule));
                            model.lease(extent, &dirty);
                            leased.push(extent);
                        }
                        None => prop_assert!(longest < len, "{} of {}", len, longest),
                    }
                }
                Step::AllocateAt(at, len) => {
                    let extent = Extent { at: at * granule, len: len * granule };
                    let inside = len > 0 && (at + len) as usize <= GRANULES;
                    let free = |granule: &Granule| matches!(granule, Granule::Zero | Granule::Dirty);
                    let free = inside && model.of(extent).iter().all(free);
                    let dirty = arena.allocate_at(extent);
                    prop_assert_eq!(dirty.is_some(), free);
                    if let Some(dirty) = dirty {
                        model.lease(extent, &dirty);
                        leased.push(extent);
                    }
                }
                Step::Release(index) if !leased.is_empty() => {
                    let extent = leased.swap_remove(index.index(leased.len()));
                    arena.release(extent);
                    model.of(extent).fill(Granule::Dirty);
                }
                Step::Clean(parts) => {
                    let max = bytes(parts, granule);
                    let cleaned = arena.clean(max);
                    prop_assert_eq!(cleaned.is_some(), model.count(&[Granule::Dirty]) > 0);
                    if let Some(extent) = cleaned {
                        prop_assert!(extent.len <= max.max(granule));
                        prop_assert!(model.of(extent).iter().all(|granule| *granule == Granule::Dirty));
                        model.of(extent).fill(Granule::Zero);
                    }
                }
                Step::Release(_) => {}
            }
            prop_assert_eq!(arena.available(), model.count(&[Granule::Zero, Granule::Dirty]));
            prop_assert_eq!(arena.dirty(), model.count(&[Granule::Dirty]));
        }
    }
}

#[test]
fn best_fit_keeps_large_extents_whole() {
    let mut arena = Arena::new(16 * GRANULE, GRANULE, true);
    let granules = |n| n * GRANULE;
    let all: Vec<Extent> = (0..8).map(|_| arena.allocate(granules(2)).unwrap().0).collect();
    arena.release(all[0]);
    arena.release(all[1]);
    arena.release(all[4]);
    assert_eq!(arena.allocate(granules(2)).unwrap().0, all[4]);
    assert_eq!(arena.allocate(granules(4)).unwrap().0, Extent { at: 0, len: granules(4) });
    assert_eq!(arena.allocate(1), None);
}

#[test]
fn nothing_and_too_much_are_not_allocated() {
    let mut arena = Arena::new(8 * GRANULE, GRANULE, true);
    for len in [0, 8 * GRANULE + 1, u64::MAX] {
        assert_eq!(arena.allocate(len), None);
    }
    for (at, len) in [(0, 0), (1, GRANULE), (0, 1), (u64::MAX - 4095, GRANULE), (GRANULE, u64::MAX - 4095)] {
        assert_eq!(arena.allocate_at(Extent { at, len }), None, "{at}+{len}");
    }
    assert_eq!(arena.available(), 8 * GRANULE);
}

#[test]
fn an_extent_of_other_units_is_not_allocated() {
    let unit = 4 * GRANULE;
    let mut arena = Arena::new(4 * unit, unit, true);
    for (at, len) in [(GRANULE, unit), (unit, GRANULE), (unit, unit + GRANULE)] {
        assert_eq!(arena.allocate_at(Extent { at, len }), None, "{at}+{len}");
    }
    assert!(arena.allocate_at(Extent { at: unit, len: unit }).is_some());
}
