//! The cost of dispatch: `rpc_increment` of 32 bytes, next to a copy of the same payload, on one core.
//!
//! Prints one JSON line per block, in nanoseconds per operation: `dispatch_ns` from frame in to frame out, `ring_ns`
//! from a ring's request slot to its answer slot (push, worker, collect), `memcpy_ns` for the copy. They take turns.

use std::{hint::black_box, net::SocketAddr, sync::Arc, time::Duration};

use berth_host::TscClock;
use berth_port::{Clock, Frame, Service, Verdict};
use berth_ring::pair;
use berth_rpc::{
    Config, FunctionTable, Order, RpcService, Undispatchable, Worker,
    handlers::{Handler, HandlerSet},
};
use berth_wire::rpc::{HeaderForm, PtpEncoding, RequestHeader, fnv1a};

const BLOCKS: usize = 100;
const PER_BLOCK: u32 = 20_000;
const PAYLOAD: usize = 32;
const SLOT_SIZE: usize = 2048;
const FORM: HeaderForm = HeaderForm::V24;

fn handlers() -> anyhow::Result<HandlerSet> {
    Ok(HandlerSet::new(vec![("rpc_increment".to_owned(), Handler::Increment)], vec![])?)
}

fn main() -> anyhow::Result<()> {
    let clock = TscClock::calibrate(Duration::from_millis(50));
    let table = Arc::new(FunctionTable::new(handlers()?.functions())?);
    let config = Config {
        header: FORM,
        slot_size: SLOT_SIZE,
        on_undispatchable: Undispatchable::Reply,
        ptp: PtpEncoding::Ns,
        order: Order::Arrival,
    };
    let mut wire_time = 0_u64;
    let mut service =
        RpcService::new(config, table.clone(), handlers()?, None, clock.clone(), |_, nanos| wire_time = nanos)?;
    let (mut producer, dispatcher) = pair(64, SLOT_SIZE)?;
    let mut worker = Worker::new(FORM, table, handlers()?, dispatcher, clock.clone())?;

    let now = clock.now();
    let (arg_len, ptp_timestamp) = (PAYLOAD as u32, now.wall.0 - 1);
    let header = RequestHeader { function_id: fnv1a("rpc_increment"), arg_len, request_id: 7, ptp_timestamp };
    let len = FORM.len() + PAYLOAD;
    let (mut request, mut buf, mut copy) = (vec![0; len], vec![0; SLOT_SIZE], vec![0; PAYLOAD]);
    header.write(FORM, &mut request)?;
    let peer = SocketAddr::from(([127, 0, 0, 1], 1));

    for _ in 0..BLOCKS {
        let dispatch_ns = per_operation(&clock, || {
            // The answer overwrote the header: renewing it is part of the price.
            buf[..FORM.len()].copy_from_slice(&request[..FORM.len()]);
            let mut frame = Frame::new(black_box(&mut buf), len, len, peer);
            assert_eq!(service.handle(black_box(&mut frame), now), Verdict::Reply);
            black_box(frame.data());
        });
        let ring_ns = per_operation(&clock, || {
            let fill = |slot: &mut [u8]| {
                slot[..len].copy_from_slice(black_box(&request));
                len
            };
            producer.push(fill).expect("the ring is empty");
            worker.poll(now);
            let taken =
                producer.collect(1, |_, answer| copy.copy_from_slice(&answer.expect("an answer")[FORM.len()..len]));
            assert_eq!(taken, 1);
        });
        let memcpy_ns =
            per_operation(&clock, || black_box(&mut copy).copy_from_slice(black_box(&request[FORM.len()..])));
        let line = serde_json::json!({ "dispatch_ns": dispatch_ns, "ring_ns": ring_ns, "memcpy_ns": memcpy_ns });
        println!("{line}");
    }
    Ok(())
}

/// Nanoseconds per operation, averaged over a block.
fn per_operation(clock: &TscClock, mut operation: impl FnMut()) -> f64 {
    let start = clock.now().mono;
    for _ in 0..PER_BLOCK {
        operation();
    }
    (clock.now().mono - start).as_nanos() as f64 / f64::from(PER_BLOCK)
}
