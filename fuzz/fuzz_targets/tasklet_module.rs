//! Modules that wasm-smith makes of the input, some with wrong bytes: each is refused, or runs within its limits, and twice
//! to the same end. What it asks of its host is counted, paid and no longer than its memory.
#![no_main]

use std::{
    hash::{DefaultHasher, Hash as _, Hasher as _},
    path::PathBuf,
    sync::LazyLock,
};

use berth_tasklet::{
    hostcall::{BLOCK_LEN, Call, Hostcalls, Kind},
    run::{Limits, Module, Outcome, Status},
};
use berth_wasm::{Compiler, Pool, Wasm};
use libfuzzer_sys::{
    arbitrary::{Result, Unstructured},
    fuzz_target,
};
use wasm_smith::Config;

const PAGE: u64 = 64 << 10;

/// Pages of memory, at most.
const PAGES: u64 = 16;

/// Every function that a module may import, with its type.
const IMPORTS: &str = r#"(module
    (import "fabricbios_log_v0" "fb_log" (func (param i32 i32 i32)))
    (import "fabricbios_fbmu_v0" "fbmu_hello" (func (result i32)))
    (import "fabricbios_fbmu_v0" "fbmu_get_size" (func (result i64)))
    (import "fabricbios_fbmu_v0" "fbmu_alloc" (func (param i64 i32 i32) (result i32)))
    (import "fabricbios_fbmu_v0" "fbmu_query" (func (param i64 i64 i32) (result i32)))
    (import "fabricbios_fbmu_v0" "fbmu_renew" (func (param i64 i64 i32 i32) (result i32)))
    (import "fabricbios_fbmu_v0" "fbmu_free" (func (param i64 i64) (result i32)))
    (import "fabricbios_fbmu_v0" "fbmu_read" (func (param i64 i32 i32) (result i32)))
    (import "fabricbios_fbmu_v0" "fbmu_write" (func (param i64 i32 i32) (result i32)))
    (import "fabricbios_fbmu_v0" "fbmu_read_lease" (func (param i64 i64 i64 i32 i32) (result i32)))
    (import "fabricbios_fbmu_v0" "fbmu_write_lease" (func (param i64 i64 i64 i32 i32) (result i32)))
    (import "fabricbios_fbbu_v0" "fbbu_hello" (func (result i32)))
    (import "fabricbios_fbbu_v0" "fbbu_get_size" (func (result i64)))
    (import "fabricbios_fbbu_v0" "fbbu_alloc" (func (param i64 i32 i32) (result i32)))
    (import "fabricbios_fbbu_v0" "fbbu_query" (func (param i64 i64 i32) (result i32)))
    (import "fabricbios_fbbu_v0" "fbbu_renew" (func (param i64 i64 i32 i32) (result i32)))
    (import "fabricbios_fbbu_v0" "fbbu_free" (func (param i64 i64) (result i32)))
    (import "fabricbios_fbbu_v0" "fbbu_read_block" (func (param i64 i32) (result i32)))
    (import "fabricbios_fbbu_v0" "fbbu_write_block" (func (param i64 i32) (result i32)))
    (import "fabricbios_fbbu_v0" "fbbu_read_block_lease" (func (param i64 i64 i64 i32) (result i32)))
    (import "fabricbios_fbbu_v0" "fbbu_write_block_lease" (func (param i64 i64 i64 i32) (result i32))))"#;

const EXPORTS: &str = r#"(module (memory (export "memory") 1)
    (func (export "tasklet_run") (param i32 i32) (result i64) unreachable))"#;

const MORE_EXPORTS: &str = r#"(module (memory (export "memory") 2 12) (func (export "_initialize"))
    (func (export "tasklet_alloc") (param i32) (result i32) unreachable)
    (func (export "tasklet_run") (param i32 i32) (result i64) unreachable))"#;

/// The three above in binary.
static SHAPES: LazyLock<[Vec<u8>; 3]> =
    LazyLock::new(|| [IMPORTS, EXPORTS, MORE_EXPORTS].map(|text| wat::parse_str(text).unwrap()));

/// It starts no child.
static WASM: LazyLock<Wasm> = LazyLock::new(|| {
    let compiler = Compiler { program: PathBuf::new(), args: Vec::new() };
    Wasm::new(Pool { instances: 1, memory: PAGES * PAGE }, compiler).unwrap()
});

/// Answers from a few bytes, and looks at what it is asked.
struct Host<'a> {
    limits: Limits,
    answers: &'a [u8; 16],
    /// Turns that it still grants.
    turns: u8,
    calls: u64,
    /// What they cost at least.
    paid: u64,
    seen: DefaultHasher,
}

