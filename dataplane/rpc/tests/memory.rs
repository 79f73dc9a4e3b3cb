//! The inline path allocates nothing, over a million requests.

mod common;

use std::sync::Arc;

use berth_port::{Clock, Frame, Service, Verdict};
use berth_qec::{Algorithm, Decoder};
use berth_rpc::{
    FunctionTable, RpcService, Undispatchable,
    handlers::{Handler, HandlerSet, Session},
};
use berth_wire::rpc::HeaderForm;
use common::*;

#[test]
fn a_million_requests_allocate_nothing() {
    let form = HeaderForm::V24;
    let decoder = Decoder::from_dem("error(0.1) D0 L0\nerror(0.1) D0 D1\n", Algorithm::Lut { depth: 2 }).unwrap();
    let functions = vec![
        ("rpc_increment".to_owned(), Handler::Increment),
        ("qec_decode".to_owned(), Handler::QecDecode(0)),
        ("enqueue_syndromes".to_owned(), Handler::EnqueueSyndromes),
        ("get_corrections".to_owned(), Handler::GetCorrections),
    ];
    let set: HandlerSet = HandlerSet::new(functions, vec![Session::new(decoder)]).unwrap();
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
    ];
    let mut buf = [0; SLOT];
    let (now, mut statuses) = (clock.now(), [0_i32; 5]);
    let allocated = allocation_counter::measure(|| {
        for round in 0..1_000_000 {
            let message = &messages[round % 5];
            buf[..message.len()].copy_from_slice(message);
            let mut frame = Frame::new(&mut buf, message.len(), message.len(), peer(1));
            assert_eq!(service.handle(&mut frame, now), Verdict::Reply);
            statuses[round % 5] |= i32::from_le_bytes([buf[4], buf[5], buf[6], buf[7]]);
        }
    });
    assert_eq!((allocated.count_total, statuses), (0, [0, 0, 0, 0, -1]));
}
