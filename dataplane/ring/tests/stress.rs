//! Many messages between two threads, and random schedules against a model.

use std::{collections::VecDeque, thread};

use berth_memory::Heap;
use berth_ring::{Dispatcher, ErrorCode, Geometry, Overrun, Producer, Ring, SlotIndex, TxError, pair};
use proptest::prelude::*;

fn roles(is_internal: bool, slots: u32, slot_size: usize) -> (Producer, Dispatcher) {
    if is_internal {
        return pair(slots, slot_size).unwrap();
    }
    let geometry = Geometry::new(slots, slot_size).unwrap();
    let mut ring = Ring::new(Heap::new(geometry.size()), geometry).unwrap();
    (ring.producer().unwrap(), ring.dispatcher().unwrap())
}

/// Bytes that differ from message to message, over 80 bytes, more than a cache line.
fn fill(slot: &mut [u8], n: u64) -> usize {
    for (i, word) in slot.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&n.wrapping_mul(i as u64 * 2 + 1).to_le_bytes());
    }
    slot.len()
}

fn is_filled(slot: &[u8], n: u64) -> bool {
    slot.chunks_exact(8).enumerate().all(|(i, word)| word == n.wrapping_mul(i as u64 * 2 + 1).to_le_bytes())
}

#[test]
fn a_million_messages_cross_two_threads_whole_and_in_order() {
    cross(false);
}

#[test]
fn a_million_messages_cross_an_internal_ring_whole_and_in_order() {
    cross(true);
}

fn cross(is_internal: bool) {
    const COUNT: u64 = 1_000_000;
    let (mut producer, mut dispatcher) = roles(is_internal, 7, 80);
    let worker = thread::spawn(move || {
        let mut served = 0;
        while served < COUNT {
            let before = served;
            dispatcher.poll(5, |rx, tx| {
                assert!(is_filled(rx, served), "request {served}");
                let len = fill(tx, !served);
                served += 1;
                if served % 1000 == 0 { Err(ErrorCode::FIRST_FREE) } else { Ok(len) }
            });
            if served == before {
                thread::yield_now();
            }
        }
        dispatcher.stats()
    });
    let (mut sent, mut taken) = (0, 0);
    while taken < COUNT {
        let before = sent + taken;
        while sent < COUNT && producer.can_push() {
            producer.push(|slot| fill(slot, sent)).unwrap();
            sent += 1;
        }
        producer.collect(usize::MAX, |slot, answer| {
            assert_eq!(slot, SlotIndex((taken % 7) as u32));
            match answer {
                Ok(bytes) => assert!(is_filled(bytes, !taken), "answer {taken}"),
                Err(error) => {
                    assert_eq!((error, taken % 1000), (TxError::Tagged(ErrorCode::FIRST_FREE), 999));
                }
            }
            taken += 1;
        });
        if sent + taken == before {
            thread::yield_now();
        }
    }
    let (p, d) = (producer.stats(), worker.join().unwrap());
    assert_eq!(d, berth_ring::DispatcherStats { dispatched: COUNT, errors: COUNT / 1000, ..Default::default() });
    assert_eq!(
        p,
        berth_ring::ProducerStats { pushed: COUNT, collected: COUNT, errors: COUNT / 1000, ..Default::default() }
    );
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Push,
    Poll(usize),
    Collect(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![Just(Step::Push), (0..4_usize).prop_map(Step::Poll), (0..4_usize).prop_map(Step::Collect)]
}

proptest! {
    /// Any schedule of the two roles behaves like two queues with a bounded total length.
    #[test]
    fn behaves_like_queues(is_internal: bool, slots in 1..6_u32, steps in prop::collection::vec(step(), 0..200)) {
        let (mut producer, mut dispatcher) = roles(is_internal, slots, 24);
        let (mut requests, mut answers) = (VecDeque::new(), VecDeque::new());
        let (mut next, mut overruns) = (0_u64, 0);
        for step in steps {
            match step {
                Step::Push => {
                    let pushed = producer.push(|slot| fill(slot, next));
                    if requests.len() + answers.len() == slots as usize {
                        prop_assert_eq!(pushed, Err(Overrun));
                        overruns += 1;
                    } else {
                        prop_assert_eq!(pushed, Ok(SlotIndex((next % slots as u64) as u32)));
                        requests.push_back(next);
                        next += 1;
                    }
                }
                Step::Poll(limit) => {
                    let expected: Vec<_> = requests.drain(..limit.min(requests.len())).collect();
                    let mut seen = Vec::new();
                    dispatcher.poll(limit, |rx, tx| {
                        let n = u64::from_le_bytes(rx[..8].try_into().unwrap());
                        seen.push((n, is_filled(rx, n)));
                        let len = fill(tx, !n);
                        if n % 5 == 4 { ErrorCode::new(n).map_or(Ok(len), Err) } else { Ok(len) }
                    });
                    prop_assert_eq!(seen, expected.iter().map(|n| (*n, true)).collect::<Vec<_>>());
                    answers.extend(expected);
                }
                Step::Collect(limit) => {
                    let expected: Vec<_> = answers.drain(..limit.min(answers.len())).collect();
                    let mut seen = Vec::new();
                    producer.collect(limit, |slot, answer| seen.push((slot.0, match answer {
                        Ok(bytes) => Ok(!u64::from_le_bytes(bytes[..8].try_into().unwrap())),
                        Err(error) => Err(error),
                    })));
                    let expected: Vec<_> = expected.into_iter().map(|n| {
                        let answer = if n % 5 == 4 { Err(TxError::Tagged(ErrorCode::new(n).unwrap())) } else { Ok(n) };
                        ((n % slots as u64) as u32, answer)
                    }).collect();
                    prop_assert_eq!(seen, expected);
                }
            }
            prop_assert_eq!(producer.outstanding() as usize, requests.len() + answers.len());
        }
        let stats = producer.stats();
        prop_assert_eq!((stats.pushed, stats.overruns, stats.unanswered, stats.bad_flags), (next, overruns, 0, 0));
        let stats = dispatcher.stats();
        prop_assert_eq!((stats.slots_reused, stats.tx_overwritten, stats.gaps, stats.bad_flags), (0, 0, 0, 0));
    }
}
