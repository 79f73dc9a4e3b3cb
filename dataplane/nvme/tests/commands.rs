//! Commands beside reads and writes, on memory and on blocks.

mod common;

use berth_lease::{BlockError, BlockOp, Entry, Rights};
use berth_nvme::Limits;
use berth_wire::nvme::{
    Sgl, Sqe, Status,
    admin::{SetFeatures, feature},
    identify::{Controller, NvmController, cns},
    io::{CopyCommand, CopyRange, DatasetManagement, DsmRange},
    log::{Effects, ErrorEntry, Health, id},
    opcode,
};
use common::*;
use zerocopy::IntoBytes as _;

fn io(node: &Node, nqn: &str, digests: u8) -> (Host, Host) {
    let (admin, id) = Host::admin(&node.target, nqn, digests);
    let io = Host::io(&node.target, nqn, id, 1, digests);
    (admin, io)
}

/// Ends all that waits for the engine, and lets the connection go on.
fn land(node: &Node, io: &mut Host) -> Vec<BlockOp> {
    let mut ops = Vec::new();
    io.run();
    while let Some(op) = node.disk.ops().first() {
        ops.push(*op);
        node.disk.land(0, Ok(()));
        io.run();
    }
    ops
}

/// The status of a command with its data in the capsule, or by R2T.
fn status(node: &Node, io: &mut Host, mut sqe: Sqe, data: &[u8], by_capsule: bool) -> Status {
    let cid = sqe.cid.get();
    if by_capsule {
        sqe.sgl = Sgl::in_capsule(data.len() as u32);
        io.command(&sqe, data);
    } else {
        sqe.sgl = Sgl::transport(data.len() as u32);
        io.command(&sqe, &[]);
        land(node, io);
        if let Some(Pdu::R2t { ttag, offset: 0, len, .. }) = io.peek() {
            io.hear();
            assert_eq!(len as usize, data.len());
            let pdu = io.h2c_data(cid, ttag, 0, data, true);
            io.say(&pdu);
        }
    }
    land(node, io);
    io.status(cid)
}

#[test]
fn compare() {
    for digests in [0, 3] {
        for (name, by_capsule) in [("memory", true), ("memory", false), ("blocks", true), ("blocks", false)] {
            let node = Node::new();
            let nqn = if name == "memory" { &node.memory } else { &node.blocks };
            let (_admin, mut io) = io(&node, nqn, digests);
            let mut data = original(512, 8192);
            let mut compare = |data: &[u8]| {
                let sqe = rw(opcode::io::COMPARE, io.cid(), 1, 16);
                status(&node, &mut io, sqe, data, by_capsule)
            };
            assert_eq!(compare(&data), Status::SUCCESS);
            for at in [0, 4095, 4096, 8191] {
                data[at] ^= 1;
                assert_eq!(compare(&data), Status::COMPARE_FAILURE, "byte {at}");
                data[at] ^= 1;
            }
            assert_eq!(compare(&data[512..]), Status::SGL_LENGTH_INVALID);
        }
    }
}

#[test]
fn write_zeroes_and_verify() {
    let node = Node::new();
    for nqn in [&node.memory, &node.blocks] {
        let (_admin, mut io) = io(&node, nqn, 0);
        let mut command = |opcode, slba, blocks| {
            let cid = io.cid();
            io.command(&rw(opcode, cid, slba, blocks), &[]);
            let ops = land(&node, &mut io);
            (io.status(cid), ops)
        };
        let engine = |op| if *nqn == node.blocks { vec![op] } else { Vec::new() };
        let done = (Status::SUCCESS, engine(BlockOp::Zero(4096)));
        assert_eq!(command(opcode::io::WRITE_ZEROES, 3, 8), done);
        assert_eq!(command(opcode::io::VERIFY, 3, 8), (Status::SUCCESS, engine(BlockOp::Read)));
        for opcode in [opcode::io::WRITE_ZEROES, opcode::io::VERIFY] {
            assert_eq!(command(opcode, LEN / 512 - 7, 8), (Status::LBA_OUT_OF_RANGE, Vec::new()));
            assert_eq!(command(opcode, 0, 513), (Status::INVALID_FIELD, Vec::new()), "over WZSL and VSL");
            assert_eq!(command(opcode, 0, 65536), (Status::INVALID_FIELD, Vec::new()));
        }
        let cid = io.cid();
        io.command(&rw(opcode::io::READ, cid, 2, 10), &[]);
        land(&node, &mut io);
        let expected = [original(1024, 512), vec![0; 4096], original(11 * 512, 512)].concat();
        assert_eq!(io.data(cid), (expected, Status::SUCCESS));
    }
    // A medium that cannot be read does not verify.
    let (_admin, mut io) = io(&node, &node.blocks, 0);
    io.command(&rw(opcode::io::VERIFY, 7, 0, 8), &[]);
    node.disk.land(0, Err(BlockError::Io(5)));
    io.run();
    assert_eq!(io.status(7), Status::UNRECOVERED_READ_ERROR);
}

