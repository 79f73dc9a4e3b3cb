//! Rings whose requests lie in a device's memory, with a dispatcher that may die, and the supervisor that then answers.
//!
//! The producer and the supervisor are Berth's own. The dispatcher is a kernel of the device, so the model takes its steps.
//! That stores to such memory leave in any order without fences is beyond loom.

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    time::Duration,
};

use berth_port::Nanos;
use berth_ring::{Device, ErrorCode, PATIENCE, Producer, SlotIndex, TxError, posted};
use loom::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use crate::ring::{SLOT, produce};

const REFUSED: Result<u8, TxError> = Err(TxError::Tagged(ErrorCode::UNWOUND));
const GIVEN_UP: Result<u8, TxError> = Err(TxError::Unanswered);

/// The number that all bytes of a request are.
fn number(request: &[u8]) -> u8 {
    assert!(request.iter().all(|byte| *byte == request[0]), "a torn request");
    request[0]
}

/// Serves slots in turn until it has taken so many steps. A request takes four: it is read, its answer written, its flag
/// cleared, the answer published. Returns which requests it read.
fn serve(device: &Device, slots: u32, steps: u8) -> Vec<u8> {
    let mut read = Vec::new();
    for step in 0..steps {
        let slot = SlotIndex(u32::from(step / 4) % slots);
        match step % 4 {
            0 => {
                let request = loop {
                    match device.read(slot) {
                        Some(request) => break request,
                        None => thread::yield_now(),
                    }
                };
                read.push(number(&request));
            }
            1 => device.write(slot, &[read[read.len() - 1] + 100; SLOT]),
            2 => device.clear(slot),
            _ => device.publish(slot),
        }
    }
    read
}

/// Pushes and collects where that can be done now; whether anything was.
fn produce_one(producer: &mut Producer, sent: &mut u8, count: u8, answers: &mut Vec<Result<u8, TxError>>) -> bool {
    let pushed = *sent < count && producer.can_push();
    if pushed {
        let filled = producer.push(|slot| {
            slot.fill(*sent);
            slot.len()
        });
        filled.unwrap();
        *sent += 1;
    }
    let taken = producer.collect(1, |_, answer| answers.push(answer.map(number)));
    pushed || taken != 0
}

fn explore(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

fn check_laps(slots: u32, count: u8) {
    explore(4, move || {
        let (mut producer, out, device) = posted(slots, SLOT);
        let worker = thread::spawn(move || serve(&device, slots, 4 * count));
        let answers = produce(false, &mut producer, count);
        assert!(worker.join().unwrap().into_iter().eq(0..count), "a request out of order, twice or never");
        assert!(answers.into_iter().eq((0..count).map(|n| Ok(n + 100))));
        let stats = producer.stats();
        assert_eq!((stats.overruns, stats.unanswered, stats.late_answers, stats.bad_flags), (0, 0, 0, 0));
        assert_eq!(out.refuse(ErrorCode::UNWOUND), 0);
    });
}

#[test]
fn one_slot_is_filled_again_once_its_answer_was_taken() {
    check_laps(1, 3);
}

#[test]
fn two_slots_are_filled_again_once_their_answers_were_taken() {
    check_laps(2, 4);
}

/// How many requests were answered by a dispatcher, refused and given up, over all that was explored.
struct Seen([AtomicUsize; 3]);

/// The first dispatcher dies after so many steps, and the supervisor refuses what it had, while requests are pushed and answers
/// taken. Then another one serves the rest.
fn check_death(slots: u32, count: u8, steps: u8, patience: Duration, seen: &'static Seen) {
    explore(3, move || {
        let (producer, out, device) = posted(slots, SLOT);
        let mut producer = producer.patient(patience);
        let has_ended = Arc::new(AtomicBool::new(false));
        let first = thread::spawn({
            let (device, has_ended) = (device.clone(), has_ended.clone());
            move || {
                let read = serve(&device, slots, steps);
                let refused = out.refuse(ErrorCode::UNWOUND);
                has_ended.store(true, Ordering::Release);
                (read, refused)
            }
        });
        let (mut sent, mut answers) = (0, Vec::new());
        while !has_ended.load(Ordering::Acquire) {
            if !produce_one(&mut producer, &mut sent, count, &mut answers) {
                thread::yield_now();
            }
        }
        let (mut read, refused) = first.join().unwrap();
        // A request that was cleared is given up once it was seen so for the time of a patience.
        for round in 0..4 * u64::from(count) {
            for slot in (0..slots).map(SlotIndex) {
                if let Some(request) = device.read(slot) {
                    let n = number(&request);
                    assert!(usize::from(n) >= answers.len(), "served after its answer");
                    read.push(n);
                    device.write(slot, &[n + 100; SLOT]);
                    device.clear(slot);
                    device.publish(slot);
                }
            }
            producer.tell_time(Nanos(round * PATIENCE.as_nanos() as u64));
            produce_one(&mut producer, &mut sent, count, &mut answers);
        }
        assert_eq!(answers.len(), usize::from(count), "a request without an answer");
        assert_eq!(read.len(), read.iter().collect::<BTreeSet<_>>().len(), "served twice");
        let mut was_refused = [false; 2];
        for (n, answer) in answers.iter().enumerate() {
            let was_refused = &mut was_refused[n % slots as usize];
            let kind = match *answer {
                REFUSED => 1,
                // A flag that the supervisor clears may be of a request that is just being announced, but not once it has
                // refused the one before in that slot.
                GIVEN_UP => 2,
                own => {
                    assert_eq!(own, Ok(n as u8 + 100));
                    assert!(read.contains(&(n as u8)));
                    0
                }
            };
            assert!(kind != 2 || !*was_refused, "the supervisor cleared what came after its answer");
            *was_refused |= kind == 1;
            seen.0[kind].fetch_add(1, Relaxed);
        }
        let told = answers.iter().filter(|answer| **answer == REFUSED).count();
        assert_eq!(told, refused, "refused and answered otherwise");
        let stats = producer.stats();
        assert_eq!((stats.overruns, stats.late_answers, stats.bad_flags), (0, 0, 0));
    });
}

fn check_deaths(slots: u32, count: u8, steps: impl IntoIterator<Item = u8>, patience: Duration, seen: &'static Seen) {
    for steps in steps {
        check_death(slots, count, steps, patience, seen);
    }
    assert!(seen.0.iter().all(|kind| kind.load(Relaxed) > 0), "not all outcomes were seen");
}

#[test]
fn one_slot_of_a_dead_dispatcher_is_refused() {
    static SEEN: Seen = Seen([const { AtomicUsize::new(0) }; 3]);
    check_deaths(1, 3, 0..8, PATIENCE, &SEEN);
}

#[test]
fn two_slots_of_a_dead_dispatcher_are_refused() {
    static SEEN: Seen = Seen([const { AtomicUsize::new(0) }; 3]);
    check_deaths(2, 3, 0..8, PATIENCE, &SEEN);
}

#[test]
fn who_gives_up_and_who_refuses_agree() {
    static SEEN: Seen = Seen([const { AtomicUsize::new(0) }; 3]);
    // It dies with a request cleared and not published: patience is over at once.
    check_deaths(1, 3, [3], Duration::ZERO, &SEEN);
    check_deaths(2, 3, [3], Duration::ZERO, &SEEN);
}
