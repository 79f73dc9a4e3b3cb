//! Commands beside reads and writes, on memory and on blocks.

mod common;

use berth_lease::{BlockError, BlockOp, Entry, Rights};
use berth_nvme::Limits;
use berth_wire::nvme::{
    Sgl, Sqe, Status,
    admin::{SetFeatures, feature},
    identify::{Controller, NvmController, cns},
    io::{DatasetManagement, DsmRange},
    log::{Effects, id},
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
