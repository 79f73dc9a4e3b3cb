//! What dispatch adds: `rpc_increment` of 32 bytes, frame in to frame out, beside a copy of the same payload.
//!
//! Both run in alternating blocks on the core this is pinned to; one JSON line tells nanoseconds per operation over
//! the blocks, and `added_ns`, the difference of the medians.

use std::{hint::black_box, net::SocketAddr, sync::Arc};

use berth_host::TscClock;
use berth_port::{Clock, Frame, Service, Verdict};
use berth_rpc::{
    Config, FunctionTable, RpcService, Undispatchable,
    handlers::{Handler, HandlerSet},
};
use berth_wire::rpc::{HeaderForm, PtpEncoding, RequestHeader, fnv1a};

const BLOCKS: usize = 400;
const PER_BLOCK: u32 = 5_000;
const PAYLOAD: usize = 32;

fn main() {
    let clock = TscClock::calibrate(std::time::Duration::from_millis(50));
    let form = HeaderForm::V24;
    let set: HandlerSet =
        HandlerSet::new(vec![("rpc_increment".to_owned(), Handler::Increment)], vec![]).expect("one builtin");
    let table = Arc::new(FunctionTable::new(set.functions()).expect("one function"));
    let config =
        Config { header: form, slot_size: 2048, on_undispatchable: Undispatchable::Reply, ptp: PtpEncoding::Ns };
    let mut wire_time = 0_u64;
    let mut service = RpcService::new(config, table, set, None, clock.clone(), |nanos| wire_time = nanos)
        .expect("slots hold a header");

    let len = form.len() + PAYLOAD;
    let (mut request, mut buf, mut copy) = (vec![0; len], vec![0; 2048], vec![0; PAYLOAD]);
    let now = clock.now();
    let header = RequestHeader {
        function_id: fnv1a("rpc_increment"),
        arg_len: PAYLOAD as u32,
        request_id: 7,
        ptp_timestamp: now.wall.0 - 1,
    };
    header.write(form, &mut request).expect("the buffer holds a header");
    let peer = SocketAddr::from(([127, 0, 0, 1], 1));

    let (mut dispatch, mut memcpy) = (Vec::with_capacity(BLOCKS), Vec::with_capacity(BLOCKS));
    for _ in 0..BLOCKS {
        let start = clock.now();
        for _ in 0..PER_BLOCK {
            // The answer overwrote the header: renewing it is part of the price.
            buf[..form.len()].copy_from_slice(&request[..form.len()]);
            let mut frame = Frame::new(black_box(&mut buf), len, len, peer);
            assert_eq!(service.handle(black_box(&mut frame), now), Verdict::Reply);
            black_box(frame.data());
        }
        let between = clock.now();
        for _ in 0..PER_BLOCK {
            black_box(&mut copy).copy_from_slice(black_box(&request[form.len()..]));
        }
        let end = clock.now();
        dispatch.push((between.mono - start.mono).as_nanos() as f64 / f64::from(PER_BLOCK));
        memcpy.push((end.mono - between.mono).as_nanos() as f64 / f64::from(PER_BLOCK));
    }
    let summary = |blocks: &mut Vec<f64>| {
        blocks.sort_by(f64::total_cmp);
        (blocks[0], blocks[BLOCKS / 2])
    };
    let ((dispatch_min, dispatch_p50), (memcpy_min, memcpy_p50)) = (summary(&mut dispatch), summary(&mut memcpy));
    let line = serde_json::json!({
        "case": "dispatch_alone",
        "payload_bytes": PAYLOAD,
        "blocks": BLOCKS,
        "operations_per_block": PER_BLOCK,
        "dispatch_ns": { "min": dispatch_min, "p50": dispatch_p50 },
        "memcpy_ns": { "min": memcpy_min, "p50": memcpy_p50 },
        "added_ns": dispatch_p50 - memcpy_p50,
    });
    println!("{line}");
}
