//! Decoders of `kernels/decoders.cu` on the software GPU, bit for bit those of the CPU.

mod common;

use std::{path::Path, process::Command};

use berth_ptx::{Allocations, Device, Launch, LaunchError, Module, Program};
use berth_qec::{
    Algorithm, DecodeError, Decoder, Tables,
    dem::DetectorErrorModel,
    gpu::{self, ModuleError},
    relay::{Arithmetic, RelayBp, UNIT},
    sparse::MeasurementMap,
};
use common::{Random, model, shot};
use std::sync::Arc;

const FUEL: u64 = 20_000_000_000;

#[test]
fn the_text_is_what_clang_makes_of_the_source() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels");
    let mut clang = Command::new("clang-14");
    clang
        .args(["-x", "cuda", "-nocudainc", "-nocudalib", "--cuda-device-only", "--cuda-gpu-arch=sm_70"])
        .args(["-Xclang", "-target-feature", "-Xclang", "+ptx63", "-O2", "-S", "-o", "-", "decoders.cu"])
        .current_dir(folder);
    let made = clang.output().expect("clang-14, which `cargo xtask setup` installs");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    assert_eq!(String::from_utf8(made.stdout).unwrap(), gpu::DECODERS);
}

fn launch(
    device: &mut Device,
    memory: &mut Allocations,
    kernel: &str,
    [grid, block]: [u32; 2],
    shared: usize,
    arguments: &[u64],
) -> Result<(), LaunchError> {
    let params: Vec<u8> = arguments.iter().flat_map(|argument| argument.to_le_bytes()).collect();
    let size = device.program().parameters(kernel).unwrap().last().map_or(0, |last| last.offset + last.bytes);
    let launch = Launch {
        kernel,
        grid: [grid, 1, 1],
        block: [block, 1, 1],
        shared,
        params: &params[..size],
        seed: 1,
        fuel: FUEL,
    };
    device.launch(memory, &launch, &mut || 0).map(drop)
}

/// What who links the server defines.
const LOST: &str = ".version 6.3\n.target sm_70\n.address_size 64\n.visible .global .u32 berth_sessions_lost = 0;\n";

fn load(texts: &[&str]) -> Device {
    let modules: Vec<_> = texts.iter().chain([&LOST]).map(|text| Module::parse(text).expect("a module")).collect();
    Device::new(Program::link(&modules).expect("a program"))
}

/// Status, flips, and the weight in fixed point.
type Answer = (i32, u64, u32);

fn cpu(decoder: &mut Decoder, events: &[u8]) -> Answer {
    let mut flips = [0; 8];
    match decoder.decode(events, &mut flips[..decoder.num_observables().div_ceil(8)]) {
        Ok(()) => (0, u64::from_le_bytes(flips), (decoder.weight().unwrap_or(0.0) * UNIT) as u32),
        Err(DecodeError::NoSolution) => (1, 0, 0),
        Err(e) => panic!("{e}"),
    }
}

/// Decodes shots by `berth_relay_bp_shots`; memory of blocks is shared if `shared`.
fn shots(tables: &Tables, threads: u32, shared: bool, shots: &[Vec<u8>]) -> Vec<Answer> {
    let blocks = 4;
    let (mut device, mut memory) = (load(&[gpu::DECODERS]), Allocations::default());
    let image = memory.allocate(tables.image().unwrap());
    let state = if shared { 0 } else { memory.allocate(vec![0; tables.state_bytes() * blocks]) };
    let events = memory.allocate(shots.concat());
    let [flips, weights, statuses] = [8, 4, 4].map(|size| memory.allocate(vec![0; shots.len() * size]));
    let arguments = [image, state, events, flips, weights, statuses, shots.len() as u64];
    let shared = if shared { tables.state_bytes() } else { 0 };
    launch(&mut device, &mut memory, "berth_relay_bp_shots", [blocks as u32, threads], shared, &arguments).unwrap();
    let word =
        |at: u64, shot: usize| u32::from_le_bytes(memory.bytes(at).unwrap()[4 * shot..][..4].try_into().unwrap());
    let answer = |shot| {
        let flips = u64::from(word(flips, 2 * shot)) | u64::from(word(flips, 2 * shot + 1)) << 32;
        (word(statuses, shot) as i32, flips, word(weights, shot))
    };
    (0..shots.len()).map(answer).collect()
}

/// Compares `count` shots that have events, of errors `times` as likely as in the model. Returns how many have no
/// solution.
fn compare(model: &DetectorErrorModel, relay: RelayBp, threads: u32, count: usize, times: f64) -> usize {
    let tables = Arc::new(Tables::new(model, Algorithm::RelayBp(relay)).unwrap());
    let mut random = Random(7);
    let events = std::iter::repeat_with(|| shot(model, &mut random, times).0);
    let events: Vec<_> = events.filter(|events| events.iter().any(|byte| *byte != 0)).take(count).collect();
    let mut decoder = Decoder::new(tables.clone());
    let expected: Vec<_> = events.iter().map(|events| cpu(&mut decoder, events)).collect();
    let shared = tables.state_bytes() < 100_000;
    assert_eq!(shots(&tables, threads, shared, &events), expected);
    expected.iter().filter(|(status, ..)| *status != 0).count()
}

