//! A lease on blocks: accesses that take their time, in buffers of which there are so many.

mod common;

use std::task::{Context, Waker};

use berth_lease::{BlockError, BlockOp};
use berth_nvme::Limits;
use berth_port::{Next, Session as _};
use berth_wire::nvme::{Sqe, Status, fabrics::property, io::Access, opcode};
use common::*;

fn io(node: &Node, digests: u8) -> (Host, Host) {
    let (admin, id) = Host::admin(&node.target, &node.blocks, digests);
    let io = Host::io(&node.target, &node.blocks, id, 1, digests);
    (admin, io)
}

fn is_ready(host: &mut Host) -> bool {
    host.connection.poll_completion(&mut Context::from_waker(Waker::noop())).is_ready()
}

/// Ends the operations that wait, the newest first.
fn land(node: &Node, host: &mut Host) {
    while let Some(last) = node.disk.ops().len().checked_sub(1) {
        node.disk.land(last, Ok(()));
        assert!(is_ready(host));
        host.run();
    }
}

#[test]
fn reads_and_writes_are_answered_when_the_engine_is_done() {
    for digests in [0, 3] {
        let node = Node::new();
        let (_admin, mut io) = io(&node, digests);
        assert_eq!(io.connection.outstanding(), 0);
        let (read, write, long) = (io.cid(), io.cid(), io.cid());
        io.command(&rw(opcode::io::READ, read, 0, 8), &[]);
        io.command(&in_capsule(opcode::io::WRITE, write, 8, 8192), &pattern(1, 8192));
        let data = pattern(2, MAX_IO as usize);
        io.command(&rw(opcode::io::WRITE, long, 100, MAX_IO / 512), &[]);
        for _ in 0..2 {
            let Pdu::R2t { ttag, offset, len, .. } = io.hear() else { panic!("no R2T") };
            let (front, back) = data[offset as usize..][..len as usize].split_at(40_000);
            let pdus =
                [io.h2c_data(long, ttag, offset, front, false), io.h2c_data(long, ttag, offset + 40_000, back, true)];
            io.say(&pdus.concat());
        }
        io.hears_nothing();
        assert_eq!(node.disk.ops(), [BlockOp::Read, BlockOp::Write, BlockOp::Write]);
        assert_eq!(io.connection.outstanding(), 3);
        assert!(!is_ready(&mut io));
        land(&node, &mut io);
        assert_eq!(io.status(long), Status::SUCCESS);
        assert_eq!(io.status(write), Status::SUCCESS);
        assert_eq!(io.data(read), (original(0, 4096), Status::SUCCESS));
        let cid = io.cid();
        io.command(&rw(opcode::io::READ, cid, 100, MAX_IO / 512), &[]);
        land(&node, &mut io);
        assert_eq!(io.data(cid), (data, Status::SUCCESS));
        assert!(node.canaries_live());
        assert_eq!(io.connection.outstanding(), 0);
    }
}

#[test]
fn flushes_and_forced_access() {
    let node = Node::new();
    let (_admin, mut io) = io(&node, 0);
    let cid = io.cid();
    io.command(&Sqe::new(opcode::io::FLUSH, cid, 1), &[]);
    assert_eq!(node.disk.ops(), [BlockOp::Flush]);
    land(&node, &mut io);
    assert_eq!(io.status(cid), Status::SUCCESS);
    for opcode in [opcode::io::WRITE, opcode::io::WRITE_ZEROES] {
        let mut sqe = rw(opcode, io.cid(), 0, 8);
        Access { slba: 0, blocks: 8, fua: true, deallocate: false }.put(&mut sqe);
        if opcode == opcode::io::WRITE {
            sqe.sgl = berth_wire::nvme::Sgl::in_capsule(4096);
            io.command(&sqe, &pattern(1, 4096));
            assert_eq!(node.disk.ops(), [BlockOp::Write]);
        } else {
            io.command(&sqe, &[]);
            assert_eq!(node.disk.ops(), [BlockOp::Zero(4096)]);
        }
        node.disk.land(0, Ok(()));
        io.run();
        io.hears_nothing();
        assert_eq!(node.disk.ops(), [BlockOp::Flush], "answered when it is durable");
        land(&node, &mut io);
        assert_eq!(io.status(sqe.cid.get()), Status::SUCCESS);
    }
}

