//! The journal's bytes: what was written comes back, a torn tail is cut, and damage elsewhere is refused.

use std::io::{self, Read};

use berth_fabric::Recovered;
use berth_fabric::journal::{
    Corrupt, End, FRAME_HEADER_LEN, Grant, HEADER_LEN, Handle, Record, Replay, ReplayError, encode, frame_header,
    header,
};
use berth_identity::NodeId;
use berth_port::Nanos;
use proptest::prelude::*;

const ID: u64 = 0x0123_4567_89AB_CDEF;

fn grant() -> impl Strategy<Value = Record> {
    let ids = (any::<u128>(), any::<u128>(), any::<u128>(), any::<u128>());
    let extent = (any::<u64>(), any::<u64>(), any::<u64>());
    let unit = proptest::collection::vec(any::<u8>(), 0..6);
    (ids, extent, any::<(u8, u64, u64, u64, u64)>(), unit).prop_map(|(ids, extent, rest, unit)| {
        Record::Granted(Grant {
            lease: ids.0,
            resource: ids.1,
            base: extent.0,
            len: extent.1,
            first: extent.2,
            holder: ids.2,
            token: ids.3,
            rights: rest.0,
            generation: rest.1,
            at: Nanos(rest.2),
            expires: Nanos(rest.3),
            grace: Nanos(rest.4),
            unit,
        })
    })
}

fn record() -> impl Strategy<Value = Record> {
    let id = any::<u128>();
    let time = any::<u64>().prop_map(Nanos);
    prop_oneof![
        (any::<u64>(), time.clone()).prop_map(|(epoch, at)| Record::Started { epoch, at }),
        grant(),
        (id, time.clone(), time.clone()).prop_map(|(lease, at, expires)| Record::Renewed { lease, at, expires }),
        id.prop_map(|lease| Record::Ended { lease }),
        (id, time.clone()).prop_map(|(lease, at)| Record::LeaseRevoked { lease, at }),
        (id, time.clone()).prop_map(|(token, at)| Record::LeasesRevoked { token, at }),
        id.prop_map(|lease| Record::LeaseFenced { lease }),
        (id, any::<u64>(), proptest::collection::vec(any::<u8>(), 0..6))
            .prop_map(|(lease, binding, client)| Record::Bound { lease, binding, client }),
        (id, any::<u64>()).prop_map(|(lease, binding)| Record::Unbound { lease, binding }),
        (id, time.clone()).prop_map(|(token, until)| Record::TokenRevoked { token, until }),
        any::<u64>().prop_map(|epoch| Record::FenceSet { epoch }),
        any::<[u8; 32]>().prop_map(|public_key| Record::Enrolled { public_key }),
        (id, any::<u64>()).prop_map(|(sender, nonce)| Record::Seen { sender, nonce }),
        id.prop_map(|key| Record::Unenrolled { key }),
        (id, time.clone(), any::<u64>(), time.clone())
            .prop_map(|(holder, at, issued_by, until)| Record::HolderRevoked { holder, at, issued_by, until }),
        (id, id, id, any::<(u16, u32)>(), time).prop_map(|(handle, lease, target, (kind, rights), expires)| {
            Record::Exported(Handle { handle, lease, target, kind, rights, expires })
        }),
    ]
}

/// A journal of these frames, and where each frame ends.
fn journal(frames: &[Vec<Record>]) -> (Vec<u8>, Vec<usize>) {
    let mut bytes = header(ID).to_vec();
    let mut ends = vec![bytes.len()];
    for (frame, sequence) in frames.iter().zip(1..) {
        let mut records = Vec::new();
        for record in frame {
            encode(record, &mut records);
        }
        bytes.extend(frame_header(ID, sequence, &records));
        bytes.extend(records);
        ends.push(bytes.len());
    }
    (bytes, ends)
}