const ONE: RelayBp = RelayBp { relays: 1, legs: 3, iterations: 20, seed: 5, arithmetic: Arithmetic::Fixed16 };

#[test]
fn shots_of_the_surface_code_of_distance_3() {
    compare(&model("surface_d3.dem"), ONE, 128, 1500, 1.0);
    compare(&model("surface_d3_p5e-3.dem"), RelayBp { relays: 8, iterations: 30, ..ONE }, 256, 60, 1.0);
}

#[test]
fn shots_of_the_surface_code_of_distance_5() {
    compare(&model("surface_d5.dem"), ONE, 256, 100, 0.5);
    compare(&model("surface_d5.dem"), RelayBp { relays: 3, ..ONE }, 96, 10, 1.0);
}

#[test]
fn shots_of_the_bicycle_code() {
    compare(&model("bicycle_72.dem"), ONE, 128, 1000, 0.25);
    compare(&model("bicycle_72.dem"), RelayBp { relays: 8, ..ONE }, 256, 20, 1.0);
}

#[test]
fn shots_that_have_no_solution() {
    // Far more errors than a leg of three iterations finds: whatever was tried, both tried the same.
    let unsolved = compare(
        &model("bicycle_72.dem"),
        RelayBp { relays: 5, legs: 2, iterations: 3, seed: 1, arithmetic: Arithmetic::Fixed16 },
        64,
        30,
        20.0,
    );
    assert!(unsolved > 20, "{unsolved}");
}

/// Calls a function by its `DEVICE_CALL` prototype: all threads of each block, and the answer over the request. Slots of
/// blocks are 64 bytes apart, statuses 256 threads.
const CALL: &str = "
.version 6.3
.target sm_70
.address_size 64
.extern .func (.param .b32 s) qec_decode(.param .b64 a, .param .b64 b, .param .b32 c, .param .b32 d, .param .b64 e);
.visible .entry call(.param .u64 slot, .param .u64 result_len, .param .u64 statuses, .param .u32 len, .param .u32 room)
{
.reg .b64 %slot, %result_len, %statuses, %at;
.reg .b32 %len, %room, %status, %thread, %block;
ld.param.u64 %slot, [slot];
ld.param.u64 %result_len, [result_len];
ld.param.u64 %statuses, [statuses];
ld.param.u32 %len, [len];
ld.param.u32 %room, [room];
mov.u32 %block, %ctaid.x;
mad.wide.u32 %slot, %block, 64, %slot;
mad.wide.u32 %result_len, %block, 4, %result_len;
mad.wide.u32 %statuses, %block, 1024, %statuses;
{
.param .b64 a, b, e;
.param .b32 c, d, s;
st.param.b64 [a], %slot;
st.param.b64 [b], %slot;
st.param.b32 [c], %len;
st.param.b32 [d], %room;
st.param.b64 [e], %result_len;
call (s), qec_decode, (a, b, c, d, e);
ld.param.b32 %status, [s];
}
mov.u32 %thread, %tid.x;
mad.wide.u32 %at, %thread, 4, %statuses;
st.global.u32 [%at], %status;
ret;
}
";

/// A function `qec_decode`, called on the software GPU.
struct Function {
    device: Device,
    threads: u32,
}

impl Function {
    fn new(tables: &Tables, threads: u32, blocks: u32) -> Self {
        let module = gpu::module("qec_decode", tables, blocks).unwrap();
        Self { device: load(&[gpu::DECODERS, &module, CALL]), threads }
    }

    /// Status and results.
    fn call(&mut self, arguments: &[u8], room: u32) -> (i32, Vec<u8>) {
        self.call_at_once(&[arguments.to_vec()], room).remove(0)
    }

    /// Requests of one length, a block each.
    fn call_at_once(&mut self, requests: &[Vec<u8>], room: u32) -> Vec<(i32, Vec<u8>)> {
        let mut memory = Allocations::default();
        let mut slots = vec![0xEE; 64 * requests.len()];
        for (slot, request) in slots.chunks_mut(64).zip(requests) {
            slot[..request.len()].copy_from_slice(request);
        }
        let [slots, lengths, statuses] =
            [slots, vec![0; 4 * requests.len()], vec![0xEE; 1024 * requests.len()]].map(|bytes| memory.allocate(bytes));
        let arguments = [slots, lengths, statuses, requests[0].len() as u64 | u64::from(room) << 32];
        let shape = [requests.len() as u32, self.threads];
        launch(&mut self.device, &mut memory, "call", shape, 0, &arguments).unwrap();
        let number =
            |at: u64, index: usize| i32::from_le_bytes(memory.bytes(at).unwrap()[4 * index..][..4].try_into().unwrap());
        let results = |block| memory.bytes(slots).unwrap()[64 * block..][..number(lengths, block) as usize].to_vec();
        (0..requests.len()).map(|block| (number(statuses, 256 * block), results(block))).collect()
    }
}

