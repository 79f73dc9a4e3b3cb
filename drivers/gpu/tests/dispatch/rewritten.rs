//! Requests whose slots are written to while they are served.

use std::{
    mem::offset_of,
    ptr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use berth_gpu::Functions;
use berth_port::Nanos;
use berth_ring::abi::SharedRing;

use crate::{
    EXAMPLE,
    common::{BOTH, HEADER, On, Rig, increment, module, symbol},
    graph,
};

const SLOTS: usize = 4;
const SLOT: usize = 208;
const STRIDE: usize = 256;
const ROOM: u32 = (SLOT - HEADER) as u32;
const CANARY: u8 = 0xC5;

/// Lengths of arguments that slots say: those that fit, and those that do not.
const LENGTHS: [u32; 7] = [ROOM, u32::MAX, 8, ROOM + 1, 0, 5000, ROOM];
/// Where request ids of the thread that rewrites begin.
const REWRITTEN: u32 = 0xA000_0000;
const IDS: u32 = 100;

/// Where the ring's file has something, in this process.
#[derive(Clone, Copy)]
struct Place(usize);

impl Place {
    /// An area of the slots, by where the front of the file has its offset.
    fn area(rig: &Rig, at: usize) -> Self {
        // SAFETY: the front is aligned, and written by this process alone.
        let offset = unsafe { rig.front.add(at).cast::<u64>().read() };
        Self(rig.front.addr().get() + offset as usize)
    }

    fn word<'a>(self, at: usize) -> &'a AtomicU32 {
        // SAFETY: within the memory, which lives longer than who uses it here; whoever else has it uses atomics, or copies that
        // allow for changes.
        unsafe { AtomicU32::from_ptr(ptr::with_exposed_provenance_mut(self.0 + at)) }
    }

    fn byte<'a>(self, at: usize) -> &'a AtomicU8 {
        // SAFETY: as above.
        unsafe { AtomicU8::from_ptr(ptr::with_exposed_provenance_mut(self.0 + at)) }
    }
}

/// A thread that writes headers and arguments of requests to all slots, until this is dropped.
struct Writer {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    fn start(rx: Place) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stops = stop.clone();
        let mut turn = 0_u32;
        let write = move || {
            while !stops.load(Relaxed) {
                for slot in (0..SLOTS).map(|slot| slot * STRIDE) {
                    turn = turn.wrapping_add(1);
                    rx.word(slot + 4).store(1 + turn % 3, Relaxed);
                    rx.word(slot + 8).store(LENGTHS[turn as usize % LENGTHS.len()], Relaxed);
                    rx.word(slot + 12).store(REWRITTEN + turn % IDS, Relaxed);
                    rx.word(slot + HEADER).store(turn & 0x0101_0100, Relaxed);
                }
            }
        };
        Self { stop, thread: Some(thread::spawn(write)) }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Every answer is one that could be given to what was written, and nothing is written beyond its slot.
fn served(rig: &mut Rig, count: u32) {
    rig.front.expose_provenance();
    let [rx, tx] = [offset_of!(SharedRing, rx_data), offset_of!(SharedRing, tx_data)].map(|at| Place::area(rig, at));
    let beyond = |slot| slot * STRIDE + SLOT..(slot + 1) * STRIDE;
    (0..SLOTS).flat_map(beyond).for_each(|at| tx.byte(at).store(CANARY, Relaxed));
    let writer = Writer::start(rx);
    let (mut sent, mut taken, mut seen) = (0, 0, [0; 3]);
    let mut until = Instant::now() + Duration::from_secs(20);
    while taken < count {
        while sent < count && rig.producer.can_push() {
            rig.push(1, sent, &[0; 8]);
            sent += 1;
        }
        rig.producer.tell_time(Nanos(1));
        let got = rig.producer.collect(1, |_, answer| {
            let answer = answer.unwrap();
            let word = |at: usize| u32::from_le_bytes(answer[at..at + 4].try_into().unwrap());
            let [magic, status, len, id] = [0, 4, 8, 12].map(word);
            assert_eq!((answer.len(), magic), (SLOT, 0x4355_5153));
            assert!(id < count || (REWRITTEN..REWRITTEN + IDS).contains(&id), "{id:#x}");
            match status as i32 {
                // As long as its arguments, or a sum.
                0 => assert!([0, 4, 8, ROOM].contains(&len), "{len}"),
                -2 => assert_eq!(len, 0),
                status => panic!("status {status}"),
            }
            let kinds = [id >= REWRITTEN, status == 0, status != 0];
            seen.iter_mut().zip(kinds).for_each(|(seen, is)| *seen += u32::from(is));
        });
        if got > 0 {
            taken += 1;
            until = Instant::now() + Duration::from_secs(20);
        }
        assert!(Instant::now() < until, "no answer");
        thread::yield_now();
    }
    drop(writer);
    assert!((0..SLOTS).flat_map(beyond).all(|at| tx.byte(at).load(Relaxed) == CANARY));
    assert!(seen.iter().all(|seen| *seen > 0), "slots were rewritten, to what fits and what does not: {seen:?}");
}

#[test]
fn a_slot_that_is_rewritten_under_the_dispatcher() {
    for on in BOTH {
        let mut rig = Rig::new(on, 100, SLOTS as u32, SLOT, 2);
        let all = vec![increment(1), symbol(2, "reverse", false), symbol(3, "sum_by_block", true)];
        assert_eq!(rig.load(&Functions { all, modules: vec![module(EXAMPLE)], lost: false }), "loaded");
        served(&mut rig, if on == On::Soft { 600 } else { 200 });
    }
}

#[test]
fn a_slot_that_is_rewritten_under_a_graph() {
    for on in BOTH {
        let mut rig = Rig::new(on, 101, SLOTS as u32, SLOT, 1);
        let all = (1..4).map(|id| graph(id, "reverse_graph", id == 2)).collect();
        assert_eq!(rig.load(&Functions { all, modules: vec![module(EXAMPLE)], lost: false }), "loaded");
        served(&mut rig, if on == On::Soft { 600 } else { 200 });
    }
}
