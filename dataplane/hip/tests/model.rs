//! Sessions against a model: random operations, splits, delays and ends, by seed.
//!
//! `BERTH_SIM_SEEDS` says how many seeds are run, `BERTH_SIM_SEED` runs a single one.

mod common;

use std::{
    collections::BTreeMap,
    env,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
};

use berth_hip_session::{
    Activity, Counters, Latencies, Session, Settings,
    soft::{Budget, Soft, Windows},
};
use berth_wire::hip::{
    Header, Op, flags,
    request::{self as q, kind},
};
use common::{Answer, Line, Slow, handle, memcpy, memcpy_2d, random};
use fastrand::Rng;
use zerocopy::IntoBytes as _;

/// Seeds that are run if nobody says how many.
const SEEDS: u64 = 300;

/// Bytes of a session, and of the device, which three share.
const QUOTA: u64 = 1 << 20;
const TOTAL: u64 = 2 << 20;

/// Stores 7 at its argument; ends with a trap where that is 1.
const TEXT: &str = "
.version 6.3
.target sm_70
.address_size 64
.visible .entry store(.param .u64 p) {
.reg .b64 %rd<2>; .reg .b32 %r<2>; .reg .pred %p<2>;
ld.param.u64 %rd0, [p];
setp.eq.u64 %p0, %rd0, 1;
@%p0 trap;
mov.u32 %r0, 0x01010107;
st.global.u32 [%rd0], %r0;
ret;
}
";

/// Bytes of shared memory that make a launch one for the runner.
const LONG: u32 = 32 << 10;

/// A launch of one thread with one argument.
fn launch(function: u64, shared: u32, argument: u64) -> Vec<u8> {
    let launch = q::Launch {
        function: function.into(),
        grid: [1.into(); 3],
        block: [1.into(); 3],
        shared_mem: shared.into(),
        num_args: 1.into(),
        ..q::Launch::zeroed()
    };
    [launch.as_bytes(), &0_u32.to_le_bytes(), &8_u32.to_le_bytes(), &argument.to_le_bytes()].concat()
}

/// What a session is expected to be.
#[derive(Default)]
struct Model {
    allocations: BTreeMap<u64, Vec<u8>>,
    deferred: Option<i32>,
    dropped: u64,
}

/// An answer that is expected.
#[derive(Debug)]
enum Expected {
    Code(i32),
    Data(Vec<u8>),
    /// A new allocation of so many bytes.
    Pointer(u64),
}

impl Model {
    /// Whether a range lies in an allocation, else the code.
    fn range(&mut self, at: u64, len: usize) -> Result<&mut [u8], i32> {
        let (start, bytes) = self.allocations.range_mut(..=at).next_back().ok_or(17)?;
        let offset = (at - start) as usize;
        if offset >= bytes.len() {
            return Err(17);
        }
        bytes.get_mut(offset..offset + len).ok_or(1)
    }

    fn defer(&mut self, code: i32) {
        if self.deferred.is_some() {
            self.dropped += 1;
        }
        self.deferred.get_or_insert(code);
    }

    /// The answer of a request that fails or not; deferred without a reply.
    fn status(&mut self, reply: bool, result: Result<(), i32>) -> Option<Expected> {
        match (reply, result) {
            (true, result) => Some(Expected::Code(result.err().unwrap_or(0))),
            (false, Err(code)) => {
                self.defer(code);
                None
            }
            (false, Ok(())) => None,
        }
    }

    fn used(&self) -> u64 {
        self.allocations.values().map(|bytes| (bytes.len() as u64).next_multiple_of(256)).sum()
    }
}

struct World {
    windows: Arc<Windows>,
    budget: Arc<Budget>,
    counters: Arc<Counters>,
    random: berth_hip_session::Random,
    /// What runners were given.
    tasks: Arc<AtomicU32>,
}

struct Client {
    line: Line,
    model: Model,
    function: u64,
    requests: u64,
    activity: Arc<Activity>,
    latencies: Latencies,
}

impl World {
    fn new(seed: u64) -> Self {
        let random = random(seed);
        let (windows, counters, tasks) = Default::default();
        Self { windows, budget: Budget::new(TOTAL), counters, random, tasks }
    }

