//! `berth perf stream`: an experiment, round by round, to a decoding server that decodes it in windows.
//!
//! The rounds are drawn from the model before the first is sent, and decoded by the library: `get_corrections`, after each twentieth of
//! them, must answer exactly what that says.

mod client;
mod story;

use std::{process::ExitCode, sync::Arc, time::Duration};

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
use story::Story;

use crate::{
    args::{PaceArgs, StreamArgs},
    environment::Environment,
    job::{Job, Spoken},
    load::Pacing,
    ports::{self, Cpus, Opening, Way},
    report::{
        self, Report,
        case::Case,
        json::CaseReport,
        stream::{Part, Stream},
    },
    server::{Serve, Server},
    tally::Counts,
    verify::Protocol,
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
    if pace.hlog.is_some() {
        bail!("a stream writes no --hlog");
    }
    let environment = Environment::read();
    let story = Arc::new(Story::draw(args)?);
    let cpus = Cpus::choose(pace.cpu, pace.bounce_cpu)?;
    pin_current_thread(cpus.client)?;
    let clock = TscClock::calibrate(CALIBRATION);
    let pacing = args.load.pacing();
    let mut streamed = None;
    let user = User {
        client: Client {
            story: &story,
            decoder_id: args.decoder,
            pacing,
            timeout: Duration::from_millis(pace.timeout),
            clock: clock.clone(),
        },
        streamed: &mut streamed,
    };
    let way = Way::Port { args: Box::new(args.load.clone()), serve: serve(story.clone()), meet: None };
    let usual = ports::USUAL_FRAME;
    ports::open(&Opening { way: &way, max_frame: usual, longest: usual, clock: &clock, cpus }, user)?;
    let streamed = streamed.context("the port was not used")??;
    let job = Job {
        pace: PaceArgs { count: Some(story.rounds()), warmup: Duration::ZERO, ..pace.clone() },
        pacing,
        way,
        protocol: Protocol::Rpc { header: HeaderForm::V24, ptp: None, echo: false },
        spoken: Spoken { header: "v24".into(), ptp: "off", echo: false, shots: None },
        plans: Vec::new(),
    };
    let case = case_of(args, &story, pacing, &streamed);
    print!("{}", told(&case, &case.streams[0]));
    let report = Report { cases: vec![case], ..Report::new(environment, &job, cpus.client, &[]) };
    report::write_files(&report, pace)?;
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

/// What came of a stream, as a case: its requests are the rounds and the `get_corrections`, its latency is of rounds.
fn case_of(args: &StreamArgs, story: &Story, pacing: Pacing, streamed: &Streamed) -> CaseReport {
    let rounds = story.rounds();
    let parts = streamed.parts.len() as u64;
    let end = Duration::from_nanos(streamed.parts.last().map_or(0, |part| part.at_ns));
    let mut case = Case::new(format!("{rounds} rounds"), None, &[]);
    case.latency = streamed.latency.clone();
    case.hiccups = streamed.hiccups.clone();
    case.answering = end;
    case.counts = Counts {
        sent: rounds + parts,
        answered: rounds + streamed.right,
        wrong: parts - streamed.right,
        stale: streamed.stray,
        ..Counts::default()
    };
    let mistake = streamed.wrong.map(|(rounds, found, expected)| {
        format!("the corrections after {rounds} rounds are {found:?}, the library says {expected:?}")
    });
    let stream = Stream {
        rounds,
        window_rounds: args.window_rounds as u64,
        offered_ns: match pacing {
            Pacing::Open { rate, .. } => Some(1e9 / rate),
            Pacing::Closed { .. } => None,
        },
        round_ns: end.as_nanos() as f64 / rounds as f64,
        parts: streamed.parts.clone(),
        corrections_right: streamed.right,
        logical_error: story.corrections(rounds) != Some(story.truth),
    };
    CaseReport { first_mistake: mistake, streams: vec![stream], ..CaseReport::of(&case) }
}

/// The report in words.
fn told(case: &CaseReport, stream: &Stream) -> String {
    use std::fmt::Write as _;
    let us = |ns: u64| ns as f64 / 1e3;
    let mut text =
        format!("{:>12} {:>12} {:>12} {:>10} {:>10}\n", "rounds", "at ms", "us a round", "backlog", "at most");
    let mut before = (0, 0);
    for Part { rounds, at_ns, backlog, backlog_most } in &stream.parts {
        let (rounds_before, ns_before) = std::mem::replace(&mut before, (*rounds, *at_ns));
        let _ = writeln!(
            text,
            "{rounds:>12} {:>12.3} {:>12.3} {backlog:>10} {backlog_most:>10}",
            us(*at_ns) / 1e3,
            us(at_ns - ns_before) / (rounds - rounds_before) as f64,
        );
    }
    let offered = match stream.offered_ns {
        Some(offered) => format!("a round each {:.3} us", offered / 1e3),
        None => "as fast as they were answered".to_owned(),
    };
    let _ = writeln!(text, "{} rounds, {offered}: {:.3} us a round sustained", stream.rounds, stream.round_ns / 1e3);
    let latency = &case.latency;
    let _ = writeln!(
        text,
        "answered p50 {:.1} us, p99 {:.1} us, p99.9 {:.1} us, longest {:.1} us after a round was due",
        us(latency.p50),
        us(latency.p99),
        us(latency.p99_9),
        us(latency.max),
    );
    if case.counts.stale > 0 {
        let _ = writeln!(text, "{} answers to no request under way", case.counts.stale);
    }
    let error = if stream.logical_error { "a logical error" } else { "no logical error" };
    let _ = match &case.first_mistake {
        None => writeln!(text, "{} corrections, all as they must be; {error}", stream.corrections_right),
        Some(mistake) => writeln!(text, "wrong corrections, first: {mistake}"),
    };
    text
}
