//! A ring whose requests lie in a device's memory, with the dispatcher's side played by its raw flags.

use std::{
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{
            AtomicU64,
            Ordering::{Acquire, Release},
        },
    },
    time::Duration,
};

use berth_memory::{Heap, Memory};
use berth_port::Nanos;
use berth_ring::{ErrorCode, Geometry, Outstanding, Producer, RingError, SlotIndex, TxError, posted};

const SLOTS: u32 = 4;
const SIZE: usize = 72;
/// Where the dispatcher sees the file, and the device's memory.
const BASES: [usize; 2] = [0x7000_0000_0000, 0x7100_0000_0000];

/// Memory that the test looks into beside the ring.
struct Seen(Arc<Heap>);

// SAFETY: that of the heap.
unsafe impl Memory for Seen {
    fn base(&self) -> NonNull<u8> {
        self.0.base()
    }

    fn size(&self) -> usize {
        self.0.size()
    }
}

fn flag(memory: &Heap, at: usize) -> &AtomicU64 {
    assert!(at + 8 <= memory.size());
    // SAFETY: within the memory, and aligned; the ring accesses it atomically too.
    unsafe { AtomicU64::from_ptr(memory.base().as_ptr().add(at).cast()) }
}

fn ring() -> (Producer, Outstanding, Arc<Heap>, Arc<Heap>, Geometry) {
    let geometry = Geometry::new(SLOTS, SIZE).unwrap();
    let (file, device) = (Arc::new(Heap::new(geometry.shared_size())), Arc::new(Heap::new(geometry.posted_size())));
    let [base, device_base] = BASES;
    let (producer, out) = posted(Seen(file.clone()), base, device.clone(), device_base, geometry).unwrap();
    (producer.patient(Duration::from_millis(50)), out, file, device, geometry)
}

/// Offsets of the file's flags of requests and answers, and of its slots of requests and answers, by its header.
fn parts(file: &Heap) -> [usize; 4] {
    [48, 56, 64, 72].map(|at| flag(file, at).load(Acquire) as usize)
}

#[test]
fn requests_lie_with_the_device_and_answers_with_the_host() {
    let (mut producer, _, file, device, geometry) = ring();
    let [rx_flags, tx_flags, rx_data, tx_data] = parts(&file);
    let (slots, stride) = (geometry.posted_slots(), geometry.stride());
    for turn in 0..3 * u64::from(SLOTS) {
        let slot = (turn % u64::from(SLOTS)) as usize;
        let message: Vec<u8> = (0..SIZE - slot).map(|at| (at as u64 + turn) as u8).collect();
        let pushed = producer.push(|at| {
            at[..message.len()].copy_from_slice(&message);
            message.len()
        });
        assert_eq!(pushed, Ok(SlotIndex(slot as u32)));
        let announced = (BASES[1] + slots + slot * stride) as u64;
        assert_eq!(flag(&device, 8 * slot).load(Acquire), announced);
        // What others write to the file's flags of requests is nobody's business.
        flag(&file, rx_flags + 8 * slot).store(turn % 2, Release);
        let mut read = vec![0; message.len()];
        device.read_at(slots + slot * stride, &mut read);
        assert_eq!(read, message);
        file.read_at(rx_data + slot * stride, &mut read);
        assert!(read.iter().all(|byte| *byte == 0), "the file's slots of requests are unused");

        // Not yet, for however long.
        producer.tell_time(Nanos(turn << 40));
        for _ in 0..1000 {
            assert_eq!(producer.collect(1, |_, answer| panic!("{answer:?}")), 0);
        }
        flag(&device, 8 * slot).store(0, Release);
        file.write_at(tx_data + slot * stride, &message);
        flag(&file, tx_flags + 8 * slot).store((BASES[0] + tx_data + slot * stride) as u64, Release);
        let mut found = Vec::new();
        producer.collect(1, |slot, answer| found.push((slot.0, answer.map(<[u8]>::to_vec))));
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].0, slot as u32);
        assert_eq!(found[0].1.as_ref().unwrap()[..message.len()], message);
    }
    let stats = producer.stats();
    assert_eq!((stats.pushed, stats.collected, stats.unanswered, stats.overruns), (12, 12, 0, 0));
}