#[test]
fn dataset_management() {
    let manage = |cid, ranges, deallocate| {
        let mut sqe = Sqe::new(opcode::io::DATASET_MANAGEMENT, cid, 1);
        DatasetManagement { ranges, deallocate }.put(&mut sqe);
        sqe
    };
    for by_capsule in [true, false] {
        let node = Node::new();
        let mut list = [DsmRange::new(8, 16), DsmRange::new(0, 0), DsmRange::new(64, 8), DsmRange::new(0, 4096)];
        list[3].blocks = 8.into();
        // As Linux does: as long as the longest list, whatever it holds.
        let mut data = list.as_bytes().to_vec();
        data.resize(4096, 0xFF);
        let (_admin, mut blocks) = io(&node, &node.blocks, 0);
        let (_admin, mut memory) = io(&node, &node.memory, 0);
        for io in [&mut blocks, &mut memory] {
            assert_eq!(status(&node, io, manage(50, 4, false), &data, by_capsule), Status::SUCCESS);
            assert_eq!(status(&node, io, manage(50, 4, true), &data, by_capsule), Status::SUCCESS);
            assert_eq!(status(&node, io, manage(50, 5, true), &data, by_capsule), Status::LBA_OUT_OF_RANGE);
            let short = &data[..63];
            assert_eq!(status(&node, io, manage(50, 4, true), short, by_capsule), Status::SGL_LENGTH_INVALID);
            let end = [DsmRange::new(LEN / 512, 1)];
            let beyond = status(&node, io, manage(50, 1, false), end.as_bytes(), by_capsule);
            assert_eq!(beyond, Status::LBA_OUT_OF_RANGE);
        }
        let mut sqe = manage(51, 4, true);
        sqe.sgl = Sgl::in_capsule(64);
        blocks.command(&sqe, list.as_bytes());
        let expected = [BlockOp::Discard(8192), BlockOp::Discard(4096), BlockOp::Discard(4096)];
        assert_eq!(land(&node, &mut blocks), expected, "one after the other, and none that is empty");
        assert_eq!(blocks.status(51), Status::SUCCESS);
        assert!(node.canaries_live());
    }
    let node = Node::with(Limits::default(), CHUNKS, memory(), Entry { rights: Rights::READ, ..blocks() });
    let (_admin, mut io) = io(&node, &node.blocks, 0);
    let data = [DsmRange::new(8, 16)];
    assert_eq!(status(&node, &mut io, manage(50, 1, true), data.as_bytes(), true), Status::WRITE_PROTECTED);
    assert_eq!(status(&node, &mut io, manage(50, 1, false), data.as_bytes(), true), Status::SUCCESS);
}

