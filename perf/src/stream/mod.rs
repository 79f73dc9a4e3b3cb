//! `berth perf stream`: an experiment, round by round, to a decoding server that decodes it in windows.
//!
//! The rounds are drawn from the model before the first is sent, and decoded by the library: `get_corrections`, after each twentieth of
//! them, must answer exactly what that says.

mod client;
mod story;

use std::{fs, process::ExitCode, sync::Arc, time::Duration};

use anyhow::{Context as _, bail};
use berth_host::{TscClock, pin_current_thread};
use berth_port::{Peer, Port};
use berth_ports::PortUser;
use berth_qec::Decoder;
use berth_rpc::{
    FunctionTable, Order, RpcService, Stage, Undispatchable,
    handlers::{Handler, HandlerSet, Session, Streaming},
};
use berth_wire::rpc::{HeaderForm, PtpEncoding};
use client::{Client, Streamed};
use serde_json::{Value, json};
use story::Story;

use crate::{
    args::StreamArgs,
    load::Pacing,
    ports::{self, Cpus, Opening, Way},
    server::{Serve, Server},
};

/// Time to calibrate the clock; about 10 ppm.
const CALIBRATION: Duration = Duration::from_millis(50);

/// Streams over a port and keeps what came of it.
struct User<'a> {
    client: Client<'a>,
    streamed: &'a mut Option<anyhow::Result<Streamed>>,
}

impl PortUser for User<'_> {
    fn run<P: Port>(self, mut port: P, peer: Peer) {
        *self.streamed = Some(self.client.stream(&mut port, peer));
    }
}

