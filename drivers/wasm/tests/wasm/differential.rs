//! Random modules, executed here and by wasmi, an interpreter: the same results, globals and memory, or the same trap.
//!
//! `BERTH_WASM_SEEDS=2000 cargo test --release -p berth-wasm --test wasm differential -- --nocapture` takes more of them.

use std::convert::Infallible;

use berth_tasklet::run::{Executor as _, Status};
use wasm_encoder::{
    CodeSection, ExportKind, ExportSection, Function, FunctionSection, GlobalSection, Instruction, MemArg, Module,
    TypeSection, ValType,
    reencode::{Error, Reencode, utils},
};
use wasm_smith::Config;
use wasmparser::{
    CodeSectionReader, ExportSectionReader, FunctionSectionReader, GlobalSectionReader, Operator, Parser,
    TypeSectionReader,
};

use crate::common::{PLENTY, Record, node};

/// Modules, unless the environment says how many.
const SEEDS: u64 = 300;

/// Calls and turns of loops, after which a module traps in both.
const TURNS: u32 = 5000;

/// What a module has: pages enough for results, and one function.
const SHAPE: &str = r#"(module (memory (export "memory") 1 4)
    (func (export "body") (param i32 i64 f32 f64 v128) (result i32 i64 f32 f64 v128) unreachable))"#;

/// Of parameters and results of the function.
const TYPES: [ValType; 5] = [ValType::I32, ValType::I64, ValType::F32, ValType::F64, ValType::V128];

/// Parameter and result of the operators that change what a NaN is made of and that wasm-smith leaves so. A function stands for each.
const CHANGES: [(ValType, ValType); 4] = [
    (ValType::F64, ValType::F32),
    (ValType::F32, ValType::F64),
    (ValType::V128, ValType::V128),
    (ValType::V128, ValType::V128),
];

/// How a module ends.
#[derive(Debug, PartialEq, Eq)]
enum End {
    /// With this memory.
    Memory(Vec<u8>),
    Trap(String),
    /// Out of fuel or of stack, of which each engine has its own.
    Exhausted,
}

/// Adds `tasklet_run`, which calls the function, stores what it returns and the globals at the end of the first page, and
/// returns all of memory; and the functions of [`CHANGES`] after it.
struct Wrap {
    arguments: (i32, i64),
    /// Indices of its type and of itself.
    ty: u32,
    function: u32,
    body: u32,
    globals: Vec<ValType>,
}

type Done = Result<(), Error<Infallible>>;

impl Reencode for Wrap {
    type Error = Infallible;

    fn parse_type_section(&mut self, types: &mut TypeSection, section: TypeSectionReader<'_>) -> Done {
        utils::parse_type_section(self, types, section)?;
        self.ty = types.len();
        types.ty().function([ValType::I32; 2], [ValType::I64]);
        for (param, result) in CHANGES {
            types.ty().function([param], [result]);
        }
        Ok(())
    }

    fn parse_function_section(&mut self, functions: &mut FunctionSection, section: FunctionSectionReader<'_>) -> Done {
        utils::parse_function_section(self, functions, section)?;
        self.function = functions.len();
        for ty in 0..=CHANGES.len() as u32 {
            functions.function(self.ty + ty);
        }
        Ok(())
    }

    fn parse_global_section(&mut self, globals: &mut GlobalSection, section: GlobalSectionReader<'_>) -> Done {
        for global in section.clone() {
            let ty = self.val_type(global?.ty.content_type)?;
            self.globals.push(ty);
        }
        utils::parse_global_section(self, globals, section)
    }

    fn parse_export_section(&mut self, exports: &mut ExportSection, section: ExportSectionReader<'_>) -> Done {
        for export in section.clone() {
            let export = export?;
            if export.name == "body" {
                self.body = export.index;
            }
        }
        utils::parse_export_section(self, exports, section)?;
        exports.export("tasklet_run", ExportKind::Func, self.function);
        Ok(())
    }