    fn client(&self, rng: &mut Rng) -> Option<Client> {
        let properties = Arc::new([berth_hip_session::soft::properties(TOTAL, QUOTA)]);
        let runner = Slow::new(rng.u32(0..4), self.tasks.clone());
        let budgets = vec![self.budget.clone()];
        let device = Soft::new(properties, &self.windows, budgets, Budget::new(QUOTA), &self.random, runner)?;
        let settings = Arc::new(Settings { max_payload: 1 << 20, handles: 100, idle: None });
        let session = Session::new(device, settings, self.counters.clone(), self.random.clone(), berth_port::Nanos(0));
        let activity = Arc::<Activity>::default();
        let mut session = session.watched_by(activity.clone());
        let latencies = Latencies::default();
        session.time(latencies.clone());
        let mut line = Line::new(session, rng.u64(..));
        let load =
            q::ModuleLoadAndGet { data_size: (TEXT.len() as u64).into(), name_length: 5.into(), reserved: 0.into() };
        line.send(Op::ModuleLoadAndGet, &[load.as_bytes(), b"store", TEXT.as_bytes()].concat(), flags::HAS_INLINE_DATA);
        let Answer { code, body } = line.answers(1).remove(0);
        if code == 2 {
            return None;
        }
        assert_eq!(code, 0);
        let function = u64::from_le_bytes(body[8..16].try_into().unwrap());
        Some(Client { line, model: Model::default(), function, requests: 1, activity, latencies })
    }
}

/// A length: mostly short.
fn len(rng: &mut Rng) -> usize {
    if rng.u32(0..10) == 0 { rng.usize(0..100_000) } else { rng.usize(0..300) }
}

impl Client {
    /// An address: mostly of an allocation, sometimes beside one.
    fn address(&self, rng: &mut Rng) -> u64 {
        let all: Vec<_> = self.model.allocations.iter().map(|(at, bytes)| (*at, bytes.len() as u64)).collect();
        if all.is_empty() || rng.u32(0..20) == 0 {
            return [0, 1, u64::MAX, rng.u64(..)][rng.usize(0..4)];
        }
        let (at, len) = all[rng.usize(0..all.len())];
        match rng.u32(0..12) {
            0 => at - 1,
            1 => at + len,
            2 => at + len - 1,
            3..=6 => at + rng.u64(0..len),
            _ => at,
        }
    }

    /// Sends a random request; returns what its answer should be, where there is one.
    fn step(&mut self, rng: &mut Rng) -> Option<Expected> {
        self.requests += 1;
        let reply = rng.bool();
        let flag = if reply { 0 } else { flags::NO_REPLY };
        let (at, other, len) = (self.address(rng), self.address(rng), len(rng));
        let model = &mut self.model;
        match rng.u32(0..13) {
            0 | 1 => {
                let size = if rng.u32(0..8) == 0 { rng.u64(0..2 * QUOTA) } else { rng.u64(0..20_000) };
                self.line.send(Op::Malloc, q::Malloc { size: size.into(), flags: 0.into() }.as_bytes(), flag);
                if reply { Some(Expected::Pointer(size)) } else { model.status(false, Err(1)) }
            }
            2 => {
                self.line.send(Op::Free, handle(at).as_bytes(), flag);
                let freed = at == 0 || model.allocations.remove(&at).is_some();
                model.status(reply, if freed { Ok(()) } else { Err(17) })
            }
            3 | 4 => {
                let data: Vec<_> = (0..len).map(|_| rng.u8(..)).collect();
                let inline = if rng.u32(0..10) == 0 { 0 } else { flags::HAS_INLINE_DATA };
                let short = rng.u32(0..10) == 0 && len > 0;
                let sent = if short { &data[1..] } else { &data };
                let request = memcpy(at, 0, len, kind::HOST_TO_DEVICE);
                self.line.send(Op::Memcpy, &[request.as_bytes(), sent].concat(), flag | inline);
                let result = if len == 0 {
                    Ok(())
                } else if inline == 0 || short {
                    Err(1)
                } else {
                    model.range(at, len).map(|bytes| bytes.copy_from_slice(&data))
                };
                model.status(reply, result)
            }
            5 | 6 => {
                self.line.send(Op::Memcpy, memcpy(0, at, len, kind::DEVICE_TO_HOST).as_bytes(), flag);
                if !reply {
                    return model.status(false, Err(1));
                }
                let data = if len == 0 { Ok(Vec::new()) } else { model.range(at, len).map(|bytes| bytes.to_vec()) };
                Some(match (data, model.deferred) {
                    (Err(code), _) => Expected::Code(code),
                    (Ok(_), Some(code)) => {
                        model.deferred = None;
                        Expected::Code(code)
                    }
                    (Ok(data), None) => Expected::Data(data),
                })
            }
            7 => {
                let value = rng.i32(..);
                let size = len as u64;
                let request = q::Memset { dst: at.into(), value: value.into(), size: size.into(), stream: 0.into() };
                self.line.send(Op::Memset, request.as_bytes(), flag);
                let result = if len == 0 { Ok(()) } else { model.range(at, len).map(|bytes| bytes.fill(value as u8)) };
                model.status(reply, result)
            }
            8 => {
                self.line.send(Op::Memcpy, memcpy(at, other, len, kind::DEVICE_TO_DEVICE).as_bytes(), flag);
                let result = if len == 0 {
                    Ok(())
                } else {
                    let from = model.range(other, len).map(|bytes| bytes.to_vec());
                    from.and_then(|from| model.range(at, len).map(|bytes| bytes.copy_from_slice(&from)))
                };
                model.status(reply, result)
            }
            9 => self.rows(rng, reply, at, other),
            10 => {
                let at = if rng.u32(0..8) == 0 { 1 } else { at };
                let shared = if rng.bool() { 0 } else { LONG };
                self.line.send(Op::LaunchKernel, &launch(self.function, shared, at), flag);
                let ran = if at == 1 {
                    Err(719)
                } else if at % 4 != 0 {
                    Err(716)
                } else {
                    let stored = model.range(at, 4).map_err(|_| 700);
                    stored.map(|bytes| bytes.copy_from_slice(&0x0101_0107_u32.to_le_bytes()))
                };
                if let Err(code) = ran {
                    model.defer(code);
                }
                reply.then_some(Expected::Code(0))
            }
            11 => {
                let op = if rng.bool() { Op::DeviceSynchronize } else { Op::StreamSynchronize };
                self.line.send(op, handle(0).as_bytes(), flag);
                reply.then(|| Expected::Code(model.deferred.take().unwrap_or(0)))
            }
            _ => {
                self.line.send_code(rng.u16(0x0900..), &vec![0; len], flag);
                model.status(reply, Err(801))
            }
        }
    }

