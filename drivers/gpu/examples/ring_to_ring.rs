//! How long `rpc_increment` of 32 bytes takes on the software device, from the request in a ring to its answer there:
//! `cargo run --release -p berth-gpu --example ring_to_ring`.

#[path = "../tests/common/mod.rs"]
mod common;

use std::time::Instant;

use berth_gpu::Functions;
use berth_port::Nanos;
use common::{Rig, increment};

const ID: u32 = 0x191B_6322;

fn main() {
    let mut rig = Rig::new(0, 64, 256, 1);
    assert_eq!(rig.load(&Functions { all: vec![increment(ID)], modules: vec![] }), "loaded");
    let args = [7; 32];
    let mut times = Vec::new();
    for id in 0..30_000 {
        let began = Instant::now();
        rig.push(ID, id, &args);
        let mut found = false;
        while !found {
            rig.producer.tell_time(Nanos(1));
            found = rig.producer.collect(1, |_, answer| assert_eq!(answer.unwrap()[24..56], [8; 32])) == 1;
        }
        times.push(began.elapsed());
    }
    times.sort_unstable();
    let at = |share: f64| times[(times.len() as f64 * share) as usize].as_nanos() as f64 / 1e3;
    println!("one at a time, us: p50 {:.1}, p90 {:.1}, p99 {:.1}", at(0.5), at(0.9), at(0.99));

    let (count, began) = (30_000, Instant::now());
    let (mut sent, mut taken) = (0, 0);
    while taken < count {
        if sent < count && rig.producer.can_push() {
            rig.push(ID, sent, &args);
            sent += 1;
        }
        taken += rig.producer.collect(64, |_, _| ()) as u32;
    }
    println!("64 at a time: {:.0} requests/s", f64::from(count) / began.elapsed().as_secs_f64());
}
