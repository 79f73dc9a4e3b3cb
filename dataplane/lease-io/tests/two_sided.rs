//! Two-sided messages, message by message.

mod common;

use berth_lease::{BlockError, Entry, Rights, State};
use berth_lease_io::{LeaseService, TwoSided};
use berth_port::{Nanos, Port, Service, Verdict};
use berth_wire::fabric::data::two_sided::{Opcode, Request, Status};
use common::*;
use proptest::prelude::*;
use zerocopy::IntoBytes;

const ROOM: usize = 9000;

fn service(node: &Node) -> LeaseService<TwoSided> {
    LeaseService::new(&node.table, &node.regions, 2)
}

fn read(offset: u64, len: u64) -> Vec<u8> {
    Request::new(Opcode::Read, key(MEMORY).0, GENERATION, offset, len).as_bytes().to_vec()
}

fn write(offset: u64, data: &[u8]) -> Vec<u8> {
    let header = Request::new(Opcode::Write, key(MEMORY).0, GENERATION, offset, data.len() as u64);
    [header.as_bytes(), data].concat()
}

fn blocks(opcode: Opcode, offset: u64, len: u64, data: &[u8]) -> Vec<u8> {
    [Request::new(opcode, key(BLOCK).0, GENERATION, offset, len).as_bytes(), data].concat()
}

#[test]
fn what_is_written_is_read_back() {
    let node = Node::new();
    let mut service = service(&node);
    assert_eq!(handle(&mut service, &read(19_990, 10), ROOM, NOW), Some([&[0][..], &original(19_990, 10)].concat()));
    assert_eq!(handle(&mut service, &write(19_990, b"0123456789"), ROOM, NOW), Some(vec![0]));
    assert_eq!(handle(&mut service, &read(19_989, 11), ROOM, NOW).unwrap()[2..], *b"0123456789");
    assert!(node.canaries_live());
    let counted = events(&service);
    assert_eq!(counted, [("bytes_read", 21), ("bytes_written", 10), ("read", 2), ("written", 1)].into());
}

#[test]
fn refusals_are_statuses_in_the_order_of_the_profile() {
    let mut node = Node::new();
    let mut service = service(&node);
    let mut status = |message: &[u8], now| {
        let answer = handle(&mut service, message, ROOM, now).expect("every whole header is answered");
        assert_eq!(answer.len(), 1);
        Status::from_code(answer[0]).unwrap()
    };
    let unknown = Request::new(Opcode::Read, key(MEMORY).0 ^ 1, GENERATION, 0, 8);
    assert_eq!(status(unknown.as_bytes(), NOW), Status::UnknownLease);
    let stale = Request::new(Opcode::Read, key(MEMORY).0, GENERATION + 1, u64::MAX, 0);
    assert_eq!(status(stale.as_bytes(), NOW), Status::StaleGeneration);
    assert_eq!(status(&read(0, 8), EXPIRES), Status::LeaseExpired);
    assert_eq!(status(&read(0, 0), NOW), Status::BadRequest);
    assert_eq!(status(&read(0, u64::from(MAX_IO) + 1), NOW), Status::BadRequest);
    assert_eq!(status(&[read(0, 8), vec![0]].concat(), NOW), Status::BadRequest, "a read with payload");
    assert_eq!(status(&write(0, b"ab")[..33], NOW), Status::BadRequest, "a write without all of its payload");
    let mut odd = read(0, 8);
    odd[8] = 3;
    assert_eq!(status(&odd, NOW), Status::BadRequest, "an unknown opcode");
    for (offset, len) in [(LEN, 1), (LEN - 7, 8), (u64::MAX, 1), (u64::MAX - 7, 8)] {
        assert_eq!(status(&read(offset, len), NOW), Status::OutOfRange, "{offset}+{len}");
    }
    node.set(Entry { rights: Rights::READ, ..memory() });
    assert_eq!(status(&write(0, b"ab"), NOW), Status::Denied);
    node.set(Entry { state: State::Revoked, ..memory() });
    assert_eq!(status(&read(u64::MAX, 0), EXPIRES), Status::LeaseRevoked);
    let none = Request::new(Opcode::Read, 0, 0, 0, 8);
    assert_eq!(status(none.as_bytes(), NOW), Status::UnknownLease, "key 0");
    assert!(node.canaries_live());
    let expected = [
        ("bad_request", 4),
        ("denied", 1),
        ("expired", 1),
        ("out_of_range", 4),
        ("revoked", 1),
        ("stale_generation", 1),
        ("too_long", 1),
        ("unknown_lease", 2),
    ];
    assert_eq!(events(&service), expected.into());
}

