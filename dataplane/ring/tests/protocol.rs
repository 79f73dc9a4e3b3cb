//! The flag protocol of the host API, through both roles of one ring and through its raw flags.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    ptr::NonNull,
    sync::Arc,
    time::Duration,
};

use berth_memory::{Heap, Memory};
use berth_port::Nanos;
use berth_ring::{Dispatcher, ErrorCode, Geometry, Overrun, Producer, Ring, RingError, SlotIndex, TxError, abi};

const SLOTS: u32 = 4;

fn ring() -> (Ring, Producer, Dispatcher) {
    let geometry = Geometry::new(SLOTS, 64).unwrap();
    let mut ring = Ring::new(Heap::new(geometry.size()), geometry).unwrap();
    let (producer, dispatcher) = (ring.producer().unwrap(), ring.dispatcher().unwrap());
    (ring, producer, dispatcher)
}

fn push(producer: &mut Producer, byte: u8) -> Result<SlotIndex, Overrun> {
    producer.push(|slot| {
        slot.fill(byte);
        slot.len()
    })
}

/// Answers with each byte plus one.
#[expect(clippy::unnecessary_wraps, reason = "the signature of a handler")]
fn increment(rx: &[u8], tx: &mut [u8]) -> Result<usize, ErrorCode> {
    for (answer, request) in tx.iter_mut().zip(rx) {
        *answer = request.wrapping_add(1);
    }
    Ok(tx.len())
}

fn collect(producer: &mut Producer) -> Vec<(u32, Result<u8, TxError>)> {
    let mut answers = Vec::new();
    // The rarely probed conditions show after at most 64 empty polls.
    for _ in 0..64 {
        producer.collect(usize::MAX, |slot, answer| {
            answers.push((
                slot.0,
                answer.map(|answer| {
                    assert!(answer.iter().all(|byte| *byte == answer[0]));
                    answer[0]
                }),
            ));
        });
    }
    answers
}

fn rx_flag(ring: &Ring, slot: usize) -> *mut u64 {
    // SAFETY: within the ring's flags.
    unsafe { ring.as_abi().rx_flags.add(slot) }
}

fn tx_flag(ring: &Ring, slot: usize) -> *mut u64 {
    // SAFETY: within the ring's flags.
    unsafe { ring.as_abi().tx_flags.add(slot) }
}

fn peek(flag: *mut u64) -> u64 {
    // SAFETY: a flag of a live ring, used by this thread only.
    unsafe { flag.read_volatile() }
}

fn poke(flag: *mut u64, value: u64) {
    // SAFETY: a flag of a live ring, used by this thread only.
    unsafe { flag.write_volatile(value) }
}

#[test]
fn each_role_is_given_out_once() {
    let (mut ring, _producer, _dispatcher) = ring();
    assert!(ring.producer().is_none());
    assert!(ring.dispatcher().is_none());
}

#[test]
fn answers_come_back_in_order_over_many_laps() {
    let (_ring, mut producer, mut dispatcher) = ring();
    for lap in 0..50_u8 {
        for i in 0..3 {
            push(&mut producer, lap.wrapping_mul(3) + i).unwrap();
        }
        assert_eq!(dispatcher.poll(2, increment), 2);
        assert_eq!(dispatcher.poll(2, increment), 1);
        let values: Vec<_> = collect(&mut producer).into_iter().map(|(_, answer)| answer.unwrap()).collect();
        assert_eq!(values, [lap * 3 + 1, lap * 3 + 2, lap * 3 + 3]);
    }
    assert_eq!(producer.stats().pushed, 150);
    assert_eq!(producer.stats().collected, 150);
    assert_eq!(dispatcher.stats().dispatched, 150);
}

