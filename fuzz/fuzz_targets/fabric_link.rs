//! The serving end on UDP under hostile datagrams: nothing is taken that nobody signed, and memory stays bounded.
//!
//! The input is a list of datagrams, each behind a byte of length: raw ones, and fragments put together from a few bytes
//! each, which random bytes alone would hardly ever be.
#![no_main]

use std::sync::LazyLock;

use berth_identity::{
    Enrolled, Enrolment, Identity,
    link::{Received, Server},
};
use berth_port::Nanos;
use berth_wire::fabric::{Fragment, Frame, FrameFlags, FrameHeader, MsgType};
use libfuzzer_sys::fuzz_target;

static KEYS: LazyLock<Enrolled> =
    LazyLock::new(|| Enrolled::new([*Identity::from_seed(&[2; 32]).public_key()], Enrolment::Closed));

fuzz_target!(|input: &[u8]| {
    let mut server = Server::default();
    let mut now = 0;
    let mut rest = input;
    while let [len, port, tail @ ..] = rest {
        let (bytes, tail) = tail.split_at(tail.len().min((*len).into()));
        rest = tail;
        now += u64::from(*port) << 20;
        let source = ([10, 0, 0, port & 1], u16::from(*port)).into();
        let datagram = if port & 2 == 0 { bytes.to_vec() } else { fragment(bytes) };
        match server.receive(&datagram, source, &KEYS, Nanos(now)) {
            Received::Nothing => {}
            Received::Again(_) => panic!("nothing was answered"),
            Received::New(message, reply) => {
                // No one can sign here: a question without a signature, or an enrolment that the seeds hold.
                let allowed = [MsgType::Solicit, MsgType::Request, MsgType::PageRequest];
                assert!(allowed.contains(&message.kind));
                assert_eq!(reply.to, source);
            }
        }
        assert!(server.bytes() <= 128 << 20);
    }
    server.expire(Nanos(now + (60 << 30)));
    assert_eq!(server.bytes(), 0);
});

/// A frame of a few numbers and the payload that follows them.
fn fragment(bytes: &[u8]) -> Vec<u8> {
    let [kind, request_id, place, total, payload @ ..] = bytes else { return bytes.to_vec() };
    let (offset, total_len) = (u32::from(place >> 2) * 4, u32::from(*total) * 4);
    let last = offset + payload.len() as u32 == total_len || place & 2 != 0;
    let header = FrameHeader {
        msg_type: MsgType::ALL[usize::from(*kind) % MsgType::ALL.len()],
        flags: if last { FrameFlags::FINAL } else { FrameFlags::CONTINUED },
        sender: 1,
        request_id: u64::from(*request_id % 4),
        nonce: u64::from(request_id >> 6),
        payload_len: payload.len() as u32,
        fragment: (place & 1 == 0).then_some(Fragment { offset, total_len }),
    };
    let mut frame = Vec::new();
    Frame { header, payload, signature: None }.write(&mut frame);
    frame
}
