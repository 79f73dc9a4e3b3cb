//! The table through its public interface, against a map.

use std::collections::HashMap;

use berth_lease::{Entry, Generation, InsertError, LeaseId, LeaseKey, RegionId, Rights, State, Table};
use berth_port::Nanos;
use proptest::prelude::*;

fn entry(key: u64, n: u64) -> Entry {
    Entry {
        id: LeaseId(u128::from(n) << 64 | u128::from(key)),
        generation: Generation(n & Generation::MASK),
        rights: Rights::from_bits(n as u32),
        region: RegionId(n as u16),
        base: (n & 0xFFFF_FFFF_FFFF) * 4096,
        len: !n,
        first: n.rotate_left(9),
        max_io: n as u32,
        expires: Nanos(n),
        state: if n.is_multiple_of(3) { State::Revoked } else { State::Active },
    }
}

#[derive(Debug, Clone)]
enum Step {
    Insert(u64, u64),
    Update(u64, u64),
    Remove(u64),
}

/// Few keys, so that steps collide. In steps of 2^61 they all have few homes, so that entries are pushed far away.
fn key() -> impl Strategy<Value = u64> {
    prop_oneof![0..64_u64, (0..8_u64, 0..8_u64).prop_map(|(high, low)| high << 61 | low)]
}

