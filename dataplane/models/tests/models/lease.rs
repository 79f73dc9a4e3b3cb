//! Every interleaving and reordering of the table that the C11 memory model allows, explored by loom.

use std::sync::Arc;

use berth_lease::{Entry, Generation, LeaseId, LeaseKey, RegionId, Rights, State, Table};
use berth_port::Nanos;
use loom::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

const KEY: LeaseKey = LeaseKey(5);

/// An entry all of whose fields say `n`.
fn entry(n: u64) -> Entry {
    Entry {
        id: LeaseId(u128::from(n) << 64 | 5),
        generation: Generation(n),
        rights: Rights::from_bits(n as u32),
        region: RegionId(n as u16),
        base: n * 4096,
        len: n,
        first: n,
        max_io: n as u32,
        expires: Nanos(n),
        state: State::Active,
    }
}

fn explore(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(model);
}

#[test]
fn an_entry_is_never_torn() {
    explore(|| {
        let (table, mut writer) = Table::new(1);
        writer.insert(&entry(1)).unwrap();
        let mut reader = table.reader();
        let other = thread::spawn(move || {
            let seen = reader.enter().probe(KEY).unwrap();
            assert!(seen == entry(1) || seen == entry(2), "torn: {seen:?}");
        });
        assert!(writer.update(&entry(2)));
        other.join().unwrap();
    });
}

#[test]
fn a_line_that_becomes_anothers_is_not_mixed_up() {
    explore(|| {
        let (table, mut writer) = Table::new(1);
        writer.insert(&entry(1)).unwrap();
        let mut reader = table.reader();
        let other = thread::spawn(move || {
            let seen = reader.enter().probe(KEY);
            assert!(seen.is_none() || seen == Some(entry(1)), "torn: {seen:?}");
        });
        assert!(writer.remove(KEY));
        writer.insert(&Entry { id: LeaseId(9), ..entry(2) }).unwrap();
        other.join().unwrap();
    });
}

/// The reader acts, as a copy of bytes would, while it holds a guard that saw the lease active; the writer checks
/// that nobody acts once it has revoked and waited.
fn acts_only_while_not_answered(act: impl Fn(&Table, &AtomicBool, &AtomicBool) + Copy + Send + Sync + 'static) {
    explore(move || {
        let (table, mut writer) = Table::new(1);
        writer.insert(&entry(1)).unwrap();
        let (acting, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let other = {
            let (table, acting, answered) = (table.clone(), acting.clone(), answered.clone());
            thread::spawn(move || act(&table, &acting, &answered))
        };
        assert!(writer.update(&Entry { state: State::Revoked, ..entry(1) }));
        writer.quiesce();
        assert!(!acting.load(Ordering::Relaxed), "served after the wait");
        answered.store(true, Ordering::Relaxed);
        other.join().unwrap();
    });
}

#[test]
fn no_access_is_served_after_a_revocation_was_answered() {
    acts_only_while_not_answered(|table, acting, answered| {
        let mut reader = table.reader();
        let guard = reader.enter();
        if guard.probe(KEY).unwrap().state == State::Active {
            acting.store(true, Ordering::Relaxed);
            assert!(!answered.load(Ordering::Relaxed), "served after the answer");
            acting.store(false, Ordering::Relaxed);
        }
    });
}

#[test]
fn an_access_that_is_held_is_waited_for_too() {
    acts_only_while_not_answered(|table, acting, answered| {
        let held = table.reader().hold();
        if held.probe(KEY).unwrap().state == State::Active {
            acting.store(true, Ordering::Relaxed);
            assert!(!answered.load(Ordering::Relaxed), "served after the answer");
            acting.store(false, Ordering::Relaxed);
        }
        drop(held.end());
    });
}

#[test]
fn a_second_guard_of_one_reader_sees_the_revocation_or_is_waited_for() {
    acts_only_while_not_answered(|table, acting, answered| {
        let mut reader = table.reader();
        drop(reader.enter());
        let guard = reader.enter();
        if guard.probe(KEY).unwrap().state == State::Active {
            acting.store(true, Ordering::Relaxed);
            assert!(!answered.load(Ordering::Relaxed), "served after the answer");
            acting.store(false, Ordering::Relaxed);
        }
    });
}
