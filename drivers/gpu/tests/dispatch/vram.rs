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
        let (mut sent, mut taken, count) = (0, 0, 2000);
        // All lengths, words and the rest.
        let args = |id: u32| (0..id % 233).map(|at| (at + id) as u8).collect::<Vec<_>>();
        while taken < count {
            if sent < count && rig.producer.can_push() {
                rig.push(1, sent, &args(sent));
                sent += 1;
                continue;
            }
            let wanted = args(taken).iter().map(|byte| byte.wrapping_add(1)).collect();
            assert_eq!(rig.answer(), Ok((taken, 0, wanted)));
            taken += 1;
        }
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
