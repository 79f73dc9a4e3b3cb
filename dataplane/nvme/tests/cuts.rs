//! However the bytes are cut, on both sides, hosts get the same answers.

mod common;

use berth_wire::nvme::{Status, identify::cns, log::id, opcode};
use common::*;
use proptest::prelude::*;

/// A conversation of an admin and an I/O queue: what was answered, in order.
fn conversation(digests: u8, hpda: u8, cut: Cut, piece: usize) -> (Vec<(Vec<u8>, Status)>, Vec<u8>) {
    let node = Node::new();
    let mut answers = Vec::new();
    let host = || {
        let mut host = Host::new(&node.target);
        host.cut = cut;
        host.initialise(digests, hpda);
        host
    };
    let mut admin = host();
    let id = admin.connect_admin(&node.memory);
    admin.enable();
    answers.push(admin.identify(cns::CONTROLLER, 0));
    answers.push(admin.log(id::ANA, 0, 52, false));
    answers.push(admin.identify(0xEE, 0));
    let mut io = host();
    let (status, _) = io.connect(io_connect(1), &connect_data(&node.memory, id));
    answers.push((Vec::new(), status));
    answers.push((Vec::new(), io.write(2, &pattern(1, 1024))));
    answers.push((Vec::new(), io.write_by_r2t(30, &pattern(2, 6144), piece)));
    answers.push(io.read(0, 64));
    // Two commands and the data of a third one arrive together.
    let (first, second, third) = (io.cid(), io.cid(), io.cid());
    io.command(&rw(opcode::io::WRITE, first, 8, 4), &[]);
    let Pdu::R2t { ttag, .. } = io.hear() else { panic!("no R2T") };
    let data = io.h2c_data(first, ttag, 0, &pattern(3, 2048), true);
    let read = io.capsule(&rw(opcode::io::READ, second, 2, 3), &[]);
    let write = io.capsule(&in_capsule(opcode::io::WRITE, third, 100, 512), &pattern(4, 512));
    io.say(&[data, read, write].concat());
    answers.push((Vec::new(), io.status(first)));
    answers.push(io.data(second));
    answers.push((Vec::new(), io.status(third)));
    io.hears_nothing();
    (answers, node.heap.bytes())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn cuts_change_nothing(
        digests in 0..4_u8,
        hpda in 0..32_u8,
        input in prop_oneof![Just(1_usize), 2..80_usize, 80..5000_usize],
        output in prop_oneof![Just(0_usize), 1..300_usize, 300..9000_usize],
        piece in (1..1500_usize).prop_map(|words| words * 4),
    ) {
        let whole = conversation(0, 0, WHOLE, usize::MAX);
        prop_assert_eq!(whole.0.iter().filter(|(_, status)| status.is_success()).count(), 9);
        prop_assert_eq!(conversation(digests, hpda, Cut { input, output }, piece), whole);
    }
}
