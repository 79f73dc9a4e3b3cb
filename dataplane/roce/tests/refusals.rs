//! What a peer must not do, and how it is handled.

mod common;

use berth_net::Transport as _;
use berth_port::{Frame, Peer, Verdict};
use berth_roce::{AddError, Local, RESTART, Registrar, Remote};
use berth_wire::{
    rendezvous::ImmForm,
    roce::{Opcode, Psn, Qpn},
};
use common::{CONFIG, Node, Raw, SLOTS, remote, v4, v6};

/// A port with one peer, which sends from number 0 on.
struct Case {
    port: Node,
    peer: Node,
    local: Local,
}

fn ignore(frame: &mut Frame<'_>) -> Verdict {
    panic!("lent {frame:?}")
}

impl Case {
    fn new() -> Self {
        let (mut port, peer) = (Node::new(2, CONFIG), Node::new(1, CONFIG));
        let local = port.add(&remote(v4(1), 0), 7);
        Self { port, peer, local }
    }

    /// A whole write to slot 0, with its immediate.
    fn write(&self, psn: u32) -> Raw {
        let payload = b"requests";
        Raw::new(Opcode::WriteOnlyImmediate, &self.local, psn, payload)
            .to(SLOTS.base, self.local.rkey, payload.len())
            .immediate(ImmForm::Psn20.join(psn, 0))
    }

    fn refused(&mut self, raw: &Raw) {
        let frame = raw.frame(&mut self.peer.host, v4(2));
        assert_eq!(self.port.rx(&frame, ignore), (None, None));
    }

    /// Checks that the frame that `raw` completes is `data`.
    fn taken(&mut self, raw: &Raw, data: &[u8]) {
        let frame = raw.frame(&mut self.peer.host, v4(2));
        let mut lent = Vec::new();
        self.port.rx(&frame, |frame| {
            lent = frame.data().to_vec();
            Verdict::Drop
        });
        assert_eq!(lent, data);
    }

