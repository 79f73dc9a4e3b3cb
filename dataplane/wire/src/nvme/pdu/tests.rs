//! Every header that may come and every one that may not.

use proptest::prelude::*;
use zerocopy::IntoBytes;

use super::*;
use crate::nvme::{Cqe, Sqe, Status};

const CAPSULE_MAX: u32 = 8192;

/// Writes a head: framing, to where, CCCID, TTAG, offset, length.
type Write = fn(Framing, &mut [u8], u16, u16, u32, u32) -> Option<usize>;

fn rules(sender: Side, framing: Framing) -> Rules {
    Rules { sender, initialised: true, framing, capsule_data_max: CAPSULE_MAX }
}

fn header(kind: u8, flags: u8, hlen: u8, pdo: u8, plen: u32) -> [u8; 8] {
    let plen = plen.to_le_bytes();
    [kind, flags, hlen, pdo, plen[0], plen[1], plen[2], plen[3]]
}

/// What a controller makes of a header from a host that has agreed to no digest.
fn received(header: [u8; 8]) -> Result<(usize, u32), Fatal> {
    Header::parse(&header, &rules(Side::Host, Framing::default())).map(|header| (header.data_at, header.data_len))
}

fn field(offset: u32) -> Fatal {
    Fatal { status: 1, information: offset }
}

#[test]
fn who_may_send_what_and_when() {
    for number in 0..=255 {
        for sender in [Side::Host, Side::Controller] {
            let hlen = Kind::of(number).map_or(24, |kind| kind.header_len() as u8);
            // Where data is needed there are four bytes.
            let data = if [6, 7].contains(&number) { 4 } else { 0 };
            let pdo = if data > 0 { hlen } else { 0 };
            let bytes = header(number, 0, hlen, pdo, u32::from(hlen) + data);
            let parse = |initialised| {
                let rules = Rules { initialised, ..rules(sender, Framing::default()) };
                Header::parse(&bytes, &rules).map(|header| header.kind as u8)
            };
            let (before, after) = match (number, sender) {
                (0, Side::Host) | (1, Side::Controller) => (Ok(number), Err(Fatal::SEQUENCE)),
                (2 | 4 | 6, Side::Host) | (5 | 7 | 9, Side::Controller) => (Err(Fatal::SEQUENCE), Ok(number)),
                (3, Side::Controller) => (Ok(number), Ok(number)),
                _ => (Err(field(0)), Err(field(0))),
            };
            assert_eq!((parse(false), parse(true)), (before, after), "{number} from {sender:?}");
        }
    }
}

#[test]
fn the_length_of_a_header_is_its_kinds() {
    for kind in Kind::ALL {
        for hlen in 0..=255_u8 {
            let bytes = header(kind as u8, 0, hlen, hlen, u32::from(hlen) + 4);
            let initialised = !matches!(kind, Kind::IcReq | Kind::IcResp);
            let rules = Rules { initialised, ..rules(kind.sender(), Framing::default()) };
            let wrong = usize::from(hlen) != kind.header_len();
            assert_eq!(Header::parse(&bytes, &rules) == Err(field(2)), wrong, "{kind:?} {hlen}");
        }
    }
}

#[test]
fn lengths_of_a_command() {
    assert_eq!(received(header(4, 0, 72, 0, 72)), Ok((72, 0)));
    assert_eq!(received(header(4, 0, 72, 72, 73)), Ok((72, 1)));
    assert_eq!(received(header(4, 0, 72, 72, 72 + CAPSULE_MAX)), Ok((72, CAPSULE_MAX)));
    assert_eq!(received(header(4, 0, 72, 252, 252 + CAPSULE_MAX)), Ok((252, CAPSULE_MAX)));
    for (pdo, plen) in [(0, 0), (0, 8), (0, 71), (72, 73 + CAPSULE_MAX), (72, u32::MAX), (80, 76), (80, 80)] {
        assert_eq!(received(header(4, 0, 72, pdo, plen)), Err(field(4)), "{pdo} {plen}");
    }
    for (pdo, plen) in [(72, 72), (1, 72), (0, 73), (68, 76), (73, 80), (74, 80), (255, 300)] {
        assert_eq!(received(header(4, 0, 72, pdo, plen)), Err(field(3)), "{pdo} {plen}");
    }
    for flag in [1, 2, 3] {
        assert_eq!(received(header(4, flag, 72, 72, 80)), Err(field(1)), "{flag}");
        assert_eq!(received(header(4, flag, 72, 0, 72)), Err(field(1)), "{flag}");
    }
}

