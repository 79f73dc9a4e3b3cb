//! FBMT and FBBT, byte by byte and message by message.

mod common;

use std::sync::Arc;

use berth_lease::{BlockError, Entry, Rights, State};
use berth_lease_io::{LONGEST, Stream, Totals};
use berth_port::{Nanos, Next, Progress, Session as _};
use berth_wire::fabric::data::{
    IoStatus,
    stream::{Header, Hello, HelloAck, Kind, Op, Range, ReadResp, WriteResp},
};
use common::*;
use proptest::prelude::*;
use zerocopy::IntoBytes;

const ROOM: usize = 16 + 8 + MAX_IO as usize;

fn stream(node: &Node, kind: Kind) -> Stream {
    Stream::new(kind, &node.table, &node.regions, Arc::default())
}

fn message(kind: Kind, op: Op, request_id: u32, payload: &[u8]) -> Vec<u8> {
    [Header::new(kind, op, payload.len() as u32, request_id).as_bytes(), payload].concat()
}

fn hello(kind: Kind, id: u128) -> Vec<u8> {
    message(kind, Op::Hello, 1, Hello::new(id).as_bytes())
}

fn read(kind: Kind, offset: u64, length: u32) -> Vec<u8> {
    message(kind, Op::Read, 2, Range::new(offset, length).as_bytes())
}

fn write(kind: Kind, offset: u64, length: u32, data: &[u8]) -> Vec<u8> {
    message(kind, Op::Write, 3, &[Range::new(offset, length).as_bytes(), data].concat())
}

/// The answers to `input`, which is all consumed: op, request id, payload.
fn exchange(stream: &mut Stream, input: &[u8], now: Nanos) -> (Vec<(Op, u32, Vec<u8>)>, Next) {
    let (mut sent, mut output) = (Vec::new(), vec![0xEE; ROOM]);
    let (mut at, mut room) = (0, ROOM);
    loop {
        let Progress { consumed, written, next } = stream.advance(&input[at..], &mut output[..room], now);
        sent.extend_from_slice(&output[..written]);
        at += consumed;
        match next {
            Next::Output(more) => room = more,
            next => return (messages(&sent), next),
        }
    }
}

fn messages(mut bytes: &[u8]) -> Vec<(Op, u32, Vec<u8>)> {
    let mut all = Vec::new();
    while let Some(header) = Header::parse(bytes) {
        let len = Header::LEN + header.payload_len() as usize;
        all.push((header.op().unwrap(), header.request_id(), bytes[Header::LEN..len].to_vec()));
        bytes = &bytes[len..];
    }
    assert!(bytes.is_empty());
    all
}

fn greeted(node: &Node, kind: Kind) -> Stream {
    let mut stream = stream(node, kind);
    let id = if kind == Kind::Memory { MEMORY } else { BLOCK };
    let (answers, step) = exchange(&mut stream, &hello(kind, id.0), NOW);
    assert_eq!((answers.len(), answers[0].2[0]), (1, 0));
    assert!(matches!(step, Next::Input(16)));
    stream
}

/// The status of the single answer, which must keep the stream open.
fn status(stream: &mut Stream, message: &[u8], now: Nanos) -> IoStatus {
    let (answers, step) = exchange(stream, message, now);
    assert!(matches!(step, Next::Input(16)), "{step:?}");
    let [(op, id, payload)] = &answers[..] else { panic!("{answers:?}") };
    assert_eq!(*id, if *op == Op::ReadResp { 2 } else { 3 });
    assert_eq!(payload.len(), if *op == Op::ReadResp { 8 } else { 4 }, "fixed fields and no data");
    assert!(payload[1..].iter().all(|byte| *byte == 0));
    IoStatus::from_code(payload[0]).unwrap()
}

