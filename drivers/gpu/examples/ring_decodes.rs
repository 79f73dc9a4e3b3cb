//! How fast `relay_bp` decodes on a GPU, from the request in a ring to its answer there, and on a core of this host:
//! `cargo run --release -p berth-gpu --example ring_decodes -- DEVICE MODE AMOUNT MODEL EVENTS`.
//!
//! DEVICE is as of `[[gpu]]`, MODEL a detector error model, EVENTS a file of shots of it in Stim's b8 format, of which those with
//! events are taken. MODE is `one`: AMOUNT shots, one at a time, and percentiles in microseconds; or how many requests lie in the ring at
//! once for AMOUNT milliseconds, and shots a second. Every answer is compared with the CPU's. Prints a line of JSON with both.

mod measure;

use std::{
    env, fs,
    hint::black_box,
    sync::Arc,
    time::{Duration, Instant},
};

use berth_gpu::{Function, Functions, Module};
use berth_port::Nanos;
use berth_qec::{Algorithm, Decoder, Tables, dem::DetectorErrorModel, gpu, relay::RelayBp};
use berth_ring::TxError;
use measure::{HEADER, Loop, Rig, be_worker, merged, percentiles, serve, symbol};
use serde_json::{Value, json};

const ID: u32 = 0x0BAD_C0DE;
const SLOT_SIZE: usize = 256;
/// A status of `qec_decode`.
const NO_SOLUTION: i32 = 1;
/// The most blocks that serve a ring.
const BLOCKS: u32 = 256;

/// Shots as requests, each with what the CPU answers: a status, and flips.
struct Shots {
    tables: Arc<Tables>,
    all: Vec<(Vec<u8>, i32, Vec<u8>)>,
}

fn main() {
    be_worker();
    let arguments: Vec<_> = env::args().skip(1).collect();
    let [device, mode, amount, model, events] = &arguments[..] else { panic!("DEVICE MODE AMOUNT MODEL EVENTS") };
    let amount = amount.parse().expect("AMOUNT");
    let shots = Shots::read(model, events);
    let (told, measured) = match &**mode {
        "one" => {
            let mut rig = shots.serve(device, [64, 1]).unwrap_or_else(|why| panic!("{device}: {why}"));
            let measured = merged(one(&mut rig, &shots, amount), json!({ "cpu": cpu_one(&shots, amount) }));
            (rig.opened.clone(), measured)
        }
        at_once => {
            let (mut rig, blocks) = crowd(device, at_once.parse().expect("MODE"), &shots);
            let time = Duration::from_millis(amount as u64);
            let measured = merged(many(&mut rig, &shots, time), json!({ "cpu_per_s": cpu_many(&shots, time) }));
            (rig.opened.clone(), merged(measured, json!({ "blocks": blocks })))
        }
    };
    println!("{}", merged(merged(json!({ "mode": mode }), told), measured));
}

impl Shots {
    fn read(model: &str, events: &str) -> Self {
        let text = fs::read_to_string(model).unwrap_or_else(|e| panic!("{model}: {e}"));
        let parsed = DetectorErrorModel::parse(&text).unwrap_or_else(|e| panic!("{model}: {e}"));
        let tables = Arc::new(Tables::new(&parsed, Algorithm::RelayBp(RelayBp::default())).expect("a decoder"));
        let (detectors, mut decoder) = (tables.num_detectors(), Decoder::new(tables.clone()));
        let read = fs::read(events).unwrap_or_else(|e| panic!("{events}: {e}"));
        let with_events = read.chunks_exact(detectors.div_ceil(8)).filter(|shot| shot.iter().any(|byte| *byte != 0));
        let all = with_events.map(|events| {
            let mut flips = vec![0; tables.num_observables().div_ceil(8)];
            let request = [events, &(detectors as u32).to_le_bytes()].concat();
            match decoder.decode(events, &mut flips) {
                Ok(()) => (request, 0, flips),
                Err(_) => (request, NO_SOLUTION, Vec::new()),
            }
        });
        let all: Vec<_> = all.collect();
        assert!(!all.is_empty(), "{events} has no shot with events");
        Self { tables, all }
    }