fn request(events: &[u8], detectors: usize) -> Vec<u8> {
    [events, &(detectors as u32).to_le_bytes()].concat()
}

#[test]
fn functions_answer_what_qec_decode_does() {
    let model = model("surface_d3.dem");
    for (algorithm, threads, count) in
        [(Algorithm::Lut { depth: 2 }, 1, 2000), (Algorithm::RelayBp(RelayBp { relays: 4, ..ONE }), 64, 40)]
    {
        let tables = Arc::new(Tables::new(&model, algorithm).unwrap());
        let mut function = Function::new(&tables, threads, 1);
        let mut decoder = Decoder::new(tables);
        let mut random = Random(3);
        for _ in 0..count {
            let (events, _) = shot(&model, &mut random, 5.0);
            let (status, flips, _) = cpu(&mut decoder, &events);
            let (answered, results) = function.call(&request(&events, 24), 1);
            assert_eq!((answered, results), (status, if status == 0 { vec![flips as u8] } else { vec![] }));
        }
    }
}

#[test]
fn blocks_decode_at_the_same_time() {
    let model = model("surface_d3.dem");
    let tables = Arc::new(Tables::new(&model, Algorithm::RelayBp(RelayBp { relays: 4, ..ONE })).unwrap());
    let mut function = Function::new(&tables, 32, 3);
    let mut decoder = Decoder::new(tables);
    let mut random = Random(4);
    for _ in 0..5 {
        let events: Vec<_> = std::iter::repeat_with(|| shot(&model, &mut random, 9.0).0).take(4).collect();
        let requests: Vec<_> = events.iter().map(|events| request(events, 24)).collect();
        let answers = function.call_at_once(&requests, 1);
        for (events, answer) in events.iter().zip(&answers).take(3) {
            let (status, flips, _) = cpu(&mut decoder, events);
            assert_eq!(*answer, (status, if status == 0 { vec![flips as u8] } else { vec![] }));
        }
        assert_eq!(answers[3], (-6, vec![]), "a block without memory");
    }
}

/// The tables are those of docs/decoders.md.
#[test]
fn tables_are_as_they_are_defined() {
    let model = DetectorErrorModel::parse("error(0.25) D1 L0\nerror(0.01) D0 D1\nerror(1e-30) D0").unwrap();
    let tables = Tables::new(
        &model,
        Algorithm::RelayBp(RelayBp { relays: 3, legs: 2, iterations: 7, seed: 0, arithmetic: Arithmetic::Fixed16 }),
    )
    .unwrap();
    let image = tables.image().unwrap();
    let word = |at: usize| u32::from_le_bytes(image[at..at + 4].try_into().unwrap());
    let half = |at: usize| i16::from_le_bytes(image[at..at + 2].try_into().unwrap());
    assert_eq!([0, 4, 8, 12, 16, 20, 24].map(word), [2, 1, 3, 4, 3, 2, 7]);
    // Errors by detectors: D0; D0 D1; D1.
    let priors = word(44) as usize;
    assert_eq!([0, 2, 4].map(|at| half(priors + at)), [2047, 294, 70]);
    // SplitMix64 from 0.
    let first = [0xE220_A839_7B1D_CDAF_u64, 0x6E78_9E6A_A1B9_65F4, 0x06C4_5D18_8009_454F];
    let strength = |x: u64| (-7864 + (((x >> 32) * 29492) >> 32) as i64) as i16;
    let strengths = word(48) as usize;
    assert_eq!([0, 2, 4].map(|at| half(strengths + at)), [4096, strength(first[1]), strength(first[2])]);
    assert_ne!(half(strengths + 2 * 9), 4096, "of the second leg");
}