#[test]
fn a_read_that_the_frame_cannot_carry_is_a_bad_request() {
    let node = Node::new();
    let mut service = service(&node);
    assert_eq!(handle(&mut service, &read(0, 100), 100, NOW), Some(vec![Status::BadRequest as u8]));
    assert_eq!(handle(&mut service, &read(0, 99), 100, NOW).unwrap().len(), 100);
}

#[test]
fn short_and_truncated_messages() {
    let node = Node::new();
    let mut service = service(&node);
    assert_eq!(handle(&mut service, &read(0, 8)[..31], ROOM, NOW), None);
    let mut buf = write(0, b"abcd");
    let len = buf.len();
    let mut frame = berth_port::Frame::new(&mut buf, len, len + 1, peer());
    assert_eq!(service.handle(&mut frame, at(NOW)), Verdict::Reply);
    assert_eq!(frame.data(), [Status::BadRequest as u8]);
    assert_eq!(events(&service), [("malformed", 1), ("bad_request", 1)].into());
}

#[test]
fn blocks_are_answered_when_the_engine_is_done() {
    let node = Node::new();
    let (mut service, mut line) = (service(&node), Line::new(8, ROOM));
    let data: Vec<u8> = (0..1024_u32).map(|i| (i % 251) as u8).collect();
    line.ask(&blocks(Opcode::Write, 512, 1024, &data));
    line.ask(&blocks(Opcode::Read, 512, 512, &[]));
    assert_eq!(line.serve(&mut service), 0);
    assert_eq!((service.outstanding(), line.answers().len()), (2, 0));
    // A third finds no slot: this protocol has no status for that.
    line.ask(&blocks(Opcode::Read, 0, 512, &[]));
    line.serve(&mut service);
    node.disk.land(Ok(()));
    node.disk.land(Ok(()));
    assert_eq!(line.serve(&mut service), 2);
    assert_eq!(line.answers(), [vec![0], [&[0], &data[..512]].concat()]);
    line.ask(&blocks(Opcode::Read, 0, 512, &[]));
    line.serve(&mut service);
    node.disk.land(Err(BlockError::Io(5)));
    assert_eq!(line.serve(&mut service), 0);
    line.ask(&blocks(Opcode::Read, 1, 512, &[]));
    line.ask(&blocks(Opcode::Read, 0, 100, &[]));
    line.serve(&mut service);
    assert_eq!(line.answers(), [[Status::BadRequest as u8], [Status::BadRequest as u8]], "parts of blocks");
    assert_eq!(service.outstanding(), 0);
    assert!(node.canaries_live());
    let expected = [
        ("bad_request", 2),
        ("busy", 1),
        ("bytes_read", 512),
        ("bytes_written", 1024),
        ("read", 1),
        ("storage_failed", 1),
        ("written", 1),
    ];
    assert_eq!(events(&service), expected.into());
}

