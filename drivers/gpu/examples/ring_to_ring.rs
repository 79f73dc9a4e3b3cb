//! How long a function of 32 bytes takes on a GPU, from the request in a ring to its answer there:
//! `cargo run --release -p berth-gpu --example ring_to_ring -- DEVICE MODE COUNT BLOCKS`.
//!
//! DEVICE is `soft`, `auto`, or what else `[[gpu]]` takes. MODE is `one`: `rpc_increment`, one at a time; `graph`: a kernel that is
//! launched for each request, one at a time; or `open`: `rpc_increment`, as many at a time as there are slots. Prints a line of JSON:
//! percentiles in microseconds, or answers a second. Every answer is compared. Hiccups are times that its own loop did not run for over
//! 100 us.

mod measure;

use std::{env, time::Instant};

use berth_gpu::{Function, Functions};
use berth_port::Nanos;
use measure::{HEADER, Loop, Rig, be_worker, increment, merged, module, percentiles, serve, symbol};
use serde_json::{Value, json};

const ID: u32 = 0x191B_6322;
const SLOTS: u32 = 64;
const LEN: usize = 32;

fn main() {
    be_worker();
    let arguments: Vec<_> = env::args().skip(1).collect();
    let [device, mode, count, blocks] = &arguments[..] else { panic!("DEVICE MODE COUNT BLOCKS") };
    let (count, blocks) = (count.parse().expect("COUNT"), blocks.parse().expect("BLOCKS"));
    let args: [u8; LEN] = std::array::from_fn(|at| at as u8);
    let (functions, wanted) = if mode == "graph" {
        let backwards = Function { graph: true, ..symbol(ID, "reverse_graph", true) };
        let text = module(include_str!("../kernels/example.ptx"));
        (Functions { all: vec![backwards], modules: vec![text], lost: false }, args.map(|byte| LEN as u8 - 1 - byte))
    } else {
        (Functions { all: vec![increment(ID)], modules: vec![], lost: false }, args.map(|byte| byte + 1))
    };
    let mut rig = serve(device, [SLOTS, blocks], 256, &functions).unwrap_or_else(|why| panic!("{device}: {why}"));
    let measured = match &**mode {
        "one" | "graph" => one(&mut rig, args, wanted, count),
        "open" => open(&mut rig, args, wanted, count),
        other => panic!("{other} is no MODE"),
    };
    let told = json!({ "mode": mode, "kind": rig.opened["kind"], "device": rig.opened["device"], "count": count });
    println!("{}", merged(told, measured));
}

fn one(rig: &mut Rig, args: [u8; LEN], wanted: [u8; LEN], count: u32) -> Value {
    let (mut times, mut turns) = (Vec::new(), Loop::new());
    for id in 0..count {
        let began = Instant::now();
        rig.push(ID, id, &args);
        let mut found = false;
        while !found {
            turns.turn();
            rig.producer.tell_time(Nanos(1));
            let right = |_, answer: Result<&[u8], _>| assert_eq!(answer.unwrap()[HEADER..][..LEN], wanted);
            found = rig.producer.collect(1, right) == 1;
        }
        times.push(began.elapsed());
    }
    merged(percentiles(times), json!({ "hiccups": turns.hiccups }))
}

fn open(rig: &mut Rig, args: [u8; LEN], wanted: [u8; LEN], count: u32) -> Value {
    let (mut turns, began, mut sent, mut taken) = (Loop::new(), Instant::now(), 0, 0);
    while taken < count {
        turns.turn();
        if sent < count && rig.producer.can_push() {
            rig.push(ID, sent, &args);
            sent += 1;
        }
        let right = |_, answer: Result<&[u8], _>| assert_eq!(answer.unwrap()[HEADER..][..LEN], wanted);
        taken += rig.producer.collect(SLOTS as usize, right) as u32;
    }
    json!({ "per_s": f64::from(count) / began.elapsed().as_secs_f64(), "hiccups": turns.hiccups })
}