fn read(bytes: &[u8]) -> Result<(Vec<Record>, End), Corrupt> {
    let corrupt = |error| match error {
        ReplayError::Corrupt(corrupt) => corrupt,
        ReplayError::Read(error) => unreachable!("slices can be read: {error}"),
    };
    let mut replay = Replay::new(bytes).map_err(corrupt)?;
    let records = replay.by_ref().collect::<Result<_, _>>().map_err(corrupt)?;
    Ok((records, replay.end().expect("the iteration ended")))
}

fn small() -> Vec<Vec<Record>> {
    vec![
        vec![Record::Started { epoch: 1, at: Nanos(7) }, Record::FenceSet { epoch: 3 }],
        vec![Record::Renewed { lease: 5, at: Nanos(1), expires: Nanos(2) }],
        vec![],
        vec![Record::Ended { lease: 5 }, Record::Enrolled { public_key: [9; 32] }],
    ]
}

#[test]
fn the_encoding_is_fixed() {
    let (bytes, ends) = journal(&small()[..2]);
    assert_eq!(ends, [32, 32 + 20 + 17 + 9, 32 + 20 + 17 + 9 + 20 + 33]);
    assert_eq!(&bytes[..32], b"BERTHJNL\0\0\0\x02\0\0\0\0\x01\x23\x45\x67\x89\xAB\xCD\xEF\x99\x87\x82\x7D\0\0\0\0");
    assert_eq!(&bytes[32..48], b"FBJF\0\0\0\x1A\0\0\0\0\0\0\0\x01");
    assert_eq!(&bytes[52..78], b"\x01\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x07\x08\0\0\0\0\0\0\0\x03");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_was_written_comes_back(frames in prop::collection::vec(prop::collection::vec(record(), 0..6), 0..6)) {
        let (bytes, _) = journal(&frames);
        prop_assert_eq!(read(&bytes), Ok((frames.concat(), End::Clean)));
    }

    #[test]
    fn hostile_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut framed = header(ID).to_vec();
        framed.extend(frame_header(ID, 1, &bytes));
        framed.extend(&bytes);
        let _ = read(&bytes);
        let _ = read(&framed);
    }
}

#[test]
fn a_journal_cut_anywhere_holds_its_whole_frames() {
    let frames = small();
    let (bytes, ends) = journal(&frames);
    for cut in 0..=bytes.len() {
        let Some(whole) = ends.iter().rposition(|&end| end <= cut) else {
            assert_eq!(read(&bytes[..cut]), Err(Corrupt::Header), "cut at {cut}");
            continue;
        };
        let lost = (cut - ends[whole]) as u64;
        let end = if lost == 0 { End::Clean } else { End::Torn { at: ends[whole] as u64, lost } };
        assert_eq!(read(&bytes[..cut]), Ok((frames[..whole].concat(), end)), "cut at {cut}");
    }
}

#[test]
fn every_flipped_bit_is_noticed() {
    let frames = small();
    let (bytes, ends) = journal(&frames);
    let last = ends[ends.len() - 2];
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << bit;
            let found = read(&damaged);
            if at < HEADER_LEN {
                assert_eq!(found, Err(Corrupt::Header), "bit {bit} of byte {at}");
            } else if at >= last {
                let end = End::Torn { at: last as u64, lost: (bytes.len() - last) as u64 };
                assert_eq!(found, Ok((frames[..3].concat(), end)), "bit {bit} of byte {at}");
            } else {
                let frame = ends.iter().rposition(|&end| end <= at).expect("behind the header");
                let corrupt = Corrupt::Frame { at: ends[frame] as u64, next: ends[frame + 1] as u64 };
                assert_eq!(found, Err(corrupt), "bit {bit} of byte {at}");
            }
        }
    }
}

