//! The threads around the hot loop: calibration, cases, progress and the collection of results.
//!
//! The client thread is pinned, opens the port and does nothing but drive cases. This thread sleeps most of the time:
//! it measures the bounce while the client waits, and while the client runs it takes filled intervals from it.

use std::{
    io::Write as _,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::Duration,
};

use anyhow::{Context, bail};
use berth_host::{TscClock, pin_current_thread};
use berth_port::{Clock, Peer, Port};
use berth_ports::PortUser;
use hdrhistogram::serialization::V2DeflateSerializer;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::{
    args::{BounceArgs, PaceArgs},
    bounce::{Bounce, bounce},
    drive::{Collector, DriveError, Exchange, Phases, drive, exchange},
    emulator::{Emulator, FirstMistake, Setup},
    environment::Environment,
    job::{Chore, Job},
    load::{Limit, Pacing},
    mix::{Mix, Script},
    ports::{self, Cpus, Opening},
    report::{
        self, Report,
        case::Case,
        hlog::{self, Log},
    },
    tally::Interval,
    verify::Expect,
};

/// Time to calibrate the clock; about 10 ppm.
const CALIBRATION: Duration = Duration::from_millis(50);

/// How often results are taken from the client thread.
const COLLECT: Duration = Duration::from_millis(5);

/// How the requests of a case are paced and how it is divided in time.
type Course = (Pacing, Phases);

/// What the client thread says.
enum Event {
    Ready,
    Done(Box<End>),
}

/// How a case ended.
struct End {
    outcome: Result<(), DriveError>,
    first_mistake: Option<FirstMistake>,
    counters: Vec<(&'static str, u64)>,
}

/// The client thread's state.
struct Client {
    setup: Setup,
    clock: TscClock,
    stop: Arc<AtomicBool>,
    exchange: Exchange,
    first: Box<Interval>,
    plans: mpsc::Receiver<(usize, Mix, Course)>,
    events: mpsc::Sender<Event>,
}

impl PortUser for Client {
    fn run<P: Port>(mut self, mut port: P, peer: Peer) {
        self.setup.peer = peer;
        // A send fails only when the other thread is gone, and then the receive fails too.
        let _ = self.events.send(Event::Ready);
        while let Ok((case, mix, (pacing, phases))) = self.plans.recv() {
            let before = counters(&port);
            let start = self.clock.now().mono;
            self.first.case = case;
            let mut emulator = Emulator::new(self.setup.clone(), pacing, mix, self.first, start);
            let outcome = drive(&mut port, &self.clock, &mut emulator, phases, &mut self.exchange, &self.stop);
            let counters = grown(&before, counters(&port));
            let first_mistake = emulator.first_mistake();
            self.first = emulator.into_tally();
            let _ = self.events.send(Event::Done(Box::new(End { outcome, first_mistake, counters })));
        }
    }
}

fn counters<P: Port>(port: &P) -> Vec<(&'static str, u64)> {
    let mut counters = Vec::new();
    port.counters(&mut |name, value| counters.push((name, value)));
    counters
}

/// How much each counter grew.
fn grown(before: &[(&'static str, u64)], mut after: Vec<(&'static str, u64)>) -> Vec<(&'static str, u64)> {
    for (name, value) in &mut after {
        let start = before.iter().find(|(known, _)| known == name).map_or(0, |(_, value)| *value);
        *value = value.saturating_sub(start);
    }
    after
}

/// Runs every case and reports. Failure: a request was lost, doubled or answered wrong, or nothing was measured.
pub(crate) fn measure(job: &Job) -> anyhow::Result<ExitCode> {
    let Job { pace: args, way, protocol, plans, .. } = job;
    let environment = Environment::read();
    let cpus = Cpus::choose(args.cpu, args.bounce_cpu)?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        // The second signal ends the process at once.
        signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&stop))?;
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    let mut log_file = args.hlog.as_ref().map(hlog::create).transpose()?;
    let mut serializer = V2DeflateSerializer::new();
    let mut log = log_file.as_mut().map(|file| Log::begin(file, &mut serializer)).transpose()?;
    let clock = TscClock::calibrate(CALIBRATION);
    let steps = plans.iter().map(|plan| plan.scripts.iter().map(|script| script.steps.len()).sum()).max();
    let (exchange, mut collector, first) = exchange(steps.context("there is nothing to measure")?);
    let (plan_tx, plan_rx) = mpsc::channel();
    let (event_tx, event_rx) = mpsc::channel();
    let client = Client {
        setup: Setup { peer: way.peer().into(), protocol: *protocol, timeout: Duration::from_millis(args.timeout) },
        clock: clock.clone(),
        stop: Arc::clone(&stop),
        exchange,
        first,
        plans: plan_rx,
        events: event_tx,
    };
    let steps = plans.iter().flat_map(|plan| &plan.scripts).flat_map(|script| &script.steps);
    let longest = steps.map(|step| step.longest_frame(protocol)).max().unwrap_or(0);
    let max_frame = longest.max(ports::USUAL_FRAME);
    let (way, port_clock) = (way.clone(), clock.clone());
    let thread = thread::Builder::new().name("client".into()).spawn(move || -> anyhow::Result<()> {
        pin_current_thread(cpus.client)?;
        let opening = Opening { way: &way, max_frame, longest, clock: &port_clock, cpus };
        ports::open(&opening, client)
    })?;
    if !matches!(event_rx.recv(), Ok(Event::Ready)) {
        thread.join().expect("the client thread does not panic")?;
        bail!("the client thread ended before its first case");
    }

