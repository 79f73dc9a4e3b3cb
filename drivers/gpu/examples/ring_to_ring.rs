//! How long `rpc_increment` of 32 bytes takes on the software device, from the request in a ring to its answer there:
//! `cargo run --release -p berth-gpu --example ring_to_ring` prints a line of JSON for one at a time, in microseconds, and
//! one for as many as there are slots. Hiccups are times that its own loop did not run for over 100 us.

#[path = "../tests/common/mod.rs"]
mod common;

use std::time::{Duration, Instant};

use berth_gpu::Functions;
use berth_port::Nanos;
use common::{On, Rig, WORKER, increment};
use serde_json::json;

const ID: u32 = 0x191B_6322;
const SLOTS: u32 = 64;
const COUNT: u32 = 30_000;
/// Of as many as there are slots.
const ROUNDS: usize = 5;

/// Counts the times that nobody looked for over 100 us.
struct Loop {
    last: Instant,
    hiccups: u32,
}

impl Loop {
    fn new() -> Self {
        Self { last: Instant::now(), hiccups: 0 }
    }

    fn turn(&mut self) {
        let now = Instant::now();
        self.hiccups += u32::from(now - self.last > Duration::from_micros(100));
        self.last = now;
    }
}

fn main() {
    if std::env::var_os(WORKER).is_some() {
        berth_gpu::worker::main();
    }
    let mut rig = Rig::new(On::Soft, 0, SLOTS, 256, 1);
    assert_eq!(rig.load(&Functions { all: vec![increment(ID)], modules: vec![], lost: false }), "loaded");
    let args = [7; 32];
    let mut times = Vec::new();
    let mut turns = Loop::new();
    for id in 0..COUNT {
        let began = Instant::now();
        rig.push(ID, id, &args);
        let mut found = false;
        while !found {
            turns.turn();
            rig.producer.tell_time(Nanos(1));
            found = rig.producer.collect(1, |_, answer| assert_eq!(answer.unwrap()[24..56], [8; 32])) == 1;
        }
        times.push(began.elapsed());
    }
    times.sort_unstable();
    let at = |share: f64| times[(times.len() as f64 * share) as usize].as_nanos() as f64 / 1e3;
    let (p50, p99, p99_9) = (at(0.5), at(0.99), at(0.999));
    println!("{}", json!({ "count": COUNT, "p50": p50, "p99": p99, "p99_9": p99_9, "hiccups": turns.hiccups }));

    let (mut turns, mut rates) = (Loop::new(), Vec::new());
    for _ in 0..ROUNDS {
        let (began, mut sent, mut taken) = (Instant::now(), 0, 0);
        while taken < COUNT {
            turns.turn();
            if sent < COUNT && rig.producer.can_push() {
                rig.push(ID, sent, &args);
                sent += 1;
            }
            let right = |_, answer: Result<&[u8], _>| assert_eq!(answer.unwrap()[24..56], [8; 32]);
            taken += rig.producer.collect(SLOTS as usize, right) as u32;
        }
        rates.push(f64::from(COUNT) / began.elapsed().as_secs_f64());
    }
    println!("{}", json!({ "count": COUNT as usize * ROUNDS, "per_s": rates, "hiccups": turns.hiccups }));
}