    /// Checks that the port takes the next write, and that exactly `expected` was counted.
    fn recovers(mut self, psn: u32, expected: &[(&'static str, u64)]) {
        let write = self.write(psn);
        self.taken(&write, b"requests");
        let mut expected = expected.to_vec();
        expected.push(("peers_joined", 1));
        for of_the_next in ["roce_messages", "roce_packets"] {
            match expected.iter_mut().find(|(name, _)| *name == of_the_next) {
                Some((_, value)) => *value += 1,
                None => expected.push((of_the_next, 1)),
            }
        }
        expected.sort_unstable();
        assert_eq!(self.port.counted(), expected);
    }

    /// Checks that `raw`, number 0, is refused and counted under this name alone, and that the next packet is taken.
    fn is(mut self, name: &'static str, raw: &Raw) {
        self.refused(raw);
        self.recovers(1, &[(name, 1)]);
    }
}

#[test]
fn a_wrong_key_or_a_byte_too_many_writes_nothing() {
    let case = Case::new();
    let write = case.write(0);
    case.is("roce_wrong_rkey", &write.clone().to(SLOTS.base, write.reth.unwrap().1 ^ 1, 8));
    let end = SLOTS.base + SLOTS.bytes() as u64;
    for address in [SLOTS.base - 1, end - 7, end, u64::MAX - 3, 0] {
        let case = Case::new();
        let rkey = case.local.rkey;
        let write = case.write(0).to(address, rkey, 8);
        case.is("roce_out_of_range", &write);
    }
    // The last byte is in reach.
    let mut case = Case::new();
    let last = case.write(0).to(end - 8, case.local.rkey, 8);
    case.refused(&last);
    case.recovers(1, &[("slot_mismatches", 1)]);
}

#[test]
fn an_immediate_beyond_the_slots_is_an_overrun() {
    for slot in [8, 4095] {
        let case = Case::new();
        let write = case.write(0).immediate(slot);
        case.is("slot_overruns", &write);
    }
    let case = Case::new();
    let other = case.write(0).immediate(1);
    case.is("slot_mismatches", &other);
}

#[test]
fn a_corrupt_packet_is_nobodys() {
    let mut case = Case::new();
    let frame = case.write(0).frame(&mut case.peer.host, v4(2));
    // From the first byte of the transport header on, the congestion byte aside.
    let start = 14 + 20 + 8;
    let mut corrupt = 0;
    for at in (start..frame.len()).filter(|at| *at != start + 4) {
        let mut frame = frame.clone();
        frame[at] ^= 0x10;
        assert_eq!(case.port.rx(&frame, ignore), (None, None));
        corrupt += 1;
    }
    case.recovers(0, &[("roce_bad_icrc", corrupt)]);
}

#[test]
fn other_sources_and_partitions_are_told_apart() {
    let mut case = Case::new();
    let unknown = Raw { qpn: case.local.qpn.get() ^ 0x80_0000, ..case.write(0) };
    case.refused(&unknown);
    let limited = Raw { p_key: 0x7fff, ..case.write(0) };
    case.taken(&limited, b"requests");
    let other = Raw { p_key: 0xfffe, ..case.write(1) };
    case.refused(&other);
    let mut elsewhere = Node::new(3, CONFIG);
    for (other_host, port) in [(&mut elsewhere.host, v4(2)), (&mut case.peer.host, v6(2))] {
        let frame = Raw::new(Opcode::SendOnly, &case.local, 1, b"").frame(other_host, port);
        assert_eq!(case.port.rx(&frame, ignore), (None, None));
    }
    case.recovers(
        1,
        &[
            ("roce_unknown_qpn", 1),
            ("roce_wrong_p_key", 1),
            ("roce_wrong_source", 2),
            ("roce_packets", 1),
            ("roce_messages", 1),
        ],
    );
}

#[test]
fn other_operations_and_broken_packets_are_refused() {
    let mut case = Case::new();
    // RC SEND Only, and UC SEND First.
    for opcode in [0x04, 0x20] {
        let raw = Raw { opcode, reth: None, immediate: None, ..case.write(0) };
        case.refused(&raw);
    }
    let truncated = Raw { reth: None, immediate: None, payload: vec![0; 8], ..case.write(0) };
    case.refused(&truncated);
    let tiny = Raw { opcode: Opcode::SendOnly as u8, ..truncated };
    let mut frame = tiny.frame(&mut case.peer.host, v4(2));
    frame.truncate(14 + 20 + 8 + 12);
    frame[16..18].copy_from_slice(&40_u16.to_be_bytes());
    frame[24..26].fill(0);
    let sum = frame[14..34].chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum::<u32>();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame[38..40].copy_from_slice(&20_u16.to_be_bytes());
    assert_eq!(case.port.rx(&frame, ignore), (None, None));
    case.recovers(0, &[("roce_unknown_opcode", 2), ("roce_malformed", 2)]);
}

#[test]
fn stale_numbers_are_dropped_until_the_sender_has_begun_anew() {
    let mut case = Case::new();
    for psn in 0..20 {
        let write = case.write(psn);
        case.taken(&write, b"requests");
    }
    // A duplicate of the latest, and one that is half the circle away.
    for psn in [19, 20 + 0x80_0000] {
        let write = case.write(psn);
        case.refused(&write);
    }
    for psn in 0..RESTART - 1 {
        let write = case.write(psn);
        case.refused(&write);
    }
    let stale = u64::from(RESTART - 1) + 2;
    case.recovers(
        RESTART - 1,
        &[("roce_packets", 20), ("roce_messages", 20), ("roce_stale_psn", stale), ("psn_restarts", 1)],
    );
}

#[test]
fn a_gap_ends_the_message_under_way() {
    let payload: Vec<u8> = (0..300).map(|i| i as u8).collect();
    let parts = |case: &Case, from: u32| {
        let (local, rkey) = (&case.local, case.local.rkey);
        [
            Raw::new(Opcode::WriteFirst, local, from, &payload[..128]).to(SLOTS.base + 1024, rkey, 300),
            Raw::new(Opcode::WriteMiddle, local, from + 1, &payload[128..256]),
            Raw::new(Opcode::WriteLastImmediate, local, from + 2, &payload[256..]).immediate(1),
        ]
    };
    let mut case = Case::new();
    let [first, _, last] = parts(&case, 0);
    case.refused(&first);
    case.refused(&last);
    let [first, middle, last] = parts(&case, 3);
    case.refused(&first);
    case.refused(&middle);
    case.taken(&last, &payload);
    let expected = [
        ("roce_packets", 4),
        ("roce_messages", 1),
        ("psn_gaps", 1),
        ("psn_lost", 1),
        ("roce_broken_messages", 1),
        ("roce_orphans", 1),
    ];
    case.recovers(6, &expected);
}

#[test]
fn messages_have_the_length_that_they_say() {
    for len in [7, 9] {
        let case = Case::new();
        let write = case.write(0).to(SLOTS.base, case.local.rkey, len);
        case.is("roce_bad_length", &write);
    }
    let start =
        |case: &Case| Raw::new(Opcode::WriteFirst, &case.local, 0, &[1; 128]).to(SLOTS.base, case.local.rkey, 300);
    let wrong: [(Opcode, usize); 5] = [
        (Opcode::WriteMiddle, 124),
        (Opcode::WriteMiddle, 132),
        (Opcode::WriteLast, 128),
        (Opcode::WriteLast, 172),
        (Opcode::WriteLast, 176),
    ];
    for (opcode, len) in wrong {
        let mut case = Case::new();
        let first = start(&case);
        case.refused(&first);
        let next = Raw::new(opcode, &case.local, 1, &vec![2; len]);
        case.refused(&next);
        case.recovers(2, &[("roce_packets", 1), ("roce_bad_length", 1), ("roce_broken_messages", 1)]);
    }
    // A first packet that is the whole message, or nothing of it.
    for len in [0, 8] {
        let case = Case::new();
        let raw = Raw::new(Opcode::WriteFirst, &case.local, 0, &vec![1; len]).to(SLOTS.base, case.local.rkey, 8);
        case.is("roce_bad_length", &raw);
    }
}

#[test]
fn a_frame_may_come_in_several_writes_without_a_gap() {
    let part = |case: &Case, opcode, psn, at: u64, bytes: &[u8]| {
        Raw::new(opcode, &case.local, psn, bytes).to(SLOTS.base + 2048 + at, case.local.rkey, bytes.len())
    };
    // As the FPGA splits it, and with an immediate that comes alone.
    let mut case = Case::new();
    let a = part(&case, Opcode::WriteOnly, 0, 0, b"abcd");
    let b = part(&case, Opcode::WriteOnlyImmediate, 1, 4, b"efgh").immediate(2);
    let c = part(&case, Opcode::WriteOnly, 2, 0, b"ijkl");
    let d = part(&case, Opcode::WriteOnlyImmediate, 3, 0, b"").immediate(2);
    case.refused(&a);
    case.taken(&b, b"abcdefgh");
    case.refused(&c);
    case.taken(&d, b"ijkl");
    // The first half lost: the second would complete another frame's.
    let e = part(&case, Opcode::WriteOnlyImmediate, 5, 4, b"mnop").immediate(2);
    case.refused(&e);
    let expected =
        [("roce_packets", 4), ("roce_messages", 4), ("psn_gaps", 1), ("psn_lost", 1), ("slot_mismatches", 1)];
    case.recovers(6, &expected);
}

#[test]
fn peers_come_and_go_and_are_capped() {
    let mut port = Node::new(2, CONFIG);
    let mut peer = Node::new(1, CONFIG);
    let peers: Vec<Local> = (0..4).map(|_| port.add(&remote(v4(1), 0), 0)).collect();
    let refused = port.registrar.add(&remote(v4(1), 0), Psn::new(0), || 0);
    assert_eq!(refused, Err(AddError::Full(4)));
    assert!(port.registrar.remove(peers[1].qpn));
    port.endpoint.poll();
    for (nth, local) in peers.iter().enumerate() {
        let frame = Raw::new(Opcode::SendOnly, local, 0, b"still there").frame(&mut peer.host, v4(2));
        let (lent, _) = port.rx(&frame, |_| Verdict::Drop);
        assert_eq!(lent.is_some(), nth != 1);
    }
    assert_eq!(port.counters()["roce_unknown_qpn"], 1);
    let again = port.add(&remote(v4(1), 0), 0);
    assert!(peers.iter().all(|local| local.qpn != again.qpn && local.rkey != again.rkey));
    assert_eq!((port.counters()["peers_joined"], port.counters()["peers_left"]), (5, 1));
}

#[test]
fn queue_pairs_have_ordinary_numbers_of_their_own() {
    let mut port = Node::new(2, CONFIG);
    // The management pairs' numbers, multicast, one that is taken by its low bits, and one with bits to spare.
    let mut numbers = [0, 1, 0x00ff_ffff, 0x11_0005, 0xaaaa, 0x22_0005, 0xff33_0006, 0xbbbb].into_iter();
    let mut random = || numbers.next().unwrap();
    let remote: Remote = remote(v4(1), 0);
    let first = port.registrar.add(&remote, Psn::new(1), &mut random).unwrap();
    let second = port.registrar.add(&remote, Psn::new(1), &mut random).unwrap();
    assert_eq!((first.qpn, first.rkey), (Qpn::new(0x11_0005), 0xaaaa));
    assert_eq!((second.qpn, second.rkey), (Qpn::new(0x33_0006), 0xbbbb));
    let peer = Peer::Connection { number: second.qpn.get(), host: Some(v4(1)) };
    assert_eq!(Registrar::peer(v4(1), &second), peer);
}