#[test]
fn frames_of_other_journals_and_of_other_places_are_not_accepted() {
    let (first, ends) = journal(&small());
    // What an older journal left behind the end is a torn tail, not a corrupt middle.
    let mut reused = header(ID + 1).to_vec();
    reused.extend(&first[HEADER_LEN..]);
    let end = End::Torn { at: HEADER_LEN as u64, lost: (first.len() - HEADER_LEN) as u64 };
    assert_eq!(read(&reused), Ok((vec![], end)));
    // So are the zeros of a file that was made longer in advance.
    let mut longer = first.clone();
    longer.resize(first.len() + 100, 0);
    let end = End::Torn { at: first.len() as u64, lost: 100 };
    assert_eq!(read(&longer), Ok((small().concat(), end)));
    // A frame left out, or repeated.
    let missing = [&first[..ends[1]], &first[ends[2]..]].concat();
    let at = ends[1] as u64;
    assert_eq!(read(&missing), Err(Corrupt::Frame { at, next: at }));
    let repeated = [&first[..ends[1]], &first[ends[0]..]].concat();
    assert_eq!(read(&repeated), Err(Corrupt::Frame { at, next: at }));
}

#[test]
fn other_versions_and_unknown_records_are_refused() {
    let mut other = header(ID);
    other[11] = 1;
    let crc = crc32c::crc32c(&other[..24]);
    other[24..28].copy_from_slice(&crc.to_be_bytes());
    assert_eq!(read(&other), Err(Corrupt::Version(1)));
    for records in [&[0xFF_u8][..], &[0], &[4, 0, 0], &[8, 0, 0, 0, 0, 0, 0, 0, 3, 8]] {
        let mut bytes = header(ID).to_vec();
        bytes.extend(frame_header(ID, 1, records));
        bytes.extend(records);
        assert_eq!(read(&bytes), Err(Corrupt::Record { at: HEADER_LEN as u64 }), "{records:?}");
    }
}

#[test]
fn the_next_frame_follows_the_last() {
    let (bytes, _) = journal(&small());
    let mut replay = Replay::new(&bytes[..]).expect("a header");
    assert_eq!(replay.by_ref().count(), 5);
    assert_eq!((replay.id(), replay.next_sequence()), (ID, 5));
    assert_eq!(FRAME_HEADER_LEN, 20);
}

/// Frames cross the borders of the pieces in which a file is read.
#[test]
fn a_long_journal_is_read_in_pieces() {
    const PIECE: usize = 1 << 20;
    let fences = |epochs: std::ops::Range<u64>| epochs.map(|epoch| Record::FenceSet { epoch }).collect::<Vec<_>>();
    for next in [PIECE - 21, PIECE - 20, PIECE - 19, PIECE - 4, PIECE - 3, PIECE - 2, PIECE - 1, PIECE, PIECE + 1] {
        // Records of 9 and of 17 bytes fill the first frame up to `next`.
        let fill = next - HEADER_LEN - FRAME_HEADER_LEN;
        let ends = (fill * 8) % 9;
        let mut first = fences(0..((fill - 17 * ends) / 9) as u64);
        first.extend((0..ends).map(|lease| Record::Ended { lease: lease as u128 }));
        let frames = vec![first, fences(0..150_000), fences(0..1), fences(0..1000)];
        let (mut bytes, ends) = journal(&frames);
        assert_eq!(ends[1], next);
        assert_eq!(read(&bytes), Ok((frames.concat(), End::Clean)), "frame at {next}");
        bytes.extend(vec![0; 2 * PIECE]);
        let torn = End::Torn { at: ends[4] as u64, lost: 2 * PIECE as u64 };
        assert_eq!(read(&bytes), Ok((frames.concat(), torn)), "frame at {next}");
        bytes[HEADER_LEN + 40] ^= 1;
        let corrupt = Corrupt::Frame { at: HEADER_LEN as u64, next: next as u64 };
        assert_eq!(read(&bytes), Err(corrupt), "frame at {next}");
        bytes[next + 40] ^= 1;
        let corrupt = Corrupt::Frame { at: HEADER_LEN as u64, next: ends[2] as u64 };
        assert_eq!(read(&bytes), Err(corrupt), "frame at {next}");
    }
}