#[test]
fn what_identify_says_of_commands_is_so() {
    let node = Node::new();
    for nqn in [&node.memory, &node.blocks] {
        let (mut admin, mut io) = io(&node, nqn, 0);
        let (page, _) = admin.identify(cns::CONTROLLER, 0);
        let controller = Controller::parse(&page).unwrap();
        let optional = |bit: u16| controller.oncs.get() & 1 << bit != 0;
        let (page, _) = admin.log(id::EFFECTS, 0, 4096, false);
        let effects = Effects::parse(&page).unwrap();
        let bits = [
            (opcode::io::COMPARE, 0),
            (opcode::io::DATASET_MANAGEMENT, 2),
            (opcode::io::WRITE_ZEROES, 3),
            (opcode::io::RESERVATION_REGISTER, 5),
            (opcode::io::VERIFY, 7),
            (opcode::io::COPY, 8),
        ];
        for (opcode, bit) in bits {
            let supported = effects.io[usize::from(opcode)].get() & Effects::SUPPORTED != 0;
            assert_eq!(supported, optional(bit), "{opcode:#x}");
            let sqe = rw(opcode, io.cid(), 0, 1);
            let answer = status(&node, &mut io, sqe, &original(0, 512), false);
            assert_eq!(answer != Status::INVALID_OPCODE, supported, "{opcode:#x}");
        }
        assert_eq!(controller.vwc & 1 != 0, *nqn == node.blocks);
        let (page, _) = admin.identify(cns::COMMAND_SET_CONTROLLER, 0);
        let limits = NvmController::parse(&page).unwrap();
        assert_eq!((limits.vsl, limits.wzsl, limits.dmrl, limits.dmrsl.get()), (6, 6, 255, 512));
    }
}

#[test]
fn features() {
    let node = Node::new();
    let (mut admin, mut io) = io(&node, &node.memory, 0);
    let set = |admin: &mut Host, feature, value, save| {
        let cid = admin.cid();
        let mut sqe = Sqe::new(opcode::admin::SET_FEATURES, cid, 0);
        SetFeatures { feature, save, value }.put(&mut sqe);
        admin.command(&sqe, &[]);
        admin.ended(cid)
    };
    assert_eq!(set(&mut admin, feature::NUMBER_OF_QUEUES, 3 << 16 | 3, false), (Status::SEQUENCE_ERROR, 0));
    assert_eq!(set(&mut admin, feature::NUMBER_OF_QUEUES, 0xFFFF, false), (Status::INVALID_FIELD, 0));
    assert_eq!(set(&mut admin, feature::KEEP_ALIVE_TIMER, 5, true), (Status::FEATURE_NOT_SAVEABLE, 0));
    assert_eq!(set(&mut admin, feature::VOLATILE_WRITE_CACHE, 1, false), (Status::INVALID_FIELD, 0));
    assert_eq!(set(&mut admin, 0xEE, 1, false), (Status::INVALID_FIELD, 0));
    let (mut fresh, _) = Host::admin(&node.target, &node.blocks, 0);
    assert_eq!(set(&mut fresh, feature::NUMBER_OF_QUEUES, 3 << 16 | 3, false), (Status::SUCCESS, 63 << 16 | 63));
    assert_eq!(set(&mut fresh, feature::VOLATILE_WRITE_CACHE, 1, false), (Status::SUCCESS, 0));
    assert_eq!(set(&mut fresh, feature::VOLATILE_WRITE_CACHE, 0, false), (Status::last(0x10E), 0));
    assert_eq!(io.read(0, 1).1, Status::SUCCESS);
}

/// One of a pair, with a block of data in the capsule.
fn half(opcode: u8, cid: u16, slba: u64) -> Sqe {
    let mut sqe = in_capsule(opcode, cid, slba, 512);
    sqe.flags |= if opcode == opcode::io::COMPARE { 1 } else { 2 };
    sqe
}

