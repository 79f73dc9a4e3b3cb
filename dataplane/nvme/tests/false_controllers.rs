//! Our own initiator against controllers that break the rules, or are none.

mod common;

use std::time::Duration;

use berth_nvme::host::{Command, Controller, Data, Error, Queue};
use berth_port::Next;
use berth_wire::nvme::{
    Cqe, Sqe, Status,
    fabrics::Connected,
    opcode,
    pdu::{DataPdu, Fatal, Framing, IcReq, IcResp, Kind, TermReq, flags},
};
use common::{line::*, mutation::mutate, *};
use fastrand::Rng;
use zerocopy::{FromBytes as _, IntoBytes as _};

#[test]
fn a_silent_controller_is_given_up() {
    let mut controller = Controller::new(settings(0), names("nqn.x", HOST), 1, NOW);
    let mut output = vec![0; Queue::OUTPUT];
    let first = controller.advance(&[], &mut output, NOW);
    assert_eq!((first.written, first.next), (IcReq::LEN, Next::Input(8)));
    let late = NOW + Duration::from_millis(1001);
    assert_eq!(controller.advance(&[], &mut output, late).next, Next::Close);
    assert_eq!(controller.error(), Some(Error::Timeout));
}

/// A queue of a controller that this test is, with a read of 1024 bytes, a write of 512 in its capsule, and a write of 16 KiB
/// under way. Their identifiers.
fn with_a_false_controller(node: &Node, digests: u8) -> (Queue, Mine, [u16; 3]) {
    let mut admin = Line::admin(node, &node.memory, digests, 4096);
    let mut queue = admin.controller().queue(1, 3, NOW);
    let mut mine = Mine { data: vec![vec![7; 16 << 10]; 3], ..Mine::default() };
    let mut output = vec![0; Queue::OUTPUT];
    let initialise = IcResp::new(0, digests, 8192);
    queue.advance(&[], &mut output, &mut mine);
    queue.advance(initialise.as_bytes(), &mut output, &mut mine);
    let header = if digests & 1 == 0 { 72 } else { 76 };
    let cid = |pdu: &[u8]| Sqe::parse(&pdu[8..]).unwrap().cid.get();
    let result = Connected { controller: 1, authenticate: false }.dword();
    let joined = response(digests, &Cqe::new(cid(&output), 0xFFFF, result.into(), Status::SUCCESS));
    queue.advance(&joined, &mut output, &mut mine);
    assert_eq!(queue.joined(), Some(1));
    let read = Command { sqe: access(opcode::io::READ, 0, 2), data: Data::In(1024) };
    let short = Command { sqe: access(opcode::io::WRITE, 0, 1), data: Data::Out(512) };
    let long = Command { sqe: access(opcode::io::WRITE, 0, 32), data: Data::Out(16 << 10) };
    let cids = [read, short, long].map(|command| {
        queue.submit(command, NOW).unwrap();
        let sent = queue.advance(&[], &mut output, &mut mine);
        assert!(sent.written >= header);
        cid(&output)
    });
    mine.data.iter_mut().for_each(Vec::clear);
    (queue, mine, cids)
}

fn framing(digests: u8) -> Framing {
    Framing::new(digests & 1 != 0, digests & 2 != 0, 0)
}

fn response(digests: u8, cqe: &Cqe) -> Vec<u8> {
    let mut pdu = vec![0; 64];
    let len = framing(digests).response(&mut pdu, cqe).unwrap();
    pdu.truncate(len);
    pdu
}

fn data(digests: u8, cid: u16, offset: u32, len: usize, flags: u8) -> Vec<u8> {
    let mut pdu = vec![0; 64];
    let head = framing(digests).c2h_data(&mut pdu, cid, offset, len as u32, flags).unwrap();
    pdu.truncate(head);
    pdu.resize(head + len, 0x33);
    if digests & 2 != 0 {
        pdu.extend(crc32c::crc32c(&vec![0x33; len]).to_le_bytes());
    }
    pdu
}

fn r2t(cid: u16, ttag: u16, offset: u32, len: u32) -> Vec<u8> {
    let mut pdu = vec![0; 64];
    let head = framing(0).r2t(&mut pdu, cid, ttag, offset, len).unwrap();
    pdu.truncate(head);
    pdu
}

fn ended(cid: u16, status: Status) -> Vec<u8> {
    response(0, &Cqe::new(cid, 0xFFFF, 0, status))
}

/// What a controller says, of the identifiers of three commands under way and two flags.
type Say = fn([u16; 3], u8, u8) -> Vec<u8>;