    /// A copy of rows to or from the device.
    fn rows(&mut self, rng: &mut Rng, reply: bool, at: u64, from: u64) -> Option<Expected> {
        let model = &mut self.model;
        let flag = if reply { 0 } else { flags::NO_REPLY };
        let (width, height) = (rng.usize(1..20), rng.usize(1..10));
        let (dpitch, spitch) = (width + rng.usize(0..5), width + rng.usize(0..5));
        let span = |pitch: usize| pitch * (height - 1) + width;
        if rng.bool() {
            let data: Vec<_> = (0..spitch * height).map(|_| rng.u8(..)).collect();
            let request = memcpy_2d((at, dpitch), (0, spitch), (width, height), kind::HOST_TO_DEVICE);
            let sent = [request.as_bytes(), &data].concat();
            self.line.send(Op::Memcpy2d, &sent, flag | flags::HAS_INLINE_DATA);
            let result = model.range(at, span(dpitch)).map(|bytes| {
                for row in 0..height {
                    bytes[row * dpitch..][..width].copy_from_slice(&data[row * spitch..][..width]);
                }
            });
            return model.status(reply, result);
        }
        let request = memcpy_2d((0, dpitch), (from, spitch), (width, height), kind::DEVICE_TO_HOST);
        self.line.send(Op::Memcpy2d, request.as_bytes(), flag);
        if !reply {
            return model.status(false, Err(1));
        }
        let mut data = vec![0; dpitch * height];
        Some(match model.range(from, span(spitch)) {
            Err(code) => Expected::Code(code),
            Ok(bytes) => {
                for row in 0..height {
                    data[row * dpitch..][..width].copy_from_slice(&bytes[row * spitch..][..width]);
                }
                match model.deferred.take() {
                    Some(code) => Expected::Code(code),
                    None => Expected::Data(data),
                }
            }
        })
    }

    /// Some requests at once, and their answers.
    fn burst(&mut self, rng: &mut Rng, budget: &Budget, text: u64) {
        let mut expected = Vec::new();
        for _ in 0..rng.usize(1..8) {
            let step = self.step(rng);
            let ends = matches!(step, Some(Expected::Pointer(_)));
            expected.extend(step);
            // Only its answer says where the allocation lies, and whether there was room.
            if ends {
                break;
            }
        }
        for (answer, expected) in self.line.answers(expected.len()).into_iter().zip(expected) {
            match expected {
                Expected::Code(code) => assert_eq!((answer.code, answer.body), (code, Vec::new())),
                Expected::Data(data) => assert_eq!((answer.code, answer.body), (0, data)),
                Expected::Pointer(size) => self.allocated(size, &answer, budget, text),
            }
        }
    }