#[test]
fn flags_hold_addresses_and_the_answer_precedes_the_free_slot() {
    let (ring, mut producer, mut dispatcher) = ring();
    let abi = ring.as_abi();
    push(&mut producer, 1).unwrap();
    push(&mut producer, 2).unwrap();
    assert_eq!(peek(rx_flag(&ring, 0)), abi.rx_data as u64);
    assert_eq!(peek(rx_flag(&ring, 1)), abi.rx_data as u64 + abi.rx_stride as u64);
    assert_eq!(peek(tx_flag(&ring, 1)), abi::FREE);
    assert_eq!(dispatcher.poll(8, increment), 2);
    assert_eq!(peek(rx_flag(&ring, 1)), abi::FREE);
    assert_eq!(peek(tx_flag(&ring, 1)), abi.tx_data as u64 + abi.tx_stride as u64);
    assert_eq!(collect(&mut producer), [(0, Ok(2)), (1, Ok(3))]);
    assert_eq!(peek(tx_flag(&ring, 1)), abi::FREE);
}

#[test]
fn overrun_is_refused_and_counted_until_the_answer_is_taken() {
    let (_ring, mut producer, mut dispatcher) = ring();
    for i in 0..SLOTS {
        assert_eq!(push(&mut producer, i as u8), Ok(SlotIndex(i)));
    }
    assert_eq!(push(&mut producer, 9), Err(Overrun));
    dispatcher.poll(1, increment);
    assert_eq!(push(&mut producer, 9), Err(Overrun), "the answer still lies in the slot");
    assert!(!producer.can_push());
    assert_eq!(producer.stats().overruns, 2);
    assert_eq!(producer.collect(1, |_, answer| assert!(answer.is_ok())), 1);
    assert_eq!(push(&mut producer, 9), Ok(SlotIndex(0)));
    assert_eq!(producer.outstanding(), SLOTS);
}

#[test]
fn a_slot_is_not_filled_before_both_its_flags_are_zero() {
    let (ring, mut producer, mut dispatcher) = ring();
    for lap in 0..2 {
        push(&mut producer, lap).unwrap();
        dispatcher.poll(1, increment);
        assert_eq!(collect(&mut producer).len(), 1);
    }
    // Slots 2 and 3 are untouched; a foreign dispatcher is slow to free slot 0 and publishes slot 1 again.
    poke(rx_flag(&ring, 0), ring.as_abi().rx_data as u64);
    poke(tx_flag(&ring, 1), abi::IN_FLIGHT);
    assert_eq!(push(&mut producer, 2), Ok(SlotIndex(2)));
    assert_eq!(push(&mut producer, 3), Ok(SlotIndex(3)));
    assert_eq!(push(&mut producer, 0), Err(Overrun));
    poke(rx_flag(&ring, 0), abi::FREE);
    assert_eq!(push(&mut producer, 0), Ok(SlotIndex(0)));
    assert_eq!(push(&mut producer, 1), Err(Overrun));
    poke(tx_flag(&ring, 1), abi::FREE);
    assert_eq!(push(&mut producer, 1), Ok(SlotIndex(1)));
    assert_eq!((producer.stats().overruns, producer.stats().late_answers), (2, 0));
}

#[test]
fn a_handlers_error_travels_in_the_flag() {
    let (ring, mut producer, mut dispatcher) = ring();
    let code = ErrorCode::new(0x1234_5678_9ABC).unwrap();
    push(&mut producer, 1).unwrap();
    dispatcher.poll(1, |_, _| Err(code));
    assert_eq!(peek(tx_flag(&ring, 0)), 0xDEAD_1234_5678_9ABC);
    assert_eq!(collect(&mut producer), [(0, Err(TxError::Tagged(code)))]);
    assert_eq!((dispatcher.stats().errors, producer.stats().errors), (1, 1));
    assert_eq!(ErrorCode::new(1 << 48), None);
}