#[test]
fn what_a_controller_may_not_say_ends_the_connection() {
    let node = node();
    let (last, success) = (flags::LAST, flags::LAST | flags::SUCCESS);
    let field = Fatal::field;
    let cases: [(&str, Fatal, Say); 20] = [
        ("a type that hosts send", field(0), |_, _, _| IcReq::new(0, 0, 0).as_bytes().to_vec()),
        ("a second ICResp", Fatal::SEQUENCE, |_, _, _| IcResp::new(0, 0, 8192).as_bytes().to_vec()),
        ("an end of no command", field(20), |_, _, _| ended(0x3FF, Status::SUCCESS)),
        ("a read that ends without its data", Fatal::SEQUENCE, |[read, ..], _, _| ended(read, Status::SUCCESS)),
        ("a write that ends before its data", Fatal::SEQUENCE, |[.., long], _, _| ended(long, Status::SUCCESS)),
        ("data of no command", field(8), |_, last, _| data(0, 0x3FF, 0, 512, last)),
        ("data of a write", field(8), |[_, short, _], last, _| data(0, short, 0, 512, last)),
        ("data from elsewhere", Fatal::OUT_OF_RANGE, |[read, ..], last, _| data(0, read, 512, 512, last)),
        ("more data than was asked for", Fatal::OUT_OF_RANGE, |[read, ..], last, _| data(0, read, 0, 1536, last)),
        ("the last data too early", field(1), |[read, ..], last, _| data(0, read, 0, 512, last)),
        ("the end too early", field(1), |[read, ..], _, success| data(0, read, 0, 512, success)),
        ("no last data", field(1), |[read, ..], _, _| data(0, read, 0, 1024, 0)),
        ("data twice", Fatal::OUT_OF_RANGE, |[read, ..], last, _| {
            [data(0, read, 0, 1024, last), data(0, read, 0, 1024, last)].concat()
        }),
        ("a digest that nobody asked for", field(1), |[read, ..], last, _| data(3, read, 0, 1024, last)),
        ("an R2T for a read", field(8), |[read, ..], _, _| r2t(read, 1, 0, 1024)),
        ("an R2T for data in a capsule", Fatal::OUT_OF_RANGE, |[_, short, _], _, _| r2t(short, 1, 0, 512)),
        ("an R2T from elsewhere", Fatal::OUT_OF_RANGE, |[.., long], _, _| r2t(long, 1, 4, 512)),
        ("an R2T beyond the data", Fatal::OUT_OF_RANGE, |[.., long], _, _| r2t(long, 1, 0, (16 << 10) + 4)),
        ("an R2T for nothing", Fatal::OUT_OF_RANGE, |[.., long], _, _| r2t(long, 1, 0, 0)),
        ("a length that is none", field(4), |[read, ..], _, _| {
            let mut pdu = ended(read, Status::SUCCESS);
            pdu[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
            pdu
        }),
    ];
    for (what, fatal, say) in cases {
        for piece in [1, usize::MAX] {
            let (mut queue, mut mine, cids) = with_a_false_controller(&node, 0);
            let (bytes, mut output) = (say(cids, last, success), vec![0; Queue::OUTPUT]);
            let (mut at, mut have) = (0, 0);
            let done = loop {
                let done = queue.advance(&bytes[at..have], &mut output, &mut mine);
                at += done.consumed;
                if done.next == Next::Close || have == bytes.len() {
                    break done;
                }
                have = have.saturating_add(piece).min(bytes.len());
            };
            assert_eq!(queue.error(), Some(Error::Violation(fatal)), "{what}");
            assert_eq!((done.next, output[0]), (Next::Close, Kind::H2cTermReq as u8), "{what}");
            assert_eq!(TermReq::parse(&output).unwrap().fatal(), fatal, "{what}");
            assert_eq!(queue.advance(&bytes, &mut output, &mut mine).written, 0, "{what}: it has ended");
        }
    }
}

#[test]
fn a_second_r2t_is_one_too_many_until_the_first_has_its_data() {
    let node = node();
    let (mut queue, mut mine, [.., long]) = with_a_false_controller(&node, 0);
    mine.data[2] = pattern(3, 16 << 10);
    let two = [r2t(long, 1, 0, 4096), r2t(long, 2, 4096, 4096)].concat();
    // No room for data: the first one is still asked for.
    queue.advance(&two, &mut [0; 200], &mut mine);
    assert_eq!(queue.error(), Some(Error::Violation(Fatal::LIMIT_EXCEEDED)));

    let (mut queue, mut mine, [.., long]) = with_a_false_controller(&node, 0);
    mine.data[2] = pattern(3, 16 << 10);
    let mut output = vec![0; Queue::OUTPUT];
    let mut sent = Vec::new();
    for (ttag, offset, len) in [(9, 0, 12_288), (10, 12_288, 4096)] {
        let mut input = r2t(long, ttag, offset, len);
        loop {
            let done = queue.advance(&input, &mut output, &mut mine);
            input.drain(..done.consumed);
            let mut pdus = &output[..done.written];
            while !pdus.is_empty() {
                let pdu = DataPdu::ref_from_bytes(&pdus[..24]).unwrap();
                assert_eq!((pdu.cccid.get(), pdu.ttag.get(), pdu.offset.get()), (long, ttag, sent.len() as u32));
                let bytes = pdu.len.get() as usize;
                assert!(bytes <= 8192, "more than MAXH2CDATA");
                sent.extend_from_slice(&pdus[24..24 + bytes]);
                assert_eq!(pdu.common.flags & flags::LAST != 0, sent.len() as u32 == offset + len);
                pdus = &pdus[24 + bytes..];
            }
            if matches!(done.next, Next::Input(_)) && done.written == 0 {
                break;
            }
        }
    }
    assert_eq!(sent, pattern(3, 16 << 10));
    queue.advance(&ended(long, Status::SUCCESS), &mut output, &mut mine);
    assert_eq!(mine.ended, [(2, Status::SUCCESS)]);
}

#[test]
fn a_write_that_fails_early_sends_no_more() {
    let node = node();
    let (mut queue, mut mine, [.., long]) = with_a_false_controller(&node, 0);
    let both = [r2t(long, 1, 0, 16 << 10), ended(long, Status::ACCESS_DENIED)].concat();
    queue.advance(&both, &mut [0; 200], &mut mine);
    assert_eq!((mine.ended.clone(), queue.error()), (vec![(2, Status::ACCESS_DENIED)], None));
    let mut output = vec![0; Queue::OUTPUT];
    assert_eq!(queue.advance(&[], &mut output, &mut mine).written, 0);
}

#[test]
fn a_wrong_digest_of_data_fails_the_command_and_of_a_header_the_connection() {
    let node = node();
    let (mut queue, mut mine, [read, ..]) = with_a_false_controller(&node, 3);
    let mut output = vec![0; Queue::OUTPUT];
    let mut bytes = data(3, read, 0, 1024, flags::LAST | flags::SUCCESS);
    bytes[100] ^= 1;
    queue.advance(&bytes, &mut output, &mut mine);
    assert_eq!((mine.ended.clone(), queue.error()), (vec![(0, Status::TRANSIENT_TRANSPORT_ERROR)], None));
    let mut bytes = response(3, &Cqe::new(read, 0xFFFF, 0, Status::SUCCESS));
    bytes[12] ^= 1;
    queue.advance(&bytes, &mut output, &mut mine);
    assert_eq!(queue.error(), Some(Error::Violation(Fatal::HEADER_DIGEST)));
}

#[test]
fn digests_that_are_not_granted_are_no_connection() {
    let node = node();
    let mut admin = Line::admin(&node, &node.memory, 3, 4096);
    let mut output = vec![0; Queue::OUTPUT];
    for (response, expected) in [
        (IcResp::new(0, 1, 8192), Error::Digests(1)),
        (IcResp::new(0, 3, 4092), Error::Violation(Fatal::field(12))),
        (IcResp::new(0, 3, 4098), Error::Violation(Fatal::field(12))),
        (IcResp::new(32, 3, 8192), Error::Violation(Fatal::field(10))),
    ] {
        let mut queue = admin.controller().queue(1, 3, NOW);
        queue.advance(&[], &mut output, &mut Mine::default());
        queue.advance(response.as_bytes(), &mut output, &mut Mine::default());
        assert_eq!(queue.error(), Some(expected));
    }
}

/// Sound answers with a few bytes changed, dropped or repeated: an error or none, and nothing else.
#[test]
fn hostile_controllers_are_survived() {
    let node = node();
    for seed in 0..3000 {
        let mut rng = Rng::with_seed(seed);
        let digests = if rng.bool() { 0 } else { 3 };
        let (mut queue, mut mine, cids) = with_a_false_controller(&node, digests);
        mine.data[2] = vec![1; 16 << 10];
        let mut bytes = Vec::new();
        for _ in 0..rng.usize(1..6) {
            let cid = cids[rng.usize(0..3)];
            bytes.extend(match rng.u32(0..3) {
                0 => response(digests, &Cqe::new(cid, 0xFFFF, 0, Status::from_word(rng.u16(..) & 0x0601))),
                1 => data(digests, cid, rng.u32(0..3) * 512, rng.usize(1..3) * 512, rng.u8(0..16)),
                _ => r2t(cid, rng.u16(..), rng.u32(0..3) * 4096, rng.u32(0..5) * 4096),
            });
        }
        mutate(&mut bytes, &mut rng);
        let (mut at, mut have) = (0, 0);
        let mut output = vec![0; rng.usize(0..Queue::OUTPUT)];
        loop {
            // Reads of both kinds are compared by nobody here: what comes twice is refused before it gets here.
            let done = queue.advance(&bytes[at..have], &mut output, &mut mine);
            assert!(done.consumed <= have - at && done.written <= output.len());
            at += done.consumed;
            match done.next {
                Next::Close => break assert!(queue.error().is_some()),
                Next::Input(wanted) => assert!(wanted > have - at && wanted <= Queue::INPUT, "seed {seed}"),
                Next::Output(room) if room > output.len() => output.resize(room, 0),
                Next::Output(_) => continue,
                Next::Completion => panic!("nothing to complete"),
            }
            if have == bytes.len() {
                break;
            }
            have = (have + rng.usize(1..600)).min(bytes.len());
        }
        let mut ended: Vec<_> = mine.ended.iter().map(|(number, _)| *number).collect();
        ended.sort_unstable();
        ended.dedup();
        assert_eq!(ended.len(), mine.ended.len(), "seed {seed}: a command ends twice");
    }
}
