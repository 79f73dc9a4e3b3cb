//! What ends a connection, with which word (TCP, "Error Handling Model"), and what does not.

mod common;

use berth_nvme::Limits;
use berth_port::{Next, Session as _};
use berth_wire::nvme::{
    Sgl, Sqe, Status,
    identify::{Controller, cns},
    opcode,
    pdu::{Fatal, IcReq, Kind},
};
use common::*;
use zerocopy::IntoBytes;

const FES_FIELD: u16 = 1;
const FES_SEQUENCE: u16 = 2;
const FES_HEADER_DIGEST: u16 = 3;
const FES_OUT_OF_RANGE: u16 = 4;
const FES_LIMIT: u16 = 5;
const FES_UNSUPPORTED: u16 = 6;

/// Sends `pdu`, which must end the connection, and checks the word that it ends with.
#[track_caller]
fn ends(host: &mut Host, pdu: &[u8], status: u16, information: u32) {
    host.say(pdu);
    let Pdu::Terminated(fatal, header) = host.hear() else { panic!("not ended") };
    assert_eq!((fatal.status, fatal.information), (status, information));
    let len = usize::from(pdu[2]).clamp(8, 128).min(header.len());
    assert!(len >= 8.min(pdu.len()) && header[..len] == pdu[..len], "the header in error comes back");
    assert_eq!(host.next, Next::Close);
    host.hears_nothing();
    assert!(!host.connection.is_identified());
}

/// A PDU by its common header, with `rest` behind it.
fn raw(kind: u8, flags: u8, hlen: u8, pdo: u8, plen: u32, rest: &[u8]) -> Vec<u8> {
    let mut pdu = vec![kind, flags, hlen, pdo];
    pdu.extend(plen.to_le_bytes());
    pdu.extend(rest);
    pdu.resize(pdu.len().max(144), 0);
    pdu
}

/// An I/O queue on the lease in memory, with what keeps it alive.
fn io(node: &Node, digests: u8) -> (Host, Host) {
    let (admin, id) = Host::admin(&node.target, &node.memory, digests);
    let io = Host::io(&node.target, &node.memory, id, 1, digests);
    (admin, io)
}

/// An I/O queue with an R2T outstanding for the 8 KiB of a write: its CID and TTAG.
fn asked(node: &Node, digests: u8) -> (Host, Host, u16, u16) {
    let (admin, mut io) = io(node, digests);
    let cid = io.cid();
    io.command(&rw(opcode::io::WRITE, cid, 0, 16), &[]);
    let Pdu::R2t { cid: other, ttag, offset: 0, len: 8192 } = io.hear() else { panic!("no R2T") };
    assert_eq!(other, cid);
    (admin, io, cid, ttag)
}

#[test]
fn pdus_that_no_host_sends() {
    let node = Node::new();
    for kind in [1, 3, 5, 7, 8, 9, 10, 0xFF] {
        ends(&mut Host::initialised(&node.target, 0, 0), &raw(kind, 0, 24, 0, 24, &[]), FES_FIELD, 0);
        ends(&mut Host::new(&node.target), &raw(kind, 0, 24, 0, 24, &[]), FES_FIELD, 0);
    }
}

#[test]
fn initialisation_comes_first_and_once() {
    let node = Node::new();
    let command = Host::new(&node.target).capsule(&Sqe::new(opcode::FABRICS, 1, 1), &[]);
    ends(&mut Host::new(&node.target), &command, FES_SEQUENCE, 0);
    let data = Host::new(&node.target).h2c_data(1, 1, 0, &[0; 4], true);
    ends(&mut Host::new(&node.target), &data, FES_SEQUENCE, 0);
    for digests in 0..4 {
        let mut host = Host::initialised(&node.target, digests, 0);
        ends(&mut host, IcReq::new(0, 0, 0).as_bytes(), FES_SEQUENCE, 0);
    }
}