impl Hostcalls for Host<'_> {
    fn call(&mut self, call: Call<'_>) -> i64 {
        let answer = self.answers[self.calls as usize % self.answers.len()];
        self.calls += 1;
        assert!(self.calls <= self.limits.hostcalls, "a call too many");
        let seen = &mut self.seen;
        let moved = match call {
            Call::Hello(kind) | Call::GetSize(kind) => {
                (kind as u8).hash(seen);
                0
            }
            Call::Read { kind, lease, at, out } => {
                assert!(kind == Kind::Memory || out.len() == BLOCK_LEN);
                (lease, at, &*out).hash(seen);
                out.fill(answer);
                out.len()
            }
            Call::Write { kind, lease, at, data } => {
                assert!(kind == Kind::Memory || data.len() == BLOCK_LEN);
                (lease, at, data).hash(seen);
                data.len()
            }
            Call::Alloc { kind, min, secs, out } => {
                assert_eq!(out.len(), kind.alloc_len());
                (min, secs, &*out).hash(seen);
                out.fill(answer);
                out.len()
            }
            Call::Query { lease, out, .. } => {
                (lease, &*out).hash(seen);
                out.fill(answer);
                out.len()
            }
            Call::Renew { lease, secs, out, .. } => {
                (lease, secs, &*out).hash(seen);
                out.fill(answer);
                out.len()
            }
            Call::Free { lease, .. } => {
                lease.hash(seen);
                0
            }
            Call::Log { level, message } => {
                assert!(message.len() <= 1024);
                (level, message).hash(seen);
                message.len()
            }
        } as u64;
        assert!(moved <= self.limits.memory);
        self.paid += 100 + moved / 8;
        assert!(self.paid <= self.limits.fuel, "a call that was not paid");
        match answer % 4 {
            0 => i64::MIN + i64::from(answer),
            1 => i64::from(answer),
            2 => -i64::from(answer % 16),
            _ => 0,
        }
    }

    fn turn(&mut self) -> bool {
        let granted = self.turns > 0;
        self.turns = self.turns.saturating_sub(1);
        granted
    }
}

/// How a run ends, and a digest of what it asked.
fn run(module: &dyn Module, input: &[u8], limits: Limits, answers: &[u8; 16], turns: u8) -> (Outcome, u64) {
    let mut host = Host { limits, answers, turns, calls: 0, paid: 0, seen: DefaultHasher::new() };
    let outcome = module.run(input, &limits, &mut host);
    let Outcome { status, output, fuel, hostcalls, .. } = &outcome;
    assert!(*fuel <= limits.fuel && *fuel >= host.paid);
    assert!(*hostcalls <= limits.hostcalls && *hostcalls >= host.calls);
    match status {
        Status::Ok => assert!(output.len() as u64 <= limits.output),
        Status::ExecFailed => assert!(output.is_empty() || output.len() == 4),
        Status::HostcallLimit => assert!(output.is_empty() && *hostcalls == limits.hostcalls),
        Status::FuelExhausted | Status::OutOfMemory => assert!(output.is_empty()),
    }
    (outcome, host.seen.finish())
}

/// A module; whether it may have references to host values, which are refused.
fn module(how: u8, input: &mut Unstructured<'_>) -> Result<(Vec<u8>, bool)> {
    let [imports, exports, more] = &*SHAPES;
    let references = how & 1 != 0;
    let config = Config {
        available_imports: Some(imports.clone()),
        exports: Some(if how & 2 == 0 { exports } else { more }.clone()),
        reference_types_enabled: references,
        max_tables: if references { 3 } else { 1 },
        disallow_traps: how & 4 != 0,
        // More than the one that it exports.
        max_memories: 0,
        max_memory32_bytes: PAGES * PAGE,
        max_table_elements: 1000,
        max_instructions: 200,
        exceptions_enabled: false,
        gc_enabled: false,
        memory64_enabled: false,
        relaxed_simd_enabled: false,
        tail_call_enabled: false,
        threads_enabled: false,
        ..Config::default()
    };
    Ok((wasm_smith::Module::new(config, input)?.to_bytes(), references))
}

fn fuzz(mut input: Unstructured<'_>) -> Result<()> {
    let (how, fuel, memory, output): (u8, u32, u8, u16) = input.arbitrary()?;
    let (hostcalls, turns): (u8, u8) = input.arbitrary()?;
    let (answers, payload): ([u8; 16], [u8; 4]) = input.arbitrary()?;
    let wrong: [(u16, u8); 4] = input.arbitrary()?;
    let (mut wasm, mut refused) = module(how, &mut input)?;
    for (at, byte) in wrong.iter().take(usize::from(how >> 5)) {
        let at = usize::from(*at) % wasm.len();
        wasm[at] ^= byte;
        refused = true;
    }
    let needs = WASM.needs(&wasm);
    let module = WASM.compile_here(&wasm);
    if let Err(why) = &needs {
        assert_eq!(module.as_ref().err(), Some(why));
    }
    let module = match module {
        Ok(module) => module,
        Err(why) => {
            assert!(refused, "{why:?}");
            return Ok(());
        }
    };
    let input = if module.takes_input() { &payload[..] } else { &[] };
    let limits = Limits {
        fuel: u64::from(!fuel) % 300_000,
        memory: (PAGES - u64::from(memory) % (PAGES + 1)) * PAGE,
        output: u64::from(!output),
        hostcalls: u64::from(!hostcalls),
    };
    let run = |limits| run(&*module, input, limits, &answers, !turns);
    let (outcome, asked) = run(limits);
    assert_eq!(run(limits), (outcome.clone(), asked));
    if outcome.status == Status::Ok {
        assert_eq!(run(Limits { fuel: outcome.fuel, ..limits }), (outcome.clone(), asked));
        if let Some(fuel) = outcome.fuel.checked_sub(1) {
            assert_eq!(run(Limits { fuel, ..limits }).0.status, Status::FuelExhausted);
        }
    }
    Ok(())
}

fuzz_target!(|bytes: &[u8]| {
    // An error is an input that is too short for a module.
    let _ = fuzz(Unstructured::new(bytes));
});
