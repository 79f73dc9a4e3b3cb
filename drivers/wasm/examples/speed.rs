//! Runs beside the same in bare wasmtime, in turns: `cargo build --release -p berth-wasm --bins`, then
//! `cargo run --release -p berth-wasm --example speed`. A line of JSON for each turn of each case; `cargo xtask bench wasm`
//! makes a table of them. `compute` and `read` are in milliseconds and in microseconds of one read, `run` in microseconds,
//! `hostcall` in nanoseconds.

#![forbid(unsafe_code)]

use std::{hint::black_box, path::PathBuf, time::Instant};

use berth_kernels::{Builtin, Choice, Format, Kernel, Registry, Runs, Settings};
use berth_tasklet::{
    hostcall::{Call, Hostcalls},
    run::{Executor, Limits, Status},
};
use berth_wasm::{Compiler, Isolated, Isolation, KernelLimits, Pool, Starter, Wasm};
use memorypack::MemoryPackSerializer;
use wasmtime::{Caller, Config, Engine, InstanceAllocationStrategy, Linker, Module, PoolingAllocationConfig, Store};

const PLENTY: Limits = Limits { fuel: 10_000_000_000, memory: 64 << 20, output: 512 << 10, hostcalls: 1_000_000 };

struct Host(Vec<u8>);

impl Hostcalls for Host {
    fn call(&mut self, call: Call<'_>) -> i64 {
        if let Call::Read { out, .. } = call {
            out.copy_from_slice(&self.0[..out.len()]);
        }
        0
    }

    fn turn(&mut self) -> bool {
        true
    }
}

fn tasklet(body: &str) -> Vec<u8> {
    let text = format!(
        r#"(module (import "fabricbios_fbmu_v0" "fbmu_read" (func $read (param i64 i32 i32) (result i32)))
        (memory (export "memory") 32)
        (func (export "tasklet_run") (param i32 i32) (result i64) (local $i i32) {body} (i64.const 0)))"#
    );
    wat::parse_str(text).expect("a module")
}

/// The same in wasmtime alone, with what a run of `tasklet_run` needs and nothing else.
fn bare<C: Fn(&mut Config)>(wasm: &[u8], configure: C) -> impl FnMut() + use<C> {
    let mut config = Config::new();
    config.allocation_strategy(InstanceAllocationStrategy::Pooling(PoolingAllocationConfig::new()));
    config.cranelift_nan_canonicalization(true);
    configure(&mut config);
    let engine = Engine::new(&config).expect("an engine");
    let module = Module::new(&engine, wasm).expect("a module");
    let mut linker = Linker::new(&engine);
    let read = |mut caller: Caller<'_, [u8; 64]>, _: i64, _: i32, out: i32| {
        let memory = caller.get_export("memory").and_then(wasmtime::Extern::into_memory).expect("a memory");
        let (bytes, from) = memory.data_and_store_mut(&mut caller);
        bytes[out as usize..out as usize + 64].copy_from_slice(from);
        0
    };
    linker.func_wrap("fabricbios_fbmu_v0", "fbmu_read", read).expect("a function");
    let pre = linker.instantiate_pre(&module).expect("imports");
    move || {
        let mut store = Store::new(&engine, [7; 64]);
        let _ = store.set_fuel(u64::MAX);
        store.set_epoch_deadline(1 << 40);
        let instance = pre.instantiate(&mut store).expect("an instance");
        let run = instance.get_typed_func::<(i32, i32), i64>(&mut store, "tasklet_run").expect("a function");
        run.call(&mut store, (0, 0)).expect("a result");
    }
}

/// Nanoseconds that a closure takes, by `per`.
fn nanos(run: &mut dyn FnMut(), per: f64) -> f64 {
    let begun = Instant::now();
    run();
    begun.elapsed().as_nanos() as f64 / per
}

/// Prints `turns` lines of a case; who is first changes from one to the next.
fn pairs(case: &str, turns: usize, per: f64, ours: &mut dyn FnMut(), theirs: &mut dyn FnMut()) {
    // Neither pays for what only the first run does.
    ours();
    theirs();
    for turn in 0..turns {
        let (ours, theirs) = if turn % 2 == 0 {
            let ours = nanos(ours, per);
            (ours, nanos(theirs, per))
        } else {
            let theirs = nanos(theirs, per);
            (nanos(ours, per), theirs)
        };
        println!("{{\"case\": \"{case}\", \"ours\": {ours:.1}, \"theirs\": {theirs:.1}}}");
    }
}

