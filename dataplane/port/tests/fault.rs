//! Every fault does what it says, at the rate it says, and is counted exactly.

mod common;

use std::{collections::HashMap, time::Duration};

use berth_port::{BURST, Fault, FaultSpec, Faults, Loopback, Port, Verdict};
use common::{A, B, Virtual, counter, number, number_of, pair};

const FRAMES: u64 = 100_000;
const STEP: Duration = Duration::from_micros(10);

/// What arrived: contents of each frame and its time in microseconds.
type Arrivals = Vec<(u64, u64)>;
type Faulty = Fault<Loopback, Virtual>;

/// The way of frames through the faulty port.
#[derive(Debug, Clone, Copy)]
enum Way {
    /// Received by it.
    In,
    /// Posted by it.
    Out,
    /// Received and answered by it.
    Echo,
}

/// Sends numbered frames, one burst every 10 us, and waits for all that are held.
fn pass(way: Way, spec: FaultSpec, frames: u64) -> (Arrivals, Faulty) {
    let clock = Virtual::default();
    let (mut peer, port) = pair(2048);
    let mut port = Fault::new(port, spec, clock.clone());
    let (mut arrived, mut sent, mut elapsed, mut last_frame) = (Vec::new(), 0, 0, 0);
    while elapsed < last_frame + 10_000 {
        for _ in 0..(BURST as u64).min(frames - sent) {
            match way {
                Way::Out => port.post(A.into(), number(sent)).unwrap(),
                Way::In | Way::Echo => peer.post(B.into(), number(sent)).unwrap(),
            }
            sent += 1;
            last_frame = elapsed;
        }
        peer.tx();
        loop {
            let received = port.rx(|frame| match way {
                Way::In => {
                    arrived.push((number_of(frame.data()), elapsed));
                    Verdict::Drop
                }
                Way::Echo => Verdict::Reply,
                Way::Out => unreachable!("nobody sends to it"),
            });
            port.tx();
            while peer.rx(|frame| {
                arrived.push((number_of(frame.data()), elapsed));
                Verdict::Drop
            }) > 0
            {}
            if received == 0 {
                break;
            }
        }
        clock.advance(STEP);
        elapsed += STEP.as_micros() as u64;
    }
    (arrived, port)
}

/// Runs a check for received and for posted frames; it gets the arrivals, and that direction's counters by name.
fn both_ways(faults: Faults, check: impl Fn(&Arrivals, &dyn Fn(&str) -> u64)) {
    let (arrived, port) = pass(Way::In, FaultSpec { seed: 1, rx: faults, ..FaultSpec::default() }, FRAMES);
    check(&arrived, &|name| counter(&port, &format!("fault_rx_{name}")));
    let (arrived, port) = pass(Way::Out, FaultSpec { seed: 1, tx: faults, ..FaultSpec::default() }, FRAMES);
    check(&arrived, &|name| counter(&port, &format!("fault_tx_{name}")));
    // Answers are sent frames too, but they meet the faults on another path.
    let (arrived, port) = pass(Way::Echo, FaultSpec { seed: 1, tx: faults, ..FaultSpec::default() }, FRAMES);
    check(&arrived, &|name| counter(&port, &format!("fault_tx_{name}")));
}

/// Whether `count` is within five standard deviations of a tenth of all frames.
fn about_a_tenth(count: u64) -> bool {
    count.abs_diff(FRAMES / 10) < 475
}

#[test]
fn without_faults_every_frame_passes_in_order() {
    both_ways(Faults::default(), |arrived, _| {
        assert!(arrived.iter().map(|(number, _)| *number).eq(0..FRAMES));
    });
}

#[test]
fn dropped_frames_are_missing_and_counted() {
    both_ways(Faults { drop: 0.1, ..Faults::default() }, |arrived, counter| {
        assert!(about_a_tenth(counter("dropped")), "{}", counter("dropped"));
        assert_eq!(arrived.len() as u64, FRAMES - counter("dropped"));
        assert!(arrived.is_sorted_by(|a, b| a.0 < b.0));
    });
}

#[test]
fn duplicated_frames_arrive_twice_and_are_counted() {
    both_ways(Faults { duplicate: 0.1, ..Faults::default() }, |arrived, counter| {
        let mut times = HashMap::new();
        for (number, _) in arrived {
            *times.entry(number).or_insert(0) += 1;
        }
        assert_eq!(times.len() as u64, FRAMES);
        assert!(times.values().all(|times| *times <= 2));
        assert!(about_a_tenth(counter("duplicated")));
        assert_eq!(times.values().filter(|times| **times == 2).count() as u64, counter("duplicated"));
        assert_eq!((counter("pool_full"), counter("released")), (0, counter("held")));
    });
}

#[test]
fn corrupted_frames_differ_in_one_bit_and_are_counted() {
    both_ways(Faults { corrupt: 0.1, ..Faults::default() }, |arrived, counter| {
        assert_eq!(arrived.len() as u64, FRAMES);
        let flipped: Vec<_> = (0..).zip(arrived).map(|(sent, (got, _))| (sent ^ got).count_ones()).collect();
        assert!(flipped.iter().all(|bits| *bits <= 1));
        assert!(about_a_tenth(counter("corrupted")));
        assert_eq!(flipped.iter().sum::<u32>() as u64, counter("corrupted"));
        let mut bits = [false; 64];
        (0..).zip(arrived).filter(|(sent, (got, _))| sent != got).for_each(|(sent, (got, _))| {
            bits[(sent ^ got).trailing_zeros() as usize] = true;
        });
        assert_eq!(bits, [true; 64], "every bit is hit");
    });
}

