//! A whole node in virtual time. Clients talk to it over a network that loses, copies and reorders; some are hostile or
//! greedy, and some lose their key. The journal takes its time and is cut by crashes, the disk loses what was not
//! flushed with the power, and an oracle knows what may happen.
//!
//! `BERTH_SIM_SEEDS=10000 cargo test --release -p berth-fabric --test simulation` runs more seeds;
//! `BERTH_SIM_SEED=<n>` replays one and prints what happens.

#![allow(unreachable_pub)] // its modules are nobody else's

mod access;
mod client;
mod connections;
mod execute;
mod journal;
mod keys;
mod oracle;
mod stores;
mod work;
mod world;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::{AtomicU64, Ordering},
};

/// Number of seeds unless the environment says otherwise.
const SEEDS: u64 = 200;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|value| value.parse().ok())
}

/// A byte has at most one holder at a time, no access is served after a revocation was answered, no ended lease comes
/// back, nothing is executed twice, and nothing that was answered is lost. No byte of an earlier lease is read from a
/// new one. Whatever some do, operations of others are answered in time, and nobody's handles are refused because of
/// what others have. What the holder of a revoked key had has ended for good, and a removed key is not served again.
#[test]
fn invariants_hold_for_every_seed() {
    if let Some(seed) = number("BERTH_SIM_SEED") {
        let summary = world::run(seed, true);
        println!("{summary:?}");
        return;
    }
    let seeds = number("BERTH_SIM_SEEDS").unwrap_or(SEEDS);
    let next = AtomicU64::new(0);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let totals = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|_| {
                scope.spawn(|| {
                    let mut total = world::Summary::default();
                    loop {
                        let seed = next.fetch_add(1, Ordering::Relaxed);
                        if seed >= seeds {
                            return total;
                        }
                        let run = catch_unwind(AssertUnwindSafe(|| world::run(seed, false)));
                        let Ok(summary) = run else {
                            panic!(
                                "seed {seed} failed; replay it with BERTH_SIM_SEED={seed} cargo test -p berth-fabric \
                                 --test simulation -- --nocapture"
                            );
                        };
                        total.add(&summary);
                    }
                })
            })
            .collect();
        let mut totals = world::Summary::default();
        for worker in workers {
            match worker.join() {
                Ok(total) => totals.add(&total),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        totals
    });
    println!("{seeds} seeds: {totals:?}");
    // A simulation in which nothing happens proves nothing.
    assert!(totals.grants >= seeds && totals.served >= 5 * seeds && totals.refused >= seeds, "{totals:?}");
    assert!(totals.restarts >= seeds / 2 && totals.revocations * 10 >= seeds && totals.relocations * 20 >= seeds);
    assert!(totals.outages * 4 >= seeds && totals.stopped * 20 >= seeds && totals.hoarded >= seeds, "{totals:?}");
    assert!(
        totals.over_quota >= seeds && totals.keys_revoked >= seeds && totals.keys_listed * 20 >= seeds,
        "{totals:?}"
    );
    assert!(totals.binds >= seeds && totals.remote >= seeds && totals.slow_teardowns * 2 >= seeds, "{totals:?}");
    assert!(totals.bound_crashes * 10 >= seeds && totals.ending_crashes * 100 >= seeds, "{totals:?}");
    assert!(totals.keys_removed * 20 >= seeds && totals.detached * 20 >= seeds, "{totals:?}");
}
