//! Requests that a dispatcher reads where they were received. That memory is the ring's own slots here: what is announced in
//! one is the request that was copied there a lap before.

mod common;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use berth_memory::Heap;
use berth_port::{Clock as _, Frame, Place, Service as _, Verdict};
use berth_ring::{Dispatcher, Elsewhere, Geometry, Ring};
use berth_rpc::{RING_BUDGET, RpcService, Stage, Undispatchable};
use berth_wire::rpc::{HeaderForm, RequestHeader, ResponseHeader, status};
use common::*;

const FORM: HeaderForm = HeaderForm::V24;
const SLOTS: u32 = 4;

struct Bench {
    clock: VirtualClock,
    service: RpcService<TestHandlers, VirtualClock, fn(Stage, u64)>,
    port: Outbox,
    dispatcher: Dispatcher,
    is_read: Arc<AtomicBool>,
    stride: usize,
}

impl Bench {
    /// Each slot has had a request with its index as the id.
    fn new() -> Self {
        let geometry = Geometry::new(SLOTS, SLOT).unwrap();
        let mut ring = Ring::new(Heap::new(geometry.size()), geometry).unwrap();
        let base = ring.as_abi().rx_data.addr() as u64;
        let is_read = Arc::new(AtomicBool::new(true));
        let elsewhere = Elsewhere { base, size: SLOTS as usize * geometry.stride(), is_read: is_read.clone() };
        let producer = ring.producer().unwrap().patient(Duration::ZERO).trusted().reading(elsewhere);
        let dispatcher = ring.dispatcher().unwrap();
        let clock = VirtualClock::default();
        let config = config(FORM, Undispatchable::Reply);
        let handlers = TestHandlers(clock.clone());
        let service = RpcService::new(config, table(RING), handlers, Some(producer), clock.clone(), QUIET).unwrap();
        let (port, stride) = (Outbox::new(100), geometry.stride());
        let mut bench = Self { clock, service, port, dispatcher, is_read, stride };
        for slot in 0..SLOTS {
            let mut message = request(FORM, "increment", slot, &[7]);
            let len = message.len();
            let mut frame = Frame::new(&mut message, len, len, peer(slot as u16));
            assert_eq!(bench.service.handle(&mut frame, bench.clock.now()), Verdict::Drop);
        }
        assert_eq!(bench.serve(SLOTS), [0, 1, 2, 3]);
        assert_eq!(bench.answers().len(), SLOTS as usize);
        bench
    }

    /// Hands in a request that lies there.
    fn send(&mut self, at: usize, number: u32, message: &mut [u8]) -> Verdict {
        let len = message.len();
        let mut frame = Frame::new(message, len, len, peer(number as u16));
        frame.set_place(Place { at, number });
        self.service.handle(&mut frame, self.clock.now())
    }

    /// A request that lies in the next slot, with that slot's index, as number `number`.
    fn in_place(&mut self, slot: u32, number: u32) -> Verdict {
        self.send(slot as usize * self.stride, number, &mut request(FORM, "increment", slot, &[7]))
    }

    /// Answers so many requests; their ids.
    fn serve(&mut self, count: u32) -> Vec<u32> {
        let mut ids = Vec::new();
        self.dispatcher.poll(count as usize, |rx, tx| {
            let RequestHeader { request_id, ptp_timestamp, .. } = RequestHeader::parse(FORM, rx).unwrap();
            ids.push(request_id);
            let header = ResponseHeader { status: 0, result_len: 0, request_id, ptp_timestamp };
            Ok(header.write(FORM, tx).unwrap())
        });
        ids
    }

    fn answers(&mut self) -> Vec<Answer> {
        // A look at what was freed without an answer comes once in a while.
        self.service.poll(&mut self.port, self.clock.now());
        self.port.take(FORM).into_iter().map(|(_, answer)| answer).collect()
    }

    fn counted(&self) -> u64 {
        counters(|visit| self.service.counters(visit))["ring_in_place"]
    }
}