#[test]
fn requests_to_initialise_that_are_refused() {
    let node = Node::new();
    let with = |at: usize, value: u8| {
        let mut bytes = IcReq::new(0, 0, 0).as_bytes().to_vec();
        bytes[at] = value;
        bytes
    };
    let refused = |bytes: &[u8], status, information| {
        ends(&mut Host::new(&node.target), bytes, status, information);
    };
    refused(&with(8, 1), FES_UNSUPPORTED, 8);
    refused(&with(10, 32), FES_FIELD, 10);
    refused(&with(2, 127), FES_FIELD, 2);
    refused(&with(4, 129), FES_FIELD, 4);
    refused(&with(4, 127), FES_FIELD, 4);
    refused(&with(7, 0xFF), FES_FIELD, 4);
    let mut host = Host::new(&node.target);
    let mut reserved = with(127, 0xFF);
    reserved[16..].fill(0xFF);
    host.say(&reserved);
    assert_eq!(host.hear(), Pdu::Initialised { digests: 0, max: 128 << 10 });
}

#[test]
fn lengths_flags_and_offsets_are_decided_from_the_header() {
    let node = Node::new();
    for digests in 0..4_u8 {
        let (hdgst, ddgst) = (digests & 1, digests & 2);
        let head = if hdgst > 0 { 4 } else { 0 };
        let tail = if ddgst > 0 { 4 } else { 0 };
        let command = |flags, hlen, pdo, plen| raw(4, flags, hlen, pdo, plen, &[]);
        let fresh = || Host::initialised(&node.target, digests, 0);
        let wrong = |pdu: Vec<u8>, information| ends(&mut fresh(), &pdu, FES_FIELD, information);
        let (bare, full) = (72 + u32::from(head), 72 + u32::from(head + tail));
        for hlen in [0, 24, 71, 73, 128, 255] {
            wrong(command(hdgst, hlen, 0, bare), 2);
        }
        for pdo in [4, 76, 80] {
            wrong(command(hdgst, 72, pdo, bare), 3);
        }
        for pdo in [0, 68, 72 + head - 4, 72 + head + 1, 72 + head + 2] {
            wrong(command(hdgst | ddgst, 72, pdo, full + 512), 3);
        }
        let pdo = 72 + head;
        for plen in [0, 71, bare - 1] {
            wrong(command(hdgst, 72, 0, plen), 4);
        }
        for plen in [full + (16 << 10) + 1, 1 << 24, u32::MAX] {
            wrong(command(hdgst | ddgst, 72, pdo, plen), 4);
        }
        wrong(command(hdgst ^ 1, 72, 0, bare), 1);
        wrong(command(hdgst | 2, 72, 0, bare), 1);
        wrong(command(hdgst | (ddgst ^ 2), 72, pdo, full + 512), 1);
        // Data PDUs without data, and their headers.
        let data = |hlen, pdo, plen| raw(6, hdgst | ddgst, hlen, pdo, plen, &[]);
        let bare = 24 + u32::from(head);
        wrong(data(25, 24 + head, bare + 512), 2);
        wrong(data(24, 20 + head, bare + 512 + u32::from(tail)), 3);
        wrong(data(24, 24 + head, bare), 4);
        wrong(data(24, 24 + head, bare - 1), 4);
    }
    for plen in [23, 153] {
        ends(&mut Host::initialised(&node.target, 0, 0), &raw(2, 0, 24, 0, plen, &[]), FES_FIELD, 4);
    }
}

#[test]
fn header_digests() {
    let node = Node::new();
    for digests in [1, 3] {
        let mut host = Host::initialised(&node.target, digests, 0);
        let mut pdu = host.capsule(&Sqe::new(opcode::FABRICS, 1, 1), &[]);
        pdu[72] ^= 1;
        ends(&mut host, &pdu, FES_HEADER_DIGEST, 0);
        // A length from garbage is refused for what it is.
        pdu[7] = 0xFF;
        let mut host = Host::initialised(&node.target, digests, 0);
        host.say(&pdu);
        let Pdu::Terminated(Fatal { status: FES_FIELD, .. }, _) = host.hear() else { panic!("not ended") };
        let (_admin, mut io, cid, ttag) = asked(&node, digests);
        let mut pdu = io.h2c_data(cid, ttag, 0, &[0; 8192], true);
        pdu[9] ^= 0x80;
        ends(&mut io, &pdu, FES_HEADER_DIGEST, 0);
    }
}

