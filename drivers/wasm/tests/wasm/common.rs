//! A node that runs tasklets for tests, and a host that writes down what it is asked.

use std::sync::{Arc, LazyLock};

use berth_tasklet::{
    hostcall::{Call, Hostcalls},
    run::{Executor, Limits, Module, Outcome, Rejected},
};
use berth_wasm::{Compiler, Isolated, Isolation, Pool, Starter, Wasm};

/// Plenty of all.
pub(crate) const PLENTY: Limits =
    Limits { fuel: 1_000_000_000, memory: 64 << 20, output: 512 << 10, hostcalls: 1_000_000 };

pub(crate) fn compiler() -> Compiler {
    Compiler { program: env!("CARGO_BIN_EXE_berth-wasm-compile").into(), args: Vec::new() }
}

/// Where modules are compiled and run on the threads that ask.
pub(crate) fn node() -> &'static Wasm {
    static NODE: LazyLock<Wasm> =
        LazyLock::new(|| Wasm::new(Pool { instances: 16, memory: 64 << 20 }, compiler()).unwrap());
    &NODE
}

/// Where they are compiled, and run in processes of their own.
pub(crate) fn isolated() -> Isolated {
    let program = env!("CARGO_BIN_EXE_berth-wasm-executor").into();
    Isolated::new(Isolation { starter: Starter::Child(program), cpus: Vec::new(), memory: 64 << 20 }, compiler())
        .unwrap()
}

/// What runs the tests of this program.
fn executor() -> &'static dyn Executor {
    static ISOLATED: LazyLock<Isolated> = LazyLock::new(isolated);
    if crate::ISOLATED { &*ISOLATED } else { node() }
}

/// A compiled module, of text.
pub(crate) fn module(text: &str) -> Arc<dyn Module> {
    compile(text).unwrap_or_else(|rejected| panic!("{rejected:?}"))
}

pub(crate) fn compile(text: &str) -> Result<Arc<dyn Module>, Rejected> {
    executor().compile(&wat::parse_str(text).unwrap())
}

/// Runs a module of text on no input.
pub(crate) fn run(text: &str, limits: Limits) -> Outcome {
    module(text).run(&[], &limits, &mut Record::default())
}

/// A tasklet without input whose `tasklet_run` is this, with one page of memory.
pub(crate) fn tasklet(body: &str) -> String {
    format!(
        r#"(module (memory (export "memory") 1) (func (export "tasklet_run") (param i32 i32) (result i64) {body}))"#
    )
}

/// A host with a kilobyte of memory lease, which writes down what it is asked.
pub(crate) struct Record {
    pub(crate) calls: Vec<String>,
    pub(crate) bytes: Vec<u8>,
    /// Turns that it was asked for, and how many it grants.
    pub(crate) turns: u64,
    pub(crate) granted: u64,
}

impl Default for Record {
    fn default() -> Self {
        Self { calls: Vec::new(), bytes: (0..=255).cycle().take(1024).collect(), turns: 0, granted: u64::MAX }
    }
}

impl Hostcalls for Record {
    fn call(&mut self, mut call: Call<'_>) -> i64 {
        // What was there before is no part of a call.
        if let Call::Read { out, .. } = &mut call {
            out.fill(0);
        }
        if self.calls.len() < 1000 {
            self.calls.push(format!("{call:?}"));
        }
        match call {
            Call::GetSize(_) => self.bytes.len() as i64,
            Call::Read { at, out, .. } => match self.bytes.get(at as usize..at as usize + out.len()) {
                Some(bytes) => {
                    out.copy_from_slice(bytes);
                    0
                }
                None => -4,
            },
            Call::Write { at, data, .. } => match self.bytes.get_mut(at as usize..at as usize + data.len()) {
                Some(bytes) => {
                    bytes.copy_from_slice(data);
                    0
                }
                None => -4,
            },
            Call::Alloc { out, .. } => {
                out.fill(0xAA);
                0
            }
            Call::Query { out, .. } => {
                out.fill(0xBB);
                0
            }
            Call::Renew { out, .. } => {
                out.fill(0xCC);
                0
            }
            _ => 0,
        }
    }

    fn turn(&mut self) -> bool {
        self.turns += 1;
        self.turns <= self.granted
    }
}
