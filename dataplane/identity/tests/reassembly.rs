//! Fragments in any order, repeated, overlapping, missing, and in floods.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use berth_identity::NodeId;
use berth_identity::link::{
    Drop, Drops, FRAGMENT_LIFE, MAX_REASSEMBLIES_PER_SOURCE, MAX_REASSEMBLY_BYTES, Message, Reassembly, Replay,
};
use berth_port::Nanos;
use berth_wire::fabric::{Fragment, Frame, FrameFlags, FrameHeader, MsgType};
use proptest::prelude::*;

const NOW: Nanos = Nanos(5_000_000_000);

fn source(host: u32, port: u16) -> SocketAddr {
    (IpAddr::V4(host.into()), port).into()
}

/// The frame of `payload[from..to]` in a message of `total` bytes.
fn piece(request_id: u64, payload: &[u8], from: usize, to: usize) -> Frame<'_> {
    let flag = if to == payload.len() { FrameFlags::FINAL } else { FrameFlags::CONTINUED };
    Frame {
        header: FrameHeader {
            msg_type: MsgType::Request,
            flags: flag,
            sender: 1,
            request_id,
            nonce: 9,
            payload_len: (to - from) as u32,
            fragment: Some(Fragment { offset: from as u32, total_len: payload.len() as u32 }),
        },
        payload: &payload[from..to],
        signature: None,
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 % 253) as u8).collect()
}

struct Case {
    reassembly: Reassembly,
    drops: Drops,
}

impl Case {
    fn new() -> Self {
        Self { reassembly: Reassembly::default(), drops: Drops::default() }
    }