/// A PDU for the CID and TTAG of an R2T.
type Make = fn(&Host, u16, u16) -> Vec<u8>;

#[test]
fn data_that_nobody_asked_for() {
    let node = Node::new();
    let cases: [(Make, u16, u32); 13] = [
        // A TTAG that is none: of another generation, of another slot, beyond all slots.
        (|host, cid, ttag| host.h2c_data(cid, ttag ^ 0x100, 0, &[0; 8192], true), FES_FIELD, 10),
        (|host, cid, ttag| host.h2c_data(cid, ttag ^ 1, 0, &[0; 8192], true), FES_FIELD, 10),
        (|host, cid, _| host.h2c_data(cid, 0xFFFF, 0, &[0; 8192], true), FES_FIELD, 10),
        (|host, cid, ttag| host.h2c_data(cid + 1, ttag, 0, &[0; 8192], true), FES_FIELD, 8),
        (|host, cid, ttag| host.h2c_data(cid, ttag, 4, &[0; 4096], false), FES_OUT_OF_RANGE, 0),
        (|host, cid, ttag| host.h2c_data(cid, ttag, u32::MAX, &[0; 4], false), FES_OUT_OF_RANGE, 0),
        (|host, cid, ttag| host.h2c_data(cid, ttag, 8192, &[0; 4], true), FES_OUT_OF_RANGE, 0),
        (|host, cid, ttag| host.h2c_data(cid, ttag, 0, &[0; 8196], true), FES_OUT_OF_RANGE, 0),
        (|host, cid, ttag| host.h2c_data(cid, ttag, 0, &vec![0; (128 << 10) + 4], true), FES_LIMIT, 0),
        (|host, cid, ttag| host.h2c_data(cid, ttag, 0, &[0; 4096], true), FES_FIELD, 1),
        // DATAL against PLEN.
        (
            |host, cid, ttag| {
                let mut pdu = host.h2c_data(cid, ttag, 0, &[0; 4096], false);
                pdu[16..20].copy_from_slice(&8192_u32.to_le_bytes());
                pdu
            },
            FES_FIELD,
            4,
        ),
        // In-capsule data: over the limit is PLEN's, below it the SGL's.
        (
            |host, cid, _| {
                let mut sqe = in_capsule(opcode::io::WRITE, cid + 1, 0, 4096);
                sqe.sgl.len = 512.into();
                host.capsule(&sqe, &[0; 4096])
            },
            FES_FIELD,
            4,
        ),
        (
            |host, cid, _| {
                let mut sqe = in_capsule(opcode::io::WRITE, cid + 1, 0, 512);
                sqe.sgl.address = 512.into();
                host.capsule(&sqe, &[0; 512])
            },
            FES_UNSUPPORTED,
            32,
        ),
    ];
    for (nth, (make, status, information)) in cases.into_iter().enumerate() {
        let (_admin, mut io, cid, ttag) = asked(&node, 0);
        let pdu = make(&io, cid, ttag);
        println!("case {nth}");
        ends(&mut io, &pdu, status, information);
    }
    assert_eq!(node.heap.bytes(), Node::new().heap.bytes(), "nothing was written");
}

/// A violation ends its own connection alone.
#[test]
fn others_go_on() {
    let node = Node::new();
    let (mut admin, id) = Host::admin(&node.target, &node.memory, 0);
    let mut first = Host::io(&node.target, &node.memory, id, 1, 0);
    let mut second = Host::io(&node.target, &node.memory, id, 2, 0);
    ends(&mut first, &raw(9, 0, 24, 0, 24, &[]), FES_FIELD, 0);
    drop(first);
    assert_eq!(second.read(0, 8).1, Status::SUCCESS);
    assert_eq!(admin.identify(1, 0).1, Status::SUCCESS);
    let mut again = Host::io(&node.target, &node.memory, id, 1, 0);
    assert_eq!(again.read(0, 8).1, Status::SUCCESS, "its queue identifier is free again");
    assert_eq!(node.counter("nvme_fatal_header_field"), 1);
}

