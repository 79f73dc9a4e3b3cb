//! Leases, table and arena under random operations of several holders, accesses that take time, failed teardowns and
//! crashes. Time is virtual, and a seed determines the run.
//!
//! What must hold: a byte has at most one holder at a time; new bytes are zero, old ones are what their holder wrote;
//! no access is served after a revocation was answered; nothing that ended comes back, not even after a restart.
//!
//! `BERTH_SIM_SEEDS` sets the number of seeds (default 2,000); `BERTH_SIM_SEED` runs a single one.
#![cfg(not(loom))]

mod access;
#[path = "../common/mod.rs"]
mod common;
mod ops;
mod sim;

use sim::{Counts, Sim};

/// Prints on failure how to run the seed again.
struct Replay(u64);

impl Drop for Replay {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("replay: BERTH_SIM_SEED={} cargo test -p berth-lease --release --test simulation", self.0);
        }
    }
}

#[test]
fn random_ops_and_crashes_keep_every_promise() {
    let number = |name| std::env::var(name).ok().map(|value| value.parse::<u64>().expect("a number"));
    let seeds = match number("BERTH_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("BERTH_SIM_SEEDS").unwrap_or(2000),
    };
    let single = seeds.clone().count() < 100;
    let mut all = Counts::default();
    for seed in seeds {
        let replay = Replay(seed);
        let counts = Sim::new(seed).run();
        all.granted += counts.granted;
        all.served += counts.served;
        all.revoked_in_use += counts.revoked_in_use;
        all.fenced += counts.fenced;
        all.crashes += counts.crashes;
        all.restored += counts.restored;
        all.moved += counts.moved;
        all.attached += counts.attached;
        all.ended += counts.ended;
        for (refusal, count) in counts.refused {
            *all.refused.entry(refusal).or_default() += count;
        }
        drop(replay);
    }
    println!("{all:?}");
    let Counts { granted, served, ref refused, revoked_in_use, fenced, crashes, restored, moved, attached, ended } =
        all;
    let happened = [granted, served, revoked_in_use, fenced, crashes, restored, moved, attached, ended];
    assert!(single || happened.iter().all(|count| *count > 50) && refused.len() == 7, "too little happened: {all:?}");
}
