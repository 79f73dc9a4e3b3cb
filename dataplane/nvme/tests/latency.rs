//! How long commands take, stage by stage, as histograms have it.

mod common;

use std::time::Duration;

use berth_nvme::Latencies;
use berth_port::{Nanos, Session as _};
use berth_wire::nvme::opcode;
use common::*;

/// An I/O queue of this subsystem, timed.
fn timed(node: &Node, nqn: &str) -> (Host, Host, Latencies) {
    let latencies = Latencies::default();
    let (admin, id) = Host::admin(&node.target, nqn, 0);
    let mut io = Host::io(&node.target, nqn, id, 1, 0);
    io.connection.time(&latencies);
    (admin, io, latencies)
}

/// One turn of a poll core, `us` microseconds after the beginning: what came before was sent; whether anything is answered.
fn turn(io: &mut Host, us: u64, bytes: &[u8]) -> bool {
    let mut output = vec![0; 160 << 10];
    let done = io.connection.advance(bytes, &mut output, Nanos(NOW.0) + Duration::from_micros(us));
    assert_eq!(done.consumed, bytes.len());
    done.written > 0
}

/// Samples of the histogram of this name, in microseconds.
fn samples(latencies: &Latencies, name: &str) -> Vec<u64> {
    let (_, recorder) = latencies.histograms().into_iter().find(|(known, _)| *known == name).unwrap();
    let histogram = recorder.snapshot();
    let values = histogram.iter_recorded().map(|step| {
        // As exact as a bucket is.
        let us = (histogram.median_equivalent(step.value_iterated_to()) as f64 / 1000.0).round() as u64;
        vec![us; step.count_at_value() as usize]
    });
    values.flatten().collect()
}

fn stages(latencies: &Latencies) -> [Vec<u64>; 4] {
    ["data_time", "access_time", "answer_time", "command_time"].map(|name| samples(latencies, name))
}

#[test]
fn a_write_to_blocks_has_every_stage() {
    let node = Node::new();
    let (_admin, mut io, latencies) = timed(&node, &node.blocks);
    let capsule = io.capsule(&rw(opcode::io::WRITE, 1, 0, 16), &[]);
    assert!(turn(&mut io, 0, &capsule), "an R2T");
    // The slot's second command, after Connect.
    let data = io.h2c_data(1, 2 << 8, 0, &pattern(1, 8192), true);
    let (front, back) = data.split_at(1000);
    assert!(!turn(&mut io, 2, front) && !turn(&mut io, 3, back));
    node.disk.land(0, Ok(()));
    assert!(turn(&mut io, 10, &[]), "the answer");
    assert_eq!(stages(&latencies), [const { vec![] }; 4], "not before it is sent");
    assert!(!turn(&mut io, 15, &[]));
    assert_eq!(stages(&latencies), [vec![3], vec![7], vec![5], vec![15]]);
    assert!(!turn(&mut io, 20, &[]));
    assert_eq!(samples(&latencies, "command_time"), [15], "once");
}

#[test]
fn a_read_has_the_stages_that_it_goes_through() {
    let node = Node::new();
    let (_admin, mut io, latencies) = timed(&node, &node.blocks);
    let capsule = io.capsule(&rw(opcode::io::READ, 1, 0, 8), &[]);
    assert!(!turn(&mut io, 0, &capsule));
    node.disk.land(0, Ok(()));
    assert!(turn(&mut io, 4, &[]));
    assert!(!turn(&mut io, 6, &[]));
    assert_eq!(stages(&latencies), [vec![], vec![4], vec![2], vec![6]]);

    let (_admin, mut io, latencies) = timed(&node, &node.memory);
    // Two alike, and a write whose data comes along.
    let two = [1, 2].map(|cid| io.capsule(&rw(opcode::io::READ, cid, 0, 8), &[])).concat();
    assert!(turn(&mut io, 0, &two));
    let write = io.capsule(&in_capsule(opcode::io::WRITE, 3, 0, 512), &pattern(1, 512));
    assert!(turn(&mut io, 8, &write));
    assert!(!turn(&mut io, 9, &[]));
    assert_eq!(stages(&latencies), [vec![0], vec![], vec![1, 8, 8], vec![1, 8, 8]]);
}

#[test]
fn a_command_that_fails_is_timed_too() {
    let node = Node::new();
    let (_admin, mut io, latencies) = timed(&node, &node.memory);
    let beyond = io.capsule(&rw(opcode::io::READ, 1, LEN / 512, 8), &[]);
    assert!(turn(&mut io, 0, &beyond));
    assert!(!turn(&mut io, 1, &[]));
    assert_eq!(stages(&latencies), [vec![], vec![], vec![1], vec![1]]);
}
