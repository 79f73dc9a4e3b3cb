//! Every interleaving and reordering of the flag protocol that the C11 memory model allows, explored by loom.
//!
//! Slots are loom cells: a slot that is touched by both sides at once fails the model, which proves that the flags
//! alone order every access. Under loom every empty poll also looks for gaps and unanswered requests, which must never
//! be seen on a peer that keeps to the protocol, however slow.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

use berth_ring::{Dispatcher, ErrorCode, Producer, Ring, TxError, pair};
use loom::thread;

pub(crate) const SLOT: usize = 24;

fn ring(is_internal: bool, slots: u32) -> (Producer, Dispatcher) {
    if is_internal {
        return pair(slots, SLOT).unwrap();
    }
    let mut ring = Ring::modelled(slots, SLOT);
    (ring.producer().unwrap().patient(Duration::ZERO), ring.dispatcher().unwrap())
}

/// Request `n` of an internal ring has so many bytes, and so has its answer.
fn length(is_internal: bool, n: u8) -> usize {
    if is_internal { SLOT - usize::from(n) } else { SLOT }
}

/// Dispatches `count` requests: each byte plus 100; `fails(n)` returns an error, `unwinds(n)` panics.
fn dispatch(
    is_internal: bool,
    mut dispatcher: Dispatcher,
    count: u8,
    fails: fn(u8) -> bool,
    unwinds: fn(u8) -> bool,
) -> Dispatcher {
    let mut served = 0;
    while served < count {
        let polled = catch_unwind(AssertUnwindSafe(|| {
            dispatcher.poll(1, |rx, tx| {
                assert!(rx.iter().all(|byte| *byte == rx[0]), "a torn request");
                assert_eq!(rx[0], served, "a request out of order, twice or never");
                assert_eq!(rx.len(), length(is_internal, served), "another request's length");
                tx.fill(rx[0] + 100);
                if unwinds(rx[0]) {
                    // Not a panic message on stderr for each of thousands of executions.
                    std::panic::resume_unwind(Box::new(()));
                }
                if fails(rx[0]) { Err(ErrorCode::FIRST_FREE) } else { Ok(rx.len()) }
            })
        }));
        let n = polled.unwrap_or(1);
        served += n as u8;
        if n == 0 {
            thread::yield_now();
        }
    }
    dispatcher
}

/// Pushes `count` requests as slots come free and returns all answers.
pub(crate) fn produce(is_internal: bool, producer: &mut Producer, count: u8) -> Vec<Result<u8, TxError>> {
    let (mut sent, mut answers) = (0, Vec::new());
    while answers.len() < count as usize {
        let pushed = sent < count && producer.can_push();
        if pushed {
            let len = length(is_internal, sent);
            let fill = |slot: &mut [u8]| {
                slot[..len].fill(sent);
                len
            };
            producer.push(fill).unwrap();
            sent += 1;
        }
        let taken = producer.collect(1, |_, answer| {
            answers.push(answer.map(|bytes| {
                assert!(bytes.iter().all(|byte| *byte == bytes[0]), "a torn answer");
                assert_eq!(bytes.len(), length(is_internal, bytes[0] - 100), "another answer's length");
                bytes[0]
            }));
        });
        if !pushed && taken == 0 {
            thread::yield_now();
        }
    }
    answers
}

fn never(_: u8) -> bool {
    false
}

fn check(slots: u32, count: u8, fails: fn(u8) -> bool, unwinds: fn(u8) -> bool) {
    for is_internal in [false, true] {
        check_layout(is_internal, slots, count, fails, unwinds);
    }
}

fn check_layout(is_internal: bool, slots: u32, count: u8, fails: fn(u8) -> bool, unwinds: fn(u8) -> bool) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(4);
    model.check(move || {
        let (mut producer, dispatcher) = ring(is_internal, slots);
        let worker = thread::spawn(move || dispatch(is_internal, dispatcher, count, fails, unwinds));
        let answers = produce(is_internal, &mut producer, count);
        let dispatcher = worker.join().unwrap();
        let expected: Vec<_> = (0..count)
            .map(|n| match n {
                n if unwinds(n) => Err(TxError::Tagged(ErrorCode::UNWOUND)),
                n if fails(n) => Err(TxError::Tagged(ErrorCode::FIRST_FREE)),
                n => Ok(n + 100),
            })
            .collect();
        assert_eq!(answers, expected);
        let (p, d) = (producer.stats(), dispatcher.stats());
        assert_eq!((p.overruns, p.unanswered, p.late_answers, p.bad_flags), (0, 0, 0, 0));
        assert_eq!((d.slots_reused, d.tx_overwritten, d.bad_flags, d.gaps), (0, 0, 0, 0));
    });
}

#[test]
fn requests_and_answers_are_seen_whole() {
    check(2, 2, never, never);
}

#[test]
fn two_slots_wrap_without_reuse() {
    check(2, 3, never, never);
}

#[test]
fn one_slot_wraps_without_reuse() {
    check(1, 3, never, never);
}

#[test]
fn errors_and_unwinding_leave_no_gap() {
    check(2, 3, |n| n == 1, |n| n == 0);
}
