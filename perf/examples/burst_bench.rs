//! When the first of a burst of slow requests is answered: `qec_decode` of d = 7 at p = 0.5 %, 32 at once, beside the first of
//! them alone.
//!
//! `cargo run --release -p berth-perf --example burst_bench [CPU CPU]`
//!
//! A lane with its timer, as `berth run` has, polls one end of a loopback on the second CPU; the client on the first posts a
//! burst while the lane is held, lets go, and waits. Bursts and single requests take turns. A JSON line per block has the
//! medians of it in nanoseconds: `first_of_32_ns`, `last_of_32_ns`, `alone_ns`.

use std::{
    fs,
    hint::spin_loop,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{
            AtomicU8,
            Ordering::{Acquire, Release},
        },
    },
    thread,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use berth_engine::{Idle, Lane, Lcore, Telemetry};
use berth_host::{TscClock, pin_current_thread};
use berth_perf::{
    functions::{Data, Function},
    shots::Shots,
};
use berth_port::{BURST, Clock, Loopback, Port, Verdict};
use berth_qec::{Algorithm, Decoder};
use berth_rpc::{
    Config, FunctionTable, Order, RpcService, Undispatchable,
    handlers::{Handler, HandlerSet, QecDecode, Session},
};
use berth_wire::rpc::{HeaderForm, PtpEncoding, RequestHeader, ResponseHeader};

const FORM: HeaderForm = HeaderForm::V24;
const MAX_FRAME: usize = 2048;
const ADDRS: [([u8; 4], u16); 2] = [([127, 0, 0, 1], 1), ([127, 0, 0, 1], 2)];
const BLOCKS: usize = 30;
/// Bursts, and as many requests alone, of a block.
const PER_BLOCK: usize = 50;

/// What the lane's thread is told.
const HELD: u8 = 0;
const GO: u8 = 1;
const STOP: u8 = 2;

fn main() -> Result<()> {
    let args =
        std::env::args().skip(1).map(|arg| arg.parse().context("CPUs are numbers")).collect::<Result<Vec<_>>>()?;
    let (cpu, server_cpu) = if let [a, b] = args[..] { (a, b) } else { (0, 1) };
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let text = fs::read_to_string(format!("{root}/config/decoders/surface_d7_p5e-3.dem"))?;
    let decoder = Decoder::from_dem(&text, Algorithm::Mwpm)?;
    let model = Some((decoder.num_detectors(), decoder.num_observables()));
    let shots = Shots::load(&format!("{root}/perf/data/surface_d7_p5e-3"), model)?;
    let step = Function::QecDecode.steps(0, &Data { shots: Some(shots), ..Data::default() }).remove(0);

    let clock = TscClock::calibrate(Duration::from_millis(50));
    let (mut port, theirs) = Loopback::pair(ADDRS.map(SocketAddr::from), 2 * BURST, MAX_FRAME);
    let told = Arc::new(AtomicU8::new(HELD));
    let (said, lane_clock) = (told.clone(), clock.clone());
    let server = thread::spawn(move || -> Result<()> {
        pin_current_thread(server_cpu)?;
        let functions: Vec<(String, Handler)> =
            vec![("qec_decode".to_owned(), Handler::QecDecode(QecDecode::events(0)))];
        let handlers = HandlerSet::new(functions, vec![Session::new(decoder)])?;
        let table = Arc::new(FunctionTable::new(handlers.functions())?);
        let config = Config {
            header: FORM,
            slot_size: MAX_FRAME,
            on_undispatchable: Undispatchable::Reply,
            ptp: PtpEncoding::Ns,
            order: Order::Arrival,
        };
        let service = RpcService::new(config, table, handlers, None, lane_clock.clone(), |_, _| {})?;
        let mut lcore = Lcore::new("server", Idle::Spin, &Telemetry::default());
        lcore.add(Lane::new("loopback", theirs, service).timed(lane_clock.clone()));
        loop {
            match said.load(Acquire) {
                GO => drop(lcore.poll(lane_clock.now())),
                STOP => return Ok(()),
                _ => spin_loop(),
            }
        }
    });
    pin_current_thread(cpu)?;

    let (to, rows) = (SocketAddr::from(ADDRS[1]), step.payloads.rows());
    // Asks for so many rows from the first on at once; returns when the first answer came, and when the last.
    let mut ask = |first: usize, count: usize| -> Result<[u64; 2]> {
        for nth in 0..count {
            let payload = step.payloads.row((first + nth) % rows);
            let (function_id, arg_len, request_id) = (step.function_id, payload.len() as u32, nth as u32);
            let header = RequestHeader { function_id, arg_len, request_id, ptp_timestamp: 0 };
            port.post(to.into(), |frame| {
                header.write(FORM, frame).expect("a frame holds a header");
                frame[FORM.len()..][..payload.len()].copy_from_slice(payload);
                FORM.len() + payload.len()
            })?;
        }
        port.tx();
        let began = clock.now().mono;
        told.store(GO, Release);
        let (mut answered, mut came, mut bad) = (0, [0; 2], 0);
        while answered < count {
            let got = port.rx(|frame| {
                let header = ResponseHeader::parse(FORM, frame.data());
                bad += usize::from(!header.is_ok_and(|header| header.status == 0));
                Verdict::Drop
            });
            if got > 0 {
                let now = (clock.now().mono - began).as_nanos() as u64;
                came = [if answered == 0 { now } else { came[0] }, now];
                answered += got;
            }
        }
        told.store(HELD, Release);
        ensure!(bad == 0, "{bad} requests were refused");
        Ok(came)
    };
    let mut row = 0;
    for block in 0..=BLOCKS {
        let (mut firsts, mut lasts, mut alone) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..PER_BLOCK {
            let [first, last] = ask(row, BURST)?;
            firsts.push(first);
            lasts.push(last);
            alone.push(ask(row, 1)?[0]);
            row += BURST;
        }
        // The first is to warm up.
        if block > 0 {
            let [first, last, alone] = [firsts, lasts, alone].map(median);
            println!("{}", serde_json::json!({ "first_of_32_ns": first, "last_of_32_ns": last, "alone_ns": alone }));
        }
    }
    told.store(STOP, Release);
    server.join().expect("the server does not panic")
}

fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values[values.len() / 2]
}