#[test]
fn a_request_is_announced_where_it_lies_and_given_back_with_its_answer() {
    let mut bench = Bench::new();
    for turn in 0..3 * SLOTS {
        let slot = turn % SLOTS;
        assert_eq!(bench.in_place(slot, 10 + turn), Verdict::Keep);
        assert_eq!(bench.answers(), []);
        assert_eq!(bench.serve(1), [slot]);
        assert_eq!(bench.port.released, []);
        assert_eq!(bench.answers(), [(0, slot, vec![])]);
        assert_eq!(std::mem::take(&mut bench.port.released), [10 + turn]);
    }
    assert_eq!(bench.counted(), u64::from(3 * SLOTS));
}

#[test]
fn what_cannot_be_read_there_is_copied() {
    let mut bench = Bench::new();
    let end = SLOTS as usize * bench.stride;
    // At no multiple of 4; where a slot's bytes end beyond the memory; where its end wraps.
    for (number, at) in [2, end - SLOT + 4, usize::MAX - 3].into_iter().enumerate() {
        let mut message = request(FORM, "increment", 20 + number as u32, &[7]);
        assert_eq!(bench.send(at, number as u32, &mut message), Verdict::Drop, "{at}");
    }
    assert_eq!(bench.serve(SLOTS), [20, 21, 22]);
    assert_eq!(bench.answers().len(), 3);
    assert_eq!(bench.counted(), 0);

    // Nobody has said yet that he reads there.
    bench.is_read.store(false, Relaxed);
    assert_eq!(bench.in_place(3, 9), Verdict::Drop);
    bench.is_read.store(true, Relaxed);
    assert_eq!(bench.in_place(0, 9), Verdict::Keep);
    assert_eq!(bench.counted(), 1);
    assert_eq!(bench.serve(2), [3, 20], "what lies in the first slot by now");
    assert_eq!(bench.port.released, []);
}

#[test]
fn a_frame_stays_until_a_dispatcher_that_is_late_is_done_with_it() {
    let mut bench = Bench::new();
    assert_eq!(bench.in_place(0, 10), Verdict::Keep);
    assert_eq!(bench.in_place(1, 11), Verdict::Keep);
    bench.clock.advance(RING_BUDGET + Duration::from_millis(1));
    assert_eq!(bench.answers(), [(status::HANDLER_FAILED, 0, vec![])]);
    assert_eq!(bench.port.released, [], "it may still be read");
    assert_eq!(bench.serve(2), [0, 1]);
    assert_eq!(bench.answers(), [(0, 1, vec![])]);
    assert_eq!(bench.port.released, [10, 11]);
}

#[test]
fn a_frame_stays_while_its_answer_waits_for_the_transmit_queue() {
    let mut bench = Bench::new();
    bench.port.room = 0;
    assert_eq!(bench.in_place(0, 10), Verdict::Keep);
    assert_eq!(bench.serve(1), [0]);
    bench.service.poll(&mut bench.port, bench.clock.now());
    assert_eq!(bench.port.released, []);
    bench.port.room = 1;
    assert_eq!(bench.answers().len(), 1);
    assert_eq!(bench.port.released, [10]);
}

#[test]
fn a_full_ring_keeps_nothing() {
    let mut bench = Bench::new();
    for slot in 0..SLOTS {
        assert_eq!(bench.in_place(slot, 10 + slot), Verdict::Keep);
    }
    assert_eq!(bench.in_place(0, 14), Verdict::Reply);
    assert_eq!(bench.serve(SLOTS), [0, 1, 2, 3]);
    assert_eq!(bench.answers().len(), 4);
    assert_eq!(bench.port.released, [10, 11, 12, 13]);
}

/// A function that checks lengths by itself is told of bytes that are missing, not given an earlier request's.
#[test]
fn a_cut_request_is_copied_with_a_length_that_no_slot_has() {
    let mut bench = Bench::new();
    let mut message = request(FORM, "lenient", 5, &[7; 8]);
    message.truncate(28);
    assert_eq!(bench.send(0, 10, &mut message), Verdict::Drop);
    let mut seen = None;
    bench.dispatcher.poll(1, |rx, _| {
        seen = Some(RequestHeader::parse(FORM, rx).unwrap());
        Ok(0)
    });
    assert_eq!(seen.map(|header| (header.request_id, header.arg_len)), Some((5, u32::MAX)));
}