    /// A ring of so many slots and blocks.
    fn serve(&self, device: &str, [slots, blocks]: [u32; 2]) -> Result<Rig, String> {
        let text = gpu::module("relay", &self.tables, blocks).expect("it runs on GPUs");
        let modules = [("relay", text), ("the decoders", gpu::DECODERS.to_owned())];
        let modules = modules.map(|(name, text)| Module { name: name.into(), text }).into();
        let function = Function { built_in: true, fixed: 4, ..symbol(ID, "relay", true) };
        serve(device, [slots, blocks], SLOT_SIZE, &Functions { all: vec![function], modules, lost: false })
    }

    /// Bytes of flips.
    fn flips(&self) -> usize {
        self.tables.num_observables().div_ceil(8)
    }

    fn at(&self, nth: usize) -> &(Vec<u8>, i32, Vec<u8>) {
        &self.all[nth % self.all.len()]
    }

    fn push(&self, rig: &mut Rig, nth: usize) {
        rig.push(ID, nth as u32, &self.at(nth).0);
    }

    /// That this is the CPU's answer.
    fn compare(&self, nth: usize, answer: Result<&[u8], TxError>) {
        let (_, status, flips) = self.at(nth);
        let answer = answer.expect("an answer");
        assert_eq!(answer[4..8], status.to_le_bytes(), "shot {nth}: status");
        assert_eq!(answer[HEADER..][..flips.len()], flips[..], "shot {nth}: flips");
    }
}

/// With as many blocks as there is room for.
fn crowd(device: &str, slots: u32, shots: &Shots) -> (Rig, u32) {
    let mut blocks = BLOCKS.min(slots);
    loop {
        match shots.serve(device, [slots, blocks]) {
            Ok(rig) => return (rig, blocks),
            Err(why) if blocks == 1 => panic!("{device}: {why}"),
            Err(why) => eprintln!("{blocks} blocks: {why}"),
        }
        blocks /= 2;
    }
}

fn one(rig: &mut Rig, shots: &Shots, count: usize) -> Value {
    let (mut times, mut turns) = (Vec::new(), Loop::new());
    for nth in 0..count {
        let began = Instant::now();
        shots.push(rig, nth);
        let mut found = false;
        while !found {
            turns.turn();
            rig.producer.tell_time(Nanos(1));
            found = rig.producer.collect(1, |_, answer| shots.compare(nth, answer)) == 1;
        }
        times.push(began.elapsed());
    }
    merged(percentiles(times), json!({ "count": count, "hiccups": turns.hiccups }))
}

fn many(rig: &mut Rig, shots: &Shots, time: Duration) -> Value {
    let (mut turns, began, mut sent, mut taken) = (Loop::new(), Instant::now(), 0, 0);
    while taken < sent || sent == 0 || began.elapsed() < time {
        turns.turn();
        while began.elapsed() < time && rig.producer.can_push() {
            shots.push(rig, sent);
            sent += 1;
        }
        rig.producer.collect(usize::MAX, |_, answer| {
            shots.compare(taken, answer);
            taken += 1;
        });
    }
    json!({ "count": taken, "per_s": taken as f64 / began.elapsed().as_secs_f64(), "hiccups": turns.hiccups })
}

fn decode(decoder: &mut Decoder, shots: &Shots, nth: usize) {
    let request = &shots.at(nth).0;
    let _ = black_box(decoder.decode(black_box(&request[..request.len() - 4]), &mut [0; 8][..shots.flips()]));
}

fn cpu_one(shots: &Shots, count: usize) -> Value {
    let mut decoder = Decoder::new(shots.tables.clone());
    let timed = |nth| {
        let began = Instant::now();
        decode(&mut decoder, shots, nth);
        began.elapsed()
    };
    percentiles((0..count).map(timed).collect())
}

fn cpu_many(shots: &Shots, time: Duration) -> f64 {
    let (mut decoder, began, mut count) = (Decoder::new(shots.tables.clone()), Instant::now(), 0);
    while began.elapsed() < time {
        decode(&mut decoder, shots, count);
        count += 1;
    }
    count as f64 / began.elapsed().as_secs_f64()
}