#[test]
fn an_unwinding_handler_leaves_no_gap() {
    let (_ring, mut producer, mut dispatcher) = ring();
    push(&mut producer, 1).unwrap();
    push(&mut producer, 2).unwrap();
    let unwound = catch_unwind(AssertUnwindSafe(|| dispatcher.poll(2, |_, _| panic!("handler"))));
    assert!(unwound.is_err());
    assert_eq!(dispatcher.poll(2, increment), 1);
    assert_eq!(collect(&mut producer), [(0, Err(TxError::Tagged(ErrorCode::UNWOUND))), (1, Ok(3))]);
    assert_eq!((dispatcher.stats().unwound, dispatcher.stats().dispatched), (1, 1));
}

#[test]
fn an_unwinding_fill_announces_nothing_and_an_unwinding_take_frees_its_slot() {
    let (_ring, mut producer, mut dispatcher) = ring();
    assert!(catch_unwind(AssertUnwindSafe(|| producer.push(|_| panic!("fill")))).is_err());
    assert_eq!(dispatcher.poll(1, increment), 0);
    push(&mut producer, 1).unwrap();
    push(&mut producer, 2).unwrap();
    dispatcher.poll(2, increment);
    assert!(catch_unwind(AssertUnwindSafe(|| producer.collect(2, |_, _| panic!("take")))).is_err());
    assert_eq!(collect(&mut producer), [(1, Ok(3))]);
}

#[test]
fn a_foreign_rx_flag_is_never_followed() {
    let (ring, mut producer, mut dispatcher) = ring();
    push(&mut producer, 1).unwrap();
    push(&mut producer, 2).unwrap();
    poke(rx_flag(&ring, 0), 0x10);
    assert_eq!(dispatcher.poll(2, increment), 2);
    assert_eq!(collect(&mut producer), [(0, Err(TxError::Tagged(ErrorCode::BAD_FLAG))), (1, Ok(3))]);
    assert_eq!((dispatcher.stats().bad_flags, dispatcher.stats().dispatched), (1, 1));
}

#[test]
fn a_foreign_tx_flag_is_never_followed() {
    let (ring, mut producer, mut dispatcher) = ring();
    push(&mut producer, 1).unwrap();
    push(&mut producer, 2).unwrap();
    dispatcher.poll(2, increment);
    poke(tx_flag(&ring, 0), 0x10);
    assert_eq!(collect(&mut producer), [(0, Err(TxError::BadFlag(0x10))), (1, Ok(3))]);
    assert_eq!(producer.stats().bad_flags, 1);
}

#[test]
fn a_slot_reused_during_dispatch_gets_an_error_instead_of_an_answer() {
    for overwrite_flag in [true, false] {
        let (ring, mut producer, mut dispatcher) = ring();
        push(&mut producer, 1).unwrap();
        dispatcher.poll(1, |rx, tx| {
            let answer = increment(rx, tx);
            if overwrite_flag {
                poke(rx_flag(&ring, 0), 0x20);
            } else {
                // SAFETY: within slot 0; this plays the disobedient sender, after the handler's last read.
                unsafe { ring.as_abi().rx_data.add(23).write_volatile(0xFF) };
            }
            answer
        });
        assert_eq!(collect(&mut producer), [(0, Err(TxError::Tagged(ErrorCode::SLOT_REUSED)))]);
        assert_eq!(dispatcher.stats().slots_reused, 1);
    }
}

#[test]
fn an_answer_out_of_order_waits_for_its_turn() {
    let (ring, mut producer, _dispatcher) = ring();
    let abi = ring.as_abi();
    push(&mut producer, 1).unwrap();
    push(&mut producer, 2).unwrap();
    poke(tx_flag(&ring, 0), abi::IN_FLIGHT);
    poke(rx_flag(&ring, 0), abi::FREE);
    poke(tx_flag(&ring, 1), abi.tx_data as u64 + abi.tx_stride as u64);
    poke(rx_flag(&ring, 1), abi::FREE);
    assert_eq!(collect(&mut producer), []);
    poke(tx_flag(&ring, 0), abi.tx_data as u64);
    assert_eq!(collect(&mut producer), [(0, Ok(0)), (1, Ok(0))]);
}