/// What the stream says before it closes.
fn closes(stream: &mut Stream, message: &[u8]) -> Vec<(Op, Vec<u8>)> {
    let (answers, step) = exchange(stream, message, NOW);
    assert!(matches!(step, Next::Close), "{step:?}");
    let again = exchange(stream, &hello(Kind::Memory, MEMORY.0), NOW);
    assert!(again.0.is_empty() && matches!(again.1, Next::Close), "closed for good");
    answers.into_iter().map(|(op, _, payload)| (op, payload)).collect()
}

#[test]
fn a_conversation() {
    let node = Node::new();
    let mut stream = stream(&node, Kind::Memory);
    let input = [
        hello(Kind::Memory, MEMORY.0),
        write(Kind::Memory, 100, 5, b"hello"),
        read(Kind::Memory, 99, 7),
        message(Kind::Memory, Op::Ping, 9, &[]),
        read(Kind::Memory, 0, MAX_IO),
    ]
    .concat();
    let (answers, step) = exchange(&mut stream, &input, NOW);
    assert!(matches!(step, Next::Input(16)));
    let ack = HelloAck::Memory { status: 0, resource_len: LEN, max_read_len: MAX_IO, max_write_len: MAX_IO };
    assert_eq!(answers[0], (Op::HelloAck, 1, ack.to_bytes().to_vec()));
    assert_eq!(answers[1], (Op::WriteResp, 3, WriteResp::new(0).as_bytes().to_vec()));
    let around = [&original(99, 1)[..], b"hello", &original(105, 1)].concat();
    assert_eq!(answers[2], (Op::ReadResp, 2, [ReadResp::new(0, 7).as_bytes(), &around].concat()));
    assert_eq!(answers[3], (Op::Pong, 9, Vec::new()));
    assert_eq!(answers[4].2.len(), 8 + MAX_IO as usize);
    assert_eq!(answers.len(), 5);
    assert!(node.canaries_live());
}