#[test]
fn a_file_that_cannot_be_read_is_neither_torn_nor_corrupt() {
    struct Fails;
    impl Read for Fails {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::ErrorKind::TimedOut.into())
        }
    }
    let (bytes, _) = journal(&small());
    for cut in 0..=bytes.len() {
        let failed = |error| matches!(error, ReplayError::Read(error) if error.kind() == io::ErrorKind::TimedOut);
        match Replay::new(bytes[..cut].chain(Fails)) {
            Err(error) => assert!(failed(error), "cut at {cut}"),
            Ok(mut replay) => {
                let error = replay.by_ref().find_map(Result::err).expect("it fails somewhere");
                assert!(failed(error), "cut at {cut}");
                assert_eq!(replay.end(), None, "cut at {cut}");
            }
        }
    }
}

/// The id of a key of these bytes.
fn id(byte: u8) -> u128 {
    NodeId::of(&[byte; 32]).0
}

fn grant_of(lease: u128) -> Record {
    grant_to(lease, 2)
}

fn grant_to(lease: u128, holder: u128) -> Record {
    Record::Granted(Grant {
        lease,
        resource: 1,
        base: 0,
        len: 4096,
        first: 0,
        holder,
        token: 3,
        rights: 3,
        generation: 1,
        at: Nanos(10),
        expires: Nanos(100),
        grace: Nanos(5),
        unit: Vec::new(),
    })
}

#[test]
fn records_add_up_and_a_snapshot_adds_up_to_the_same() {
    let handle = |handle, lease| Handle { handle, lease, target: 0, kind: 2, rights: 1, expires: Nanos(90) };
    let records = [
        Record::Started { epoch: 1, at: Nanos(9) },
        grant_to(20, 7),
        grant_of(21),
        grant_of(22),
        grant_of(23),
        Record::Renewed { lease: 21, at: Nanos(20), expires: Nanos(200) },
        Record::Renewed { lease: 99, at: Nanos(21), expires: Nanos(200) },
        Record::Exported(handle(30, 20)),
        Record::Imported { handle: 30, importer: 5, key: 41 },
        Record::Imported { handle: 30, importer: 6, key: 42 },
        Record::Imported { handle: 30, importer: 2, key: 45 },
        Record::Exported(handle(31, 21)),
        Record::Exported(handle(32, 22)),
        Record::Exported(handle(33, 23)),
        Record::Imported { handle: 31, importer: 5, key: 41 },
        Record::Imported { handle: 31, importer: 6, key: 42 },
        Record::Imported { handle: 32, importer: 5, key: 43 },
        Record::Imported { handle: 34, importer: 5, key: 44 },
        Record::LeaseRevoked { lease: 22, at: Nanos(30) },
        Record::LeaseFenced { lease: 22 },
        Record::Ended { lease: 23 },
        Record::TokenRevoked { token: 3, until: Nanos(330) },
        Record::TokenRevoked { token: 3, until: Nanos(320) },
        Record::FenceSet { epoch: 5 },
        Record::Seen { sender: 2, nonce: 8 },
        Record::Seen { sender: 2, nonce: 7 },
        Record::Enrolled { public_key: [4; 32] },
        Record::Enrolled { public_key: [5; 32] },
        Record::Unenrolled { key: id(5) },
        Record::HolderRevoked { holder: 2, at: Nanos(40), issued_by: 1, until: Nanos(300_000_000_000) },
        grant_of(24),
    ];
    let mut state: Recovered = records.iter().cloned().collect();
    assert_eq!((state.epoch, state.latest, state.fence), (1, Nanos(40), Some(5)));
    assert_eq!(state.leases.keys().collect::<Vec<_>>(), [&20, &21, &22, &24]);
    assert_eq!((state.leases[&21].grant.expires, state.leases[&21].revoked), (Nanos(200), Some(Nanos(40))));
    assert_eq!(state.leases[&24].revoked, None, "granted after its holder's revocation");
    assert_eq!(state.leases[&20].revoked, None, "another's");
    assert_eq!((state.leases[&22].revoked, state.leases[&22].fenced), (Some(Nanos(30)), true));
    assert_eq!(state.handles, [(20, vec![handle(30, 20)])].into(), "the others' leases were revoked");
    assert_eq!(attached(&state), [(30, 5, 41), (30, 6, 42)]);
    assert_eq!(state.enrolled, [(id(4), [4; 32])].into());
    assert_eq!(state.removed, [id(5)].into());
    assert_eq!(state.revoked_tokens, [(3, Nanos(330))].into());
    assert_eq!(state.seen, [(2, 8)].into());
    state.forget_lapsed();
    assert_eq!(state.records().collect::<Recovered>(), state);
}