#[test]
fn functions_refuse_what_qec_decode_refuses() {
    let model =
        DetectorErrorModel::parse("error(0.1) D0 L0\nerror(0.1) D0 D1\nerror(0.1) D1 D2 L9\ndetector D10").unwrap();
    for (algorithm, threads) in [(Algorithm::Lut { depth: 1 }, 1), (Algorithm::RelayBp(ONE), 32)] {
        let mut function = Function::new(&Tables::new(&model, algorithm).unwrap(), threads, 1);
        assert_eq!(function.call(&request(&[1, 0], 11), 2), (0, vec![1, 0]));
        assert_eq!(function.call(&request(&[6, 0], 11), 100), (0, vec![0, 2]));
        assert_eq!(function.call(&request(&[1, 0], 11), 1), (-4, vec![]), "no room");
        assert_eq!(function.call(&request(&[1, 0], 12), 2), (-3, vec![]), "another number");
        assert_eq!(function.call(&request(&[1, 8], 11), 2), (-3, vec![]), "padding");
        assert_eq!(function.call(&request(&[1], 11), 2), (-3, vec![]), "too short");
        assert_eq!(function.call(&request(&[1, 0, 0], 11), 2), (-3, vec![]), "too long");
        assert_eq!(function.call(&[], 2), (-3, vec![]), "nothing");
    }
    // Nobody reaches detector 10.
    let mut function = Function::new(&Tables::new(&model, Algorithm::RelayBp(ONE)).unwrap(), 32, 1);
    assert_eq!(function.call(&request(&[0, 4], 11), 2), (1, vec![]));
    let mut function = Function::new(&Tables::new(&model, Algorithm::RelayBp(ONE)).unwrap(), 4, 1);
    assert_eq!(function.call(&request(&[1, 0], 11), 2), (-6, vec![]), "too few threads");
}

#[test]
fn modules_that_cannot_be_made() {
    let model = DetectorErrorModel::parse("error(0.1) D0 L0").unwrap();
    let tables = |algorithm| Tables::new(&model, algorithm).unwrap();
    assert_eq!(gpu::module("f", &tables(Algorithm::Mwpm), 1), Err(ModuleError::OnCpus));
    let lut = tables(Algorithm::Lut { depth: 1 });
    assert_eq!(gpu::module("f", &lut, 0), Err(ModuleError::NoBlocks));
    for name in ["", "1f", "a-b", "a;b", "_f"] {
        assert_eq!(gpu::module(name, &lut, 1), Err(ModuleError::Name(name.into())));
    }
}

/// The decoding server's three functions, with sessions that go on from call to call.
struct Server(Device);

impl Server {
    fn new(decoders: &[(&Tables, &MeasurementMap)]) -> Self {
        let server = gpu::server("s", decoders, 1).unwrap();
        let call = |(name, _): &(&str, bool)| {
            CALL.replace("qec_decode", &format!("s_{name}")).replace("entry call(", &format!("entry {name}("))
        };
        let calls = gpu::SERVER.each_ref().map(call);
        Self(load(&[gpu::DECODERS, &server, &calls[0], &calls[1], &calls[2]]))
    }

    fn call(&mut self, nth: usize, arguments: &[u8]) -> (i32, Vec<u8>) {
        let mut memory = Allocations::default();
        let (name, parallel) = gpu::SERVER[nth];
        let slot = [arguments, &vec![0; 64 - arguments.len()]].concat();
        let [slot, length, statuses] = [slot, vec![0; 4], vec![0xEE; 1024]].map(|bytes| memory.allocate(bytes));
        let more = [slot, length, statuses, arguments.len() as u64 | 40 << 32];
        launch(&mut self.0, &mut memory, name, [1, if parallel { 128 } else { 1 }], 0, &more).unwrap();
        let number = |at: u64| i32::from_le_bytes(memory.bytes(at).unwrap()[..4].try_into().unwrap());
        (number(statuses), memory.bytes(slot).unwrap()[..number(length) as usize].to_vec())
    }
}

#[test]
fn a_server_has_a_session_of_each_decoder() {
    let model = model("surface_d3.dem");
    let identity = MeasurementMap::identity(24);
    let relay = RelayBp { relays: 2, legs: 1, iterations: 8, seed: 0, arithmetic: Arithmetic::Fixed16 };
    let tables = [Algorithm::Lut { depth: 1 }, Algorithm::RelayBp(relay)]
        .map(|algorithm| Arc::new(Tables::new(&model, algorithm).unwrap()));
    let mut server = Server::new(&[(&tables[0], &identity), (&tables[1], &identity)]);
    let mut random = Random(3);
    for _ in 0..20 {
        for (id, tables) in tables.iter().enumerate() {
            let (events, _) = shot(&model, &mut random, 1.0);
            let (status, flips, _) = cpu(&mut Decoder::new(tables.clone()), &events);
            let words = [id as u64, 0, 0, 24].map(u64::to_le_bytes).concat();
            assert_eq!(server.call(0, &[&words[..], &events].concat()), (0, vec![]));
            let get = [&[id as u64, 1].map(u64::to_le_bytes).concat()[..], &[1]].concat();
            let expected = if status == 0 { (0, vec![flips as u8]) } else { (3, vec![]) };
            assert_eq!(server.call(1, &get), expected);
            assert_eq!(server.call(2, &(id as u64).to_le_bytes()), (0, vec![]));
        }
    }
}