#[test]
fn compare_and_write() {
    for digests in [0, 3] {
        let node = Node::new();
        for (nqn, by_capsule) in
            [(&node.memory, true), (&node.memory, false), (&node.blocks, true), (&node.blocks, false)]
        {
            let (mut admin, mut io) = io(&node, nqn, digests);
            let (page, _) = admin.identify(cns::CONTROLLER, 0);
            assert_eq!(Controller::parse(&page).unwrap().fuses.get(), 1);
            let slba = if by_capsule { 3 } else { 5 };
            let mut pair = |old: &[u8], new: &[u8]| {
                let (compare, write) = (io.cid(), io.cid());
                let halves =
                    [(half(opcode::io::COMPARE, compare, slba), old), (half(opcode::io::WRITE, write, slba), new)];
                for (mut sqe, data) in halves {
                    if by_capsule {
                        io.command(&sqe, data);
                    } else {
                        sqe.sgl = Sgl::transport(512);
                        io.command(&sqe, &[]);
                    }
                }
                // The data of the second comes first.
                let mut asked = Vec::new();
                while let Some(Pdu::R2t { cid, ttag, .. }) = io.peek() {
                    io.hear();
                    asked.push((cid, ttag));
                }
                assert_eq!(asked.len(), if by_capsule { 0 } else { 2 });
                for (cid, ttag) in asked.into_iter().rev() {
                    let data = if cid == compare { old } else { new };
                    let pdu = io.h2c_data(cid, ttag, 0, data, true);
                    io.say(&pdu);
                }
                land(&node, &mut io);
                (io.status(compare), io.status(write))
            };
            let (old, new) = (original(slba * 512, 512), pattern(1, 512));
            assert_eq!(pair(&old, &new), (Status::SUCCESS, Status::SUCCESS));
            assert_eq!(pair(&old, &pattern(2, 512)), (Status::COMPARE_FAILURE, Status::FAILED_FUSED));
            assert_eq!(pair(&new, &old), (Status::SUCCESS, Status::SUCCESS));
            let cid = io.cid();
            io.command(&rw(opcode::io::READ, cid, slba, 1), &[]);
            land(&node, &mut io);
            assert_eq!(io.data(cid), (old, Status::SUCCESS));
        }
        assert!(node.canaries_live());
    }
}

#[test]
fn pairs_are_adjacent_and_of_one_range() {
    let node = Node::new();
    let (_admin, mut io) = io(&node, &node.memory, 0);
    let (data, other) = (original(512, 512), pattern(1, 512));
    let untouched = node.heap.bytes();
    // Another command between them.
    io.command(&half(opcode::io::COMPARE, 1, 1), &data);
    io.command(&rw(opcode::io::READ, 2, 0, 1), &[]);
    assert_eq!(io.status(1), Status::MISSING_FUSED);
    assert_eq!(io.data(2).1, Status::SUCCESS);
    io.command(&half(opcode::io::WRITE, 3, 1), &other);
    assert_eq!(io.status(3), Status::MISSING_FUSED);
    // One that is refused for another reason is one as well.
    io.command(&half(opcode::io::COMPARE, 1, 1), &data);
    io.command(&half(opcode::io::WRITE, 1, 1), &other);
    assert_eq!((io.status(1), io.status(1)), (Status::MISSING_FUSED, Status::CID_CONFLICT));
    // Two firsts.
    io.command(&half(opcode::io::COMPARE, 1, 1), &data);
    io.command(&half(opcode::io::COMPARE, 2, 1), &data);
    assert_eq!(io.status(1), Status::MISSING_FUSED);
    io.hears_nothing();
    io.command(&half(opcode::io::WRITE, 3, 2), &other);
    assert_eq!((io.status(2), io.status(3)), (Status::FAILED_FUSED, Status::INVALID_FIELD), "another range");
    // What cannot be fused, and the second of that.
    let mut write = half(opcode::io::WRITE, 4, 1);
    write.flags = 0x41;
    io.command(&write, &other);
    assert_eq!(io.status(4), Status::INVALID_FIELD);
    io.command(&half(opcode::io::WRITE, 5, 1), &other);
    assert_eq!(io.status(5), Status::FAILED_FUSED);
    let mut long = in_capsule(opcode::io::COMPARE, 6, 1, 1024);
    long.flags = 0x41;
    io.command(&long, &original(512, 1024));
    assert_eq!(io.status(6), Status::last(0x014), "more than ACWU");
    write.flags = 0x43;
    io.command(&write, &other);
    assert_eq!(io.status(4), Status::INVALID_FIELD);
    assert_eq!(node.heap.bytes(), untouched);
}

