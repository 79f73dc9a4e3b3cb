//! Decoders of `kernels/decoders.cu` on the software GPU, bit for bit those of the CPU.

mod common;

use std::{path::Path, process::Command};

use berth_ptx::{Allocations, Device, Launch, LaunchError, Module, Program};
use berth_qec::{
    Algorithm, DecodeError, Decoder, Tables,
    dem::DetectorErrorModel,
    gpu::{self, ModuleError},
    relay::RelayBp,
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

fn load(texts: &[&str]) -> Device {
    let modules: Vec<_> = texts.iter().map(|text| Module::parse(text).expect("a module")).collect();
    Device::new(Program::link(&modules).expect("a program"))
}

/// What the CPU answers: status and flips.
fn cpu(decoder: &mut Decoder, events: &[u8]) -> (i32, u64) {
    let mut flips = [0; 8];
    match decoder.decode(events, &mut flips[..decoder.num_observables().div_ceil(8)]) {
        Ok(()) => (0, u64::from_le_bytes(flips)),
        Err(DecodeError::NoSolution) => (1, 0),
        Err(e) => panic!("{e}"),
    }
}

/// Decodes shots by `berth_relay_bp_shots`; memory of blocks is shared if `shared`.
fn shots(tables: &Tables, threads: u32, shared: bool, shots: &[Vec<u8>]) -> Vec<(i32, u64)> {
    let blocks = 4;
    let (mut device, mut memory) = (load(&[gpu::DECODERS]), Allocations::default());
    let image = memory.allocate(tables.image().unwrap());
    let state = if shared { 0 } else { memory.allocate(vec![0; tables.state_bytes() * blocks]) };
    let events = memory.allocate(shots.concat());
    let (flips, statuses) = (memory.allocate(vec![0; shots.len() * 8]), memory.allocate(vec![0; shots.len() * 4]));
    let arguments = [image, state, events, flips, statuses, shots.len() as u64];
    let shared = if shared { tables.state_bytes() } else { 0 };
    launch(&mut device, &mut memory, "berth_relay_bp_shots", [blocks as u32, threads], shared, &arguments).unwrap();
    let flips = memory.bytes(flips).unwrap().as_chunks().0.iter().map(|bytes| u64::from_le_bytes(*bytes));
    let statuses = memory.bytes(statuses).unwrap().as_chunks().0.iter().map(|bytes| i32::from_le_bytes(*bytes));
    statuses.zip(flips).collect()
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
    expected.iter().filter(|(status, _)| *status != 0).count()
}

const ONE: RelayBp = RelayBp { relays: 1, legs: 3, iterations: 20, seed: 5 };

#[test]
fn shots_of_the_surface_code_of_distance_3() {
    compare(&model("surface_d3.dem"), ONE, 128, 1500, 1.0);
    compare(&model("surface_d3_p5e-3.dem"), RelayBp { relays: 8, iterations: 30, ..ONE }, 256, 60, 1.0);
}

#[test]
fn shots_of_the_surface_code_of_distance_5() {
    compare(&model("surface_d5.dem"), ONE, 256, 150, 0.5);
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
    let unsolved =
        compare(&model("bicycle_72.dem"), RelayBp { relays: 5, legs: 2, iterations: 3, seed: 1 }, 64, 30, 20.0);
    assert!(unsolved > 20, "{unsolved}");
}

/// Calls a function by its `DEVICE_CALL` prototype: all threads of the block, and the answer over the request.
const CALL: &str = "
.version 6.3
.target sm_70
.address_size 64
.extern .func (.param .b32 s) qec_decode(.param .b64 a, .param .b64 b, .param .b32 c, .param .b32 d, .param .b64 e);
.visible .entry call(.param .u64 slot, .param .u64 result_len, .param .u64 statuses, .param .u32 len, .param .u32 room)
{
.reg .b64 %slot, %result_len, %statuses, %at;
.reg .b32 %len, %room, %status, %tid;
ld.param.u64 %slot, [slot];
ld.param.u64 %result_len, [result_len];
ld.param.u64 %statuses, [statuses];
ld.param.u32 %len, [len];
ld.param.u32 %room, [room];
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
mov.u32 %tid, %tid.x;
mad.wide.u32 %at, %tid, 4, %statuses;
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
    fn new(tables: &Tables, threads: u32) -> Self {
        let module = gpu::module("qec_decode", tables, 1).unwrap();
        Self { device: load(&[gpu::DECODERS, &module, CALL]), threads }
    }

    /// Status and results.
    fn call(&mut self, arguments: &[u8], room: u32) -> (i32, Vec<u8>) {
        let mut memory = Allocations::default();
        let mut slot = arguments.to_vec();
        slot.resize(slot.len() + 16, 0xEE);
        let (slot, result_len) = (memory.allocate(slot), memory.allocate(vec![0; 4]));
        let statuses = memory.allocate(vec![0xEE; 4 * self.threads as usize]);
        let lengths = arguments.len() as u64 | u64::from(room) << 32;
        let arguments = [slot, result_len, statuses, lengths];
        launch(&mut self.device, &mut memory, "call", [1, self.threads], 0, &arguments).unwrap();
        let number = |at: u64| i32::from_le_bytes(memory.bytes(at).unwrap()[..4].try_into().unwrap());
        (number(statuses), memory.bytes(slot).unwrap()[..number(result_len) as usize].to_vec())
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
        let mut function = Function::new(&tables, threads);
        let mut decoder = Decoder::new(tables);
        let mut random = Random(3);
        for _ in 0..count {
            let (events, _) = shot(&model, &mut random, 5.0);
            let (status, flips) = cpu(&mut decoder, &events);
            let (answered, results) = function.call(&request(&events, 24), 1);
            assert_eq!((answered, results), (status, if status == 0 { vec![flips as u8] } else { vec![] }));
        }
    }
}

#[test]
fn functions_refuse_what_qec_decode_refuses() {
    let model =
        DetectorErrorModel::parse("error(0.1) D0 L0\nerror(0.1) D0 D1\nerror(0.1) D1 D2 L9\ndetector D10").unwrap();
    for (algorithm, threads) in [(Algorithm::Lut { depth: 1 }, 1), (Algorithm::RelayBp(ONE), 32)] {
        let mut function = Function::new(&Tables::new(&model, algorithm).unwrap(), threads);
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
    let mut function = Function::new(&Tables::new(&model, Algorithm::RelayBp(ONE)).unwrap(), 32);
    assert_eq!(function.call(&request(&[0, 4], 11), 2), (1, vec![]));
    let mut function = Function::new(&Tables::new(&model, Algorithm::RelayBp(ONE)).unwrap(), 4);
    assert_eq!(function.call(&request(&[1, 0], 11), 2), (-6, vec![]), "too few threads");
}

#[test]
fn modules_that_cannot_be_made() {
    let model = DetectorErrorModel::parse("error(0.1) D0 L0").unwrap();
    let tables = |algorithm| Tables::new(&model, algorithm).unwrap();
    assert_eq!(gpu::module("f", &tables(Algorithm::Mwpm), 1), Err(ModuleError::Matching));
    let lut = tables(Algorithm::Lut { depth: 1 });
    assert_eq!(gpu::module("f", &lut, 0), Err(ModuleError::NoBlocks));
    for name in ["", "1f", "a-b", "a;b", "_f"] {
        assert_eq!(gpu::module(name, &lut, 1), Err(ModuleError::Name(name.into())));
    }
}
