//! Bytes of hostile hosts: sound conversations with a few bytes changed, dropped or repeated.

mod common;

use berth_port::Next;
use berth_wire::nvme::{Sqe, admin::SetFeatures, opcode};
use common::{mutation::mutate, *};
use fastrand::Rng;

/// What a host says on an I/O queue, whatever it is answered.
fn io_bytes(host: &mut Host, rng: &mut Rng) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..rng.usize(1..8) {
        let (cid, slba) = (rng.u16(0..4), rng.u64(0..2048));
        let len = 512 * rng.usize(1..5);
        let pdu = match rng.u32(0..8) {
            0 => host.capsule(&rw(opcode::io::READ, cid, slba, len as u32 / 512), &[]),
            1 => host.capsule(&in_capsule(opcode::io::WRITE, cid, slba, len), &pattern(1, len)),
            2 => host.capsule(&rw(opcode::io::WRITE, cid, slba, len as u32 / 512), &[]),
            3 => host.h2c_data(cid, rng.u16(0..4) << 8 | rng.u16(0..3), 0, &pattern(2, len), rng.bool()),
            4 => {
                let mut sqe = in_capsule(opcode::io::COMPARE, cid, slba, 512);
                sqe.flags |= rng.u8(0..4);
                host.capsule(&sqe, &pattern(3, 512))
            }
            5 => {
                let mut sqe = in_capsule(opcode::io::WRITE, cid, slba, 512);
                sqe.flags |= rng.u8(0..4);
                host.capsule(&sqe, &pattern(4, 512))
            }
            6 => host.capsule(&in_capsule(rng.u8(..), cid, slba, len), &pattern(5, len)),
            _ => host.capsule(&rw(rng.u8(..), cid, slba, rng.u32(1..9)), &[]),
        };
        bytes.extend(pdu);
    }
    bytes
}

/// The same on an admin queue.
fn admin_bytes(host: &mut Host, rng: &mut Rng) -> Vec<u8> {
    let opcodes = [0x02, 0x06, 0x08, 0x09, 0x0A, 0x0C, 0x18, 0x7F];
    let mut bytes = Vec::new();
    for _ in 0..rng.usize(1..12) {
        let mut sqe = Sqe::new(opcodes[rng.usize(0..opcodes.len())], rng.u16(0..8), rng.u32(0..6));
        SetFeatures { feature: rng.u8(0..16), save: false, value: rng.u32(..) }.put(&mut sqe);
        let len = rng.u32(0..1200) * 4;
        sqe.cdw10[0] = (sqe.cdw10[0].get() | (len / 4).wrapping_sub(1) << 16).into();
        sqe.sgl.len = len.into();
        bytes.extend(host.capsule(&sqe, &[]));
    }
    bytes
}

#[test]
fn hostile_bytes_stay_within_the_lease() {
    for seed in 0..200 {
        let mut rng = Rng::with_seed(seed);
        let node = Node::new();
        let digests = rng.u8(0..4);
        let nqn = if rng.bool() { &node.memory } else { &node.blocks };
        let (mut admin, id) = Host::admin(&node.target, nqn, digests);
        let mut io = Host::io(&node.target, nqn, id, 1, digests);
        let is_io = rng.u32(0..4) > 0;
        let host = if is_io { &mut io } else { &mut admin };
        host.cut = Cut { input: rng.usize(1..4000), output: rng.usize(0..9000) };
        for _ in 0..4 {
            let mut bytes = if is_io { io_bytes(host, &mut rng) } else { admin_bytes(host, &mut rng) };
            mutate(&mut bytes, &mut rng);
            host.say(&bytes);
            while !node.disk.ops().is_empty() {
                node.disk.land(0, Ok(()));
                host.run();
            }
            if host.next == Next::Close {
                break;
            }
        }
        assert!(node.canaries_live(), "seed {seed}");
        drop((io, admin));
        // Nothing is left behind.
        let (_admin, id) = Host::admin(&node.target, &node.blocks, 0);
        let mut io = Host::io(&node.target, &node.blocks, id, 1, 0);
        io.command(&rw(opcode::io::WRITE, 1, 0, MAX_IO / 512), &[]);
        assert!(io.try_hear().is_some(), "buffers are lost, seed {seed}");
    }
}
