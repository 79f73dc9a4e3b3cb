//! `[tasklet]`: what runs WASM tasklets.

use std::{collections::BTreeSet, time::Duration};

use berth_keys::Table;

use super::{Host, port::cpu_list};

/// WebAssembly's page.
const PAGE: u64 = 64 << 10;

/// The longest output that fits an answer together with its logs.
const MOST_OUTPUT: u64 = 512 << 10;

/// `executors`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Executors {
    /// Their unit where its socket is there, else this process.
    #[default]
    Auto,
    /// Their unit.
    Unit,
    /// This process.
    Child,
}

/// `[tasklet]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tasklet {
    /// Each run has a process of its own; else runs are on threads of this process.
    pub isolated: bool,
    /// Who starts these processes.
    pub executors: Executors,
    /// The CPUs that tasklets run on; none of them polls ports, rings or sessions.
    pub cpus: Vec<usize>,
    /// Bytes of all linear memories together, those of composite leases included.
    pub memory: u64,
    /// Compiled modules that are kept, in bytes.
    pub modules: u64,
    /// Results that are kept, in bytes.
    pub results: u64,
    /// How long each result is kept: 1 s to a day.
    pub result_time: Duration,
    /// How long `TASKLET_SUBMIT` waits for the end of a run, at most 10 s.
    pub sync_wait: Duration,
    /// Runs that may wait, a quarter of them of one key.
    pub queue: usize,
    /// Fuel of a run, at most.
    pub max_fuel: u64,
    /// Bytes of linear memory of a run, at most: a multiple of 64 KiB below 4 GiB.
    pub max_memory: u64,
    /// Bytes of output of a run, at most; no more than 512 KiB.
    pub max_output: u64,
    /// Hostcalls of a run, at most.
    pub max_hostcalls: u64,
    /// Time of a run, at most: 1 ms to 1 h.
    pub max_wall: Duration,
}

pub(super) fn read(mut t: Table<'_, '_>, host: &Host, leases: bool, polled: &BTreeSet<usize>) -> Tasklet {
    if !leases {
        t.sink().mistake(t.span(), t.path(), "runs tasklets of the lease plane, and there is none; add [control]");
    }
    if !(host.has_feature)("wasm") {
        t.sink().mistake(t.span(), t.path(), "needs a build with the feature \"wasm\"");
    }
    let isolated = t.choice("isolation", &[("process", true), ("inline", false)]);
    let executors = [("auto", Executors::Auto), ("unit", Executors::Unit), ("child", Executors::Child)];
    let executors = t.choice("executors", &executors).map(|at| at.value).unwrap_or_default();
    let cpus = cpu_list(&mut t, "cpus", host);
    let cpus = t.require("cpus", cpus, "cpus = [0]");
    if let Some(cpu) = cpus.iter().flatten().find(|cpu| polled.contains(cpu)) {
        let message = format_args!("CPU {cpu} polls ports, rings or sessions; tasklets need others");
        t.sink().mistake(t.span(), t.path(), message);
    }
    let mut size = |key, default| t.size(key).map_or(default, |at| at.value);
    let (memory, modules, results) = (size("memory", 256 << 20), size("modules", 256 << 20), size("results", 64 << 20));
    let max_memory = t.size("max_memory");
    if let Some(at) = max_memory.as_ref().filter(|at| !at.value.is_multiple_of(PAGE) || at.value > u32::MAX.into()) {
        t.sink().wrong(at, "is no multiple of 64 KiB below 4 GiB");
    }
    let max_output = t.size("max_output");
    if let Some(at) = max_output.as_ref().filter(|at| at.value > MOST_OUTPUT) {
        t.sink().wrong(at, "is more than an answer holds: 512 KiB");
    }
    let tasklet = Tasklet {
        isolated: isolated.is_none_or(|at| at.value),
        executors,
        cpus: cpus.unwrap_or_default(),
        memory,
        modules,
        results,
        result_time: Duration::from_secs(t.number("result_secs")),
        sync_wait: Duration::from_millis(t.number("sync_wait_ms")),
        queue: t.number("queue") as usize,
        max_fuel: t.number("max_fuel"),
        max_memory: max_memory.map_or(64 << 20, |at| at.value),
        max_output: max_output.map_or(MOST_OUTPUT, |at| at.value),
        max_hostcalls: t.number("max_hostcalls"),
        max_wall: Duration::from_millis(t.number("max_wall_ms")),
    };
    t.finish();
    tasklet
}