/// Of pairs on one namespace that come over two queues, one has been compared and written before the other is compared.
#[test]
fn pairs_of_two_queues_do_not_mix() {
    let node = Node::new();
    let (_admin, id) = Host::admin(&node.target, &node.blocks, 0);
    let mut queues = [1, 2].map(|queue| Host::io(&node.target, &node.blocks, id, queue, 0));
    let old = original(512, 512);
    for (nth, io) in queues.iter_mut().enumerate() {
        io.command(&half(opcode::io::COMPARE, 1, 1), &old);
        io.command(&half(opcode::io::WRITE, 2, 1), &pattern(nth as u64, 512));
    }
    assert_eq!(node.disk.ops(), [BlockOp::Compare], "the second waits");
    node.disk.land(0, Ok(()));
    queues.iter_mut().for_each(Host::run);
    assert_eq!(node.disk.ops(), [BlockOp::Write]);
    land(&node, &mut queues[0]);
    assert_eq!((queues[0].status(1), queues[0].status(2)), (Status::SUCCESS, Status::SUCCESS));
    assert_eq!(land(&node, &mut queues[1]), [BlockOp::Compare]);
    assert_eq!((queues[1].status(1), queues[1].status(2)), (Status::COMPARE_FAILURE, Status::FAILED_FUSED));
    // A connection that goes away with a pair under way stops no other.
    let [mut first, mut second] = queues;
    let now = pattern(0, 512);
    first.command(&half(opcode::io::COMPARE, 3, 1), &now);
    first.command(&half(opcode::io::WRITE, 4, 1), &old);
    drop(first);
    second.command(&half(opcode::io::COMPARE, 3, 1), &now);
    second.command(&half(opcode::io::WRITE, 4, 1), &old);
    land(&node, &mut second);
    assert_eq!((second.status(3), second.status(4)), (Status::SUCCESS, Status::SUCCESS));
}

/// An engine that has no room takes what it refused when it has some again.
#[test]
fn a_busy_engine() {
    let node = Node::new();
    let (_admin, mut io) = io(&node, &node.blocks, 0);
    io.command(&rw(opcode::io::READ, 1, 0, 8), &[]);
    io.command(&in_capsule(opcode::io::WRITE, 2, 100, 4096), &pattern(1, 4096));
    node.disk.land(1, Err(BlockError::Busy));
    io.run();
    io.hears_nothing();
    assert_eq!(node.disk.ops(), [BlockOp::Read]);
    node.disk.land(0, Ok(()));
    io.run();
    assert_eq!(io.data(1), (original(0, 4096), Status::SUCCESS));
    assert_eq!(node.disk.ops(), [BlockOp::Write]);
    land(&node, &mut io);
    assert_eq!(io.status(2), Status::SUCCESS);
    io.command(&rw(opcode::io::READ, 3, 100, 8), &[]);
    land(&node, &mut io);
    assert_eq!(io.data(3), (pattern(1, 4096), Status::SUCCESS));
}

#[test]
fn copy() {
    let command = |cid, destination, ranges| {
        let mut sqe = Sqe::new(opcode::io::COPY, cid, 1);
        CopyCommand { destination, ranges, format: 0, fua: false }.put(&mut sqe);
        sqe
    };
    for by_capsule in [true, false] {
        let node = Node::new();
        for nqn in [&node.memory, &node.blocks] {
            let (_admin, mut io) = io(&node, nqn, 0);
            let list = [CopyRange::new(3, 20), CopyRange::new(100, 1), CopyRange::new(60, 70)];
            let data = list.as_bytes();
            assert_eq!(status(&node, &mut io, command(50, 1000, 3), data, by_capsule), Status::SUCCESS);
            let cid = io.cid();
            io.command(&rw(opcode::io::READ, cid, 999, 93), &[]);
            land(&node, &mut io);
            let of = |slba: u64, blocks: usize| original(slba * 512, blocks * 512);
            let expected = [of(999, 1), of(3, 20), of(100, 1), of(60, 70), of(1091, 1)].concat();
            assert_eq!(io.data(cid), (expected, Status::SUCCESS));
            let end = LEN / 512;
            let mut refused = |destination, list: &[CopyRange]| {
                status(&node, &mut io, command(50, destination, list.len()), list.as_bytes(), by_capsule)
            };
            assert_eq!(refused(end - 90, &list), Status::LBA_OUT_OF_RANGE);
            assert_eq!(refused(end, &list), Status::LBA_OUT_OF_RANGE);
            assert_eq!(refused(0, &[CopyRange::new(end - 1, 2)]), Status::LBA_OUT_OF_RANGE);
            assert_eq!(refused(0, &[CopyRange::new(0, 257), CopyRange::new(0, 256)]), Status::last(0x183));
            assert_eq!(refused(0, &[CopyRange::new(0, 1); 17]), Status::last(0x183));
            let short = &data[..95];
            assert_eq!(status(&node, &mut io, command(50, 0, 3), short, by_capsule), Status::SGL_LENGTH_INVALID);
        }
        assert!(node.canaries_live());
    }
}

