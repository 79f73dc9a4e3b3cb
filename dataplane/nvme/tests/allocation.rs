//! Reads and writes allocate nothing, once as many have been under way.

mod common;

use berth_nvme::Latencies;
use berth_port::{Next, Progress, Session as _};
use berth_wire::nvme::opcode;
use common::*;

/// What a connection does with `pdu`, in a buffer that is there already; how much it answers.
fn exchange(host: &mut Host, pdu: &[u8], output: &mut [u8]) -> usize {
    let (mut at, mut sent) = (0, 0);
    loop {
        let Progress { consumed, written, next } = host.connection.advance(&pdu[at..], output, NOW);
        (at, sent) = (at + consumed, sent + written);
        if !matches!(next, Next::Output(_)) {
            assert_eq!(at, pdu.len());
            return sent;
        }
    }
}

#[test]
fn commands_allocate_nothing() {
    for digests in [0, 3] {
        let node = Node::new();
        let mut output = vec![0; 64 << 10];
        for nqn in [&node.memory, &node.blocks] {
            let (_admin, id) = Host::admin(&node.target, nqn, digests);
            let mut io = Host::io(&node.target, nqn, id, 1, digests);
            io.connection.time(&Latencies::default());
            let read = io.capsule(&rw(opcode::io::READ, 1, 0, 256), &[]);
            let write = io.capsule(&in_capsule(opcode::io::WRITE, 2, 0, 4096), &pattern(1, 4096));
            let long = io.capsule(&rw(opcode::io::WRITE, 3, 0, 256), &[]);
            let data = pattern(2, 128 << 10);
            // The host knows the TTAG from the R2T; slots are used again, and their generations count up.
            let transfers: Vec<_> = (0..=255).map(|n| io.h2c_data(3, n << 8, 0, &data, true)).collect();
            let mut round = |generation: &mut usize| {
                for pdu in [&read, &write] {
                    exchange(&mut io, pdu, &mut output);
                    land(&node, &mut io, &mut output);
                    *generation += 1;
                }
                exchange(&mut io, &long, &mut output);
                *generation += 1;
                let sent = exchange(&mut io, &transfers[*generation % 256], &mut output);
                assert!(sent > 0 || !node.disk.ops().is_empty());
                land(&node, &mut io, &mut output);
            };
            // Connect was the slot's first command.
            let mut generation = 1;
            round(&mut generation);
            let counted = allocation_counter::measure(|| (0..20).for_each(|_| round(&mut generation)));
            // Of this test's own engine: one for each of its operations, and one for a look at them.
            let own = if *nqn == node.blocks { 20 * (3 + 1) } else { 0 };
            assert_eq!(counted.count_total, own, "digests {digests}");
        }
    }
}

fn land(node: &Node, io: &mut Host, output: &mut [u8]) {
    let waits = !node.disk.waiting.lock().unwrap().is_empty();
    if waits {
        node.disk.land(0, Ok(()));
        assert!(exchange(io, &[], output) > 0);
    }
}
