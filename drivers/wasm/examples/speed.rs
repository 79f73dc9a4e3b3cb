//! Runs beside the same in bare wasmtime, in turns: `cargo build --release -p berth-wasm --bins`, then
//! `cargo run --release -p berth-wasm --example speed`. Medians.

#![forbid(unsafe_code)]

use std::time::Instant;

use berth_tasklet::{
    hostcall::{Call, Hostcalls},
    run::{Executor, Limits, Status},
};
use berth_wasm::{Compiler, Isolated, Isolation, Pool, Wasm};
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
fn bare(wasm: &[u8], configure: impl Fn(&mut Config)) -> impl FnMut() {
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

/// Median microseconds of each, one after the other, `rounds` times.
fn medians<const N: usize>(rounds: usize, mut runs: [&mut dyn FnMut(); N]) -> [f64; N] {
    let mut took = [const { Vec::new() }; N];
    for _ in 0..rounds {
        for (run, took) in runs.iter_mut().zip(&mut took) {
            let begun = Instant::now();
            run();
            took.push(begun.elapsed().as_nanos() as f64 / 1000.0);
        }
    }
    took.map(|mut took| {
        took.sort_by(f64::total_cmp);
        took[took.len() / 2]
    })
}

fn main() {
    let beside = |program| std::env::current_exe().expect("a path").with_file_name("..").join(program);
    let compiler = || Compiler { program: beside("berth-wasm-compile"), args: Vec::new() };
    let inline = Wasm::new(Pool { instances: 64, memory: 64 << 20 }, compiler()).expect("a pool");
    let isolation = Isolation { program: beside("berth-wasm-executor"), cpus: Vec::new(), memory: 64 << 20 };
    let process = Isolated::new(isolation, compiler()).expect("an executor");
    let by = |executor: &dyn Executor, body: &str| {
        let module = executor.compile(&tasklet(body)).expect("it compiles");
        let mut host = Host(vec![7; 1 << 20]);
        move || {
            let outcome = module.run(&[], &PLENTY, &mut host);
            assert_eq!(outcome.status, Status::Ok, "{:?}", outcome.reason);
        }
    };
    let ours = |body: &str| by(&inline, body);
    let fuel = |config: &mut Config| _ = config.consume_fuel(true);
    let counting = |count: u32, work: &str| {
        let next = "(local.tee $i (i32.add (local.get $i) (i32.const 1)))";
        format!("(loop {work} (br_if 0 (i32.lt_u {next} (i32.const {count}))))")
    };

    // Twelve operators a turn, and some work that is no constant.
    let work = "(local.set 0 (i32.xor (i32.mul (local.get 0) (i32.const 31)) (local.get $i)))";
    let compute = counting(8_000_000, work);
    let module = tasklet(&compute);
    let (mut run, mut with_fuel, mut without) = (ours(&compute), bare(&module, fuel), bare(&module, |_| {}));
    let mut epochs = bare(&module, |config| _ = config.epoch_interruption(true));
    let mut both = bare(&module, |config| _ = config.consume_fuel(true).epoch_interruption(true));
    let [run, with_fuel, without, epochs, both] =
        medians(15, [&mut run, &mut with_fuel, &mut without, &mut epochs, &mut both]);
    println!("10^8 operators: {:.1} ms; of bare wasmtime with fuel {:.3}", run / 1000.0, run / with_fuel);
    println!(
        "  bare, of fuel: nothing {:.3}, epochs {:.3}, fuel and epochs {:.3}",
        without / with_fuel,
        epochs / with_fuel,
        both / with_fuel
    );

    let module = tasklet("");
    let (mut run, mut there, mut bare_run) = (ours(""), by(&process, ""), bare(&module, fuel));
    let [run, there, bare_run] = medians(5000, [&mut run, &mut there, &mut bare_run]);
    println!("trivial module: {run:.2} us; bare wasmtime, pooled: {bare_run:.2} us; ratio {:.2}", run / bare_run);
    println!("  in a process: {there:.2} us");

    let calls = counting(100_000, "(drop (call $read (i64.const 0) (i32.const 64) (i32.const 0)))");
    let module = tasklet(&calls);
    let (mut run, mut there, mut bare_run) = (ours(&calls), by(&process, &calls), bare(&module, fuel));
    let [run, there, bare_run] = medians(5, [&mut run, &mut there, &mut bare_run]);
    println!("a hostcall that copies 64 B: {:.0} ns; bare: {:.0} ns", run / 100.0, bare_run / 100.0);
    println!("  from a process: {:.0} ns", there / 100.0);

    let calls = counting(1000, "(drop (call $read (i64.const 0) (i32.const 1048576) (i32.const 65536)))");
    let (from, mut to) = (vec![7_u8; 1 << 20], vec![0_u8; 1 << 20]);
    let mut copy =
        || (0..1000).for_each(|_| std::hint::black_box(&mut to).copy_from_slice(std::hint::black_box(&from)));
    let (mut run, mut there) = (ours(&calls), by(&process, &calls));
    let [run, there, copy] = medians(5, [&mut run, &mut there, &mut copy]);
    println!("1 MiB: {:.0} us, of memcpy {:.2}; from a process {:.2}", run / 1000.0, run / copy, there / copy);
}