/// A shutdown is complete when the writes that were under way have ended and are durable.
#[test]
fn a_shutdown_flushes() {
    let node = Node::new();
    let (mut admin, mut io) = io(&node, 0);
    io.command(&in_capsule(opcode::io::WRITE, 5, 0, 512), &pattern(1, 512));
    admin.set_property(property::CC, property::cc::ENABLED | property::cc::SHUTDOWN_NORMAL);
    let occurring = property::csts::READY | 1 << 2;
    assert_eq!(admin.property(property::CSTS), occurring);
    assert_eq!(node.disk.ops(), [BlockOp::Write]);
    node.disk.land(0, Ok(()));
    assert_eq!(admin.property(property::CSTS), occurring);
    assert_eq!(node.disk.ops(), [BlockOp::Flush]);
    assert_eq!(admin.property(property::CSTS), occurring);
    node.disk.land(0, Ok(()));
    let complete = property::csts::READY | property::csts::SHUTDOWN_COMPLETE;
    assert_eq!(admin.property(property::CSTS), complete);
    assert_eq!(admin.property(property::CSTS), complete);
    assert!(node.disk.ops().is_empty());
}

#[test]
fn what_the_engine_says_is_told() {
    let node = Node::new();
    let (_admin, mut io) = io(&node, 0);
    let mut ends = |opcode, error, status| {
        let cid = io.cid();
        if opcode == opcode::io::READ {
            io.command(&rw(opcode, cid, 0, 8), &[]);
        } else {
            io.command(&in_capsule(opcode, cid, 0, 4096), &original(0, 4096));
        }
        node.disk.land(0, Err(error));
        io.run();
        assert_eq!(io.status(cid), status);
    };
    ends(opcode::io::READ, BlockError::Io(5), Status::UNRECOVERED_READ_ERROR);
    ends(opcode::io::WRITE, BlockError::Io(5), Status::WRITE_FAULT);
    ends(opcode::io::WRITE, BlockError::Io(28), Status::CAPACITY_EXCEEDED);
    ends(opcode::io::COMPARE, BlockError::Miscompare, Status::COMPARE_FAILURE);
    ends(opcode::io::READ, BlockError::Busy, Status::retryable(0x082));
}

/// Commands wait for buffers unanswered, without stopping others; what waits for its host does not use up all.
#[test]
fn buffers_are_bounded_and_taken_when_data_is_due() {
    let node = Node::with(Limits { longest: 64 << 10, ..Limits::default() }, 16, memory(), blocks());
    let (_admin, mut io) = io(&node, 0);
    let blocks = 128;
    let data = pattern(1, 64 << 10);
    // 512 KiB in all, of which one queue has an eighth, or what one command needs.
    let cids: Vec<u16> = (0..40).map(|_| io.cid()).collect();
    for (nth, cid) in cids.iter().enumerate() {
        io.command(&rw(opcode::io::WRITE, *cid, nth as u64 * 8, blocks), &[]);
    }
    let Pdu::R2t { cid, ttag, offset: 0, len: 65536 } = io.hear() else { panic!("no R2T") };
    assert_eq!(cid, cids[0]);
    io.hears_nothing();
    // The queue goes on with what needs no buffer of those, and so do others.
    assert_eq!(io.write_and_land(&node, 2000, &pattern(9, 512)), Status::SUCCESS);
    let (_other_admin, mut other) = io_of(&node);
    let cid = other.cid();
    other.command(&rw(opcode::io::READ, cid, 2000, 1), &[]);
    land(&node, &mut other);
    assert_eq!(other.data(cid), (pattern(9, 512), Status::SUCCESS));
    // All are served, one after the other.
    let mut next = Some((cids[0], ttag));
    for cid in &cids {
        let (asked, ttag) = next.take().unwrap();
        assert_eq!(asked, *cid);
        let pdu = io.h2c_data(*cid, ttag, 0, &data, true);
        io.say(&pdu);
        land(&node, &mut io);
        assert_eq!(io.status(*cid), Status::SUCCESS);
        next = io.try_hear().map(|pdu| match pdu {
            Pdu::R2t { cid, ttag, .. } => (cid, ttag),
            other => panic!("{other:?}"),
        });
    }
    assert!(node.counter("nvme_buffer_waits") >= 39);
}

fn io_of(node: &Node) -> (Host, Host) {
    io(node, 0)
}

impl Host {
    fn write_and_land(&mut self, node: &Node, slba: u64, data: &[u8]) -> Status {
        let cid = self.cid();
        self.command(&in_capsule(opcode::io::WRITE, cid, slba, data.len()), data);
        land(node, self);
        self.status(cid)
    }
}