    let interval = Duration::from_millis(args.interval);
    let measured = (job.pacing, Phases { warmup: args.warmup, limit: args.limit(), interval });
    let progress = Progress::new(args, plans.iter().filter(|plan| plan.chore.is_none()).count());
    let mut cases: Vec<Case> = Vec::new();
    for plan in plans {
        if stop.load(Relaxed) {
            break;
        }
        let mix = Mix::new(&plan.scripts);
        let functions: Vec<_> = mix.steps().iter().map(|step| step.name).collect();
        let mut case = Case::new(plan.name.clone(), plan.payload, &functions);
        case.shots = mix.steps().iter().find_map(|step| match &step.expect {
            Expect::Prediction { truth, .. } => Some(truth.rows()),
            Expect::Bytes(_) => None,
        });
        if let Some(chore) = plan.chore {
            let count = match chore {
                Chore::Before(count) => count,
                Chore::After(step, most) => cases.last().map_or(0, |case| case.answered(step).min(most)),
            };
            let phases = Phases { warmup: Duration::ZERO, limit: Limit::Count(count), interval };
            plan_tx.send((cases.len(), mix, (ONE_BY_ONE, phases))).context("the client thread is gone")?;
            let end = collect(&mut collector, &event_rx, &mut case, |_, _| Ok(()))?;
            end.outcome?;
            done(&case, count, end.first_mistake)?;
            continue;
        }
        let bounce_before = bounce_of(cpus, &clock);
        progress.case(&case);
        plan_tx.send((cases.len(), mix, measured)).context("the client thread is gone")?;
        let end = collect(&mut collector, &event_rx, &mut case, |case, interval| {
            progress.update(case);
            log.as_mut().map_or(Ok(()), |log| log.write(case, interval))
        })?;
        end.outcome?;
        case.bounce_after = bounce_of(cpus, &clock);
        case.bounce_before = bounce_before;
        case.first_mistake = end.first_mistake;
        case.port_counters = end.counters;
        cases.push(case);
    }
    drop(plan_tx);
    thread.join().expect("the client thread does not panic")?;
    progress.finish();
    drop(log);
    if let Some(mut file) = log_file {
        file.flush().context("--hlog")?;
    }