/// A thousand runs.
fn many(mut run: impl FnMut()) -> impl FnMut() {
    move || (0..1000).for_each(|_| run())
}

fn main() {
    tasklets();
    kernels();
}

fn beside(program: &str) -> PathBuf {
    std::env::current_exe().expect("a path").with_file_name("..").join(program)
}

fn compiler() -> Compiler {
    Compiler { program: beside("berth-wasm-compile"), args: Vec::new() }
}

fn tasklets() {
    let inline = Wasm::new(Pool { instances: 64, memory: 64 << 20 }, compiler()).expect("a pool");
    let isolation =
        Isolation { starter: Starter::Child(beside("berth-wasm-executor")), cpus: Vec::new(), memory: 64 << 20 };
    let process = Isolated::new(isolation, compiler()).expect("an executor");
    let by = |executor: &dyn Executor, body: &str| {
        let module = executor.compile(&tasklet(body)).expect("it compiles");
        let mut host = Host(vec![7; 1 << 20]);
        move || {
            let outcome = module.run(&[], &PLENTY, &mut host);
            assert_eq!(outcome.status, Status::Ok, "{:?}", outcome.reason);
        }
    };
    let fuel = |config: &mut Config| _ = config.consume_fuel(true);
    let counting = |count: u32, work: &str| {
        let next = "(local.tee $i (i32.add (local.get $i) (i32.const 1)))";
        format!("(loop {work} (br_if 0 (i32.lt_u {next} (i32.const {count}))))")
    };

    // Twelve operators a turn, and some work that is no constant.
    let work = "(local.set 0 (i32.xor (i32.mul (local.get 0) (i32.const 31)) (local.get $i)))";
    let compute = counting(8_000_000, work);
    let module = tasklet(&compute);
    let mut bare_fuel = bare(&module, fuel);
    pairs("compute", 15, 1e6, &mut by(&inline, &compute), &mut bare_fuel);
    pairs("compute_process", 15, 1e6, &mut by(&process, &compute), &mut bare_fuel);
    pairs("fuel_off", 15, 1e6, &mut bare(&module, |_| {}), &mut bare_fuel);
    let epochs = |config: &mut Config| _ = config.epoch_interruption(true);
    pairs("epochs", 15, 1e6, &mut bare(&module, epochs), &mut bare_fuel);
    let both = |config: &mut Config| _ = config.consume_fuel(true).epoch_interruption(true);
    pairs("fuel_and_epochs", 15, 1e6, &mut bare(&module, both), &mut bare_fuel);

    // A run each time, as many as one core does in a second.
    let mut trivial = many(bare(&tasklet(""), fuel));
    pairs("run", 31, 1e6, &mut many(by(&inline, "")), &mut trivial);
    pairs("run_process", 31, 1e6, &mut many(by(&process, "")), &mut trivial);

    let calls = counting(100_000, "(drop (call $read (i64.const 0) (i32.const 64) (i32.const 0)))");
    let mut copies = bare(&tasklet(&calls), fuel);
    pairs("hostcall", 15, 1e5, &mut by(&inline, &calls), &mut copies);
    pairs("hostcall_process", 5, 1e5, &mut by(&process, &calls), &mut copies);

    let calls = counting(1000, "(drop (call $read (i64.const 0) (i32.const 1048576) (i32.const 65536)))");
    let (from, mut to) = (vec![7_u8; 1 << 20], vec![0_u8; 1 << 20]);
    let mut copy = || (0..1000).for_each(|_| black_box(&mut to).copy_from_slice(black_box(&from)));
    pairs("read", 15, 1e6, &mut by(&inline, &calls), &mut copy);
    pairs("read_process", 15, 1e6, &mut by(&process, &calls), &mut copy);
}

/// A Guid of 16 bytes, and a nullable one with its padding.
type Guid = (u64, u64);
type MaybeGuid = ((u8, u8, u8, u8), Guid);