/// Hosts that ask to write and send nothing leave buffers for others that need no more of their host.
#[test]
fn hosts_that_send_nothing_leave_some() {
    let node = Node::with(Limits { longest: 64 << 10, ..Limits::default() }, 8, memory(), blocks());
    let (_admin, id) = Host::admin(&node.target, &node.blocks, 0);
    let mut asked = 0;
    let greedy: Vec<_> = (1..=10)
        .map(|queue| {
            let mut io = Host::io(&node.target, &node.blocks, id, queue, 0);
            io.command(&rw(opcode::io::WRITE, 50, 0, 128), &[]);
            asked += usize::from(io.try_hear().is_some());
            io
        })
        .collect();
    assert_eq!(asked, 3, "6 chunks of 8");
    let (_other_admin, mut other) = io_of(&node);
    assert_eq!(other.write_and_land(&node, 2000, &pattern(9, 512)), Status::SUCCESS);
    let cid = other.cid();
    other.command(&rw(opcode::io::READ, cid, 2000, 1), &[]);
    land(&node, &mut other);
    assert_eq!(other.data(cid), (pattern(9, 512), Status::SUCCESS));
    drop(greedy);
    assert_eq!(other.write_and_land(&node, 2001, &pattern(8, 512)), Status::SUCCESS);
}

/// A capsule with data waits where it is when there is no buffer at all.
#[test]
fn capsules_wait_for_buffers() {
    let node = Node::with(Limits { longest: 32 << 10, ..Limits::default() }, 4, memory(), blocks());
    let (_admin, mut io) = io(&node, 0);
    let cids: Vec<u16> = (0..4).map(|_| io.cid()).collect();
    for cid in &cids {
        io.command(&in_capsule(opcode::io::WRITE, *cid, 0, 512), &pattern(1, 512));
    }
    assert_eq!(node.disk.ops().len(), 4);
    let waiting = io.cid();
    io.command(&in_capsule(opcode::io::WRITE, waiting, 0, 512), &pattern(2, 512));
    assert_eq!((io.next, node.disk.ops().len()), (Next::Completion, 4));
    assert!(!is_ready(&mut io));
    node.disk.land(0, Ok(()));
    io.run();
    assert_eq!(io.status(cids[0]), Status::SUCCESS);
    assert_eq!(node.disk.ops().len(), 4);
    land(&node, &mut io);
    for _ in 0..4 {
        assert!(matches!(io.hear(), Pdu::Response { status: Status::SUCCESS, .. }));
    }
}

/// A capsule that waits is looked after, though data that this host was asked for is to come behind it.
#[test]
fn capsules_wait_before_data() {
    let node = Node::with(Limits { longest: 32 << 10, ..Limits::default() }, 4, memory(), blocks());
    let (_admin, mut io) = io(&node, 0);
    let (_other_admin, mut other) = io_of(&node);
    io.command(&rw(opcode::io::WRITE, 50, 0, 64), &[]);
    let Pdu::R2t { ttag, .. } = io.hear() else { panic!("no R2T") };
    for cid in 60..63 {
        other.command(&in_capsule(opcode::io::WRITE, cid, 100, 512), &pattern(1, 512));
    }
    let data = io.h2c_data(50, ttag, 0, &pattern(2, 32 << 10), true);
    let capsule = io.capsule(&in_capsule(opcode::io::WRITE, 51, 200, 512), &pattern(3, 512));
    io.say(&[capsule, data].concat());
    assert_eq!((io.next, io.connection.outstanding()), (Next::Completion, 1));
    assert!(!is_ready(&mut io));
    node.disk.land(0, Ok(()));
    other.run();
    assert!(is_ready(&mut io));
    io.run();
    while !node.disk.ops().is_empty() {
        node.disk.land(0, Ok(()));
    }
    io.run();
    assert_eq!((io.status(51), io.status(50)), (Status::SUCCESS, Status::SUCCESS));
}

/// A connection that goes away gives its buffers back, and those that the engine has when that is done with them.
#[test]
fn buffers_come_back_from_connections_that_are_gone() {
    let node = Node::with(Limits { longest: 64 << 10, ..Limits::default() }, 8, memory(), blocks());
    let (_admin, id) = Host::admin(&node.target, &node.blocks, 0);
    for round in 0..20 {
        let mut io = Host::io(&node.target, &node.blocks, id, 1, 0);
        io.command(&rw(opcode::io::WRITE, 50, 0, 128), &[]);
        assert!(matches!(io.hear(), Pdu::R2t { .. }), "round {round}");
        io.command(&in_capsule(opcode::io::WRITE, 51, 0, 512), &pattern(round, 512));
        assert_eq!(node.disk.ops(), [BlockOp::Write]);
        drop(io);
        node.disk.land(0, Ok(()));
    }
}
