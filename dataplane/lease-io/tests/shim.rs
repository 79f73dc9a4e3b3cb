//! FBMU and FBBU, datagram by datagram.

mod common;

use berth_lease::{BlockError, Entry, Rights, State};
use berth_lease_io::{Answer, Gate, LeaseService, Shim, answer};
use berth_port::Nanos;
use berth_wire::fabric::data::{
    IoStatus,
    shim::{Fields, Header, Kind, Op},
    stream::HelloAck,
};
use common::*;
use proptest::prelude::*;
use zerocopy::IntoBytes;

const ROOM: usize = 9000;

fn service(node: &Node) -> LeaseService<Shim> {
    LeaseService::new(&node.table, &node.regions, 2)
}

fn fields(kind: Kind, op: Op, offset: u64, length: u32) -> Fields {
    Fields { kind, op, status: 0, request_id: 77, lease_id: MEMORY.0, generation: GENERATION, offset, length }
}

fn seal(fields: &Fields, data: &[u8]) -> Vec<u8> {
    let header = Header::new(fields);
    let sum = crc32c::crc32c(&[header.as_bytes(), data].concat());
    [header.with_crc(sum).as_bytes(), data].concat()
}

fn open(bytes: &[u8]) -> (Fields, &[u8]) {
    let header = Header::parse(bytes).unwrap();
    let (fields, data) = (header.fields().unwrap(), &bytes[Header::LEN..]);
    assert_eq!(seal(&fields, data), bytes, "the checksum");
    (fields, data)
}

fn ask(service: &mut LeaseService<Shim>, fields: &Fields, data: &[u8], now: Nanos) -> (Fields, Vec<u8>) {
    let answer = handle(service, &seal(fields, data), ROOM, now).expect("an answer");
    let (fields, data) = open(&answer);
    (fields, data.to_vec())
}

#[test]
fn bytes_are_written_and_read_back() {
    let node = Node::new();
    let mut service = service(&node);
    let write = fields(Kind::Memory, Op::Write, 10, 5);
    assert_eq!(
        ask(&mut service, &write, b"hello", NOW),
        (Fields { op: Op::WriteResp, length: 0, ..write }, Vec::new())
    );
    let read = fields(Kind::Memory, Op::Read, 9, 7);
    let (echo, data) = ask(&mut service, &read, &[], NOW);
    assert_eq!(echo, Fields { op: Op::ReadResp, ..read });
    assert_eq!(data, [&original(9, 1)[..], b"hello", &original(15, 1)].concat());
    assert!(node.canaries_live());
}

#[test]
fn fbbu_counts_in_blocks() {
    let node = Node::new();
    let mut service = service(&node);
    let read = fields(Kind::Block, Op::Read, 2, 3);
    assert_eq!(ask(&mut service, &read, &[], NOW), (Fields { op: Op::ReadResp, ..read }, original(1024, 1536)));
    // The lease has 39 whole blocks.
    let (echo, _) = ask(&mut service, &fields(Kind::Block, Op::Read, 39, 1), &[], NOW);
    assert_eq!((echo.status, echo.length), (IoStatus::OutOfRange as u8, 0));
    let (echo, _) = ask(&mut service, &fields(Kind::Block, Op::Read, 0, 17), &[], NOW);
    assert_eq!(echo.status, IoStatus::BadLength as u8);
    let (echo, _) = ask(&mut service, &fields(Kind::Block, Op::Read, u64::MAX, 1), &[], NOW);
    assert_eq!(echo.status, IoStatus::OutOfRange as u8);
}