#[test]
fn a_revocation_waits_for_the_block_access_under_way() {
    let mut node = Node::new();
    let (mut service, mut line) = (service(&node), Line::new(8, ROOM));
    line.ask(&blocks(Opcode::Write, 0, 512, &[1; 512]));
    line.serve(&mut service);
    node.set(Entry { state: State::Revoked, ..common::blocks() });
    let mut quiescence = node.writer.quiescence();
    assert!(!quiescence.is_over());
    line.ask(&blocks(Opcode::Write, 0, 512, &[2; 512]));
    line.serve(&mut service);
    assert_eq!(line.answers(), [[Status::LeaseRevoked as u8]]);
    node.disk.land(Ok(()));
    line.serve(&mut service);
    assert!(quiescence.is_over());
    assert_eq!(line.answers(), [[0]]);
}

#[test]
fn an_answer_that_finds_the_port_full_is_posted_later() {
    let node = Node::new();
    let (mut service, mut line) = (service(&node), Line::new(1, ROOM));
    line.ask(&blocks(Opcode::Read, 0, 512, &[]));
    line.serve(&mut service);
    node.disk.land(Ok(()));
    // All buffers of the serving port are on their way.
    while line.theirs.post(line.ours.local_addr().into(), |_| 1).is_ok() {}
    assert_eq!(line.serve(&mut service), 0);
    assert_eq!(service.outstanding(), 1);
    line.answers();
    assert_eq!(line.serve(&mut service), 1);
    assert_eq!(line.answers(), [[&[0], &original(0, 512)[..]].concat()]);
    assert_eq!(service.outstanding(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Whatever is sent: nothing panics, nothing outside of the lease is written, and what is read is the lease's.
    #[test]
    fn hostile_messages_stay_within_the_lease(
        messages in prop::collection::vec((any::<u8>(), edge(), edge(), any::<u8>(), 0..64_usize, any::<bool>()), 1..40),
    ) {
        let node = Node::new();
        let mut service = service(&node);
        let mut model = original(0, LEN as usize);
        for (opcode, offset, len, fill, surplus, on_blocks) in messages {
            let id = if on_blocks { BLOCK } else { MEMORY };
            let header = Request::new(Opcode::Read, key(id).0, GENERATION, offset, len);
            let mut message = header.as_bytes().to_vec();
            message[8] = opcode % 4;
            let payload = if opcode % 4 == 1 { (len as usize).min(ROOM - 32) } else { 0 };
            message.resize(32 + payload, fill);
            if surplus < 2 {
                message.resize(32 + payload + surplus, fill);
            }
            let answer = handle(&mut service, &message, ROOM, NOW);
            if on_blocks {
                continue;
            }
            let (offset, len) = (offset as usize, len as usize);
            let answer = answer.expect("memory is answered at once");
            match (opcode % 4, answer[0]) {
                (1, 0) => model[offset..][..len].fill(fill),
                (2, 0) => prop_assert_eq!(&answer[1..], &model[offset..][..len]),
                (_, 0) => prop_assert!(false, "an unknown opcode was served"),
                _ => prop_assert_eq!(answer.len(), 1),
            }
        }
        prop_assert_eq!(&node.heap.bytes()[BASE as usize..][..LEN as usize], model);
        prop_assert!(node.canaries_live());
        events(&service);
    }

    #[test]
    fn random_bytes_never_panic(message in prop::collection::vec(any::<u8>(), 0..200), len in 0..100_usize) {
        let node = Node::new();
        let mut service = service(&node);
        let _ = handle(&mut service, &message, len, NOW);
        let mut known = message;
        known.resize(known.len().max(32), 0);
        known[..8].copy_from_slice(&key(MEMORY).0.to_be_bytes());
        let _ = handle(&mut service, &known, len, Nanos(0));
        prop_assert!(node.canaries_live());
    }
}

/// Numbers around the edges of a lease and of 64 bits.
fn edge() -> impl Strategy<Value = u64> {
    prop_oneof![
        0..600_u64,
        LEN - 600..LEN + 600,
        (0..40_u64).prop_map(|block| block * 512),
        u64::from(MAX_IO) - 4..u64::from(MAX_IO) + 4,
        u64::MAX - 9000..=u64::MAX,
        any::<u64>(),
    ]
}