/// Runs the command line. Failure: a correction is not what it must be.
pub(crate) fn run(args: &StreamArgs) -> anyhow::Result<ExitCode> {
    let pace = &args.load.pace;
    if pace.hlog.is_some() || pace.html.is_some() {
        bail!("a stream writes --json alone");
    }
    let story = Arc::new(Story::draw(args)?);
    let cpus = Cpus::choose(pace.cpu, pace.bounce_cpu)?;
    pin_current_thread(cpus.client)?;
    let clock = TscClock::calibrate(CALIBRATION);
    let mut streamed = None;
    let user = User {
        client: Client {
            story: &story,
            decoder_id: args.decoder,
            pacing: args.load.pacing(),
            timeout: Duration::from_millis(pace.timeout),
            clock: clock.clone(),
        },
        streamed: &mut streamed,
    };
    let way = Way::Port { args: Box::new(args.load.clone()), serve: serve(story.clone()), meet: None };
    let usual = ports::USUAL_FRAME;
    ports::open(&Opening { way: &way, max_frame: usual, longest: usual, clock: &clock, cpus }, user)?;
    let streamed = streamed.context("the port was not used")??;
    let report = report(&story, args.load.pacing(), &streamed);
    print!("{}", told(&report));
    if let Some(path) = &pace.json {
        fs::write(path, format!("{report:#}\n")).with_context(|| path.display().to_string())?;
    }
    Ok(if streamed.wrong.is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Serves a loopback with the decoder of the stream.
fn serve(story: Arc<Story>) -> Arc<Serve> {
    Arc::new(move |port, cpu, clock| {
        let (tables, experiment) = (story.tables.clone(), story.experiment.clone());
        Server::start(port, cpu, clock, move |slot_size, clock| {
            let streaming = Streaming { numbered: true, early: true };
            let session = Session::streaming(Decoder::new(tables), experiment, streaming, None);
            let functions = vec![
                ("enqueue_syndromes".to_owned(), Handler::EnqueueSyndromes),
                ("get_corrections".to_owned(), Handler::GetCorrections),
                ("reset_decoder".to_owned(), Handler::ResetDecoder),
            ];
            let handlers: HandlerSet = HandlerSet::new(functions, vec![session])?;
            let table = Arc::new(FunctionTable::new(handlers.functions())?);
            let config = berth_rpc::Config {
                header: HeaderForm::V24,
                slot_size,
                on_undispatchable: Undispatchable::Reply,
                ptp: PtpEncoding::Ns,
                order: Order::Arrival,
            };
            Ok(RpcService::new(config, table, handlers, None, clock, |_: Stage, _: u64| {})?)
        })
    })
}

/// What came of a stream, times in nanoseconds.
fn report(story: &Story, pacing: Pacing, streamed: &Streamed) -> Value {
    let rounds = story.rounds();
    let offered = match pacing {
        Pacing::Open { rate, .. } => Some(1e9 / rate),
        Pacing::Closed { .. } => None,
    };
    let mut before = (0, Duration::ZERO);
    let part = |part: &client::Part| {
        let (rounds, at) = std::mem::replace(&mut before, (part.rounds, part.at));
        let round_ns = part.at.saturating_sub(at).as_nanos() as f64 / (part.rounds - rounds) as f64;
        json!({
            "rounds": part.rounds,
            "at_ns": part.at.as_nanos() as u64,
            "round_ns": round_ns,
            "backlog": part.backlog,
            "backlog_most": part.most,
        })
    };
    let parts: Vec<_> = streamed.parts.iter().map(part).collect();
    let all = streamed.parts.last().map_or(Duration::ZERO, |part| part.at);
    let at = |quantile| streamed.latency.value_at_quantile(quantile);
    json!({
        "rounds": rounds,
        "offered_ns": offered,
        "round_ns": all.as_nanos() as f64 / rounds as f64,
        "backlog_most": streamed.parts.iter().map(|part| part.most).max(),
        "latency_ns": { "p50": at(0.5), "p99": at(0.99), "p99.9": at(0.999), "longest": at(1.0) },
        "parts": parts,
        "answers_stray": streamed.stray,
        "corrections_right": streamed.right,
        "corrections_wrong": streamed.wrong.map(|(rounds, found, expected)| {
            json!({ "after_rounds": rounds, "found": found, "expected": expected })
        }),
        "logical_error": story.corrections(rounds) != Some(story.truth),
    })
}

/// The report in words.
fn told(report: &Value) -> String {
    use std::fmt::Write as _;
    let us = |value: &Value| value.as_f64().unwrap_or(f64::NAN) / 1e3;
    let mut text =
        format!("{:>12} {:>12} {:>12} {:>10} {:>10}\n", "rounds", "at ms", "us a round", "backlog", "at most");
    for part in report["parts"].as_array().into_iter().flatten() {
        let _ = writeln!(
            text,
            "{:>12} {:>12.3} {:>12.3} {:>10} {:>10}",
            part["rounds"].to_string(),
            us(&part["at_ns"]) / 1e3,
            us(&part["round_ns"]),
            part["backlog"].to_string(),
            part["backlog_most"].to_string(),
        );
    }
    let offered = match report["offered_ns"].as_f64() {
        Some(offered) => format!("a round each {:.3} us", offered / 1e3),
        None => "as fast as they were answered".to_owned(),
    };
    let _ =
        writeln!(text, "{} rounds, {offered}: {:.3} us a round sustained", report["rounds"], us(&report["round_ns"]));
    let latency = &report["latency_ns"];
    let _ = writeln!(
        text,
        "answered p50 {:.1} us, p99 {:.1} us, p99.9 {:.1} us, longest {:.1} us after a round was due",
        us(&latency["p50"]),
        us(&latency["p99"]),
        us(&latency["p99.9"]),
        us(&latency["longest"]),
    );
    if report["answers_stray"] != 0 {
        let _ = writeln!(text, "{} answers to no request under way", report["answers_stray"]);
    }
    let error = if report["logical_error"] == true { "a logical error" } else { "no logical error" };
    let _ = match &report["corrections_wrong"] {
        Value::Null => writeln!(text, "{} corrections, all as they must be; {error}", report["corrections_right"]),
        wrong => writeln!(text, "wrong corrections, first {wrong}"),
    };
    text
}