#[test]
fn a_late_transfer_of_a_finished_command_is_caught() {
    let node = Node::new();
    let (_admin, mut io, cid, ttag) = asked(&node, 0);
    let pdu = io.h2c_data(cid, ttag, 0, &[7; 8192], true);
    io.say(&pdu);
    assert_eq!(io.status(cid), Status::SUCCESS);
    // The slot has another command by now, which waits for data as well.
    io.command(&rw(opcode::io::WRITE, cid, 16, 16), &[]);
    let Pdu::R2t { ttag: fresh, .. } = io.hear() else { panic!("no R2T") };
    assert_ne!(fresh, ttag);
    ends(&mut io, &pdu, FES_FIELD, 10);
}

#[test]
fn data_for_commands_that_take_none() {
    let node = Node::new();
    let (mut admin, mut io) = io(&node, 0);
    // A read's data pointer is no capsule; without data in the stream that is a status.
    let cid = io.cid();
    io.command(&in_capsule(opcode::io::READ, cid, 0, 0), &[]);
    assert_ne!(io.status(cid), Status::SUCCESS);
    let cid = io.cid();
    let sqe = in_capsule(opcode::io::READ, cid, 0, 512);
    let pdu = io.capsule(&sqe, &[0; 512]);
    ends(&mut io, &pdu, FES_UNSUPPORTED, 32);
    let mut sqe = Sqe::new(opcode::admin::IDENTIFY, admin.cid(), 1);
    sqe.sgl = Sgl::in_capsule(4096);
    let pdu = admin.capsule(&sqe, &[0; 4096]);
    ends(&mut admin, &pdu, FES_UNSUPPORTED, 32);
}

#[test]
fn descriptors() {
    let node = Node::new();
    let (_admin, mut io) = io(&node, 0);
    let mut status = |change: fn(&mut Sqe)| {
        let cid = io.cid();
        let mut sqe = rw(opcode::io::WRITE, cid, 0, 8);
        change(&mut sqe);
        io.command(&sqe, &[]);
        io.status(cid)
    };
    assert_eq!(status(|sqe| sqe.flags = 0), Status::INVALID_FIELD, "no SGL");
    assert_eq!(status(|sqe| sqe.flags = 0x80), Status::INVALID_FIELD);
    assert_eq!(status(|sqe| sqe.sgl.kind = 0x40), Status::SGL_TYPE_INVALID);
    assert_eq!(status(|sqe| sqe.sgl.kind = 0), Status::SGL_TYPE_INVALID);
    for len in [0, 512, 4095, 4097, u32::MAX] {
        let cid = io.cid();
        let mut sqe = rw(opcode::io::WRITE, cid, 0, 8);
        sqe.sgl.len = len.into();
        io.command(&sqe, &[]);
        assert_eq!(io.status(cid), Status::SGL_LENGTH_INVALID, "without an R2T");
        let mut sqe = rw(opcode::io::READ, cid, 0, 8);
        sqe.sgl.len = len.into();
        io.command(&sqe, &[]);
        assert_eq!(io.status(cid), Status::SGL_LENGTH_INVALID);
    }
}