#[test]
fn a_request_freed_without_an_answer_stalls_nothing() {
    let (ring, mut producer, mut dispatcher) = ring();
    push(&mut producer, 1).unwrap();
    push(&mut producer, 2).unwrap();
    poke(rx_flag(&ring, 0), abi::FREE);
    assert_eq!(dispatcher.poll(1, increment), 0);
    assert_eq!(collect(&mut producer), []);
    producer.tell_time(at(50));
    assert_eq!(collect(&mut producer), [(0, Err(TxError::Unanswered))]);
    assert_eq!(producer.stats().unanswered, 1);
    // Its answer comes late, when nobody waits for it any more.
    poke(tx_flag(&ring, 0), ring.as_abi().tx_data as u64);
    push(&mut producer, 3).unwrap();
    push(&mut producer, 4).unwrap();
    assert_eq!(push(&mut producer, 5), Ok(SlotIndex(0)));
    assert_eq!(producer.stats().late_answers, 1);
}

/// A time in milliseconds.
fn at(ms: u64) -> Nanos {
    Nanos(0) + Duration::from_millis(ms)
}

/// A dispatcher that launches graphs clears the rx flag at the launch; the graph answers when it is done.
#[test]
fn a_request_freed_at_its_launch_may_be_answered_later() {
    let (ring, mut producer, _dispatcher) = ring();
    let abi = ring.as_abi();
    let tx = |slot: u64| abi.tx_data as u64 + slot * abi.tx_stride as u64;
    for lap in 0..3 {
        let begun = 1000 * lap;
        producer.tell_time(at(begun));
        for slot in 0..SLOTS {
            push(&mut producer, slot as u8).unwrap();
            poke(rx_flag(&ring, slot as usize), abi::FREE);
        }
        assert!(!producer.can_push(), "a graph may still write to any slot");
        for late in [1, 30, 49] {
            producer.tell_time(at(begun + late));
            assert_eq!(collect(&mut producer), []);
            assert!(!producer.can_push());
        }
        for slot in 0..SLOTS {
            poke(tx_flag(&ring, slot as usize), tx(slot.into()));
        }
        let expected: Vec<_> = (0..SLOTS).map(|slot| (slot, Ok(0))).collect();
        assert_eq!(collect(&mut producer), expected);
    }
    assert_eq!((producer.stats().unanswered, producer.stats().late_answers), (0, 0));
}

#[test]
fn patience_is_over_for_all_at_once() {
    let (ring, producer, _dispatcher) = ring();
    let mut producer = producer.patient(Duration::from_millis(20));
    for byte in 1..=4 {
        push(&mut producer, byte).unwrap();
    }
    for slot in [0, 1, 3] {
        poke(rx_flag(&ring, slot), abi::FREE);
    }
    producer.tell_time(at(5));
    assert_eq!(collect(&mut producer), []);
    producer.tell_time(at(24));
    assert_eq!(collect(&mut producer), []);
    producer.tell_time(at(25));
    let unanswered = Err(TxError::Unanswered);
    assert_eq!(collect(&mut producer), [(0, unanswered), (1, unanswered)], "the third is not freed");
    poke(rx_flag(&ring, 2), abi::FREE);
    poke(tx_flag(&ring, 2), ring.as_abi().tx_data as u64 + 2 * ring.as_abi().tx_stride as u64);
    assert_eq!(collect(&mut producer), [(2, Ok(0)), (3, unanswered)]);
    // What was noted of a request says nothing about the next one in its slot.
    for byte in 1..=2 {
        push(&mut producer, byte).unwrap();
        poke(rx_flag(&ring, usize::from(byte) - 1), abi::FREE);
    }
    producer.tell_time(at(44));
    assert_eq!(collect(&mut producer), []);
    producer.tell_time(at(64));
    assert_eq!(collect(&mut producer), [(0, unanswered), (1, unanswered)]);
}