    fn instruction<'a>(&mut self, operator: Operator<'a>) -> Result<Instruction<'a>, Error<Infallible>> {
        let change = match operator {
            Operator::F32DemoteF64 => 1,
            Operator::F64PromoteF32 => 2,
            Operator::F32x4DemoteF64x2Zero => 3,
            Operator::F64x2PromoteLowF32x4 => 4,
            _ => return utils::instruction(self, operator),
        };
        Ok(Instruction::Call(self.function + change))
    }

    fn parse_code_section(&mut self, code: &mut CodeSection, section: CodeSectionReader<'_>) -> Done {
        utils::parse_code_section(self, code, section)?;
        // Its two parameters are not used.
        let mut function = Function::new(TYPES.map(|ty| (1, ty)));
        let (small, large) = self.arguments;
        let mut sink = function.instructions();
        sink.i32_const(small).i64_const(large).i32_const(small).f32_reinterpret_i32();
        sink.i64_const(large).f64_reinterpret_i64().i64_const(large).i64x2_splat().call(self.body);
        for local in (2..7).rev() {
            sink.local_set(local);
        }
        let mut at = 64 << 10;
        let results = TYPES.into_iter().zip(2..).map(|(ty, local)| (ty, local, true));
        for (ty, index, local) in results.chain(self.globals.iter().zip(0..).map(|(ty, global)| (*ty, global, false))) {
            if matches!(ty, ValType::Ref(_)) {
                continue;
            }
            at -= 16;
            sink.i32_const(at);
            if local {
                sink.local_get(index)
            } else {
                sink.global_get(index)
            };
            let argument = MemArg { offset: 0, align: 0, memory_index: 0 };
            match ty {
                ValType::I32 => sink.i32_store(argument),
                ValType::I64 => sink.i64_store(argument),
                ValType::F32 => sink.f32_store(argument),
                ValType::F64 => sink.f64_store(argument),
                _ => sink.v128_store(argument),
            };
        }
        sink.memory_size(0).i32_const(16).i32_shl().i64_extend_i32_u().end();
        code.function(&function);
        for (change, (_, result)) in CHANGES.into_iter().enumerate() {
            let mut function = Function::new([(1, result)]);
            let mut sink = function.instructions();
            sink.local_get(0);
            match change {
                0 => sink.f32_demote_f64().local_tee(1).f32_const(f32::NAN.into()),
                1 => sink.f64_promote_f32().local_tee(1).f64_const(f64::NAN.into()),
                2 => sink.f32x4_demote_f64x2_zero().local_tee(1).f32_const(f32::NAN.into()).f32x4_splat(),
                _ => sink.f64x2_promote_low_f32x4().local_tee(1).f64_const(f64::NAN.into()).f64x2_splat(),
            };
            sink.local_get(1).local_get(1);
            match change {
                0 => sink.f32_eq().select(),
                1 => sink.f64_eq().select(),
                2 => sink.f32x4_eq().v128_bitselect(),
                _ => sink.f64x2_eq().v128_bitselect(),
            };
            sink.end();
            code.function(&function);
        }
        Ok(())
    }
}

/// The module of a seed.
fn module(seed: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut bytes = vec![0; random.usize(256..4096)];
    random.fill(&mut bytes);
    // Four fifths of those are refused, for they have some to host values.
    let references = random.u8(..4) == 0;
    let config = Config {
        exports: Some(wat::parse_str(SHAPE).unwrap()),
        max_imports: 0,
        // More than the one that it exports.
        max_memories: 0,
        reference_types_enabled: references,
        max_tables: if references { 3 } else { 1 },
        // Without this, most end in one soon.
        disallow_traps: random.u8(..4) > 0,
        // What a NaN is made of is the engine's choice.
        canonicalize_nans: true,
        max_globals: 20,
        max_table_elements: 1000,
        exceptions_enabled: false,
        gc_enabled: false,
        memory64_enabled: false,
        relaxed_simd_enabled: false,
        tail_call_enabled: false,
        threads_enabled: false,
        ..Config::default()
    };
    let mut module = wasm_smith::Module::new(config, &mut arbitrary::Unstructured::new(&bytes)).unwrap();
    module.ensure_termination(TURNS).unwrap();
    let arguments = (random.i32(..), random.i64(..));
    let mut wrap = Wrap { arguments, ty: 0, function: 0, body: 0, globals: Vec::new() };
    let mut wrapped = Module::new();
    wrap.parse_core_module(&mut wrapped, Parser::new(0), &module.to_bytes()).unwrap();
    wrapped.finish()
}