fn step() -> impl Strategy<Value = Step> {
    let value = prop_oneof![any::<u64>(), Just(u64::MAX), Just(0)];
    prop_oneof![
        3 => (key(), value.clone()).prop_map(|(key, n)| Step::Insert(key, n)),
        1 => (key(), value).prop_map(|(key, n)| Step::Update(key, n)),
        2 => key().prop_map(Step::Remove),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn behaves_as_a_map_of_bounded_size(steps in proptest::collection::vec(step(), 1..200)) {
        const CAPACITY: usize = 24;
        let (table, mut writer) = Table::new(CAPACITY);
        let mut model: HashMap<u64, Entry> = HashMap::new();
        let mut reader = table.reader();
        for step in steps {
            match step {
                Step::Insert(key, n) => {
                    let expected = match model.len() {
                        CAPACITY => Err(InsertError::Full),
                        _ if key == 0 || model.contains_key(&key) => Err(InsertError::Taken),
                        _ => Ok(()),
                    };
                    prop_assert_eq!(writer.insert(&entry(key, n)), expected);
                    if expected.is_ok() {
                        model.insert(key, entry(key, n));
                    }
                }
                Step::Update(key, n) => {
                    let known = model.get_mut(&key).map(|known| *known = entry(key, n));
                    prop_assert_eq!(writer.update(&entry(key, n)), known.is_some());
                }
                Step::Remove(key) => prop_assert_eq!(writer.remove(LeaseKey(key)), model.remove(&key).is_some()),
            }
            prop_assert_eq!(writer.len(), model.len());
            let guard = reader.enter();
            for key in (0..64).chain((0..64).map(|n| n >> 3 << 61 | n & 7)).chain([u64::MAX]) {
                prop_assert_eq!(guard.probe(LeaseKey(key)), model.get(&key).copied(), "key {:#x}", key);
            }
        }
    }
}

/// Keys with the same home: multiples of the multiplier's inverse.
#[test]
fn keys_with_one_home_all_have_a_place_until_the_reach_ends() {
    let inverse = (0..6).fold(1_u64, |x, _| x.wrapping_mul(2_u64.wrapping_sub(x.wrapping_mul(0x9E37_79B9_7F4A_7C15))));
    let key = |n: u64| inverse.wrapping_mul(n);
    let (table, mut writer) = Table::new(4096);
    for n in 1..=449 {
        writer.insert(&entry(key(n), n)).unwrap();
    }
    assert_eq!(writer.insert(&entry(key(450), 450)), Err(InsertError::Taken));
    let mut reader = table.reader();
    assert!((1..=449).all(|n| reader.enter().probe(LeaseKey(key(n))) == Some(entry(key(n), n))));
    // Whatever is taken out first, the others stay within reach.
    for n in (1..=449).filter(|n| n % 5 != 0) {
        assert!(writer.remove(LeaseKey(key(n))));
    }
    assert!((1..=449).all(|n| reader.enter().probe(LeaseKey(key(n))).is_some() == (n % 5 == 0)));
    for n in (1..=89).rev().map(|n| n * 5) {
        assert_eq!(writer.get(LeaseKey(key(n))), Some(entry(key(n), n)));
        assert!(writer.remove(LeaseKey(key(n))));
    }
    assert!(writer.is_empty());
}

#[test]
fn tables_of_every_size_can_be_full_and_stay_so() {
    let mut rng = fastrand::Rng::with_seed(2);
    for capacity in (1..40).chain([100, 1000, 4095, 65_536, 200_001]) {
        let (table, mut writer) = Table::new(capacity);
        let mut keys: Vec<u64> = (0..capacity).map(|_| rng.u64(1..)).collect();
        for key in &keys {
            assert_eq!(writer.insert(&entry(*key, !key)), Ok(()), "of {capacity}");
        }
        for _ in 0..3 * capacity {
            let key = &mut keys[rng.usize(..capacity)];
            assert!(writer.remove(LeaseKey(*key)));
            *key = rng.u64(1..);
            assert_eq!(writer.insert(&entry(*key, !*key)), Ok(()), "of {capacity}");
        }
        assert_eq!(writer.insert(&entry(rng.u64(1..), 1)), Err(InsertError::Full));
        let mut reader = table.reader();
        let guard = reader.enter();
        assert!(keys.iter().all(|key| guard.probe(LeaseKey(*key)) == Some(entry(*key, !key))));
    }
}

#[test]
fn a_million_random_leases_fit_and_are_found() {
    let (table, mut writer) = Table::new(1_000_000);
    let mut rng = fastrand::Rng::with_seed(1);
    let keys: Vec<u64> = (0..1_000_000).map(|_| rng.u64(1..)).collect();
    for key in &keys {
        writer.insert(&entry(*key, key >> 1)).unwrap();
    }
    assert_eq!(writer.insert(&entry(rng.u64(1..), 1)), Err(InsertError::Full));
    let mut reader = table.reader();
    let guard = reader.enter();
    assert!(keys.iter().all(|key| guard.probe(LeaseKey(*key)) == Some(entry(*key, key >> 1))));
    assert!((0..1_000_000).all(|_| guard.probe(LeaseKey(rng.u64(1..))).is_none()));
}

/// Real threads: readers see whole entries, and the writer waits for guards.
#[test]
fn readers_on_other_cores_see_whole_entries() {
    const ROUNDS: u64 = 20_000;
    let (table, mut writer) = Table::new(8);
    writer.insert(&entry(7, 0)).unwrap();
    let reading = std::thread::spawn(move || {
        let (mut reader, mut last) = (table.reader(), 0);
        while last < ROUNDS {
            let seen = reader.enter().probe(LeaseKey(7)).unwrap();
            let n = seen.expires.0;
            assert_eq!(seen, entry(7, n));
            assert!(n >= last, "time went back");
            last = n;
        }
    });
    for n in 1..=ROUNDS {
        writer.update(&entry(7, n));
        writer.quiesce();
    }
    reading.join().unwrap();
}

#[test]
fn quiescence_is_over_when_the_guards_from_before_are_gone_and_not_sooner() {
    let (table, writer) = Table::new(8);
    let (mut first, mut second, third) = (table.reader(), table.reader(), table.reader());
    assert!(writer.quiescence().is_over());
    let guard = first.enter();
    let held = third.hold();
    let mut quiescence = writer.quiescence();
    let later = second.enter();
    assert!(!quiescence.is_over());
    drop(guard);
    assert!(!quiescence.is_over());
    let again = first.enter();
    assert!(!quiescence.is_over());
    let third = held.end();
    assert!(quiescence.is_over(), "guards that were entered later do not count");
    drop((later, again));
    // A leaked guard keeps its reader inside until that enters again or goes.
    let held = third.hold();
    std::mem::forget(first.enter());
    let mut quiescence = writer.quiescence();
    drop(held);
    assert!(!quiescence.is_over());
    drop(first.enter());
    assert!(quiescence.is_over());
    std::mem::forget(second.enter());
    let mut quiescence = writer.quiescence();
    drop(second);
    assert!(quiescence.is_over());
}