/// However the bytes are cut, on both sides, the same bytes come out.
#[test]
fn input_and_output_may_be_cut_anywhere() {
    let node = Node::new();
    let input =
        [hello(Kind::Memory, MEMORY.0), write(Kind::Memory, 0, 300, &[7; 300]), read(Kind::Memory, 0, 400)].concat();
    let (expected, _) = exchange(&mut stream(&node, Kind::Memory), &input, NOW);
    for step in [1, 7, 100] {
        let mut stream = stream(&node, Kind::Memory);
        let (mut at, mut have, mut room, mut sent) = (0, 0, 0, Vec::new());
        while at < input.len() {
            let mut output = vec![0; room];
            let progress = stream.advance(&input[at..have], &mut output, NOW);
            sent.extend_from_slice(&output[..progress.written]);
            at += progress.consumed;
            match progress.next {
                Next::Input(wanted) => {
                    assert!(wanted > have - at, "it waits for more than it has");
                    if at == input.len() {
                        break;
                    }
                    have = (have + step).min(input.len());
                }
                Next::Output(wanted) => room = wanted,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(messages(&sent), expected, "in steps of {step}");
    }
}

#[test]
fn refusals_are_statuses_and_keep_the_stream() {
    let mut node = Node::new();
    let mut stream = greeted(&node, Kind::Memory);
    let kind = Kind::Memory;
    assert_eq!(status(&mut stream, &read(kind, 0, 0), NOW), IoStatus::BadLength);
    assert_eq!(status(&mut stream, &read(kind, 0, MAX_IO + 1), NOW), IoStatus::BadLength);
    assert_eq!(status(&mut stream, &read(kind, 0, u32::MAX), NOW), IoStatus::BadLength);
    assert_eq!(status(&mut stream, &read(kind, LEN - 7, 8), NOW), IoStatus::OutOfRange);
    assert_eq!(status(&mut stream, &read(kind, u64::MAX, 8), NOW), IoStatus::OutOfRange);
    assert_eq!(status(&mut stream, &message(kind, Op::Read, 2, &[0; 11]), NOW), IoStatus::BadLength);
    assert_eq!(status(&mut stream, &message(kind, Op::Read, 2, &[0; 13]), NOW), IoStatus::BadLength);
    assert_eq!(status(&mut stream, &message(kind, Op::Write, 3, &[0; 3]), NOW), IoStatus::BadLength);
    assert_eq!(status(&mut stream, &write(kind, 0, 4, b"abc"), NOW), IoStatus::BadLength);
    assert_eq!(
        status(&mut stream, &write(kind, 0, MAX_IO + 1, &vec![0; MAX_IO as usize + 1]), NOW),
        IoStatus::BadLength
    );
    assert_eq!(status(&mut stream, &read(kind, u64::MAX, 0), EXPIRES), IoStatus::Expired);
    node.set(Entry { rights: Rights::READ, ..memory() });
    assert_eq!(status(&mut stream, &write(kind, 0, 4, b"abcd"), NOW), IoStatus::Fenced);
    assert!(!stream.is_over(NOW) && stream.is_over(EXPIRES));
    node.set(Entry { state: State::Revoked, ..memory() });
    assert_eq!(status(&mut stream, &read(kind, 0, 8), NOW), IoStatus::Fenced);
    assert!(stream.is_over(NOW));
    node.writer.remove(key(MEMORY));
    assert_eq!(status(&mut stream, &read(kind, 0, 8), NOW), IoStatus::InvalidLease);
    assert!(node.canaries_live());
}

#[test]
fn violations_close() {
    let node = Node::new();
    let error = |status: IoStatus| vec![(Op::Error, vec![status as u8])];
    let kind = Kind::Memory;
    for at in [0, 4, 7] {
        let mut bad = read(kind, 0, 8);
        bad[at] ^= 0x10;
        assert_eq!(closes(&mut greeted(&node, kind), &bad), [], "byte {at} of a header");
    }
    let mut unknown = read(kind, 0, 8);
    unknown[5] = 0x55;
    assert_eq!(closes(&mut greeted(&node, kind), &unknown), error(IoStatus::BadLength));
    assert_eq!(closes(&mut greeted(&node, kind), &hello(kind, MEMORY.0)), error(IoStatus::BadLength), "twice");
    assert_eq!(closes(&mut stream(&node, kind), &read(kind, 0, 8)), error(IoStatus::InvalidLease), "no hello");
    let no_id = message(kind, Op::Read, 0, Range::new(0, 8).as_bytes());
    assert_eq!(closes(&mut greeted(&node, kind), &no_id), error(IoStatus::BadLength));
    assert_eq!(closes(&mut greeted(&node, kind), &message(kind, Op::ReadResp, 1, &[])), error(IoStatus::BadLength));
    assert_eq!(closes(&mut greeted(&node, kind), &message(kind, Op::Error, 1, &[5])), []);
    let far = Header::new(kind, Op::Write, MAX_IO + 12 + 4097, 3);
    assert_eq!(closes(&mut greeted(&node, kind), far.as_bytes()), error(IoStatus::BadLength), "without its payload");
    let near = write(kind, 0, 4, &vec![0; MAX_IO as usize + 4096]);
    assert_eq!(status(&mut greeted(&node, kind), &near, NOW), IoStatus::BadLength);
    let first = Header::new(kind, Op::Hello, u32::MAX, 3);
    assert_eq!(closes(&mut stream(&node, kind), first.as_bytes()), error(IoStatus::BadLength));
    let wrong = closes(&mut stream(&node, kind), &hello(kind, MEMORY.0 ^ 1 << 90));
    let ack = HelloAck::Memory { status: 1, resource_len: 0, max_read_len: 0, max_write_len: 0 };
    assert_eq!(wrong, [(Op::HelloAck, ack.to_bytes().to_vec())], "the same key, another id");
}

/// A READ of `length` blocks with an id of its own.
fn read_blocks(request_id: u32, first: u64, length: u32) -> Vec<u8> {
    message(Kind::Block, Op::Read, request_id, Range::new(first, length).as_bytes())
}

#[test]
fn blocks_are_answered_in_the_order_in_which_they_end() {
    let node = Node::new();
    let mut stream = greeted(&node, Kind::Block);
    let data: Vec<u8> = (0..1024_u32).map(|i| (i % 251) as u8).collect();
    let input =
        [write(Kind::Block, 1, 2, &data), read_blocks(7, 4, 1), message(Kind::Block, Op::Ping, 9, &[])].concat();
    let (answers, step) = exchange(&mut stream, &input, NOW);
    assert_eq!((answers, step), (vec![(Op::Pong, 9, Vec::new())], Next::Input(16)), "the blocks take time");
    assert_eq!(stream.outstanding(), 2);
    node.disk.waiting.lock().unwrap().swap(0, 1);
    node.disk.land(Ok(()));
    let expected = [ReadResp::new(0, 1).as_bytes(), &original(2048, 512)].concat();
    assert_eq!(exchange(&mut stream, &[], NOW).0, [(Op::ReadResp, 7, expected)]);
    node.disk.land(Ok(()));
    assert_eq!(exchange(&mut stream, &[], NOW).0, [(Op::WriteResp, 3, vec![0; 4])]);
    assert_eq!(stream.outstanding(), 0);
    for (failure, status) in [(BlockError::Io(5), IoStatus::Internal), (BlockError::Busy, IoStatus::Busy)] {
        assert_eq!(exchange(&mut stream, &read_blocks(8, 0, 1), NOW).0, []);
        node.disk.land(Err(failure));
        let answer = ReadResp::new(status as u8, 0).as_bytes().to_vec();
        assert_eq!(exchange(&mut stream, &[], NOW).0, [(Op::ReadResp, 8, answer)]);
    }
    assert!(node.canaries_live());
}

/// What was read goes out in as many parts as the output needs.
#[test]
fn an_answer_is_longer_than_the_output() {
    let node = Node::new();
    let mut stream = greeted(&node, Kind::Block);
    exchange(&mut stream, &read_blocks(2, 0, 4), NOW);
    node.disk.land(Ok(()));
    let (mut sent, mut output) = (Vec::new(), [0; 100]);
    while stream.outstanding() > 0 {
        let Progress { written, .. } = stream.advance(&[], &mut output, NOW);
        assert!(written > 0);
        sent.extend_from_slice(&output[..written]);
    }
    let expected = [ReadResp::new(0, 4).as_bytes(), &original(0, 2048)].concat();
    assert_eq!(messages(&sent), [(Op::ReadResp, 2, expected)]);
}

#[test]
fn sixty_four_accesses_are_under_way_where_their_bytes_have_room() {
    let node = Node::with_room(100);
    let mut stream = greeted(&node, Kind::Block);
    let input: Vec<u8> = (1..=70).flat_map(|id| read_blocks(id, u64::from(id % 8), 1)).collect();
    let one = read_blocks(1, 0, 1).len();
    let mut output = vec![0; 64 * 512];
    // Half of the room: half of the accesses.
    let half = stream.advance(&input, &mut output[..32 * 512], NOW);
    assert_eq!(half, Progress { consumed: 32 * one, written: 0, next: Next::Output(33 * 512) });
    let rest = stream.advance(&input[half.consumed..], &mut output, NOW);
    assert_eq!(rest, Progress { consumed: 32 * one, written: 0, next: Next::Completion });
    assert_eq!((stream.outstanding(), node.disk.waiting.lock().unwrap().len()), (64, 64));
    for _ in 0..64 {
        node.disk.land(Ok(()));
    }
    let (answers, step) = exchange(&mut stream, &input[64 * one..], NOW);
    assert_eq!((answers.len(), step), (64, Next::Input(16)));
    assert_eq!(stream.outstanding(), 6);
    // Another stream of the connection has one at a time.
    let one_at_a_time = stream.sibling().unwrap().advance(&input, &mut output, NOW);
    assert_eq!((one_at_a_time.consumed, one_at_a_time.next), (one, Next::Completion));
}

/// As on a poll core, which closes a connection that wants more room while nothing is under way.
#[test]
fn buffers_that_never_grow_do_for_what_is_behind_an_engine() {
    const LONGEST: u32 = 4096;
    let node = Node::with_room(100);
    let mut stream = stream(&node, Kind::Memory).at_most(LONGEST);
    let (answers, _) = exchange(&mut stream, &hello(Kind::Memory, VRAM.0), NOW);
    assert_eq!(answers[0].2[0], 0);
    let lengths = [1, LONGEST, 513, LONGEST - 1].repeat(10);
    let asked = lengths.iter().zip(0_u64..).map(|(length, at)| match at % 2 {
        0 => write(Kind::Memory, 3 + at, *length, &vec![7; *length as usize]),
        _ => read(Kind::Memory, 3 + at, *length),
    });
    let (input, mut at) = (asked.collect::<Vec<_>>().concat(), 0);
    let (mut output, mut sent) = (vec![0; Stream::room_for(LONGEST)], Vec::new());
    while at < input.len() || stream.outstanding() > 0 {
        let received = (input.len() - at).min(output.len());
        let Progress { consumed, written, next } = stream.advance(&input[at..at + received], &mut output, NOW);
        at += consumed;
        sent.extend_from_slice(&output[..written]);
        match next {
            Next::Output(_) => assert!(written > 0 || stream.outstanding() > 0, "the connection is closed"),
            Next::Close => panic!("it is sound"),
            Next::Input(_) | Next::Completion => {}
        }
        while !node.gpu.waiting.lock().unwrap().is_empty() {
            node.gpu.land(Ok(()));
        }
    }
    let answers = messages(&sent);
    assert_eq!(answers.len(), lengths.len());
    let is_ok = |(op, _, payload): &(Op, u32, Vec<u8>)| match op {
        Op::ReadResp => payload[0] == 0 && payload.len() > 8,
        _ => payload[0] == 0,
    };
    assert!(answers.iter().all(is_ok) && node.canaries_live());
}

#[test]
fn what_is_under_way_is_answered_before_a_violation_closes() {
    let node = Node::new();
    let mut stream = greeted(&node, Kind::Block);
    let input = [read_blocks(2, 0, 1), message(Kind::Block, Op::ReadResp, 1, &[])].concat();
    let (answers, step) = exchange(&mut stream, &input, NOW);
    assert_eq!((answers, step), (vec![(Op::Error, 1, vec![IoStatus::BadLength as u8])], Next::Completion));
    node.disk.land(Ok(()));
    let (answers, step) = exchange(&mut stream, &[], NOW);
    assert_eq!((answers[0].1, step), (2, Next::Close));
}

/// A revocation waits for the engine alone, not for a peer that takes no answers.
#[test]
fn an_access_that_has_ended_holds_up_no_revocation() {
    let node = Node::new();
    let mut stream = greeted(&node, Kind::Block);
    exchange(&mut stream, &read_blocks(2, 0, 1), NOW);
    let mut quiescence = node.writer.quiescence();
    assert!(!quiescence.is_over());
    node.disk.land(Ok(()));
    assert!(quiescence.is_over());
    assert_eq!(stream.outstanding(), 1);
}

#[test]
fn streams_of_one_connection_share_its_lease() {
    let node = Node::new();
    assert!(stream(&node, Kind::Memory).sibling().is_none());
    let first = greeted(&node, Kind::Memory);
    let mut second = first.sibling().unwrap();
    let (answers, _) = exchange(&mut second, &read(Kind::Memory, 0, 4), NOW);
    assert_eq!(answers[0].2[8..], original(0, 4));
}

#[test]
fn a_known_peer_greets_its_own_leases_only() {
    let node = Node::new();
    let totals = Arc::<Totals>::default();
    let new = |kind| Stream::new(kind, &node.table, &node.regions, totals.clone()).of(|lease| lease == MEMORY);
    let (answers, _) = exchange(&mut new(Kind::Memory), &hello(Kind::Memory, MEMORY.0), NOW);
    assert_eq!(answers[0].2[0], IoStatus::Ok as u8);
    let refused = closes(&mut new(Kind::Block), &hello(Kind::Block, BLOCK.0));
    assert_eq!(refused, [(Op::HelloAck, [&[IoStatus::InvalidLease as u8][..], &[0; 19]].concat())]);
    let unknown = closes(&mut new(Kind::Block), &hello(Kind::Block, 5));
    assert_eq!(unknown, refused, "it is as if there were no such lease");
    let mut counted = Vec::new();
    totals.report(&mut |name, value| counted.extend((value > 0).then_some((name, value))));
    assert_eq!(counted, [("greeted", 1), ("unknown_lease", 1), ("not_theirs", 1), ("received", 3)]);
}

#[test]
fn a_lease_with_more_than_streams_buffer_is_cut() {
    let mut node = Node::new();
    node.set(Entry { max_io: u32::MAX, ..memory() });
    let mut stream = stream(&node, Kind::Memory);
    let (answers, _) = exchange(&mut stream, &hello(Kind::Memory, MEMORY.0), NOW);
    let ack = HelloAck::Memory { status: 0, resource_len: LEN, max_read_len: LONGEST, max_write_len: LONGEST };
    assert_eq!(answers[0].2, ack.to_bytes());
    assert_eq!(status(&mut stream, &read(Kind::Memory, 0, LONGEST + 1), NOW), IoStatus::BadLength);
}

#[test]
fn totals_count_every_message() {
    let node = Node::new();
    let totals = Arc::<Totals>::default();
    let mut stream = Stream::new(Kind::Memory, &node.table, &node.regions, totals.clone());
    let input = [hello(Kind::Memory, MEMORY.0), read(Kind::Memory, 0, 4), read(Kind::Memory, LEN, 4)].concat();
    exchange(&mut stream, &input, NOW);
    let mut counted = Vec::new();
    totals.report(&mut |name, value| counted.extend((value > 0).then_some((name, value))));
    assert_eq!(counted, [("read", 1), ("greeted", 1), ("out_of_range", 1), ("received", 3), ("bytes_read", 4)]);
}

proptest! {
    /// Whatever comes: no panic, no byte outside of the lease, and never more claimed than there is.
    #[test]
    fn hostile_bytes_stay_within_the_lease(
        greet: bool,
        chunks in prop::collection::vec(
            (any::<bool>(), any::<u8>(), prop_oneof![0..40_u32, 8100..8300_u32, any::<u32>()],
             prop_oneof![0..LEN + 9, any::<u64>(), u64::MAX - 9000..=u64::MAX], prop::collection::vec(any::<u8>(), 0..60)),
            0..12,
        ),
        room in 0..ROOM + 10,
    ) {
        let node = Node::new();
        let mut stream = if greet { greeted(&node, Kind::Memory) } else { stream(&node, Kind::Memory) };
        let mut input = Vec::new();
        for (sound, op, length, offset, data) in chunks {
            if sound {
                let ops = [Op::Read, Op::Write, Op::Ping, Op::Hello];
                let mut payload = [Range::new(offset, length).as_bytes(), &data].concat();
                if op & 4 == 0 {
                    payload.resize(12 + if op % 4 == 1 { length.min(9000) as usize } else { 0 }, op);
                }
                input.extend(message(Kind::Memory, ops[usize::from(op % 4)], 5, &payload));
            } else {
                input.extend(data);
            }
        }
        let mut output = vec![0; room];
        let mut at = 0;
        for _ in 0..100 {
            let progress = stream.advance(&input[at..], &mut output, NOW);
            at += progress.consumed;
            prop_assert!(progress.written <= room && at <= input.len());
            if progress.consumed == 0 && progress.written == 0 {
                break;
            }
        }
        prop_assert!(node.canaries_live());
    }
}
