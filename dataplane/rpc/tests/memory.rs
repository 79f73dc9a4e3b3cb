//! The path of a request allocates nothing, over a million requests.

mod common;

use std::{convert::Infallible, net::SocketAddr, sync::Arc};

use berth_kernels::{Builtin, Choice, Kernel, Registry, Runs, Settings};
use berth_port::{Clock, Frame, Peer, Port, PostError, Service, Verdict};
use berth_qec::{
    Algorithm, Decoder, Tables, dem::DetectorErrorModel, gap::Gap, readout::Readout, sparse::MeasurementMap,
};
use berth_ring::pair;
use berth_rpc::{
    Dispatch, FunctionTable, RingIndex, RpcService, Undispatchable, Worker,
    handlers::{Handler, HandlerSet, QecDecode, Session, Shot},
};
use berth_wire::rpc::HeaderForm;
use common::*;

#[test]
fn a_million_requests_allocate_nothing() {
    let form = HeaderForm::V24;
    let model = DetectorErrorModel::parse("error(0.1) D0 L0\nerror(0.1) D0 D1\nerror(0.2) D1\n").unwrap();
    let tables = |algorithm| Arc::new(Tables::new(&model, algorithm).unwrap());
    let (lut, mwpm) = (tables(Algorithm::Lut { depth: 2 }), tables(Algorithm::Mwpm));
    let (readout, gap) = (Readout::new(&mwpm, &MeasurementMap::identity(2)), Gap::new(&mwpm));
    let soft = Decoder::new(mwpm).with_readout(Arc::new(readout.unwrap())).with_gap(Arc::new(gap.unwrap()));
    let functions = vec![
        ("rpc_increment".to_owned(), Handler::Increment),
        ("qec_decode".to_owned(), Handler::QecDecode(QecDecode::events(0))),
        ("enqueue_syndromes".to_owned(), Handler::EnqueueSyndromes),
        ("get_corrections".to_owned(), Handler::GetCorrections),
        ("VectorAddRequest".to_owned(), Handler::Kernel(Box::new(vector_add()))),
        ("soft".to_owned(), Handler::QecDecode(QecDecode { decoder: 1, shot: Shot::Soft8, confidence: true })),
        ("sure".to_owned(), Handler::QecDecode(QecDecode { confidence: true, ..QecDecode::events(1) })),
    ];
    let set: HandlerSet =
        HandlerSet::new(functions, vec![Session::new(Decoder::new(lut)), Session::new(soft)]).unwrap();
    let table = Arc::new(FunctionTable::new(set.functions()).unwrap());
    let clock = VirtualClock::default();
    let config = config(form, Undispatchable::Reply);
    let mut service = RpcService::new(config, table, set, None, clock.clone(), |_, _| {}).unwrap();

    let mut two_events = [0; 33];
    (two_events[24], two_events[32]) = (2, 0b10);
    let mut one_observable = [0; 17];
    one_observable[8] = 1;
    let messages = [
        request(form, "rpc_increment", 1, &[9; 32]),
        request(form, "qec_decode", 1, &[0b01, 2, 0, 0, 0]),
        request(form, "enqueue_syndromes", 1, &two_events),
        request(form, "get_corrections", 1, &one_observable),
        request(form, "nobody", 1, &[]),
        request(form, "VectorAddRequest", 1, &[&[5][..], &[1; 16], &[0; 26]].concat()),
        request(form, "VectorAddRequest", 1, &[0; 42]),
        request(form, "soft", 1, &[200, 100, 2, 0, 0, 0]),
        request(form, "sure", 1, &[0b11, 2, 0, 0, 0]),
    ];
    let mut buf = [0; SLOT];
    let (now, mut statuses) = (clock.now(), [0_i32; 9]);
    let allocated = allocation_counter::measure(|| {
        for round in 0..1_000_000 {
            let message = &messages[round % 9];
            buf[..message.len()].copy_from_slice(message);
            let mut frame = Frame::new(&mut buf, message.len(), message.len(), peer(1));
            assert_eq!(service.handle(&mut frame, now), Verdict::Reply);
            statuses[round % 9] |= i32::from_le_bytes([buf[4], buf[5], buf[6], buf[7]]);
        }
    });
    assert_eq!((allocated.count_total, statuses), (0, [0, 0, 0, 0, -1, 0, 0, 0, 0]));
}

fn vector_add() -> Kernel {
    let registry = Registry::default();
    let schema = |name| registry.find(name).unwrap().schema.clone();
    let (request, response) = (schema("VectorAddRequest"), schema("VectorAddResponse"));
    let (runs, format) = (Runs::Builtin(Builtin::VectorAdd), Choice::Auto);
    Kernel::new(Settings { request, response, runs, format, dedup: 256, active: true, queue: None }).unwrap()
}

/// Takes every answer and discards it.
struct Sink([u8; SLOT]);

impl Port for Sink {
    fn rx<H: FnMut(&mut Frame<'_>) -> Verdict>(&mut self, _: H) -> usize {
        0
    }

    fn post<F: FnOnce(&mut [u8]) -> usize>(&mut self, _: Peer, fill: F) -> Result<(), PostError> {
        fill(&mut self.0);
        Ok(())
    }

    fn tx(&mut self) {}

    fn max_frame(&self) -> usize {
        SLOT
    }

    fn local_addr(&self) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, 1], 0))
    }

    fn counters(&self, _: &mut dyn FnMut(&'static str, u64)) {}
}

#[test]
fn rings_and_answers_that_wait_for_their_turn_allocate_nothing() {
    let form = HeaderForm::V24;
    let set = || {
        let functions = ["fast", "slow", "slower"].map(|name| (name.to_owned(), Handler::Increment));
        HandlerSet::<Infallible>::new(functions.into(), vec![]).unwrap()
    };
    let mut functions = set().functions();
    (functions[1].mode, functions[2].mode) = (RING, Dispatch::Ring(RingIndex(1)));
    let table = Arc::new(FunctionTable::new(functions).unwrap());
    let clock = VirtualClock::default();
    let (producers, rings): (Vec<_>, Vec<_>) = (0..2).map(|_| pair(64, SLOT).unwrap()).unzip();
    let config = config(form, Undispatchable::Reply);
    let mut service = RpcService::new(config, table.clone(), set(), producers, clock.clone(), |_, _| {}).unwrap();
    let worker = |ring| Worker::new(form, table.clone(), set(), ring, clock.clone()).unwrap();
    let mut workers: Vec<_> = rings.into_iter().map(worker).collect();
    let messages = ["slow", "fast", "slower"].map(|name| request(form, name, 1, &[9; 32]));
    let (mut buf, mut port, now) = ([0; SLOT], Sink([0; SLOT]), clock.now());
    let mut posted = 0;
    let allocated = allocation_counter::measure(|| {
        for round in 0..10_000 {
            for (at, message) in messages.iter().cycle().take(30).enumerate() {
                buf[..message.len()].copy_from_slice(message);
                let client = peer((round * 7 + at / 3) as u16);
                let mut frame = Frame::new(&mut buf, message.len(), message.len(), client);
                assert_eq!(service.handle(&mut frame, now), Verdict::Drop);
            }
            // The answers of the second ring are early.
            for worker in workers.iter_mut().rev() {
                assert_eq!(worker.poll(now), 10);
                posted += service.poll(&mut port, now);
            }
        }
    });
    assert_eq!((allocated.count_total, posted), (0, 300_000));
}
