//! Internal rings: the other end gets exactly the message that was written, whatever its slot held before.

use std::panic::{AssertUnwindSafe, catch_unwind};

use berth_ring::{Dispatcher, ErrorCode, Overrun, Producer, RingError, SlotIndex, TxError, pair};

const SLOT: usize = 100;

fn push(producer: &mut Producer, message: &[u8]) -> Result<SlotIndex, Overrun> {
    producer.push(|slot| {
        slot[..message.len()].copy_from_slice(message);
        message.len()
    })
}

/// Answers with the request's bytes reversed.
fn serve(dispatcher: &mut Dispatcher) -> usize {
    dispatcher.poll(usize::MAX, |rx, tx| {
        for (to, from) in tx.iter_mut().zip(rx.iter().rev()) {
            *to = *from;
        }
        Ok(rx.len())
    })
}

fn collect(producer: &mut Producer) -> Vec<Result<Vec<u8>, TxError>> {
    let mut answers = Vec::new();
    producer.collect(usize::MAX, |_, answer| answers.push(answer.map(<[u8]>::to_vec)));
    answers
}

#[test]
fn a_short_message_after_a_long_one_ends_where_it_ends() {
    let (mut producer, mut dispatcher) = pair(1, SLOT).unwrap();
    assert!(producer.is_internal());
    for len in [SLOT, 0, 1, SLOT - 1, 24, 57, SLOT, 56] {
        let message: Vec<u8> = (0..len as u8).collect();
        push(&mut producer, &message).unwrap();
        assert_eq!(serve(&mut dispatcher), 1);
        assert_eq!(collect(&mut producer), [Ok(message.into_iter().rev().collect())]);
    }
}

#[test]
fn a_dispatcher_knows_when_nobody_is_left_to_feed_it() {
    let (mut producer, mut dispatcher) = pair(2, SLOT).unwrap();
    push(&mut producer, b"last").unwrap();
    assert!(dispatcher.is_fed());
    drop(producer);
    assert!(!dispatcher.is_fed());
    assert_eq!(serve(&mut dispatcher), 1, "what was pushed is there");
}

#[test]
fn slots_are_free_once_their_answers_are_taken() {
    let (mut producer, mut dispatcher) = pair(3, SLOT).unwrap();
    for lap in 0..100 {
        for slot in 0..3 {
            assert_eq!(push(&mut producer, &[lap, slot]), Ok(SlotIndex(slot.into())));
        }
        assert_eq!(push(&mut producer, &[]), Err(Overrun));
        assert_eq!(serve(&mut dispatcher), 3);
        assert_eq!(serve(&mut dispatcher), 0, "each request once");
        assert_eq!(push(&mut producer, &[]), Err(Overrun), "the answers still lie in the slots");
        assert_eq!(collect(&mut producer), [Ok(vec![0, lap]), Ok(vec![1, lap]), Ok(vec![2, lap])]);
        assert_eq!(collect(&mut producer), [], "each answer once");
    }
    assert_eq!((producer.stats().overruns, producer.stats().collected), (200, 300));
}

#[test]
fn an_answer_that_is_not_wanted_yet_stays() {
    let (mut producer, mut dispatcher) = pair(2, SLOT).unwrap();
    assert!(!producer.collect_if(|_, _| panic!("nothing was asked")));
    push(&mut producer, &[1, 2]).unwrap();
    assert!(!producer.collect_if(|_, _| panic!("nothing was answered")));
    serve(&mut dispatcher);
    for _ in 0..3 {
        assert!(!producer.collect_if(|slot, answer| {
            assert_eq!((slot, answer), (SlotIndex(0), Ok(&[2, 1][..])));
            false
        }));
    }
    assert_eq!((producer.outstanding(), producer.stats().collected), (1, 0));
    assert!(producer.collect_if(|_, answer| answer == Ok(&[2, 1][..])));
    assert_eq!((producer.outstanding(), producer.stats().collected), (0, 1));
}

#[test]
fn errors_and_panics_are_answers_too() {
    let (mut producer, mut dispatcher) = pair(2, SLOT).unwrap();
    let code = ErrorCode::new(0xFFFF_FFFF_FFFF).unwrap();
    for _ in 0..5 {
        push(&mut producer, &[1]).unwrap();
        push(&mut producer, &[2]).unwrap();
        assert_eq!(dispatcher.poll(1, |_, _| Err(code)), 1);
        assert!(catch_unwind(AssertUnwindSafe(|| dispatcher.poll(1, |_, _| panic!("handler")))).is_err());
        let unwound = TxError::Tagged(ErrorCode::UNWOUND);
        assert_eq!(collect(&mut producer), [Err(TxError::Tagged(code)), Err(unwound)]);
    }
    let (p, d) = (producer.stats(), dispatcher.stats());
    assert_eq!((p.errors, d.errors, d.unwound, d.dispatched), (10, 5, 5, 5));
}

#[test]
fn a_length_beyond_the_slot_is_never_announced() {
    let (mut producer, mut dispatcher) = pair(2, SLOT).unwrap();
    assert!(catch_unwind(AssertUnwindSafe(|| producer.push(|_| SLOT + 1))).is_err());
    assert_eq!(serve(&mut dispatcher), 0);
    push(&mut producer, &[1]).unwrap();
    assert!(catch_unwind(AssertUnwindSafe(|| dispatcher.poll(1, |_, _| Ok(SLOT + 1)))).is_err());
    assert_eq!(collect(&mut producer), [Err(TxError::Tagged(ErrorCode::UNWOUND))]);
}

#[test]
fn rings_that_cannot_be_are_refused() {
    assert_eq!(pair(0, 64).err(), Some(RingError::NoSlots));
    assert_eq!(pair(1, 23).err(), Some(RingError::ShortSlot(23)));
    assert_eq!(pair(u32::MAX, usize::MAX - 64).err(), Some(RingError::TooLarge));
}