#[test]
fn a_gap_is_found_counted_once_and_can_be_skipped() {
    let (ring, mut producer, mut dispatcher) = ring();
    for i in 1..4 {
        push(&mut producer, i).unwrap();
    }
    poke(rx_flag(&ring, 0), abi::FREE);
    poke(rx_flag(&ring, 1), abi::FREE);
    assert_eq!(dispatcher.gap(), None);
    for _ in 0..1000 {
        assert_eq!(dispatcher.poll(1, increment), 0);
    }
    assert_eq!(dispatcher.stats().gaps, 1);
    assert_eq!(dispatcher.gap(), Some(2));
    assert_eq!(dispatcher.skip_gap(), 2);
    assert_eq!(dispatcher.poll(1, increment), 1);
    let skipped = Err(TxError::Tagged(ErrorCode::SKIPPED));
    assert_eq!(collect(&mut producer), [(0, skipped), (1, skipped), (2, Ok(4))]);
    assert_eq!((dispatcher.stats().skipped, dispatcher.gap()), (2, None));
}

#[test]
fn an_answer_published_over_another_is_counted() {
    let (ring, mut producer, mut dispatcher) = ring();
    push(&mut producer, 1).unwrap();
    poke(tx_flag(&ring, 0), ring.as_abi().tx_data as u64);
    dispatcher.poll(1, increment);
    assert_eq!(dispatcher.stats().tx_overwritten, 1);
}

/// The memory of a heap from this byte on, which the test inspects.
struct Mapped(Arc<Heap>, usize);

// SAFETY: within the heap, which outlives it; the tests touch it only where the protocol lets them.
unsafe impl Memory for Mapped {
    fn base(&self) -> NonNull<u8> {
        // SAFETY: the offset is within the heap.
        unsafe { self.0.base().add(self.1) }
    }

    fn size(&self) -> usize {
        self.0.size() - self.1
    }
}

#[test]
fn a_ring_in_memory_of_another_kind_starts_free() {
    let geometry = Geometry::with_stride(2, 24, 128).unwrap();
    let heap = Arc::new(Heap::new(64 + geometry.size()));
    heap.write_at(0, &vec![0xAB; heap.size()]);
    let mut ring = Ring::new(Mapped(heap.clone(), 0), geometry).unwrap();
    assert_eq!((ring.as_abi().rx_stride, ring.as_abi().rx_data as usize % 128), (128, 0));
    let (mut producer, mut dispatcher) = (ring.producer().unwrap(), ring.dispatcher().unwrap());
    push(&mut producer, 1).unwrap();
    drop(ring);
    assert_eq!(dispatcher.poll(2, increment), 1);
    assert_eq!(collect(&mut producer), [(0, Ok(2))]);
    drop((producer, dispatcher));
    // Tx slots come after 2 x 128 bytes of flags and 256 of rx slots.
    let mut answer = [0];
    heap.read_at(512, &mut answer);
    assert_eq!(answer, [2]);

    assert_eq!(Ring::new(Mapped(heap, 64), geometry).err(), Some(RingError::Misaligned));
}

#[test]
fn rings_that_cannot_be_are_refused() {
    assert_eq!(Geometry::new(0, 64), Err(RingError::NoSlots));
    assert_eq!(Geometry::new(1, 23), Err(RingError::ShortSlot(23)));
    assert_eq!(Geometry::with_stride(1, 65, 64), Err(RingError::BadStride { stride: 64, slot_size: 65 }));
    assert_eq!(Geometry::with_stride(1, 64, 96), Err(RingError::BadStride { stride: 96, slot_size: 64 }));
    assert_eq!(Geometry::new(u32::MAX, usize::MAX - 64), Err(RingError::TooLarge));
    let geometry = Geometry::new(8, 100).unwrap();
    assert_eq!((geometry.stride(), geometry.size()), (128, 2 * (128 + 1024)));
    let short = Ring::new(Heap::new(2303), geometry).err();
    assert_eq!(short, Some(RingError::ShortMemory { have: 2303, need: 2304 }));
}
