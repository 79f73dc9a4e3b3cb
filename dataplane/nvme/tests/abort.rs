//! Abort of commands of I/O queues: those that wait end with 0x007, others are left alone.

mod common;

use std::{
    task::{Context, Waker},
    time::Duration,
};

use berth_lease::BlockOp;
use berth_nvme::Limits;
use berth_port::{Next, Session as _};
use berth_wire::nvme::{Sqe, Status, admin::Abort, opcode};
use common::*;

/// Bytes of the writes.
const LEN: usize = 64 << 10;

fn queues(node: &Node, nqn: &str, digests: u8) -> (Host, Host) {
    let (admin, id) = Host::admin(&node.target, nqn, digests);
    let io = Host::io(&node.target, nqn, id, 1, digests);
    (admin, io)
}

/// A node whose pool has room for one write of an I/O queue at a time.
fn small() -> Node {
    Node::with(Limits { longest: LEN as u32, ..Limits::default() }, 16, memory(), blocks())
}

/// Sends Abort; what becomes of it, once the I/O queue has been polled.
fn abort(admin: &mut Host, io: &mut Host, of: u16) -> bool {
    let cid = admin.cid();
    let mut sqe = Sqe::new(opcode::admin::ABORT, cid, 0);
    Abort { queue: 1, cid: of }.put(&mut sqe);
    admin.command(&sqe, &[]);
    admin.hears_nothing();
    assert!(is_ready(io), "the I/O queue is asked");
    io.run();
    assert!(is_ready(admin), "and has decided");
    admin.run();
    let (status, result) = admin.ended(cid);
    assert_eq!(status, Status::SUCCESS);
    assert!(result <= 1);
    result == 0
}

fn is_ready(host: &mut Host) -> bool {
    host.connection.poll_completion(&mut Context::from_waker(Waker::noop())).is_ready()
}

#[test]
fn a_write_whose_data_does_not_come() {
    for digests in [0, 3] {
        for nqn in [|node: &Node| node.memory.clone(), |node: &Node| node.blocks.clone()] {
            let node = Node::new();
            let nqn = nqn(&node);
            let (mut admin, mut io) = queues(&node, &nqn, digests);
            let cid = io.cid();
            io.command(&rw(opcode::io::WRITE, cid, 0, 16), &[]);
            let Pdu::R2t { ttag, .. } = io.hear() else { panic!("no R2T") };
            assert!(abort(&mut admin, &mut io, cid));
            assert_eq!(io.status(cid), Status::ABORT_REQUESTED);
            assert!(!abort(&mut admin, &mut io, cid), "it is over");
            // The CID is free, and the late data is that of a command which is over.
            io.command(&rw(opcode::io::FLUSH, cid, 0, 1), &[]);
            assert!(!matches!(io.try_hear(), Some(Pdu::Response { status: Status::CID_CONFLICT, .. })));
            let late = io.h2c_data(cid, ttag, 0, &pattern(1, 8192), true);
            io.say(&late);
            assert_eq!(io.next, Next::Close);
            assert!(node.canaries_live());
            assert!(!node.disk.ops().contains(&BlockOp::Write));
        }
    }
}

#[test]
fn data_that_has_begun_is_taken_and_thrown_away() {
    for digests in [0, 3] {
        let node = Node::new();
        let (mut admin, mut io) = queues(&node, &node.blocks, digests);
        let (cid, data) = (io.cid(), pattern(1, 8192));
        io.command(&rw(opcode::io::WRITE, cid, 0, 16), &[]);
        let Pdu::R2t { ttag, .. } = io.hear() else { panic!("no R2T") };
        let first = io.h2c_data(cid, ttag, 0, &data[..4096], false);
        let (begun, rest) = first.split_at(1000);
        io.say(begun);
        assert!(abort(&mut admin, &mut io, cid));
        io.hears_nothing();
        io.say(rest);
        let second = io.h2c_data(cid, ttag, 4096, &data[4096..], true);
        io.say(&second);
        assert_eq!(io.status(cid), Status::ABORT_REQUESTED);
        assert!(node.disk.ops().is_empty(), "nothing is written");
        assert_eq!(io.connection.outstanding(), 0);
    }
}

#[test]
fn commands_that_wait_for_buffers() {
    let node = small();
    let (mut admin, mut io) = queues(&node, &node.blocks, 0);
    let cids: Vec<u16> = (0..6).map(|_| io.cid()).collect();
    for cid in &cids {
        io.command(&rw(opcode::io::WRITE, *cid, 0, LEN as u32 / 512), &[]);
    }
    let Pdu::R2t { cid, .. } = io.hear() else { panic!("no R2T") };
    assert_eq!(cid, cids[0]);
    io.hears_nothing();
    for cid in [cids[3], cids[1]] {
        assert!(abort(&mut admin, &mut io, cid));
        assert_eq!(io.status(cid), Status::ABORT_REQUESTED);
    }
    // The one that has the buffer makes room for the next that is left.
    assert!(abort(&mut admin, &mut io, cids[0]));
    assert_eq!(io.status(cids[0]), Status::ABORT_REQUESTED);
    let Pdu::R2t { cid, ttag, .. } = io.hear() else { panic!("no R2T") };
    assert_eq!(cid, cids[2]);
    let pdu = io.h2c_data(cid, ttag, 0, &pattern(2, LEN), true);
    io.say(&pdu);
    node.disk.land(0, Ok(()));
    assert!(is_ready(&mut io));
    io.run();
    assert_eq!(io.status(cid), Status::SUCCESS);
}

#[test]
fn what_is_not_aborted() {
    let node = Node::new();
    let (mut admin, mut io) = queues(&node, &node.blocks, 0);
    let cid = io.cid();
    io.command(&rw(opcode::io::READ, cid, 0, 8), &[]);
    assert!(!abort(&mut admin, &mut io, cid), "the engine has it");
    assert!(!abort(&mut admin, &mut io, 0x7777), "there is none");
    node.disk.land(0, Ok(()));
    io.run();
    assert_eq!(io.data(cid).1, Status::SUCCESS);
    // A queue that there is not, and more at a time than Identify says.
    let mut ask = |queue, of| {
        let cid = admin.cid();
        let mut sqe = Sqe::new(opcode::admin::ABORT, cid, 0);
        Abort { queue, cid: of }.put(&mut sqe);
        admin.command(&sqe, &[]);
        cid
    };
    let cids = [ask(2, 1), ask(300, 1)];
    let waiting: Vec<u16> = (0..4).map(|of| ask(1, of)).collect();
    let over = ask(1, 9);
    for cid in cids {
        assert_eq!(admin.ended(cid), (Status::SUCCESS, 1));
    }
    assert_eq!(admin.status(over), Status::ABORT_LIMIT);
    assert_eq!(admin.identify(1, 0).0[258], 3);
    // The I/O queue says nothing: after a second they are not aborted.
    admin.hears_nothing();
    assert!(!admin.connection.is_over(NOW + Duration::from_millis(1001)));
    assert!(is_ready(&mut admin));
    admin.run();
    let mut ended: Vec<u16> = waiting
        .iter()
        .map(|_| match admin.hear() {
            Pdu::Response { cid, status: Status::SUCCESS, result: 1, .. } => cid,
            other => panic!("{other:?}"),
        })
        .collect();
    ended.sort_unstable();
    assert_eq!(ended, waiting);
}
