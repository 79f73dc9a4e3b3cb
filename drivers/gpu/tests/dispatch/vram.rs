//! Rings whose requests lie in the device's memory.

use berth_gpu::Functions;
use serde_json::Value;

use crate::{
    EXAMPLE,
    common::{Rig, increment, module, symbol},
};

fn increments() -> Functions {
    Functions { all: vec![increment(1)], modules: vec![], lost: false }
}

#[test]
fn requests_in_its_memory_are_answered_over_many_laps() {
    for (nth, blocks) in [(90, 1), (91, 4)] {
        let mut rig = Rig::in_vram(nth, 64, 256, blocks);
        assert_eq!(rig.load(&increments()), "loaded");
        rig.increments(1, 2000);
        let stats = rig.producer.stats();
        assert_eq!((stats.unanswered, stats.bad_flags, stats.late_answers), (0, 0, 0));
    }
}

#[test]
fn graphs_do_not_read_it() {
    let mut rig = Rig::in_vram(92, 4, 64, 1);
    let mut graph = symbol(1, "reverse_graph", false);
    graph.graph = true;
    let said: Value = rig.load(&Functions { all: vec![graph], modules: vec![module(EXAMPLE)], lost: false });
    let why = "mode = \"graph\" needs requests in memory of the host: write memory = \"pinned\"";
    assert_eq!(said["refused"], why);
}
