//! Copies out of memory that others write, compared with `copy_from_slice`, in nanoseconds. Prints one JSON line per
//! size.
//!
//! `cargo run --release -p berth-pages --example memory_bench`

use std::{hint::black_box, time::Instant};

use berth_memory::Memory as _;
use berth_pages::{Backing, Pages};

const REGION: usize = 64 << 20;

fn main() {
    let memory = Pages::new(REGION as u64, &Backing::Ordinary, None).expect("64 MiB of memory");
    let plain = vec![1u8; REGION];
    let mut into = vec![0u8; 64 << 10];
    for len in [64, 512, 4096, 65536] {
        let rounds = (4 << 20) / len;
        let mut best = [f64::MAX; 2];
        // The two take turns, so that both see the same machine.
        for _ in 0..50 {
            for (contestant, best) in best.iter_mut().enumerate() {
                let start = Instant::now();
                for round in 0..rounds {
                    let at = (round * len * 7) % (REGION - len);
                    let into = black_box(&mut into[..len]);
                    if contestant == 0 {
                        memory.read_at(at, into);
                    } else {
                        into.copy_from_slice(&plain[at..at + len]);
                    }
                }
                *best = best.min(start.elapsed().as_nanos() as f64 / rounds as f64);
            }
        }
        let [region, slice] = best;
        println!(r#"{{"bytes":{len},"region_ns":{region:.1},"slice_ns":{slice:.1},"ratio":{:.2}}}"#, region / slice);
    }
}