#[test]
fn a_slot_is_filled_again_once_its_answer_was_taken() {
    let (mut producer, _, file, device, _) = ring();
    let [_, tx_flags, ..] = parts(&file);
    for _ in 0..SLOTS {
        producer.push(|slot| slot.len()).unwrap();
    }
    // All are read and none is answered.
    (0..SLOTS as usize).for_each(|slot| flag(&device, 8 * slot).store(0, Release));
    assert!(!producer.can_push());
    flag(&file, tx_flags).store(ErrorCode::UNWOUND.to_flag(), Release);
    assert!(!producer.can_push(), "nobody has taken the answer");
    let mut found = None;
    producer.collect(1, |_, answer| found = Some(answer.map(<[u8]>::len)));
    assert_eq!(found, Some(Err(TxError::Tagged(ErrorCode::UNWOUND))));
    assert!(producer.can_push());
}

#[test]
fn memory_that_is_too_short_is_refused() {
    let geometry = Geometry::new(SLOTS, SIZE).unwrap();
    let (file, device) = (Heap::new(geometry.shared_size()), Heap::new(geometry.posted_size() - 1));
    let refused = posted(file, BASES[0], Arc::new(device), BASES[1], geometry).err();
    let (have, need) = (geometry.posted_size() - 1, geometry.posted_size());
    assert_eq!(refused, Some(RingError::ShortMemory { have, need }));
}

#[test]
fn a_request_that_was_cleared_and_never_answered_is_given_up() {
    let (mut producer, out, _file, device, _) = ring();
    producer.push(|slot| slot.len()).unwrap();
    let look_and = |producer: &mut Producer, millis: u64, takes: bool| {
        let mut found = None;
        producer.tell_time(Nanos(millis * 1_000_000));
        for _ in 0..64 {
            producer.collect_if(|_, answer| {
                found = Some(answer.map(<[u8]>::len));
                takes
            });
        }
        found
    };
    let look = |producer: &mut Producer, millis| look_and(producer, millis, true);
    assert_eq!(look(&mut producer, 1000), None, "the dispatcher has it");
    flag(&device, 0).store(0, Release);
    assert_eq!(look(&mut producer, 2000), None);
    assert_eq!(look(&mut producer, 2049), None);
    assert_eq!(look_and(&mut producer, 2050, false), Some(Err(TxError::Unanswered)));
    assert_eq!(out.refuse(ErrorCode::UNWOUND), 0, "it was given up");
    assert_eq!(look(&mut producer, 2051), Some(Err(TxError::Unanswered)), "it stays so until that is taken");
    assert!(producer.can_push());
    assert_eq!(look(&mut producer, 9000), None);
}

#[test]
fn what_a_dead_dispatcher_had_is_refused() {
    let (mut producer, out, file, device, _) = ring();
    let [_, tx_flags, _, tx_data] = parts(&file);
    for _ in 0..SLOTS - 1 {
        producer.push(|slot| slot.len()).unwrap();
    }
    // The first is answered, the second cleared, the third not looked at; then a flag that nobody has set.
    (0..2).for_each(|slot| flag(&device, 8 * slot).store(0, Release));
    flag(&file, tx_flags).store((BASES[0] + tx_data) as u64, Release);
    flag(&device, 24).store(5, Release);
    assert_eq!(out.refuse(ErrorCode::UNWOUND), 2);
    assert_eq!(out.refuse(ErrorCode::UNWOUND), 0, "once");
    assert!((0..4).all(|slot| flag(&device, 8 * slot).load(Acquire) == 0));
    let mut found = Vec::new();
    producer.collect(9, |_, answer| found.push(answer.map(<[u8]>::len)));
    let refused = Err(TxError::Tagged(ErrorCode::UNWOUND));
    assert_eq!(found, [Ok(SIZE), refused, refused]);
    // What comes now is for the next one.
    assert_eq!(producer.push(|slot| slot.len()), Ok(SlotIndex(3)));
    assert_ne!(flag(&device, 24).load(Acquire), 0);
    assert_eq!(out.refuse(ErrorCode::UNWOUND), 1);
}
