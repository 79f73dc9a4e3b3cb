//! Leases, table and arena under random ops of several holders, accesses that take their time, failed teardowns and
//! crashes, in virtual time and by seed.
//!
//! What must hold: at most one holder of a byte at a time; new bytes are zero, old ones are what their holder wrote;
//! no access after a revocation was answered; nothing that ended comes back, not even by a restart.
//!
//! `BERTH_SIM_SEEDS` says how many seeds are run (2,000), `BERTH_SIM_SEED` runs a single one.
#![cfg(not(loom))]

mod access;
#[path = "../common/mod.rs"]
mod common;
mod ops;
mod sim;

use sim::{Counts, Sim};

/// Says how to run a seed again when it fails.
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