#[test]
fn hello_tells_the_limits_and_ping_needs_no_lease() {
    let node = Node::new();
    let mut service = service(&node);
    let hello = fields(Kind::Memory, Op::Hello, 0, 0);
    let (echo, data) = ask(&mut service, &hello, &[], NOW);
    assert_eq!(echo, Fields { op: Op::HelloAck, length: 20, ..hello });
    let memory = HelloAck::Memory { status: 0, resource_len: LEN, max_read_len: MAX_IO, max_write_len: MAX_IO };
    assert_eq!(data, memory.to_bytes());
    let (_, data) = ask(&mut service, &Fields { kind: Kind::Block, ..hello }, &[], NOW);
    let block = HelloAck::Block { status: 0, block_size: 512, block_count: 39, max_blocks_per_io: 16 };
    assert_eq!(data, block.to_bytes());
    for (wrong, status) in [
        (Fields { lease_id: 1, ..hello }, IoStatus::InvalidLease),
        (Fields { generation: 1, ..hello }, IoStatus::Fenced),
    ] {
        let (echo, data) = ask(&mut service, &wrong, &[], NOW);
        assert_eq!((echo.status, echo.length, data.len()), (status as u8, 0, 0));
    }
    let ping = Fields { lease_id: 1, ..fields(Kind::Memory, Op::Ping, 4, 5) };
    assert_eq!(ask(&mut service, &ping, &[], NOW), (Fields { op: Op::Pong, length: 0, ..ping }, Vec::new()));
}

#[test]
fn refusals_are_statuses() {
    let mut node = Node::new();
    let mut service = service(&node);
    let read = fields(Kind::Memory, Op::Read, 0, 8);
    let mut status = |fields: &Fields, data: &[u8], now| {
        let (echo, data) = ask(&mut service, fields, data, now);
        assert_eq!((echo.length, data.len(), echo.request_id, echo.offset), (0, 0, 77, fields.offset));
        IoStatus::from_code(echo.status).unwrap()
    };
    // The same key, another id.
    let other = Fields { lease_id: MEMORY.0 ^ 1 << 100, ..read };
    assert_eq!(status(&other, &[], NOW), IoStatus::InvalidLease);
    assert_eq!(status(&read, &[], EXPIRES), IoStatus::Expired);
    assert_eq!(status(&Fields { generation: 8, ..read }, &[], NOW), IoStatus::Fenced);
    assert_eq!(status(&read, b"x", NOW), IoStatus::BadLength);
    assert_eq!(status(&Fields { length: 0, ..read }, &[], NOW), IoStatus::BadLength);
    assert_eq!(status(&Fields { length: 8193, ..read }, &[], NOW), IoStatus::BadLength);
    assert_eq!(status(&Fields { op: Op::Write, ..read }, b"1234567", NOW), IoStatus::BadLength);
    assert_eq!(status(&Fields { offset: LEN - 7, ..read }, &[], NOW), IoStatus::OutOfRange);
    node.set(Entry { rights: Rights::WRITE, ..memory() });
    assert_eq!(status(&read, &[], NOW), IoStatus::Fenced);
    node.set(Entry { state: State::Revoked, ..memory() });
    assert_eq!(status(&read, &[], NOW), IoStatus::Fenced);
}

#[test]
fn damaged_datagrams_are_dropped() {
    let node = Node::new();
    let mut service = service(&node);
    let sound = seal(&fields(Kind::Memory, Op::Write, 0, 4), b"data");
    for bit in 0..sound.len() * 8 {
        let mut bad = sound.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(handle(&mut service, &bad, ROOM, NOW), None, "bit {bit}");
    }
    for op in [Op::HelloAck, Op::ReadResp, Op::WriteResp, Op::Pong] {
        assert_eq!(handle(&mut service, &seal(&fields(Kind::Memory, op, 0, 0), &[]), ROOM, NOW), None);
    }
    let flagged = Fields { status: 1, ..fields(Kind::Memory, Op::Ping, 0, 0) };
    assert_eq!(handle(&mut service, &seal(&flagged, &[]), ROOM, NOW), None);
    assert_eq!(events(&service), [("malformed", sound.len() as u64 * 8 + 5)].into());
    assert_eq!(node.heap.bytes()[BASE as usize..][..4], original(0, 4));
}