/// How it ends here; `None` where it is refused.
fn ours(wasm: &[u8]) -> Option<End> {
    let module = node().compile(wasm).map_err(|why| assert!(format!("{why:?}").contains("leaves out"), "{why:?}"));
    let outcome = module.ok()?.run(&[], &PLENTY, &mut Record::default());
    let reason = outcome.reason.unwrap_or_default();
    Some(match outcome.status {
        Status::Ok => End::Memory(outcome.output),
        Status::FuelExhausted => End::Exhausted,
        Status::ExecFailed => trap(reason.split(" in ").next().unwrap_or_default().trim_start_matches("wasm trap: ")),
        other => panic!("{other:?}: {reason}"),
    })
}

/// How it ends in wasmi.
fn theirs(wasm: &[u8]) -> End {
    let mut config = wasmi::Config::default();
    config.consume_fuel(true).set_max_recursion_depth(2 * TURNS as usize);
    let engine = wasmi::Engine::new(&config);
    let module = wasmi::Module::new(&engine, wasm).unwrap();
    // As a node has it.
    let limits = wasmi::StoreLimitsBuilder::new().table_elements(65_536).build();
    let mut store = wasmi::Store::new(&engine, limits);
    store.limiter(|limits| limits);
    store.set_fuel(PLENTY.fuel).unwrap();
    let run = |store: &mut wasmi::Store<_>| {
        let instance = wasmi::Linker::new(&engine).instantiate_and_start(&mut *store, &module)?;
        let run = instance.get_typed_func::<(i32, i32), i64>(&*store, "tasklet_run")?;
        let len = run.call(&mut *store, (0, 0))?;
        let memory = instance.get_memory(&*store, "memory").expect("it is exported");
        Ok::<_, wasmi::Error>(memory.data(&*store)[..len as usize].to_vec())
    };
    match run(&mut store) {
        Ok(memory) => End::Memory(memory),
        // One sentence has a number at its end, and a segment that does not fit has one of its own.
        Err(error) => match error.to_string().trim_end_matches(" 2") {
            segment if segment.starts_with("out of bounds table access: ") => {
                trap("undefined element: out of bounds table access")
            }
            sentence => trap(sentence),
        },
    }
}

/// Both engines have the same sentences.
fn trap(sentence: &str) -> End {
    match sentence {
        "call stack exhausted" | "all fuel consumed by WebAssembly" => End::Exhausted,
        other => End::Trap(other.to_owned()),
    }
}

#[test]
fn another_engine_comes_to_the_same_end() {
    let seeds = std::env::var("BERTH_WASM_SEEDS").map_or(SEEDS, |seeds| seeds.parse().expect("a number"));
    let (mut memories, mut traps, mut exhausted, mut refused) = (0, 0, 0, 0);
    for seed in 0..seeds {
        let wasm = module(seed);
        let Some(ours) = ours(&wasm) else {
            refused += 1;
            continue;
        };
        match (ours, theirs(&wasm)) {
            (End::Exhausted, _) | (_, End::Exhausted) => exhausted += 1,
            (End::Memory(ours), End::Memory(theirs)) => {
                assert!(ours == theirs, "seed {seed}: memories differ");
                memories += 1;
            }
            (ours, theirs) => {
                assert_eq!(ours, theirs, "seed {seed}");
                traps += 1;
            }
        }
    }
    println!(
        "{seeds} modules: {memories} with equal memories, {traps} traps, {exhausted} exhausted, {refused} refused"
    );
    assert!(memories + traps > seeds / 2 && memories > seeds / 4);
}
