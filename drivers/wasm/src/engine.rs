//! How code is compiled and executed: one configuration for the compiler's process and for those that run what it made.

use std::sync::Arc;

use wasmparser::WasmFeatures;
use wasmtime::{
    Config, CustomCodeMemory, Engine, InstanceAllocationStrategy, OptLevel, PoolingAllocationConfig, RegallocAlgorithm,
    Result, WasmBacktraceDetails,
};

use crate::fuel;

/// The guest's stack, as native code uses it (T4).
const STACK: usize = 512 << 10;

/// What is left of a run's stack to hostcalls.
const HOST_STACK: usize = 512 << 10;

/// Elements of a table, at most (T5).
pub(crate) const TABLE_ELEMENTS: u32 = 65_536;

/// Tables of a module, at most: those of modules from languages have one.
pub(crate) const TABLES: u32 = 16;

/// Core WASM with what T5 names, and nothing else. Constant expressions may add, as in its third edition.
pub(crate) const FEATURES: WasmFeatures = WasmFeatures::WASM2
    .union(WasmFeatures::EXTENDED_CONST)
    .union(WasmFeatures::CALL_INDIRECT_OVERLONG)
    .difference(WasmFeatures::GC_TYPES);

/// How many runs go on at once, and what each may have.
#[derive(Debug, Clone, Copy)]
pub struct Pool {
    /// Instances at a time. Each takes 4 GiB of addresses, which are no memory until they are used.
    pub instances: u32,
    /// Bytes of linear memory that a run may have; a multiple of 64 KiB.
    pub memory: u64,
}

/// What compiles: it runs nothing.
pub(crate) fn compiler() -> Result<Engine> {
    Engine::new(&config())
}

/// What runs: instances come from a pool, and code is published by `code`, without `mprotect`.
pub(crate) fn runtime(pool: Pool, code: Arc<dyn CustomCodeMemory>) -> Result<Engine> {
    let mut slots = PoolingAllocationConfig::new();
    slots
        .total_core_instances(pool.instances)
        .total_memories(pool.instances)
        .total_tables(pool.instances * TABLES)
        .total_stacks(pool.instances)
        .max_tables_per_module(TABLES)
        .max_memories_per_module(1)
        .table_elements(TABLE_ELEMENTS as usize)
        .max_memory_size(usize::try_from(pool.memory)?)
        // Pages that a run leaves resident for the next are zeroed by hand up to here: cheaper than faults.
        .linear_memory_keep_resident(64 << 10)
        .table_keep_resident(4 << 10)
        .async_stack_keep_resident(16 << 10);
    let mut config = config();
    config.allocation_strategy(InstanceAllocationStrategy::Pooling(slots)).with_custom_code_memory(Some(code));
    Engine::new(&config)
}

/// Whatever stands here decides what code does, or is checked where compiled code is loaded.
fn config() -> Config {
    let mut config = Config::new();
    config
        .wasm_features(WasmFeatures::all(), false)
        .wasm_features(FEATURES, true)
        .consume_fuel(true)
        .operator_cost(fuel::table())
        .cranelift_nan_canonicalization(true)
        .cranelift_opt_level(OptLevel::Speed)
        .cranelift_regalloc_algorithm(RegallocAlgorithm::Backtracking)
        .max_wasm_stack(STACK)
        .async_stack_size(STACK + HOST_STACK)
        .wasm_backtrace_details(WasmBacktraceDetails::Disable)
        .generate_address_map(false)
        .concurrency_support(false)
        .memory_reservation(4 << 30)
        .memory_guard_size(32 << 20)
        .memory_may_move(false);
    config
}

/// Units of guest code between two looks at whether it may go on, on a thread of the node. A look suspends the guest, which takes 0.2 to 0.3 us: two hundredths
/// of the time of the fastest operators. Of the slowest one, `memory.grow` by nothing, so many take 10 ms and more; wasmtime asks
/// nobody about it, so more units between two looks would be a longer slice than a run may have.
pub(crate) const FUEL_SLICE: u64 = 100_000;