/// Each attachment's handle, importer and key.
fn attached(state: &Recovered) -> Vec<(u128, u128, u64)> {
    state.attachments.iter().map(|attached| (attached.handle, attached.importer, attached.key)).collect()
}

fn grant_under(lease: u128, token: u128, holder: u128, at: u64) -> Record {
    let Record::Granted(grant) = grant_of(lease) else { unreachable!() };
    Record::Granted(Grant { token, holder, at: Nanos(at), expires: Nanos(at + 100), ..grant })
}

#[test]
fn a_revocation_of_many_takes_back_what_lived_then_and_nothing_later() {
    let token = |token, at| Record::LeasesRevoked { token, at: Nanos(at) };
    let holder =
        |holder, at| Record::HolderRevoked { holder, at: Nanos(at), issued_by: 0, until: Nanos(300_000_000_000) };
    let records = [
        grant_under(1, 10, 20, 1),
        grant_under(2, 10, 21, 2),
        grant_under(3, 11, 20, 3),
        grant_under(4, 12, 22, 4),
        Record::LeaseRevoked { lease: 3, at: Nanos(5) },
        Record::Exported(Handle { handle: 50, lease: 2, target: 0, kind: 1, rights: 1, expires: Nanos(90) }),
        Record::Imported { handle: 50, importer: 5, key: 9 },
        token(10, 6),
        holder(20, 7),
        // As by a holder who came back.
        grant_under(5, 13, 20, 8),
        holder(20, 9),
        grant_under(6, 14, 20, 10),
        Record::Ended { lease: 1 },
        // Past its grace, though nobody said so.
        holder(22, 109),
    ];
    let mut state: Recovered = records.into_iter().collect();
    let revoked = state.leases.iter().map(|(id, lease)| (*id, lease.revoked.map(|at| at.0)));
    let expected = [(2, Some(6)), (3, Some(5)), (4, None), (5, Some(9)), (6, None)];
    assert_eq!(revoked.collect::<Vec<_>>(), expected);
    assert!(state.handles.is_empty() && state.attachments.is_empty());
    assert_eq!(state.records().collect::<Recovered>(), state);
    // What is replayed later goes on from there.
    state.apply(token(14, 115));
    state.settle();
    assert_eq!(state.leases[&6].revoked, None, "it had ended");
}

/// With the largest number of handles, in a time that does not depend on it: to look at each handle at each end would
/// take an hour.
#[test]
fn a_replay_looks_at_no_handle_but_those_of_the_lease() {
    const MANY: u128 = 100_000;
    let handle = |id| Handle { handle: id, lease: id / 64, target: 0, kind: 1, rights: 1, expires: Nanos(1 << 40) };
    let records = (0..MANY)
        .flat_map(|id| [Record::Exported(handle(id)), Record::Imported { handle: id, importer: 1, key: id as u64 }])
        .chain((0..MANY).flat_map(|id| [grant_of(MANY + id), Record::Ended { lease: MANY + id }]))
        .chain((0..MANY).flat_map(|id| [grant_of(MANY + id), Record::LeaseRevoked { lease: MANY + id, at: Nanos(1) }]))
        .chain((0..MANY).map(|id| Record::LeasesRevoked { token: 3 * (id % 2), at: Nanos(20) }));
    let state: Recovered = records.collect();
    let handles = state.handles.values().flatten().count();
    assert_eq!((handles, state.attachments.len()), (MANY as usize, MANY as usize));
    assert_eq!(state.leases.len(), MANY as usize);
}

