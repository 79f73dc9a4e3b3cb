//! The round trip to another core and back: a bare flag in a cache line each way, `rtrb`, our internal ring, and a ring
//! in the host API's layout.
//!
//! `cargo run --release -p berth-ring --example pingpong_bench [ROUNDS [CPU CPU]]`
//!
//! The four take turns in blocks of a few milliseconds, so that all see the same state of the machine. Each round
//! prints one JSON line: the p50 of each in nanoseconds (over groups of 16 round trips, which hides the cost of the
//! clock) and the ratio of ring to bare. The last lines have the medians over the rounds in which the two cores were
//! near each other (bare below 250 ns, as within a socket) and far.

use std::{
    hint::spin_loop,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Instant,
};

use berth_memory::Heap;
use berth_ring::{Dispatcher, Geometry, Producer, Ring, pair};
use core_affinity::CoreId;

/// Number of round trips that are timed together.
const GROUP: usize = 16;
/// Number of groups in a block.
const GROUPS: usize = 500;
/// Number of round trips in a block.
const BLOCK: usize = GROUP * GROUPS;
/// Bare round trips below this, in nanoseconds, are between near cores.
const NEAR_NS: f64 = 250.0;
const SLOTS: u32 = 64;
/// Message size in bytes: a header of 24 and a payload of 32.
const MESSAGE: usize = 56;

type Message = [u8; MESSAGE];

/// A number in a pair of cache lines of its own.
#[repr(align(128))]
#[derive(Default)]
struct Line(AtomicU64);

impl Line {
    fn wait(&self, n: u64) {
        while self.0.load(Ordering::Acquire) != n {
            spin_loop();
        }
    }

    fn set(&self, n: u64) {
        self.0.store(n, Ordering::Release);
    }
}

/// Median of the round trips in nanoseconds.
fn time(mut round_trip: impl FnMut()) -> f64 {
    let mut groups: Vec<f64> = (0..GROUPS)
        .map(|_| {
            let start = Instant::now();
            (0..GROUP).for_each(|_| round_trip());
            start.elapsed().as_nanos() as f64 / GROUP as f64
        })
        .collect();
    median(&mut groups)
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn pop(from: &mut rtrb::Consumer<Message>) -> Message {
    loop {
        match from.pop() {
            Ok(message) => return message,
            Err(_) => spin_loop(),
        }
    }
}

fn ring_round_trip(producer: &mut Producer, request: &Message) {
    let fill = |slot: &mut [u8]| {
        slot[..MESSAGE].copy_from_slice(request);
        MESSAGE
    };
    while producer.push(fill).is_err() {
        spin_loop();
    }
    let mut check = |_, answer: Result<&[u8], _>| assert_eq!(answer.expect("an answer")[24], request[24] + 1);
    while producer.collect(1, &mut check) == 0 {
        spin_loop();
    }
}

fn serve_ring(dispatcher: &mut Dispatcher) {
    let answer = |rx: &[u8], tx: &mut [u8]| {
        tx[..24].copy_from_slice(&rx[..24]);
        for (answer, request) in tx[24..MESSAGE].iter_mut().zip(&rx[24..MESSAGE]) {
            *answer = request.wrapping_add(1);
        }
        Ok(MESSAGE)
    };
    while dispatcher.poll(1, answer) == 0 {
        spin_loop();
    }
}

fn main() {
    let args: Vec<usize> = std::env::args().skip(1).map(|arg| arg.parse().expect("numbers only")).collect();
    let rounds = args.first().copied().unwrap_or(200);
    let (cpu, peer_cpu) = if let [_, a, b] = args[..] { (a, b) } else { (0, 1) };

    let lines = Arc::new([Line::default(), Line::default()]);
    let (mut rtrb_out, mut rtrb_request) = rtrb::RingBuffer::<Message>::new(SLOTS as usize);
    let (mut rtrb_answer, mut rtrb_in) = rtrb::RingBuffer::<Message>::new(SLOTS as usize);
    let (mut producer, mut dispatcher) = pair(SLOTS, MESSAGE).expect("a valid geometry");
    let geometry = Geometry::new(SLOTS, 64).expect("a valid geometry");
    let mut ring = Ring::new(Heap::new(geometry.size()), geometry).expect("a region that fits");
    let (mut abi_producer, mut abi_dispatcher) = (ring.producer().expect("free"), ring.dispatcher().expect("free"));

    let peer_lines = lines.clone();
    let peer = thread::spawn(move || {
        assert!(core_affinity::set_for_current(CoreId { id: peer_cpu }), "cannot pin to CPU {peer_cpu}");
        let [request, answer] = &*peer_lines;
        for round in 0..rounds {
            for i in 1..=BLOCK {
                let n = (round * BLOCK + i) as u64;
                request.wait(n);
                answer.set(n);
            }
            for _ in 0..BLOCK {
                let mut message = pop(&mut rtrb_request);
                message[24..].iter_mut().for_each(|byte| *byte = byte.wrapping_add(1));
                rtrb_answer.push(message).expect("one message at a time");
            }
            for dispatcher in [&mut dispatcher, &mut abi_dispatcher] {
                for _ in 0..BLOCK {
                    serve_ring(dispatcher);
                }
            }
        }
        dispatcher.stats()
    });
    assert!(core_affinity::set_for_current(CoreId { id: cpu }), "cannot pin to CPU {cpu}");

    let [request, answer] = &*lines;
    let message = [7; MESSAGE];
    let mut n = 0;
    let mut results = Vec::new();
    for round in 0..rounds {
        let bare = time(|| {
            n += 1;
            request.set(n);
            answer.wait(n);
        });
        let rtrb = time(|| {
            rtrb_out.push(message).expect("one message at a time");
            assert_eq!(pop(&mut rtrb_in)[24], message[24] + 1);
        });
        let ring = time(|| ring_round_trip(&mut producer, &message));
        let abi = time(|| ring_round_trip(&mut abi_producer, &message));
        let result = [bare, rtrb, ring, abi, ring / bare];
        println!(r#"{{"round":{round},{}}}"#, figures(result));
        results.push(result);
    }
    let served = peer.join().expect("the peer finished");
    let round_trips = (rounds * BLOCK) as u64;
    assert_eq!((served.dispatched, producer.stats().collected), (round_trips, round_trips));
    let (near, far): (Vec<_>, Vec<_>) = results.into_iter().partition(|[bare, ..]| *bare < NEAR_NS);
    for (cores, results) in [("near", near), ("far", far)] {
        if !results.is_empty() {
            let p50 = |column: usize| median(&mut results.iter().map(|result| result[column]).collect::<Vec<_>>());
            println!(r#"{{"cores":"{cores}","rounds":{},{}}}"#, results.len(), figures([0, 1, 2, 3, 4].map(p50)));
        }
    }
}

fn figures([bare, rtrb, ring, abi, ratio]: [f64; 5]) -> String {
    format!(
        r#""bare_ns":{bare:.1},"rtrb_ns":{rtrb:.1},"ring_ns":{ring:.1},"abi_ns":{abi:.1},"ring_to_bare":{ratio:.3}"#
    )
}