    let report = Report::new(environment, job, cpus.client, &cases);
    print!("{}", report::table::render(&report));
    report::write_files(&report, args)?;
    let measured = report.cases.iter().all(|case| case.counts.answered > 0);
    let failed = report
        .cases
        .iter()
        .any(|case| case.counts.failed() || !args.expect_losses && case.counts.lost_or_doubled() > 0);
    Ok(if measured && !failed && !report.cases.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The pacing of chores.
const ONE_BY_ONE: Pacing = Pacing::Closed { window: 1 };

/// Whether a chore was done in full.
fn done(case: &Case, count: u64, mistake: Option<FirstMistake>) -> anyhow::Result<()> {
    if case.counts.answered == count {
        return Ok(());
    }
    let refused: Vec<_> = case.refusals.iter().map(|(status, times)| format!("{times} with status {status}")).collect();
    let refused = if refused.is_empty() { String::new() } else { format!("; refused: {}", refused.join(", ")) };
    let mistake = mistake.map_or(String::new(), |mistake| format!("; {mistake}"));
    bail!("{}: {} of {count} requests were answered as they must be{refused}{mistake}", case.name, case.counts.answered)
}

/// Takes intervals until the client says that the case is done.
fn collect(
    collector: &mut Collector,
    events: &mpsc::Receiver<Event>,
    case: &mut Case,
    mut take: impl FnMut(&Case, &Interval) -> anyhow::Result<()>,
) -> anyhow::Result<Box<End>> {
    loop {
        let event = events.recv_timeout(COLLECT);
        let mut taken = Ok(());
        while collector.collect(|interval| {
            case.add(interval);
            taken = take(case, interval);
        }) && taken.is_ok()
        {}
        taken?;
        match event {
            Ok(Event::Done(end)) => return Ok(end),
            Ok(Event::Ready) | Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => bail!("the client thread is gone"),
        }
    }
}

pub(crate) fn case_name(scripts: &[Script], payload: Option<usize>, pacing: Pacing) -> String {
    let names: Vec<_> = scripts
        .iter()
        .map(|script| match &script.steps[..] {
            [step] => step.name,
            _ => "decoding_server",
        })
        .collect();
    let payload = payload.map_or(String::new(), |bytes| format!(" {bytes} B"));
    let pacing = match pacing {
        Pacing::Closed { window } => format!("window {window}"),
        Pacing::Open { rate, burst: 1 } => format!("{rate}/s"),
        Pacing::Open { rate, burst } => format!("{rate}/s in bursts of {burst}"),
    };
    format!("{}{payload}, {pacing}", names.join(" + "))
}

/// `None` where there is one CPU only, or another program kept one of them busy throughout.
fn bounce_of(cpus: Cpus, clock: &TscClock) -> Option<Bounce> {
    bounce([cpus.client, cpus.other?], clock).ok()
}

pub(crate) fn print_bounces(args: &BounceArgs) -> anyhow::Result<ExitCode> {
    let given = args.cpus.as_deref().unwrap_or_default();
    let cpus = Cpus::choose(given.first().copied(), given.get(1).copied())?;
    let other = cpus.other.context("the bounce needs two CPUs, and this process may run on one only")?;
    let clock = TscClock::calibrate(CALIBRATION);
    println!("round trips of a cache line between CPUs {} and {other}, in nanoseconds", cpus.client);
    for _ in 0..args.repeat {
        let bounce = bounce([cpus.client, other], &clock)?;
        println!("median {:7.1}   min {:7.1}   {}", bounce.median_ns, bounce.min_ns, bounce.state.name());
    }
    Ok(ExitCode::SUCCESS)
}

/// The progress bar on stderr.
struct Progress {
    bar: ProgressBar,
    limit: Limit,
    cases: usize,
}

impl Progress {
    fn new(args: &PaceArgs, cases: usize) -> Self {
        let limit = args.limit();
        let length = match limit {
            Limit::Count(count) => count,
            Limit::Duration(duration) => duration.as_millis() as u64,
        };
        let target = if args.no_progress { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        let bar = ProgressBar::with_draw_target(Some(length), target);
        bar.set_style(ProgressStyle::with_template("{prefix} {wide_bar} {msg} {eta}").expect("a valid template"));
        Self { bar, limit, cases }
    }

    fn case(&self, case: &Case) {
        self.bar.reset();
        self.bar.set_prefix(if self.cases > 1 {
            format!("{} (of {} cases)", case.name, self.cases)
        } else {
            case.name.clone()
        });
        self.bar.set_message("");
    }

    fn update(&self, case: &Case) {
        let counts = &case.counts;
        self.bar.set_position(match self.limit {
            Limit::Count(_) => counts.sent,
            Limit::Duration(_) => case.elapsed().as_millis() as u64,
        });
        let p50 = case.points.last().map_or(0.0, |point| point.p50_ns as f64 / 1e3);
        self.bar.set_message(format!("{} answered, {} lost, p50 {p50:.2} us", counts.answered, counts.lost));
    }

    fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