/// The request in the memorypack format by the `memorypack` crate, which takes tuples for their members in a row.
fn others() {
    let request: (u8, Guid, u8, MaybeGuid, f32, f32) = (5, (1, 2), 3, ((1, 0, 0, 0), (4, 5)), 1.5, 2.5);
    let request = MemoryPackSerializer::serialize(&request).expect("bytes");
    assert_eq!(request.len(), 46);
    let mut crates = || {
        for _ in 0..MESSAGES {
            let read = MemoryPackSerializer::deserialize(black_box(&request));
            let (_, id, priority, correlation, a, b): (u8, Guid, u8, MaybeGuid, f32, f32) = read.expect("a request");
            let answer: (u8, Guid, u8, MaybeGuid, f32) = (4, id, priority, correlation, a + b);
            black_box(MemoryPackSerializer::serialize(&answer).expect("bytes"));
        }
    };
    let mut out = vec![0; 42];
    let mut view = || {
        for _ in 0..MESSAGES {
            let message = black_box(&request);
            let word = |at: usize| f32::from_le_bytes([0, 1, 2, 3].map(|byte| message[at + byte]));
            let sum = word(38) + word(42);
            out[..38].copy_from_slice(&message[..38]);
            out[38..].copy_from_slice(&sum.to_le_bytes());
            black_box(&mut out);
        }
    };
    pairs("codec_crate", 31, f64::from(MESSAGES), &mut crates, &mut view);
}

/// `VectorAdd` in the raw format, as K6 has it.
const VECTOR_ADD: &str = r#"(module (memory (export "memory") 1)
    (func (export "ring_kernel_alloc") (param i32) (result i32) (i32.const 1024))
    (func (export "ring_kernel_run") (param $at i32) (param i32) (result i64)
        (f32.store offset=34 (i32.const 0)
            (f32.add (f32.load offset=34 (local.get $at)) (f32.load offset=38 (local.get $at))))
        (i64.const 38)))"#;

/// Messages of a block.
const MESSAGES: u32 = 100_000;

fn kernels() {
    let registry = Registry::default();
    let schema = |name| registry.find(name).expect("it is built in").schema.clone();
    let settings = Settings {
        request: schema("VectorAddRequest"),
        response: schema("VectorAddResponse"),
        runs: Runs::Builtin(Builtin::VectorAdd),
        format: Choice::Auto,
        dedup: 0,
        active: true,
        queue: None,
    };
    let mut builtin = Kernel::new(settings).expect("a kernel");
    // Where the operands lie: the answer ends with the sum.
    for (format, request, answer, at) in
        [(Format::DotCompute, 43, 39, 35), (Format::MemoryPack, 46, 42, 38), (Format::Raw, 42, 38, 34)]
    {
        let mut message = vec![0; request];
        message[0] = if format == Format::Raw { 0 } else { 5 };
        let mut ours = || {
            for _ in 0..MESSAGES {
                let answer = builtin.execute(black_box(&message)).expect("an answer");
                black_box(answer);
            }
        };
        let mut out = vec![0; answer];
        let mut view = || {
            for _ in 0..MESSAGES {
                let message = black_box(&message);
                let word = |at: usize| f32::from_le_bytes([0, 1, 2, 3].map(|byte| message[at + byte]));
                let sum = word(at) + word(at + 4);
                out[..at].copy_from_slice(&message[..at]);
                out[at..].copy_from_slice(&sum.to_le_bytes());
                black_box(&mut out);
            }
        };
        pairs(&format!("codec_{}", format.word()), 31, f64::from(MESSAGES), &mut ours, &mut view);
    }
    others();
    let wasm = Wasm::new(Pool { instances: 4, memory: 1 << 20 }, compiler()).expect("a pool");
    let limits = KernelLimits { fuel: 1_000_000, memory: 1 << 20, request: 42, response: 38 };
    let module = wat::parse_str(VECTOR_ADD).expect("a module");
    let mut module = wasm.ring_kernel(&module, limits).expect("it compiles");
    let (message, mut out, mut host) = ([0; 42], [0; 38], Host(Vec::new()));
    let mut ours = || {
        for _ in 0..MESSAGES {
            module.answer(black_box(&message), &mut host, &mut out).expect("an answer");
        }
    };
    let mut theirs = || {
        for _ in 0..MESSAGES {
            black_box(builtin.execute(black_box(&message)).expect("an answer"));
        }
    };
    pairs("kernel", 31, f64::from(MESSAGES), &mut ours, &mut theirs);
}