/// A wrong data digest is no violation: the command fails, writes nothing, and may be repeated.
#[test]
fn data_digests() {
    for digests in [2, 3] {
        let node = Node::new();
        let (_admin, mut io) = io(&node, digests);
        let cid = io.cid();
        let mut pdu = io.capsule(&in_capsule(opcode::io::WRITE, cid, 0, 4096), &pattern(1, 4096));
        *pdu.last_mut().unwrap() ^= 1;
        io.say(&pdu);
        assert_eq!(io.status(cid), Status::TRANSIENT_TRANSPORT_ERROR);
        assert!(!Status::TRANSIENT_TRANSPORT_ERROR.is_last());
        // The first transfer of a long write is sound, the second is not.
        io.command(&rw(opcode::io::WRITE, cid, 0, MAX_IO / 512), &[]);
        let mut transfers = 0;
        let status = loop {
            match io.hear() {
                Pdu::R2t { ttag, offset, len, .. } => {
                    let mut pdu = io.h2c_data(cid, ttag, offset, &pattern(2, len as usize), true);
                    let last = pdu.len() - 1;
                    pdu[last] ^= transfers;
                    transfers += 1;
                    io.say(&pdu);
                }
                Pdu::Response { status, .. } => break status,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!((status, transfers), (Status::TRANSIENT_TRANSPORT_ERROR, 2));
        assert_eq!(io.read(0, MAX_IO / 512), (original(0, MAX_IO as usize), Status::SUCCESS), "nothing was written");
        let data = pattern(3, MAX_IO as usize);
        assert_eq!(io.write_by_r2t(0, &data, 4096), Status::SUCCESS);
        assert_eq!(io.read(0, MAX_IO / 512), (data, Status::SUCCESS));
        assert_eq!(node.counter("nvme_data_digest_errors"), 2);
    }
}

#[test]
fn the_host_may_end_it() {
    let node = Node::new();
    let (_admin, mut io) = io(&node, 0);
    io.say(&raw(Kind::H2cTermReq as u8, 0, 24, 0, 24, &[])[..24]);
    io.hears_nothing();
    assert_eq!(io.next, Next::Close);
    assert_eq!(node.counter("nvme_ended_by_host"), 1);
}

/// More commands than the queue has entries end the connection, and are not lost for others.
#[test]
fn more_commands_than_entries() {
    let node = Node::new();
    let (mut admin, id) = Host::admin(&node.target, &node.memory, 0);
    let mut io = Host::io(&node.target, &node.memory, id, 1, 0);
    for nth in 0..128 {
        io.command(&rw(opcode::io::WRITE, 1000 + nth, 0, 8), &[]);
        assert!(matches!(io.hear(), Pdu::R2t { .. }));
    }
    let pdu = io.capsule(&rw(opcode::io::WRITE, 2000, 0, 8), &[]);
    ends(&mut io, &pdu, FES_SEQUENCE, 0);
    assert_eq!(admin.identify(1, 0).1, Status::SUCCESS);
}

#[test]
fn identifiers_in_use() {
    let node = Node::new();
    let (_admin, mut io, cid, ttag) = asked(&node, 0);
    io.command(&rw(opcode::io::READ, cid, 0, 8), &[]);
    assert_eq!(io.status(cid), Status::CID_CONFLICT);
    io.command(&rw(opcode::io::READ, cid, 0, 8), &[]);
    assert_eq!(io.status(cid), Status::CID_CONFLICT, "the refusal did not free it");
    let pdu = io.h2c_data(cid, ttag, 0, &[7; 8192], true);
    io.say(&pdu);
    assert_eq!(io.status(cid), Status::SUCCESS);
    io.command(&rw(opcode::io::READ, cid, 0, 16), &[]);
    assert_eq!(io.data(cid), (vec![7; 8192], Status::SUCCESS));
}

/// Capsules of I/O queues; those of others bring 8192 bytes, whatever it says.
#[test]
fn capsules_bring_as_much_as_ioccsz_says() {
    // The longest of them is too long for any capsule.
    for (most, over) in [(4096, (FES_LIMIT, 0)), (16 << 10, (FES_FIELD, 4)), (64 << 10, (FES_FIELD, 4))] {
        let limits = Limits { in_capsule: most, ..Limits::default() };
        let node = Node::with(limits, CHUNKS, memory(), blocks());
        let (mut admin, id) = Host::admin(&node.target, &node.memory, 0);
        let (page, _) = admin.identify(cns::CONTROLLER, 0);
        assert_eq!(Controller::parse(&page).unwrap().in_capsule_max(), most);
        let mut io = Host::io(&node.target, &node.memory, id, 1, 0);
        let data = pattern(1, most as usize);
        io.command(&in_capsule(opcode::io::WRITE, 5, 0, most as usize), &data);
        assert_eq!(io.ended(5), (Status::SUCCESS, 0));
        let (found, status) = io.read(0, most / 512);
        assert!(status == Status::SUCCESS && found == data);
        let pdu =
            io.capsule(&in_capsule(opcode::io::WRITE, 6, 0, most as usize + 512), &pattern(2, most as usize + 512));
        ends(&mut io, &pdu, over.0, over.1);
    }
}