#[test]
fn lengths_of_the_others() {
    let host =
        |header| Header::parse(&header, &rules(Side::Controller, Framing::default())).map(|header| header.data_len);
    for kind in [5, 9] {
        assert_eq!(host(header(kind, 0, 24, 0, 24)), Ok(0));
        assert_eq!(host(header(kind, 0, 24, 24, 28)), Err(field(4)));
        assert_eq!(host(header(kind, 0, 24, 0, 23)), Err(field(4)));
        assert_eq!(host(header(kind, 0, 24, 24, 24)), Err(field(3)));
    }
    assert_eq!(host(header(7, 0, 24, 24, 28)), Ok(4));
    assert_eq!(host(header(7, 0, 24, 0, 24)), Err(field(4)));
    assert_eq!(received(header(6, 0, 24, 24, u32::MAX)), Ok((24, u32::MAX - 24)), "DATAL decides");
    assert_eq!(received(header(6, 0, 24, 0, 24)), Err(field(4)));
    for (plen, expected) in [(23, Err(field(4))), (24, Ok((24, 0))), (152, Ok((24, 128))), (153, Err(field(4)))] {
        assert_eq!(received(header(2, 3, 24, 99, plen)), expected, "{plen}");
    }
    let mut first = rules(Side::Host, Framing::default());
    first.initialised = false;
    for (plen, right) in [(127, false), (128, true), (129, false)] {
        let parsed = Header::parse(&header(0, 0xff, 128, 0xff, plen), &first);
        assert_eq!(parsed.map(|header| header.len), if right { Ok(128) } else { Err(field(4)) }, "{plen}");
    }
}

#[test]
fn digests_and_alignment_are_those_agreed_on() {
    let parse = |header: [u8; 8]| Header::parse(&header, &rules(Side::Host, Framing::new(true, true, 3)));
    let expected = Header { kind: Kind::CapsuleCmd, flags: 3, len: 76, data_at: 80, data_len: 512, data_digest: true };
    assert_eq!(parse(header(4, 3, 72, 80, 80 + 512 + 4)), Ok(expected));
    assert_eq!(parse(header(4, 1, 72, 0, 76)).map(|header| header.data_len), Ok(0));
    assert_eq!(parse(header(4, 3, 72, 0, 76)), Err(field(1)), "no digest without data");
    assert_eq!(parse(header(4, 0, 72, 0, 76)), Err(field(1)));
    assert_eq!(parse(header(4, 1, 72, 80, 600)), Err(field(1)));
    assert_eq!(parse(header(4, 2, 72, 80, 600)), Err(field(1)));
    assert_eq!(parse(header(4, 3, 72, 76, 600)), Err(field(3)), "a multiple of 16");
    assert_eq!(parse(header(4, 1, 72, 0, 75)), Err(field(4)), "no room for the digest");
    assert_eq!(parse(header(4, 3, 72, 80, 84)), Err(field(4)), "a digest of nothing");
    assert_eq!(parse(header(4, 3, 72, 80, 85)).map(|header| header.data_len), Ok(1));
}