    fn add(&mut self, frame: &Frame<'_>, now: Nanos) -> Option<Message<'static>> {
        self.reassembly.add(source(1, 1), frame, now, &mut self.drops)
    }
}

/// A message length and the offsets at which it is cut.
fn cuts() -> impl Strategy<Value = (usize, Vec<usize>)> {
    (2..6000_usize).prop_flat_map(|len| {
        let cuts = prop::collection::btree_set(1..len, 1..12);
        (Just(len), cuts.prop_map(move |cuts| [0].into_iter().chain(cuts).chain([len]).collect()))
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn order_and_copies_do_not_matter(
        (len, cuts) in cuts(),
        order in prop::collection::vec(any::<prop::sample::Index>(), 0..40),
    ) {
        let payload = pattern(len);
        let pieces: Vec<_> = cuts.windows(2).map(|cut| piece(3, &payload, cut[0], cut[1])).collect();
        let mut case = Case::new();
        let mut seen = vec![false; pieces.len()];
        let mut joined = None;
        // Copies and pieces at random, then whatever is left.
        let order = order.iter().map(|at| at.index(pieces.len())).chain(0..pieces.len());
        for at in order {
            seen[at] = true;
            let whole = case.add(&pieces[at], NOW);
            prop_assert_eq!(whole.is_some(), seen.iter().all(|seen| *seen));
            if whole.is_some() {
                joined = whole;
                break;
            }
        }
        prop_assert_eq!(&joined.unwrap().payload[..], &payload[..]);
        prop_assert_eq!((case.reassembly.len(), case.reassembly.bytes()), (0, 0));
        prop_assert_eq!(case.drops.get(Drop::Conflicting), 0);
    }

    #[test]
    fn what_is_incomplete_times_out((len, cuts) in cuts(), lost in any::<prop::sample::Index>()) {
        let payload = pattern(len);
        let mut pieces: Vec<_> = cuts.windows(2).map(|cut| piece(3, &payload, cut[0], cut[1])).collect();
        let lost = pieces.remove(lost.index(pieces.len()));
        let mut case = Case::new();
        for piece in &pieces {
            prop_assert_eq!(case.add(piece, NOW), None);
        }
        case.reassembly.expire(NOW + Duration::from_nanos(1_999_999_999), &mut case.drops);
        prop_assert_eq!(case.reassembly.len(), 1);
        let late = NOW + FRAGMENT_LIFE;
        prop_assert_eq!(case.add(&lost, late), None);
        prop_assert_eq!(case.drops.get(Drop::TimedOut), 1);
        case.reassembly.expire(late + FRAGMENT_LIFE, &mut case.drops);
        prop_assert_eq!((case.reassembly.len(), case.reassembly.bytes()), (0, 0));
    }

    #[test]
    fn an_overlap_drops_the_whole(
        (len, cuts) in cuts(),
        from in any::<prop::sample::Index>(),
        size in 1..1200_usize,
    ) {
        let payload = pattern(len);
        let from = from.index(len);
        let to = (from + size).min(len);
        let pieces: Vec<_> = cuts.windows(2).map(|cut| (cut[0], cut[1])).collect();
        let sent = &pieces[..pieces.len() - 1];
        let overlaps = sent.iter().any(|(a, b)| *a < to && from < *b) && !sent.contains(&(from, to));
        let mut case = Case::new();
        for (a, b) in sent {
            prop_assert_eq!(case.add(&piece(3, &payload, *a, *b), NOW), None);
        }
        let whole = case.add(&piece(3, &payload, from, to), NOW);
        prop_assert_eq!(case.drops.get(Drop::Conflicting), u64::from(overlaps));
        prop_assert_eq!(whole.is_some(), !overlaps && (from, to) == *pieces.last().unwrap());
        prop_assert_eq!(case.reassembly.is_empty(), overlaps || whole.is_some());
    }

    #[test]
    fn each_nonce_of_the_window_is_accepted_once(
        nonces in prop::collection::vec(
            prop_oneof![0..3000_u64, Just(u64::MAX), u64::MAX - 2000..u64::MAX, 100_000..103_000_u64],
            0..400,
        ),
    ) {
        let mut replay = Replay::default();
        let mut used = std::collections::HashSet::new();
        let mut highest: Option<u64> = None;
        for nonce in nonces {
            let in_window = highest.is_none_or(|highest| u128::from(nonce) + 1024 > u128::from(highest));
            let fresh = in_window && !used.contains(&nonce);
            prop_assert_eq!(replay.is_fresh(NodeId(1), nonce), fresh);
            prop_assert_eq!(replay.accept(NodeId(1), nonce), fresh);
            prop_assert!(replay.is_fresh(NodeId(2), nonce), "each sender has its own");
            if fresh {
                used.insert(nonce);
                highest = Some(highest.map_or(nonce, |highest| highest.max(nonce)));
            }
        }
    }
}

#[test]
fn the_same_place_with_other_bytes_is_an_overlap() {
    let (payload, other) = (pattern(3000), vec![0xEE; 3000]);
    let mut case = Case::new();
    case.add(&piece(3, &payload, 0, 1200), NOW);
    assert_eq!(case.add(&piece(3, &payload, 0, 1200), NOW), None);
    assert_eq!(case.drops.get(Drop::Conflicting), 0, "the same again is ignored");
    case.add(&piece(3, &other, 0, 1200), NOW);
    assert_eq!((case.drops.get(Drop::Conflicting), case.reassembly.len()), (1, 0));
}

#[test]
fn fragments_that_disagree_drop_the_whole() {
    let payload = pattern(3000);
    let longer = pattern(4000);
    let signature = [1; 64];
    let second = piece(3, &payload, 1200, 2400);
    let changes: [Frame<'_>; 5] = [
        Frame { header: FrameHeader { msg_type: MsgType::Solicit, ..second.header }, ..second },
        Frame { header: FrameHeader { nonce: 8, ..second.header }, ..second },
        Frame { header: FrameHeader { fragment: None, ..second.header }, ..second },
        Frame { signature: Some(&signature), ..second },
        piece(3, &longer, 1200, 2400),
    ];
    for changed in changes {
        let mut case = Case::new();
        case.add(&piece(3, &payload, 0, 1200), NOW);
        assert_eq!(case.add(&changed, NOW), None);
        assert_eq!((case.drops.get(Drop::Conflicting), case.reassembly.len()), (1, 0), "{:?}", changed.header);
    }
    let mut case = Case::new();
    case.add(&piece(3, &payload, 0, 1200), NOW);
    let elsewhere = case.reassembly.add(source(2, 1), &second, NOW, &mut case.drops);
    assert_eq!((elsewhere, case.reassembly.len()), (None, 2), "another address is another message");
}

#[test]
fn a_legacy_message_is_at_most_a_mebibyte() {
    let payload = pattern(1200);
    let mut legacy = piece(3, &payload, 0, 1200);
    legacy.header.fragment = None;
    legacy.header.flags = FrameFlags::CONTINUED;
    let mut case = Case::new();
    for _ in 0..(1 << 20) / 1200 {
        assert_eq!(case.add(&legacy, NOW), None);
    }
    assert_eq!(case.reassembly.len(), 1);
    assert_eq!(case.add(&legacy, NOW), None);
    assert_eq!((case.reassembly.len(), case.drops.get(Drop::Conflicting)), (0, 1));
}

#[test]
fn a_flood_of_half_messages_stays_within_the_limits_and_lets_others_through() {
    let payload = pattern(1 << 20);
    let mine = pattern(3000);
    let mut case = Case::new();
    let mut random = fastrand::Rng::with_seed(1);
    for i in 0..200_000_u64 {
        let from = random.usize(0..800) * 1200;
        let frame = piece(i, &payload, from, from + 1200);
        let host = random.u32(2..2000);
        case.reassembly.add(source(host, random.u16(..)), &frame, NOW, &mut case.drops);
        assert!(case.reassembly.bytes() <= MAX_REASSEMBLY_BYTES);
        if i % 50_000 == 49_999 {
            let whole = [(0, 1200), (1200, 2400), (2400, 3000)].map(|(a, b)| case.add(&piece(3, &mine, a, b), NOW));
            assert_eq!(&whole[2].as_ref().unwrap().payload[..], &mine[..]);
        }
    }
    assert!(case.drops.get(Drop::Evicted) > 100_000);
    assert_eq!(case.drops.get(Drop::Conflicting), 0);
    case.reassembly.expire(NOW + FRAGMENT_LIFE, &mut case.drops);
    assert_eq!((case.reassembly.len(), case.reassembly.bytes()), (0, 0));
}

#[test]
fn one_address_has_at_most_64_messages_under_way() {
    let payload = pattern(3000);
    let mut case = Case::new();
    for i in 0..100 {
        case.reassembly.add(source(1, i as u16), &piece(i, &payload, 0, 1200), NOW, &mut case.drops);
    }
    case.reassembly.add(source(2, 1), &piece(0, &payload, 0, 1200), NOW, &mut case.drops);
    assert_eq!(case.reassembly.len(), MAX_REASSEMBLIES_PER_SOURCE + 1);
    assert_eq!(case.drops.get(Drop::Evicted), 36);
}

#[test]
fn a_byte_at_a_time_costs_what_it_takes() {
    let payload = pattern(1 << 20);
    let mut case = Case::new();
    for at in (0..1 << 20).step_by(2) {
        case.add(&piece(3, &payload, at, at + 1), NOW);
    }
    assert!(case.reassembly.bytes() > 40 << 20, "the account includes what each piece costs to keep");
    assert!(case.reassembly.bytes() <= MAX_REASSEMBLY_BYTES);
}