#[test]
fn logs_of_commands() {
    let node = Node::new();
    let (mut admin, mut io) = io(&node, &node.memory, 0);
    assert_eq!(io.write_by_r2t(0, &pattern(1, 256 << 10), 64 << 10), Status::SUCCESS);
    for _ in 0..5 {
        assert_eq!(io.read(0, 512).1, Status::SUCCESS);
    }
    for nth in 0..20 {
        let cid = io.cid();
        io.command(&rw(opcode::io::READ, cid, LEN / 512 + nth, 1), &[]);
        assert_eq!(io.status(cid), Status::LBA_OUT_OF_RANGE);
    }
    assert_eq!(io.write(7, &[]), Status::INVALID_FIELD, "65,536 blocks");
    let (page, _) = admin.log(id::HEALTH, 0, 512, false);
    let health = Health::parse(&page).unwrap();
    assert_eq!((health.reads.get(), health.writes.get(), health.error_entries.get()), (25, 2, 21));
    assert_eq!((health.units_read.get(), health.units_written.get()), (3, 1));
    let (page, _) = admin.log(id::ERRORS, 0, 1024, false);
    let entries: Vec<_> = page.chunks(64).map(|entry| *ErrorEntry::parse(entry).unwrap()).collect();
    assert_eq!(entries.iter().map(|entry| entry.count.get()).collect::<Vec<_>>(), (6..=21).rev().collect::<Vec<_>>());
    assert_eq!((entries[0].status(), entries[1].status()), (Status::INVALID_FIELD, Status::LBA_OUT_OF_RANGE));
    assert!(entries.iter().all(|entry| (entry.queue.get(), entry.nsid.get(), entry.transport) == (1, 1, 3)));
    // A part of a log, and lengths that are not the command's.
    let (part, status) = admin.log(id::ERRORS, 64, 128, true);
    assert_eq!((part, status), (page[64..192].to_vec(), Status::SUCCESS));
    let (beyond, status) = admin.log(id::ERRORS, 960, 128, true);
    assert_eq!((beyond, status), ([&page[960..], &[0; 64]].concat(), Status::SUCCESS));
    for offset in [1024, 2, u64::MAX] {
        assert_eq!(admin.log(id::ERRORS, offset, 64, true).1, Status::INVALID_FIELD);
    }
    assert_eq!(admin.log(0xEE, 0, 64, true).1, Status::INVALID_LOG_PAGE);
}

#[test]
fn a_queue_that_is_disconnected() {
    let node = Node::new();
    let (_admin, id) = Host::admin(&node.target, &node.memory, 0);
    let mut io = Host::io(&node.target, &node.memory, id, 1, 0);
    let cid = io.cid();
    io.command(&berth_wire::nvme::fabrics::command(opcode::fabrics::DISCONNECT, cid), &[]);
    assert_eq!(io.status(cid), Status::SUCCESS);
    assert_eq!(io.next, berth_port::Next::Close);
    drop(io);
    let mut again = Host::io(&node.target, &node.memory, id, 1, 0);
    assert_eq!(again.read(0, 1).1, Status::SUCCESS);
}