#[test]
fn delayed_frames_arrive_within_their_range_and_are_counted() {
    both_ways(Faults { delay: 0.1, delay_us: [100, 200], ..Faults::default() }, |arrived, counter| {
        assert_eq!(arrived.len() as u64, FRAMES);
        let mut delayed = 0;
        for (number, arrival) in arrived {
            let sent = number / BURST as u64 * STEP.as_micros() as u64;
            let late = arrival - sent;
            assert!(late == 0 || (100..=210).contains(&late), "frame {number} took {late} us");
            delayed += u64::from(late > 0);
        }
        assert!(about_a_tenth(counter("delayed")));
        assert_eq!((delayed, counter("pool_full")), (counter("delayed"), 0));
    });
}

#[test]
fn reordered_frames_arrive_after_later_ones_and_are_counted() {
    both_ways(Faults { reorder: 0.1, ..Faults::default() }, |arrived, counter| {
        let (mut highest, mut overtaken) = (0, 0);
        for (number, _) in arrived {
            overtaken += u64::from(*number < highest);
            highest = highest.max(*number);
        }
        assert!(about_a_tenth(counter("reordered")));
        assert_eq!(overtaken, counter("reordered"));
        let mut numbers: Vec<_> = arrived.iter().map(|(number, _)| *number).collect();
        numbers.sort_unstable();
        assert!(numbers.into_iter().eq(0..FRAMES));
    });
}

#[test]
fn a_frame_that_nothing_overtakes_goes_on_after_a_millisecond_uncounted() {
    let rx = Faults { reorder: 1.0, ..Faults::default() };
    let (arrived, port) = pass(Way::In, FaultSpec { rx, ..FaultSpec::default() }, 3);
    assert_eq!(arrived, [(0, 1000), (1, 1000), (2, 1000)]);
    assert_eq!((counter(&port, "fault_rx_reordered"), counter(&port, "fault_rx_released")), (0, 3));
}

#[test]
fn beyond_the_pool_frames_pass_at_once_and_are_counted() {
    let rx = Faults { delay: 1.0, delay_us: [1000, 1000], ..Faults::default() };
    let (arrived, port) = pass(Way::In, FaultSpec { rx, ..FaultSpec::default() }, 1000);
    let late = arrived.iter().filter(|(number, at)| *at >= number / 32 * 10 + 1000).count();
    assert_eq!((arrived.len(), late), (1000, 256));
    assert_eq!((counter(&port, "fault_rx_delayed"), counter(&port, "fault_rx_pool_full")), (256, 744));
}

fn everything(seed: u64) -> FaultSpec {
    let faults = Faults { drop: 0.02, corrupt: 0.03, duplicate: 0.04, delay: 0.05, delay_us: [0, 50], reorder: 0.06 };
    FaultSpec { seed, rx: faults, tx: Faults { drop: 0.01, ..faults } }
}

#[test]
fn all_faults_together_add_up() {
    let (arrived, port) = pass(Way::Echo, everything(3), FRAMES);
    let counter = |name: &str| counter(&port, name);
    let handled = FRAMES - counter("fault_rx_dropped") + counter("fault_rx_duplicated");
    let answered = handled - counter("fault_tx_dropped") + counter("fault_tx_duplicated");
    assert_eq!(arrived.len() as u64, answered);
    assert_eq!((counter("fault_tx_refused"), counter("fault_rx_pool_full"), counter("fault_tx_pool_full")), (0, 0, 0));
    for name in ["dropped", "corrupted", "duplicated", "delayed", "reordered"] {
        assert!(counter(&format!("fault_rx_{name}")) > 0 && counter(&format!("fault_tx_{name}")) > 0, "{name}");
    }
    for way in ["rx", "tx"] {
        assert_eq!(counter(&format!("fault_{way}_held")), counter(&format!("fault_{way}_released")));
    }
}

#[test]
fn a_seed_reproduces_a_run_and_another_does_not() {
    for way in [Way::In, Way::Out, Way::Echo] {
        let run = |seed| pass(way, everything(seed), 10_000).0;
        assert_eq!(run(5), run(5));
        assert_ne!(run(5), run(6));
    }
}

#[test]
fn frames_of_a_full_port_wait_for_it_and_are_not_lost() {
    let tx = Faults { duplicate: 1.0, ..Faults::default() };
    let (mut peer, port) = pair(4);
    let mut port = Fault::new(port, FaultSpec { tx, ..FaultSpec::default() }, Virtual::default());
    for i in 0..3 {
        port.post(A.into(), number(i)).unwrap();
    }
    let mut arrived = Vec::new();
    for _ in 0..3 {
        port.tx();
        peer.rx(|frame| {
            arrived.push(number_of(frame.data()));
            Verdict::Drop
        });
    }
    assert_eq!(arrived, [0, 1, 2, 0, 1, 2]);
    assert_eq!((counter(&port, "fault_tx_duplicated"), counter(&port, "fault_tx_refused")), (3, 0));
}