    fn allocated(&mut self, size: u64, answer: &Answer, budget: &Budget, text: u64) {
        let charged = size.next_multiple_of(256);
        if answer.code == 2 {
            let fits = self.model.used() + text + charged <= QUOTA && budget.used() + charged <= TOTAL;
            assert!(!fits, "{size} bytes are free");
            return;
        }
        assert_eq!(answer.code, 0);
        let at = u64::from_le_bytes(answer.body[..].try_into().unwrap());
        if size == 0 {
            return assert_eq!(at, 0);
        }
        assert_eq!(at % 256, 0);
        assert!(self.model.range(at, 1).is_err() && self.model.range(at + size - 1, 1).is_err());
        self.model.allocations.insert(at, vec![0; size as usize]);
        assert!(self.model.used() + text <= QUOTA);
    }
}

fn reported(counters: &Counters) -> BTreeMap<String, u64> {
    let mut all = BTreeMap::new();
    counters.report(&mut |name, value| assert!(all.insert(name.to_owned(), value).is_none(), "{name} twice"));
    all
}

fn run(seed: u64) {
    let mut rng = Rng::with_seed(seed);
    let world = World::new(seed);
    let mut clients: Vec<_> = (0..3).filter_map(|_| world.client(&mut rng)).collect();
    let text = world.budget.used() / clients.len() as u64;
    let mut requests = 0;
    for _ in 0..40 {
        let at = rng.usize(0..clients.len());
        if rng.u32(0..40) == 0 {
            // It vanishes, whatever is under way, and another one comes.
            clients[at].step(&mut rng);
            clients[at].line.some();
            clients.remove(at);
            let held: u64 = clients.iter().map(|client| client.model.used() + text).sum();
            assert_eq!(world.budget.used(), held, "what it had is free");
            clients.extend(world.client(&mut rng));
            requests = u64::MAX;
            continue;
        }
        clients[at].burst(&mut rng, &world.budget, text);
    }
    for client in &mut clients {
        client.line.send(Op::DeviceSynchronize, &[], 0);
        client.requests += 1;
        let told = client.line.answers(1).remove(0);
        assert_eq!(told.code, client.model.deferred.take().unwrap_or(0));
        let found: Vec<_> = client.model.allocations.iter().map(|(at, bytes)| (*at, bytes.clone())).collect();
        for (at, bytes) in found {
            client.line.send(Op::Memcpy, memcpy(0, at, bytes.len(), kind::DEVICE_TO_HOST).as_bytes(), 0);
            client.requests += 1;
            assert_eq!(client.line.answers(1).remove(0).body, bytes, "what a session has is what it wrote");
        }
        if requests != u64::MAX {
            requests += client.requests;
        }
    }
    let counters = &world.counters;
    if requests != u64::MAX {
        let counted =
            counters.classes().map(|(_, [answered, failed, done, deferred, ..])| answered + failed + done + deferred);
        assert_eq!(counted.sum::<u64>(), requests);
        assert_eq!(
            reported(counters)["errors_dropped"],
            clients.iter().map(|client| client.model.dropped).sum::<u64>()
        );
    }
    drop(clients);
    assert_eq!(world.budget.used(), 0);
}

#[test]
fn sessions_do_what_the_model_does() {
    let number = |name| env::var(name).ok().map(|value| value.parse().expect("a number"));
    let seeds = match number("BERTH_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("BERTH_SIM_SEEDS").unwrap_or(SEEDS),
    };
    for seed in seeds {
        assert!(std::panic::catch_unwind(|| run(seed)).is_ok(), "seed {seed}");
    }
}

#[test]
fn requests_are_counted_by_class_and_timed_by_stage() {
    let world = World::new(1);
    let mut client = world.client(&mut Rng::with_seed(1)).unwrap();
    let before = reported(&world.counters);
    let line = &mut client.line;
    line.send(Op::Malloc, q::Malloc { size: 4096.into(), flags: 0.into() }.as_bytes(), 0);
    let at = u64::from_le_bytes(line.answers(1)[0].body[..].try_into().unwrap());
    line.send(
        Op::Memcpy,
        &[memcpy(at, 0, 1000, kind::HOST_TO_DEVICE).as_bytes(), &[7; 1000]].concat(),
        flags::HAS_INLINE_DATA,
    );
    line.send(Op::Memcpy, memcpy(0, at, 1000, kind::DEVICE_TO_HOST).as_bytes(), 0);
    line.send(Op::Free, handle(at + 1).as_bytes(), flags::NO_REPLY);
    line.send(Op::Free, handle(at + 1).as_bytes(), 0);
    line.send_code(0x0800, &[], 0);
    let codes: Vec<_> = line.answers(4).iter().map(|answer| answer.code).collect();
    assert_eq!(codes, [0, 0, 17, 801]);
    let after = reported(&world.counters);
    let grown = |name: &str| after[name] - before.get(name).unwrap_or(&0);
    let kinds = ["requests_*_answered", "requests_*_failed", "requests_*_done", "requests_*_deferred", "bytes_*_in"];
    let of = |class: &str| kinds.map(|kind| grown(&kind.replace('*', class)));
    assert_eq!(of("memory"), [1, 1, 0, 1, 12 + 8 + 8]);
    assert_eq!(of("copy"), [2, 0, 0, 0, 36 + 1000 + 36]);
    assert_eq!(of("unserved"), [0, 1, 0, 0, 0]);
    assert_eq!(grown("bytes_copy_out"), 4 + 4 + 1000);
    let samples = |name| {
        let histograms = client.latencies.histograms();
        histograms.iter().find(|(known, _)| *known == name).unwrap().1.snapshot().len()
    };
    // The load brought bytes, too.
    assert_eq!(["hip_receive_time", "hip_send_time"].map(samples), [2, 1]);
    let seen = (client.activity.requests(), client.activity.errors());
    assert_eq!(seen, (1 + 6, 3));
    assert!(client.activity.memory() >= 4096, "{}", client.activity.memory());
}

