//! What the measuring programs share: a ring that a worker serves, and what is told of times.
#![allow(dead_code, unused_imports, reason = "each program uses a part")]

#[path = "../../tests/common/mod.rs"]
mod common;

use std::{
    env,
    path::PathBuf,
    time::{Duration, Instant},
};

use berth_gpu::Functions;
pub(crate) use common::{HEADER, Rig, increment, module, symbol};
use serde_json::{Value, json};

/// Counts the times that nobody looked for over 100 us.
pub(crate) struct Loop {
    last: Instant,
    pub(crate) hiccups: u32,
}

impl Loop {
    pub(crate) fn new() -> Self {
        Self { last: Instant::now(), hiccups: 0 }
    }

    pub(crate) fn turn(&mut self) {
        let now = Instant::now();
        self.hiccups += u32::from(now - self.last > Duration::from_micros(100));
        self.last = now;
    }
}

/// Percentiles in microseconds.
pub(crate) fn percentiles(mut times: Vec<Duration>) -> Value {
    times.sort_unstable();
    let at = |share: f64| times[(times.len() as f64 * share) as usize].as_nanos() as f64 / 1e3;
    json!({ "p50": at(0.5), "p99": at(0.99), "p99_9": at(0.999) })
}

/// Both of two objects.
pub(crate) fn merged(one: Value, other: Value) -> Value {
    let (Value::Object(mut all), Value::Object(more)) = (one, other) else { unreachable!("objects") };
    all.extend(more);
    all.into()
}

/// In a process that is to be a worker: is one, and ends with it.
pub(crate) fn be_worker() {
    if env::var_os(common::WORKER).is_some() {
        berth_gpu::worker::main();
    }
}

/// A ring that this device serves with so many blocks, or why it does not. Libraries are found as they are here.
pub(crate) fn serve(device: &str, shape: [u32; 2], slot_size: usize, functions: &Functions) -> Result<Rig, String> {
    let libraries = PathBuf::from(env::var_os("LD_LIBRARY_PATH").unwrap_or_default());
    let mut rig = Rig::start(device, &libraries, &[], 0, shape, slot_size);
    match rig.load(functions) {
        Value::String(_) => Ok(rig),
        refused => Err(refused["refused"].as_str().map_or_else(|| refused.to_string(), str::to_owned)),
    }
}