#[test]
fn a_wrong_header_digest() {
    let framing = Framing::new(true, false, 0);
    let mut head = [0; HEAD_MAX];
    let len = framing.command(&mut head, &Sqe::new(2, 7, 1), 0).unwrap();
    assert_eq!(len, 76);
    let header = Header::parse(head.first_chunk().unwrap(), &rules(Side::Host, framing)).unwrap();
    assert_eq!(header.check_digest(&head[..76]), Ok(()));
    assert_eq!(header.check_digest(&head[..75]), Err(Fatal::HEADER_DIGEST));
    for bit in 0..76 * 8 {
        head[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(header.check_digest(&head[..76]), Err(Fatal::HEADER_DIGEST), "bit {bit}");
        head[bit / 8] ^= 1 << (bit % 8);
    }
}

#[test]
fn pdus_are_laid_out_as_documented() {
    let request = IcReq::new(3, HEADER_DIGEST | DATA_DIGEST, 0x102);
    let mut expected = [0; 128];
    expected[..16].copy_from_slice(&[0, 0, 128, 0, 128, 0, 0, 0, 0, 0, 3, 3, 2, 1, 0, 0]);
    assert_eq!(request.as_bytes(), expected);
    let response = IcResp::new(0, DATA_DIGEST, 0x2_0000);
    expected[..16].copy_from_slice(&[1, 0, 128, 0, 128, 0, 0, 0, 0, 0, 0, 2, 0, 0, 2, 0]);
    assert_eq!(response.as_bytes(), expected);

    let plain = Framing::default();
    let mut to = [0xEE; HEAD_MAX];
    assert_eq!(plain.response(&mut to, &Cqe::new(7, 2, 0, Status::SUCCESS)), Some(24));
    assert_eq!(to[..24], [5, 0, 24, 0, 24, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 7, 0, 0, 0]);
    assert_eq!(plain.r2t(&mut to, 7, 0x8001, 0x1000, 0x2000), Some(24));
    assert_eq!(to[..24], [9, 0, 24, 0, 24, 0, 0, 0, 7, 0, 1, 0x80, 0, 0x10, 0, 0, 0, 0x20, 0, 0, 0, 0, 0, 0]);
    assert_eq!(plain.h2c_data(&mut to, 7, 0x8001, 0x1000, 0x2000, true), Some(24));
    assert_eq!(to[..24], [6, 4, 24, 24, 24, 0x20, 0, 0, 7, 0, 1, 0x80, 0, 0x10, 0, 0, 0, 0x20, 0, 0, 0, 0, 0, 0]);
    let digests = Framing::new(true, true, 7);
    assert_eq!(digests.c2h_data(&mut to, 7, 0, 512, flags::LAST | flags::SUCCESS), Some(32));
    // CRC-32C by a bitwise loop in another language.
    let data = [
        7, 15, 24, 32, 36, 2, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0x7E, 0xF6, 0xF3, 0x86, 0, 0, 0, 0,
    ];
    assert_eq!(to[..32], data);

    let fatal = Fatal::field(10);
    let mut to = [0xEE; TermReq::MAX + 1];
    assert_eq!(TermReq::write(&mut to, Kind::C2hTermReq, fatal, &data[..24]), Some(48));
    assert_eq!(to[..24], [3, 0, 24, 0, 48, 0, 0, 0, 1, 0, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!((&to[24..48], to[48]), (&data[..24], 0xEE));
    assert_eq!(TermReq::parse(&to).map(TermReq::fatal), Some(fatal));
    assert_eq!(TermReq::write(&mut to, Kind::C2hTermReq, fatal, &[9; 500]), Some(152));
    assert_eq!(TermReq::write(&mut to[..40], Kind::C2hTermReq, fatal, &data[..24]), None);
}

#[test]
fn what_an_initialisation_may_ask_for() {
    assert_eq!(IcReq::new(31, 1, 0).accept(), Ok(Framing::new(true, false, 31)));
    assert_eq!(IcReq::new(32, 1, 0).accept(), Err(field(10)));
    assert_eq!(IcReq::new(0, 0xFE, 0).accept(), Ok(Framing::new(false, true, 0)), "reserved bits");
    let mut other = IcReq::new(0, 0, 0);
    other.pfv = 1.into();
    assert_eq!(other.accept(), Err(Fatal { status: 6, information: 8 }));
    assert_eq!(IcResp::new(31, 2, 4096).accept(), Ok(Framing::new(false, true, 31)));
    assert_eq!(IcResp::new(32, 2, 4096).accept(), Err(field(10)));
}

#[test]
fn the_length_of_data_is_said_twice() {
    let mut head = [0; HEAD_MAX];
    Framing::default().h2c_data(&mut head, 7, 9, 0, 4096, false);
    let header = Header::parse(head.first_chunk().unwrap(), &rules(Side::Host, Framing::default())).unwrap();
    assert_eq!(DataPdu::checked(&head, &header, 4096).map(|data| data.ttag.get()), Ok(9));
    assert_eq!(DataPdu::checked(&head, &header, 4095), Err(Fatal::LIMIT_EXCEEDED));
    for len in [0, 4095, 4097] {
        head[16..20].copy_from_slice(&u32::to_le_bytes(len));
        assert_eq!(DataPdu::checked(&head, &header, 8192), Err(field(4)), "{len}");
    }
}

#[test]
fn no_head_is_longer_than_the_longest() {
    let mut longest = 0;
    for alignment in 0..32 {
        for digest in [false, true] {
            let framing = Framing::new(digest, true, alignment);
            longest = longest.max(framing.data_at(Kind::CapsuleCmd)).max(framing.data_at(Kind::C2hData));
        }
    }
    assert_eq!(longest, HEAD_MAX);
}

proptest! {
    #[test]
    fn what_is_written_is_read(
        header_digest: bool, data_digest: bool, alignment in 0..32_u8, data_len in 0..=CAPSULE_MAX, cid: u16, tag: u16,
        offset: u32, size in 0..=HEAD_MAX,
    ) {
        let framing = Framing::new(header_digest, data_digest, alignment);
        let some = data_len.max(1);
        let cases: [(Kind, u32, Write); 5] = [
            (Kind::CapsuleCmd, data_len, |f, to, cid, _, _, len| f.command(to, &Sqe::new(1, cid, 1), len)),
            (Kind::CapsuleResp, 0, |f, to, cid, _, _, _| f.response(to, &Cqe::new(cid, 0, 0, Status::SUCCESS))),
            (Kind::H2cData, some, |f, to, cid, tag, offset, len| f.h2c_data(to, cid, tag, offset, len, true)),
            (Kind::C2hData, some, |f, to, cid, _, offset, len| f.c2h_data(to, cid, offset, len, flags::LAST)),
            (Kind::R2t, 0, |f, to, cid, tag, offset, _| f.r2t(to, cid, tag, offset, 4)),
        ];
        for (kind, data_len, write) in cases {
            let mut head = [0xEE; HEAD_MAX];
            let len = write(framing, &mut head, cid, tag, offset, data_len).unwrap();
            let header = Header::parse(head.first_chunk().unwrap(), &rules(kind.sender(), framing)).unwrap();
            prop_assert_eq!((header.kind, header.data_len, header.data_at), (kind, data_len, len));
            prop_assert_eq!(header.data_digest, data_digest && data_len > 0);
            prop_assert_eq!(header.check_digest(&head[..header.len]), Ok(()));
            prop_assert!(head[header.len..len].iter().all(|&byte| byte == 0) && head[len..].iter().all(|&byte| byte == 0xEE));
            prop_assert_eq!(write(framing, &mut head[..size], cid, tag, offset, data_len).is_some(), size >= len);
        }
        let mut head = [0; HEAD_MAX];
        prop_assert_eq!(framing.c2h_data(&mut head, 0, 0, u32::MAX, 0), None, "longer than PLEN can say");
    }

    #[test]
    fn a_header_never_promises_more_than_it_has(
        bytes: [u8; 8], kind in 0..10_u8, header_digest: bool, data_digest: bool, alignment in 0..32_u8, host: bool,
    ) {
        let mut bytes = bytes;
        bytes[0] = kind;
        if let Some(kind) = Kind::of(kind) {
            bytes[2] = kind.header_len() as u8;
        }
        let sender = if host { Side::Host } else { Side::Controller };
        let rules = rules(sender, Framing::new(header_digest, data_digest, alignment));
        if let Ok(header) = Header::parse(&bytes, &rules) {
            let plen = u64::from(u32::from_le_bytes(bytes[4..].try_into().unwrap()));
            let digest = if header.data_digest { 4 } else { 0 };
            prop_assert_eq!(header.data_at as u64 + u64::from(header.data_len) + digest, plen);
            prop_assert!(header.len <= HEAD_MAX && header.len <= header.data_at && header.data_at <= 252);
        }
    }
}