#[test]
fn registers_and_stacks_count_in_the_quota() {
    let world = World::new(1);
    let line = &mut world.client(&mut Rng::with_seed(1)).unwrap().line;
    let text = ".version 6.3\n.target sm_70\n.address_size 64\n.visible .entry big()\n{\n\
                .local .align 4 .b8 frame[65536];\nret;\n}\n";
    let load = q::ModuleLoadAndGet { data_size: (text.len() as u64).into(), name_length: 3.into(), reserved: 0.into() };
    line.send(Op::ModuleLoadAndGet, &[load.as_bytes(), b"big", text.as_bytes()].concat(), flags::HAS_INLINE_DATA);
    let function = u64::from_le_bytes(line.answers(1)[0].body[8..16].try_into().unwrap());
    // 64 KiB for each thread: 1,024 of them take more than the session has, and 32 MiB that do not count.
    for (threads, code) in [(64, 0), (1024, 701), (1, 0)] {
        let block = [threads, 1, 1].map(Into::into);
        let launch = q::Launch { function: function.into(), grid: [1.into(); 3], block, ..q::Launch::zeroed() };
        line.send(Op::LaunchKernel, launch.as_bytes(), 0);
        line.send(Op::DeviceSynchronize, &[], 0);
        let codes: Vec<_> = line.answers(2).iter().map(|answer| answer.code).collect();
        assert_eq!(codes, [0, code], "{threads} threads");
    }
}

#[test]
fn a_launch_that_is_surely_short_needs_no_runner() {
    let world = World::new(1);
    let client = &mut world.client(&mut Rng::with_seed(1)).unwrap();
    let line = &mut client.line;
    line.send(Op::Malloc, q::Malloc { size: 4096.into(), flags: 0.into() }.as_bytes(), 0);
    let at = u64::from_le_bytes(line.answers(1)[0].body[..].try_into().unwrap());
    for (shared, to, code, by_runner) in
        [(0, at, 0, 0), (0, at + 2, 716, 0), (0, 4096, 700, 0), (0, 1, 719, 0), (LONG, at + 4, 0, 1), (LONG, 1, 719, 1)]
    {
        let before = world.tasks.load(Relaxed);
        line.send(Op::LaunchKernel, &launch(client.function, shared, to), 0);
        line.send(Op::DeviceSynchronize, &[], 0);
        let codes: Vec<_> = line.answers(2).iter().map(|answer| answer.code).collect();
        assert_eq!((codes, world.tasks.load(Relaxed) - before), (vec![0, code], by_runner), "{to:#x}, {shared}");
    }
    line.send(Op::Memcpy, memcpy(0, at, 12, kind::DEVICE_TO_HOST).as_bytes(), 0);
    assert_eq!(line.answers(1)[0].body, [[7, 1, 1, 1], [7, 1, 1, 1], [0; 4]].concat());
    // Others get their turn after 116 of them, four of which were above.
    let before = world.tasks.load(Relaxed);
    let launch = launch(client.function, 0, at);
    for _ in 0..400 {
        line.send(Op::LaunchKernel, &launch, flags::NO_REPLY);
    }
    line.send(Op::DeviceSynchronize, &[], 0);
    let of_each: Vec<_> = line.by_turns().iter().map(|consumed| consumed / (Header::LEN + launch.len())).collect();
    assert_eq!(of_each, [112, 116, 116, 56]);
    assert_eq!(line.answers(1)[0].code, 0);
    assert_eq!(world.tasks.load(Relaxed) - before, 0);
}
