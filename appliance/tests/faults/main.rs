//! Overload and faults, through the real binary: what each does, and that everything is accounted for afterwards.

#[path = "../common/mod.rs"]
mod common;

mod crashes;
mod crowds;
mod devices;
mod disk;
mod floods;
mod limits;
mod site;

use berth_engine::Snapshot;
use common::Stopped;
use tokio::sync::Mutex;

/// Held by tests that load or measure: they have the machine for themselves.
static MACHINE: Mutex<()> = Mutex::const_new(());

/// The books of an appliance that has stopped; they add up.
fn books(stopped: &Stopped) -> Vec<berth_perf::books::Entry> {
    let snapshot: Snapshot = serde_json::from_value(stopped.counters.clone()).unwrap();
    berth_perf::books::check(&snapshot, 0).unwrap_or_else(|wrong| panic!("{wrong:#?}"))
}

/// Bytes that a process has in memory.
fn resident(pid: u32) -> u64 {
    let statm = std::fs::read_to_string(format!("/proc/{pid}/statm")).unwrap();
    statm.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

/// Descriptors that a process has open.
fn descriptors(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}
