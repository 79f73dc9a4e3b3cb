//! The emulator in virtual time against a scripted server: every count and every latency is exact.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    net::SocketAddr,
    rc::Rc,
    sync::atomic::AtomicBool,
    time::Duration,
};

use berth_perf::{
    drive::{DriveError, Phases, drive, exchange},
    emulator::{Emulator, FirstMistake, Setup},
    functions::{Data, Function, Weighted, scripts},
    load::{Limit, Pacing},
    mix::Mix,
    report::case::Case,
    shots::Shots,
    verify::{Mistake, Protocol},
};
use berth_port::{Clock, Frame, Nanos, Now, Peer, Port, PostError, Verdict};
use berth_wire::rpc::{HeaderForm, PtpEncoding, RequestHeader, ResponseHeader, fnv1a, status};
use proptest::prelude::*;

const PEER: SocketAddr = SocketAddr::V4(std::net::SocketAddrV4::new(std::net::Ipv4Addr::new(10, 0, 0, 2), 4700));
const FORM: HeaderForm = HeaderForm::V24;
const PROTOCOL: Protocol = Protocol::Rpc { header: FORM, ptp: Some(PtpEncoding::SecNsec), echo: false };

/// Time that moves by `STEP` whenever it is read.
#[derive(Clone, Default)]
struct VirtualClock(Rc<Cell<u64>>);

const STEP: u64 = 100;

impl Clock for VirtualClock {
    fn now(&self) -> Now {
        self.0.set(self.0.get() + STEP);
        Now { mono: Nanos(self.0.get()), wall: Nanos(self.0.get() + 37_000_000_000) }
    }
}

/// What the server does with its n-th request: frames to send, each so many nanoseconds after the request arrived.
type Answers = Vec<(u64, Vec<u8>)>;

/// A wire to a scripted server, without delays of its own.
struct Wire<S> {
    clock: VirtualClock,
    server: S,
    requests: usize,
    arriving: BTreeMap<(u64, usize), Vec<u8>>,
    serial: usize,
    from: SocketAddr,
    room: bool,
}

impl<S: FnMut(usize, u64, &[u8]) -> Answers> Port for Wire<S> {
    fn rx<H: FnMut(&mut Frame<'_>) -> Verdict>(&mut self, mut handle: H) -> usize {
        let mut received = 0;
        while received < berth_port::BURST {
            let Some(entry) = self.arriving.first_entry().filter(|entry| entry.key().0 <= self.clock.0.get()) else {
                break;
            };
            let mut frame = entry.remove();
            let len = frame.len();
            assert_eq!(handle(&mut Frame::new(&mut frame, len, len, self.from)), Verdict::Drop);
            received += 1;
        }
        received
    }

    fn post<F: FnOnce(&mut [u8]) -> usize>(&mut self, peer: Peer, fill: F) -> Result<(), PostError> {
        assert_eq!(peer, PEER.into());
        if !self.room {
            return Err(PostError::Unreachable);
        }
        let mut frame = [0; 2048];
        let len = fill(&mut frame);
        let now = self.clock.0.get();
        for (delay, answer) in (self.server)(self.requests, now, &frame[..len]) {
            self.serial += 1;
            self.arriving.insert((now + delay, self.serial), answer);
        }
        self.requests += 1;
        Ok(())
    }

    fn tx(&mut self) {}

    fn max_frame(&self) -> usize {
        2048
    }

    fn local_addr(&self) -> SocketAddr {
        PEER
    }

