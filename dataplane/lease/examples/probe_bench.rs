//! What a probe of the lease table costs, as JSON lines: `cargo run --release -p berth-lease --example probe_bench`.
//!
//! The key of each probe depends on the answer to the probe before, and the address of each plain load on the value
//! that the load before read. Both figures are therefore latencies: no overlap of requests can make them look better.
//! The loads hit random lines of an array as large as the table. Probes and loads take turns, so that both see the same
//! noise. A line has the medians over the rounds, and the median of their ratios. `zipf` skews the keys with exponent
//! 0.99; `warm` probes a few leases over and over. Keys are drawn before the clock starts.
//!
//! Argument: number of leases (default 1,000,000).

use std::{hint::black_box, time::Instant};

use berth_lease::{Access, Entry, Generation, LeaseId, LeaseKey, Op, Reader, RegionId, Rights, State, Table, check};
use berth_port::Nanos;
use fastrand::Rng;

/// Probes or loads between two readings of the clock.
const BATCH: usize = 20_000;
const ROUNDS: usize = 51;
/// Leases of the warm case; their lines fit into a first-level cache.
const FEW: usize = 64;
/// Exponent of the skewed case.
const EXPONENT: f64 = 0.99;

fn main() {
    let leases = std::env::args().nth(1).map_or(1_000_000, |text| text.parse().expect("a number of leases"));
    let mut rng = Rng::with_seed(7);
    let (table, mut writer) = Table::new(leases);
    let mut keys = Vec::with_capacity(leases);
    while keys.len() < leases {
        let key = rng.u64(1..);
        if writer.insert(&entry(key)).is_ok() {
            keys.push(key);
        }
    }
    let array: Vec<Line> = (0..leases + leases / 2).map(|_| Line([rng.u64(..); 8])).collect();
    let ranks = cumulative(leases);
    let cases: [(&str, Draw<'_>); 3] = [
        ("uniform", &|rng| keys[rng.usize(..leases)]),
        ("zipf", &|rng| keys[ranks.partition_point(|up_to| *up_to < rng.f64()).min(leases - 1)]),
        ("warm", &|rng| keys[rng.usize(..FEW)]),
    ];
    let mut reader = table.reader();
    for (case, draw) in cases {
        let rounds: Vec<[f64; 3]> = (0..ROUNDS)
            .map(|_| {
                let drawn: Vec<u64> = (0..BATCH).map(|_| draw(&mut rng)).collect();
                let lines: Vec<u64> = (0..BATCH).map(|_| rng.u64(..array.len() as u64)).collect();
                [probes(&mut reader, &drawn), loads(&array, &lines), checks(&mut reader, &drawn)]
            })
            .collect();
        let [probe, load, check] = [0, 1, 2].map(|which| median(rounds.iter().map(|round| round[which])));
        let ratio = median(rounds.iter().map(|[probe, load, _]| probe / load));
        println!(
            "{{\"case\": \"{case}\", \"leases\": {leases}, \"probe_ns\": {probe:.2}, \"load_ns\": {load:.2}, \
             \"probe_to_load\": {ratio:.3}, \"probe_and_check_ns\": {check:.2}}}"
        );
    }
    println!("{{\"case\": \"guard\", \"enter_and_drop_ns\": {:.2}}}", median((0..ROUNDS).map(|_| guards(&mut reader))));
}

/// Draws a key.
type Draw<'a> = &'a dyn Fn(&mut Rng) -> u64;

/// A cache line of the plain array.
#[repr(align(64))]
struct Line([u64; 8]);

fn entry(key: u64) -> Entry {
    Entry {
        id: LeaseId(u128::from(key)),
        generation: Generation::FIRST,
        rights: Rights::ALL,
        region: RegionId(0),
        base: 0,
        len: 1 << 20,
        first: 0,
        max_io: 1 << 20,
        expires: Nanos(u64::MAX),
        state: State::Active,
    }
}

/// Cumulative probabilities of the ranks of a Zipf distribution.
fn cumulative(ranks: usize) -> Vec<f64> {
    let mut sum = 0.0;
    let mut sums: Vec<f64> = (1..=ranks)
        .map(|rank| {
            sum += (rank as f64).powf(-EXPONENT);
            sum
        })
        .collect();
    for up_to in &mut sums {
        *up_to /= sum;
    }
    sums
}

/// Nanoseconds per step, for `count` steps. Each step gets the answer of the one before, times zero.
fn timed(drawn: &[u64], mut step: impl FnMut(u64) -> u64) -> f64 {
    let (zero, mut last) = (black_box(0), 0);
    let start = Instant::now();
    for number in drawn {
        last = step(number ^ (last & zero));
    }
    black_box(last);
    start.elapsed().as_nanos() as f64 / drawn.len() as f64
}

fn probes(reader: &mut Reader, keys: &[u64]) -> f64 {
    let guard = reader.enter();
    timed(keys, |key| guard.probe(LeaseKey(key)).map_or(0, |entry| entry.len))
}

fn loads(array: &[Line], lines: &[u64]) -> f64 {
    timed(lines, |line| array[line as usize].0[3])
}

fn checks(reader: &mut Reader, keys: &[u64]) -> f64 {
    let guard = reader.enter();
    timed(keys, |key| {
        let generation = Some(Generation::FIRST);
        let access =
            Access { op: Op::Read, key: LeaseKey(key), generation, offset: key % 4096, len: 64, well_formed: true };
        check(guard.probe(access.key).as_ref(), &access, Nanos(1)).map_or(0, |span| span.at)
    })
}

fn guards(reader: &mut Reader) -> f64 {
    let start = Instant::now();
    for _ in 0..BATCH {
        black_box(reader.enter());
    }
    start.elapsed().as_nanos() as f64 / BATCH as f64
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