/// As a task does it: start, wait, finish.
#[test]
fn blocks_are_a_future_for_tasks() {
    let node = Node::new();
    let mut gate = Gate::new(&node.table, &node.regions);
    let request = Fields { lease_id: BLOCK.0, ..fields(Kind::Block, Op::Read, 1, 2) };
    for result in [Ok(()), Err(BlockError::Io(5)), Err(BlockError::Busy)] {
        let mut buf = vec![0; ROOM];
        let message = seal(&request, &[]);
        buf[..message.len()].copy_from_slice(&message);
        let Answer::Later(later) = answer::<Shim>(&mut gate, &mut buf, message.len(), true, NOW) else {
            panic!("blocks take time")
        };
        let mut io = Box::pin(later.start(&gate, &buf, NOW).unwrap());
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(io.as_mut().poll(&mut cx).is_pending());
        node.disk.land(result);
        let std::task::Poll::Ready(ended) = io.as_mut().poll(&mut cx) else { panic!("it has ended") };
        let len = later.finish::<Shim>(&mut gate, ended, &mut buf).unwrap();
        let (echo, data) = open(&buf[..len]);
        match result {
            Ok(()) => assert_eq!((echo.status, echo.length, data), (0, 2, &original(512, 1024)[..])),
            Err(BlockError::Io(_) | BlockError::Miscompare) => {
                assert_eq!((echo.status, data.len()), (IoStatus::Internal as u8, 0));
            }
            Err(BlockError::Busy) => assert_eq!((echo.status, data.len()), (IoStatus::Busy as u8, 0)),
        }
    }
}

/// An access whose task has gone keeps the bytes until the engine is done with them.
#[test]
fn a_dropped_future_still_holds_up_a_revocation() {
    let node = Node::new();
    let mut gate = Gate::new(&node.table, &node.regions);
    let request = Fields { lease_id: BLOCK.0, ..fields(Kind::Block, Op::Write, 1, 1) };
    let mut message = seal(&request, &[9; 512]);
    let len = message.len();
    let Answer::Later(later) = answer::<Shim>(&mut gate, &mut message, len, true, NOW) else { panic!("blocks") };
    drop(later.start(&gate, &message, NOW).unwrap());
    let mut quiescence = node.writer.quiescence();
    assert!(!quiescence.is_over());
    node.disk.land(Ok(()));
    assert!(quiescence.is_over());
}

proptest! {
    #[test]
    fn hostile_datagrams_stay_within_the_lease(
        block: bool,
        op in 0..3_u8,
        offset in prop_oneof![0..LEN + 10, u64::MAX - 9000..=u64::MAX, any::<u64>(), (1_u64 << 55) - 5..(1 << 55) + 5],
        length in prop_oneof![0..20_u32, 8180..8200_u32, any::<u32>()],
        fill: u8,
        payload in 0..8200_usize,
        fits: bool,
    ) {
        let node = Node::new();
        let mut service = service(&node);
        let kind = if block { Kind::Block } else { Kind::Memory };
        let op = [Op::Read, Op::Write, Op::Hello][usize::from(op)];
        let unit = if block { 512 } else { 1 };
        let wanted = length as usize * unit;
        let payload = if fits && op == Op::Write { wanted.min(8192) } else if fits { 0 } else { payload };
        let data = vec![fill; payload];
        if let Some(answer) = handle(&mut service, &seal(&fields(kind, op, offset, length), &data), ROOM, NOW) {
            let (echo, read) = open(&answer);
            if (op, echo.status) == (Op::Read, 0) {
                prop_assert_eq!(read, original(offset * unit as u64, wanted));
            } else if (op, echo.status) == (Op::Write, 0) {
                let at = BASE as usize + offset as usize * unit;
                prop_assert_eq!(&node.heap.bytes()[at..at + wanted], &data[..]);
            }
        }
        prop_assert!(node.canaries_live());
        events(&service);
    }

    #[test]
    fn random_bytes_never_panic(message in prop::collection::vec(any::<u8>(), 0..200), room in 0..300_usize) {
        let node = Node::new();
        let mut service = service(&node);
        let _ = handle(&mut service, &message, room, NOW);
        let mut summed = message;
        summed.resize(summed.len().max(56), 0);
        summed[..8].copy_from_slice(b"FBMU\0\x10\0\0");
        summed[52..56].fill(0);
        let sum = crc32c::crc32c(&summed);
        summed[52..56].copy_from_slice(&sum.to_be_bytes());
        prop_assert!(handle(&mut service, &summed, room, NOW).is_some());
    }
}