    fn counters(&self, _: &mut dyn FnMut(&'static str, u64)) {}
}

struct Client {
    pacing: Pacing,
    limit: Limit,
    warmup: Duration,
    timeout: Duration,
    mix: Vec<Weighted>,
    data: Data,
}

impl Default for Client {
    fn default() -> Self {
        Self {
            pacing: Pacing::Closed { window: 1 },
            limit: Limit::Count(1000),
            warmup: Duration::ZERO,
            timeout: Duration::from_millis(1),
            mix: vec![Weighted { function: Function::RpcIncrement, weight: 1 }],
            data: Data::default(),
        }
    }
}

impl Client {
    fn run(&self, server: impl FnMut(usize, u64, &[u8]) -> Answers) -> (Case, Option<FirstMistake>) {
        let clock = VirtualClock::default();
        let arriving = BTreeMap::new();
        let mut wire = Wire { clock: clock.clone(), server, requests: 0, arriving, serial: 0, from: PEER, room: true };
        self.run_over(&mut wire, &clock).unwrap()
    }

    fn run_over(&self, wire: &mut impl Port, clock: &VirtualClock) -> Result<(Case, Option<FirstMistake>), DriveError> {
        let mix = Mix::new(&scripts(&self.mix, 8, &self.data));
        let names: Vec<_> = mix.steps().iter().map(|step| step.name).collect();
        let (mut exchange, mut collector, first) = exchange(names.len());
        let setup = Setup { peer: PEER.into(), protocol: PROTOCOL, timeout: self.timeout };
        let mut emulator = Emulator::new(setup, self.pacing, mix, first, clock.now().mono);
        // One interval: nobody collects while the loop runs.
        let phases = Phases { warmup: self.warmup, limit: self.limit, interval: Duration::from_hours(1) };
        drive(wire, clock, &mut emulator, phases, &mut exchange, &AtomicBool::new(false))?;
        let mut case = Case::new(String::new(), None, &names);
        assert!(collector.collect(|interval| case.add(interval)));
        assert_eq!(emulator.outstanding(), 0);
        let counts = case.counts;
        assert_eq!(counts.sent, counts.answered + counts.refused + counts.wrong + counts.lost, "{counts:?}");
        assert_eq!(case.latency.len(), counts.answered);
        Ok((case, emulator.first_mistake()))
    }
}

/// The right answer to an `rpc_increment` request.
fn right(request: &[u8]) -> Vec<u8> {
    let RequestHeader { arg_len, request_id, ptp_timestamp, .. } = RequestHeader::parse(FORM, request).unwrap();
    let mut answer: Vec<_> = request.iter().map(|byte| byte.wrapping_add(1)).collect();
    ResponseHeader { status: 0, result_len: arg_len, request_id, ptp_timestamp }.write(FORM, &mut answer).unwrap();
    answer
}

/// An answer without a result.
fn bare(request: &[u8], status: i32) -> Vec<u8> {
    let RequestHeader { request_id, ptp_timestamp, .. } = RequestHeader::parse(FORM, request).unwrap();
    let mut answer = vec![0; FORM.len()];
    ResponseHeader { status, result_len: 0, request_id, ptp_timestamp }.write(FORM, &mut answer).unwrap();
    answer
}

#[test]
fn a_quick_server_is_measured_to_the_resolution_of_the_clock() {
    let client = Client { warmup: Duration::from_micros(50), ..Client::default() };
    let (case, mistake) = client.run(|_, now, request| {
        let stamp = RequestHeader::parse(FORM, request).unwrap().ptp_timestamp;
        assert_eq!(stamp, 37 << 32 | now, "the send time, as seconds and nanoseconds");
        vec![(5_000, right(request))]
    });
    assert_eq!((case.counts.sent, case.counts.answered, mistake), (1000, 1000, None));
    assert!(case.latency.min() >= 4_990 && case.latency.max() <= 5_000 + 5 * STEP, "{}", case.latency.max());
    // Every poll but those of the warm-up has a gap, of two to four clock readings.
    assert!(case.hiccups.min() >= STEP && case.hiccups.max() <= 6 * STEP, "{}", case.hiccups.max());
}

#[test]
fn losses_are_counted_after_the_timeout() {
    let (case, _) =
        Client::default().run(|n, _, request| if n % 100 == 7 { vec![] } else { vec![(1_000, right(request))] });
    assert_eq!((case.counts.sent, case.counts.lost, case.counts.answered), (1000, 10, 990));
    assert_eq!((case.counts.late, case.counts.duplicates, case.counts.failed()), (0, 0, false));
    // 990 answers of a little over 1 us and ten timeouts of 1 ms; not the wait for stragglers at the end.
    assert!((10.9..11.9).contains(&(case.answering.as_secs_f64() * 1e3)), "{:?}", case.answering);
}

#[test]
fn duplicates_reordering_and_late_answers_are_told_apart() {
    let client = Client { pacing: Pacing::Closed { window: 4 }, limit: Limit::Count(4000), ..Client::default() };
    let (case, _) = client.run(|n, _, request| match n % 400 {
        10 => vec![(2_000, right(request)), (3_000, right(request)), (4_000, right(request))],
        // Overtaken by the next three.
        20 => vec![(50_000, right(request))],
        30 => vec![(1_500_000, right(request)), (1_600_000, right(request))],
        _ => vec![(2_000, right(request))],
    });
    let counts = case.counts;
    assert_eq!((counts.answered, counts.lost, counts.late), (3990, 10, 10));
    assert_eq!((counts.reordered, counts.duplicates), (10, 20 + 10));
    assert_eq!((counts.stale, counts.failed()), (0, false));
}

#[test]
fn an_answer_to_an_earlier_use_of_a_slot_is_never_taken_for_the_current_one() {
    let first = RefCell::new(Vec::new());
    let client = Client { limit: Limit::Count(5000), ..Client::default() };
    let (case, _) = client.run(|n, _, request| {
        if n == 0 {
            *first.borrow_mut() = right(request);
        }
        // The table has 1024 slots: request 1024 uses the first one's again.
        if n == 1024 {
            return vec![(500, first.borrow().clone()), (1_000, right(request))];
        }
        vec![(1_000, right(request))]
    });
    assert_eq!((case.counts.answered, case.counts.stale, case.counts.failed()), (5000, 1, false));
}

#[test]
fn every_kind_of_wrong_answer_is_seen() {
    type Spoil = fn(&mut Vec<u8>);
    let spoiled: [(Spoil, Mistake, (u64, u64)); 8] = [
        (|frame| frame[24] ^= 1, Mistake::Bytes, (1, 0)),
        (|frame| frame[31] ^= 0x80, Mistake::Bytes, (1, 0)),
        (|frame| frame[16] ^= 1, Mistake::PtpEcho, (1, 0)),
        (|frame| frame.push(1), Mistake::FrameLength, (1, 0)),
        (|frame| frame.truncate(31), Mistake::FrameLength, (1, 0)),
        (
            |frame| {
                frame.truncate(31);
                frame[8] = 7;
            },
            Mistake::ResultLength,
            (1, 0),
        ),
        (|frame| frame[0] ^= 1, Mistake::Header, (0, 1)),
        (|frame| frame[14] = 0x7F, Mistake::UnknownRequest, (0, 1)),
    ];
    for (spoil, expected, (wrong, malformed)) in spoiled {
        let (case, mistake) = Client::default().run(|n, _, request| {
            let mut answer = right(request);
            if n == 500 {
                spoil(&mut answer);
            }
            vec![(1_000, answer)]
        });
        let counts = case.counts;
        assert_eq!(mistake.unwrap().mistake, expected);
        assert_eq!((counts.wrong, counts.malformed, counts.lost), (wrong, malformed, malformed), "{expected}");
        assert!(counts.failed());
    }
}

#[test]
fn refusals_are_counted_by_status() {
    let (case, _) = Client::default().run(|n, _, request| {
        vec![(1_000, if n % 10 == 0 { bare(request, status::OVERLOADED) } else { right(request) })]
    });
    assert_eq!((case.counts.refused, case.counts.failed()), (100, false));
    assert_eq!(case.refusals.iter().collect::<Vec<_>>(), [(status::OVERLOADED, 100)]);
}

#[test]
fn frames_of_another_source_are_ignored() {
    let clock = VirtualClock::default();
    let server = |_: usize, _: u64, request: &[u8]| vec![(1_000, right(request))];
    let other = "10.0.0.9:4700".parse().unwrap();
    let mut wire = Wire {
        clock: clock.clone(),
        server,
        requests: 0,
        arriving: BTreeMap::new(),
        serial: 0,
        from: other,
        room: true,
    };
    let client = Client { limit: Limit::Count(10), ..Client::default() };
    let (case, _) = client.run_over(&mut wire, &clock).unwrap();
    assert_eq!((case.counts.other_source, case.counts.lost, case.counts.malformed), (10, 10, 0));
}

#[test]
fn a_peer_without_a_route_ends_the_case() {
    let clock = VirtualClock::default();
    let server = |_: usize, _: u64, _: &[u8]| vec![];
    let mut wire = Wire {
        clock: clock.clone(),
        server,
        requests: 0,
        arriving: BTreeMap::new(),
        serial: 0,
        from: PEER,
        room: false,
    };
    assert_eq!(Client::default().run_over(&mut wire, &clock).unwrap_err(), DriveError::Unreachable);
    assert!((5_000_000_000..5_010_000_000).contains(&clock.0.get()));
}

/// A server that takes 1 us, and once stalls for 100 ms.
fn stalling() -> impl FnMut(usize, u64, &[u8]) -> Answers {
    let (from, until) = (500_000_000, 600_000_000);
    move |_, now, request| {
        let done = if (from..until).contains(&now) { until } else { now } + 1_000;
        vec![(done - now, right(request))]
    }
}

#[test]
fn an_open_loop_sees_a_stall_in_every_request_it_delayed() {
    let second = Limit::Duration(Duration::from_secs(1));
    let timeout = Duration::from_secs(1);
    let pacing = Pacing::Open { rate: 10_000.0, burst: 1 };
    let (case, _) = Client { pacing, limit: second, timeout, ..Client::default() }.run(stalling());
    // 1000 of 10,000 requests came during the stall and waited for its end: 100 ms, 99.9 ms, ... 0.1 ms.
    assert_eq!((case.counts.sent, case.counts.answered, case.counts.lost), (10_000, 10_000, 0));
    for (quantile, waited_ms) in [(0.9, 0.0), (0.95, 50.0), (0.99, 90.0), (0.999, 99.0), (1.0, 100.0)] {
        let measured_ms = case.latency.value_at_quantile(quantile) as f64 / 1e6;
        assert!((measured_ms - waited_ms).abs() < 0.2, "{quantile}: {measured_ms} ms");
    }

    // A closed loop sends nothing while it waits: one slow answer among very many is all it sees.
    let (case, _) = Client { limit: second, timeout, ..Client::default() }.run(stalling());
    assert!(case.latency.value_at_quantile(0.9999) < 10_000);
    assert!(case.latency.max() > 99_000_000);
}

#[test]
fn a_client_that_stalls_counts_from_the_intended_time_too() {
    let clock = VirtualClock::default();
    let stalled = clock.clone();
    let server = move |n: usize, _: u64, request: &[u8]| {
        if n == 5_000 {
            // The client itself loses its CPU for 50 ms just after this request.
            stalled.0.set(stalled.0.get() + 50_000_000);
        }
        vec![(1_000, right(request))]
    };
    let mut wire = Wire {
        clock: clock.clone(),
        server,
        requests: 0,
        arriving: BTreeMap::new(),
        serial: 0,
        from: PEER,
        room: true,
    };
    let client = Client {
        pacing: Pacing::Open { rate: 10_000.0, burst: 1 },
        limit: Limit::Count(10_000),
        timeout: Duration::from_secs(1),
        ..Client::default()
    };
    let (case, _) = client.run_over(&mut wire, &clock).unwrap();
    let p975 = case.latency.value_at_quantile(0.975) as f64 / 1e6;
    assert!((p975 - 25.0).abs() < 0.5, "500 of 10,000 requests were sent up to 50 ms late: {p975} ms");
    assert!(case.hiccups.max() >= 49_900_000, "and the hiccup histogram says whose fault it was");
    let lag = case.lag.value_at_quantile(0.975) as f64 / 1e6;
    assert!((lag - 25.0).abs() < 0.5, "they were late by that: {lag} ms");
    assert_eq!(case.lag.len(), 10_000);
    let answered = case.from_sent.value_at_quantile(0.999);
    // But for what the client sends in one go before it looks for answers.
    assert!(answered < 200_000, "and the server answered each at once: {answered} ns");
}

#[test]
fn an_overloaded_server_does_not_hide_what_was_never_sent() {
    // The wire takes one request per 20 us, the schedule wants one per 10 us.
    let clock = VirtualClock::default();
    let slow = clock.clone();
    let server = move |_: usize, _: u64, request: &[u8]| {
        slow.0.set(slow.0.get() + 20_000);
        vec![(1_000, right(request))]
    };
    let mut wire = Wire {
        clock: clock.clone(),
        server,
        requests: 0,
        arriving: BTreeMap::new(),
        serial: 0,
        from: PEER,
        room: true,
    };
    let client = Client {
        pacing: Pacing::Open { rate: 100_000.0, burst: 1 },
        limit: Limit::Duration(Duration::from_millis(100)),
        timeout: Duration::from_millis(10),
        ..Client::default()
    };
    let (case, _) = client.run_over(&mut wire, &clock).unwrap();
    assert_eq!(case.counts.sent + case.counts.unsent, 10_000);
    // 110 ms at one request per 20 us and a little.
    assert!((4_300..=4_600).contains(&case.counts.unsent), "{}", case.counts.unsent);

    // With patience enough nothing is left over: only the lag tells that the client was too slow by half.
    let client = Client { timeout: Duration::from_secs(1), ..client };
    let (case, _) = client.run_over(&mut wire, &clock).unwrap();
    assert_eq!((case.counts.sent, case.counts.unsent), (10_000, 0));
    assert!(case.lag.value_at_quantile(0.99) > 90_000_000, "{} ns", case.lag.value_at_quantile(0.99));
}

fn decoder_shots() -> Data {
    let shots = 16;
    let mut truth = vec![0; shots];
    truth[3] = 1;
    let reference = Some(vec![0; shots]);
    let shots = Shots { detectors: 24, observables: 1, events: vec![0x11; 3 * shots], truth, reference };
    Data { shots: Some(shots), ..Data::default() }
}

fn prediction(request: &[u8], bits: u8) -> Vec<u8> {
    let mut answer = bare(request, 0);
    answer[8] = 1;
    answer.push(bits);
    answer
}

#[test]
fn predictions_are_compared_with_the_reference_and_the_truth() {
    let mix = vec![Weighted { function: Function::QecDecode, weight: 1 }];
    let client = Client { mix, data: decoder_shots(), limit: Limit::Count(160), ..Client::default() };
    // The server gets shot 3 right, which the reference gets wrong, and shot 5 wrong.
    let (case, _) = client.run(|n, _, request| {
        assert_eq!(request[24..], [0x11, 0x11, 0x11, 24, 0, 0, 0]);
        vec![(1_000, prediction(request, u8::from(n % 16 == 3 || n % 16 == 5)))]
    });
    let counts = case.counts;
    assert_eq!((counts.answered, counts.predictions, counts.agreements), (160, 160, 140));
    assert_eq!((counts.logical_errors, counts.reference_logical_errors), (10, 10));
    let (case, _) = client.run(|_, _, request| vec![(1_000, prediction(request, 2))]);
    assert_eq!(case.counts.wrong, 160, "an observable that does not exist");
}

#[test]
fn a_session_recovers_from_a_lost_answer() {
    let mix = [Function::DecodingServer, Function::RpcIncrement].map(|function| Weighted { function, weight: 1 });
    let client = Client { mix: mix.into(), data: decoder_shots(), limit: Limit::Count(200), ..Client::default() };
    let mut calls = Vec::new();
    let (case, _) = client.run(|_, _, request| {
        let id = RequestHeader::parse(FORM, request).unwrap().function_id;
        let name = ["enqueue_syndromes", "get_corrections", "reset_decoder"].into_iter().find(|name| fnv1a(name) == id);
        let Some(name) = name else { return vec![(1_000, right(request))] };
        calls.push(name);
        match (calls.len(), name) {
            (2, _) => vec![],
            (_, "get_corrections") => vec![(1_000, prediction(request, 0))],
            _ => vec![(1_000, bare(request, 0))],
        }
    });
    assert_eq!(
        calls[..6],
        [
            "enqueue_syndromes",
            "get_corrections",
            "reset_decoder",
            "enqueue_syndromes",
            "get_corrections",
            "reset_decoder"
        ]
    );
    assert_eq!((case.counts.answered, case.counts.lost, case.counts.failed()), (199, 1, false));
    let by_function: Vec<_> = case.functions.iter().map(|(name, latency)| (*name, latency.len())).collect();
    assert_eq!(
        by_function,
        [("enqueue_syndromes", 34), ("get_corrections", 32), ("reset_decoder", 33), ("rpc_increment", 100)]
    );
}

const TIMEOUT_NS: u64 = 1_000_000;

fn delay() -> impl Strategy<Value = u64> {
    // Far enough from the timeout that one poll more or less does not matter.
    prop_oneof![4 => 1_000..TIMEOUT_NS * 8 / 10, 1 => TIMEOUT_NS * 13 / 10..TIMEOUT_NS * 17 / 10]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever the network does to each request, each ends in exactly the count it belongs to.
    #[test]
    fn every_request_ends_in_one_count(fates in prop::collection::vec(prop::collection::vec(delay(), 0..4), 1..120), window in 1_usize..9) {
        // Prompt requests behind keep the case going until the last straggler has arrived.
        let total = fates.len() + 4 * 9 * 10;
        let client = Client { pacing: Pacing::Closed { window }, limit: Limit::Count(total as u64), ..Client::default() };
        let (case, mistake) = client.run(|n, _, request| {
            let delays = fates.get(n).cloned().unwrap_or_else(|| vec![TIMEOUT_NS / 10]);
            delays.into_iter().map(|delay| (delay, right(request))).collect()
        });
        let (mut lost, mut late, mut duplicates) = (0, 0, 0);
        for delays in &fates {
            let in_time = delays.iter().any(|delay| *delay < TIMEOUT_NS);
            lost += u64::from(!in_time);
            late += u64::from(!in_time && !delays.is_empty());
            duplicates += delays.len().saturating_sub(1) as u64;
        }
        let counts = case.counts;
        prop_assert_eq!(mistake, None);
        prop_assert_eq!((counts.sent, counts.lost, counts.late), (total as u64, lost, late));
        prop_assert_eq!((counts.duplicates, counts.stale, counts.malformed), (duplicates, 0, 0));
    }
}