/// A lease's end takes its attachments with it, however many there were, though no record names them.
#[test]
fn attachments_that_are_gone_are_not_kept_for_the_length_of_a_replay() {
    const MANY: u128 = 1_000_000;
    let handle = |handle, lease| Handle { handle, lease, target: 0, kind: 1, rights: 1, expires: Nanos(1 << 40) };
    let mut state = Recovered::default();
    state.apply(Record::Exported(handle(0, 0)));
    state.apply(Record::Imported { handle: 0, importer: 1, key: 1 });
    let mut most = 0;
    for id in 1..MANY {
        state.apply(Record::Exported(handle(id, 1)));
        state.apply(Record::Imported { handle: id, importer: 1, key: id as u64 });
        state.apply(Record::Ended { lease: 1 });
        most = state.attachments.len().max(most);
    }
    assert!(most < MANY as usize / 2, "{most} at a time");
    state.settle();
    assert_eq!(attached(&state), [(0, 1, 1)]);
}

#[test]
fn a_holders_revocation_takes_what_it_imported_until_then() {
    let handle = |handle| Handle { handle, lease: 1, target: 0, kind: 1, rights: 1, expires: Nanos(1 << 40) };
    let import = |handle, importer, key| Record::Imported { handle, importer, key };
    let revoked = |at| Record::HolderRevoked { holder: 5, at: Nanos(at), issued_by: 0, until: Nanos(300_000_000_000) };
    let records = [
        grant_of(1),
        Record::Exported(handle(50)),
        Record::Exported(handle(51)),
        import(50, 5, 1),
        import(51, 5, 2),
        import(51, 6, 3),
        revoked(1),
        // As by one who came back, twice.
        import(50, 5, 4),
        import(50, 5, 5),
    ];
    let mut state: Recovered = records.into_iter().collect();
    assert_eq!(attached(&state), [(50, 5, 5), (51, 6, 3)]);
    // What is replayed later goes on from there.
    state.apply(revoked(2));
    state.apply(import(51, 5, 6));
    state.settle();
    assert_eq!(attached(&state), [(51, 5, 6), (51, 6, 3)]);
    assert_eq!(state.records().collect::<Recovered>(), state);
}

/// After one start under a clock that is years ahead, what was granted then still lasts as long as it was meant to.
#[test]
fn times_go_back_with_the_clock() {
    let records = [
        Record::Started { epoch: 1, at: Nanos(1_000) },
        grant_under(1, 10, 20, 1_010),
        grant_under(2, 10, 20, 1_020),
        Record::Exported(Handle { handle: 50, lease: 1, target: 0, kind: 1, rights: 1, expires: Nanos(1_090) }),
        Record::LeaseRevoked { lease: 2, at: Nanos(1_030) },
        Record::TokenRevoked { token: 10, until: Nanos(1_330) },
        Record::Started { epoch: 2, at: Nanos(530) },
    ];
    let state: Recovered = records.into_iter().collect();
    let Grant { at, expires, .. } = state.leases[&1].grant;
    assert_eq!((state.latest, at, expires), (Nanos(530), Nanos(510), Nanos(610)));
    assert_eq!((state.leases[&2].revoked, state.handles[&1][0].expires), (Some(Nanos(530)), Nanos(590)));
    assert_eq!(state.revoked_tokens[&10], Nanos(1_330), "tokens go by the host's clock");
    assert_eq!(state.records().collect::<Recovered>(), state);
}
