//! Commits, restarts, damage and compaction, through the public interface.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::{FileExt, MetadataExt},
    path::Path,
    ptr, thread,
};

use berth_fabric::Recovered;
use berth_fabric::journal::{Corrupt, FRAME_HEADER_LEN, Grant, HEADER_LEN, Handle, MAX_FRAME_LEN, Record, encode};
use berth_journal::{Failure, Journal, JournalError, OpenError, Torn};
use berth_port::Nanos;
use tempfile::TempDir;

fn ended(leases: impl IntoIterator<Item = u128>) -> Vec<Record> {
    leases.into_iter().map(|lease| Record::Ended { lease }).collect()
}

/// One `Seen` record per sender. A compaction leaves them, behind [`LEFT`].
fn seen(senders: impl IntoIterator<Item = u128>) -> Vec<Record> {
    senders.into_iter().map(|sender| Record::Seen { sender, nonce: 1 }).collect()
}

/// What a compaction leaves of a node that never started.
const LEFT: Record = Record::Started { epoch: 0, at: Nanos(0) };

fn grant(lease: u128) -> Grant {
    Grant {
        lease,
        resource: 1,
        base: 0,
        len: 4096,
        first: 0,
        holder: 2,
        token: 3,
        rights: 3,
        generation: 1,
        at: Nanos(10),
        expires: Nanos(100),
        grace: Nanos(5),
        unit: Vec::new(),
    }
}

fn granted(leases: impl IntoIterator<Item = u128>) -> Vec<Record> {
    leases.into_iter().map(|lease| Record::Granted(grant(lease))).collect()
}

/// Length of a frame with these records.
fn frame_len(records: &[Record]) -> u64 {
    let mut bytes = Vec::new();
    for record in records {
        encode(record, &mut bytes);
    }
    (FRAME_HEADER_LEN + bytes.len()) as u64
}

/// A journal, and the records found in it.
#[derive(Debug)]
struct Found {
    journal: Journal,
    records: Vec<Record>,
    torn: Option<Torn>,
}

fn try_open(dir: &Path) -> Result<Found, OpenError> {
    let mut records = Vec::new();
    let opened = Journal::open(dir, |record| records.push(record))?;
    Ok(Found { journal: opened.journal, records, torn: opened.torn })
}

fn open(dir: &Path) -> Found {
    try_open(dir).unwrap()
}

fn count(journal: &Journal, wanted: &str) -> u64 {
    let mut found = None;
    journal.counters(&mut |name, value| found = found.or((name == wanted).then_some(value)));
    found.expect(wanted)
}

#[test]
fn what_was_committed_is_there_again_in_its_order() {
    let dir = TempDir::new().unwrap();
    let state = dir.path().join("state/journal");
    let Found { journal, records, torn } = open(&state);
    assert_eq!((records, torn), (vec![], None));
    let all = vec![
        Record::Started { epoch: 1, at: Nanos(5) },
        Record::FenceSet { epoch: 9 },
        Record::Renewed { lease: 7, at: Nanos(6), expires: Nanos(8) },
    ];
    journal.commit(&all[..1]).wait().unwrap();
    // Unawaited commits happen too, and dropping the journal waits for them.
    drop(journal.commit(&all[1..2]));
    drop(journal.commit(&[]));
    drop(journal.commit(&all[2..]));
    assert_eq!(journal.failure(), None);
    drop(journal);
    for _ in 0..2 {
        let again = open(&state);
        assert_eq!((&again.records, again.torn), (&all, None));
    }
    assert_eq!(fs::metadata(&state).unwrap().mode() & 0o777, 0o700);
    assert_eq!(fs::metadata(state.join("journal")).unwrap().mode() & 0o777, 0o600);
}

#[test]
fn commits_of_many_share_their_syncs() {
    let dir = TempDir::new().unwrap();
    let journal = open(dir.path()).journal;
    thread::scope(|scope| {
        for client in 0..16 {
            let journal = &journal;
            scope.spawn(move || {
                for n in 0..50 {
                    journal.commit(&ended([client << 64 | n])).wait().unwrap();
                }
            });
        }
    });
    let (commits, groups) = (count(&journal, "journal_commits"), count(&journal, "journal_groups"));
    assert_eq!(commits, 800);
    assert!(groups < commits, "{groups} groups");
    drop(journal);
    let mut next = [0; 16];
    for record in open(dir.path()).records {
        let Record::Ended { lease } = record else { panic!("{record:?}") };
        let (client, n) = ((lease >> 64) as usize, lease as u64);
        assert_eq!(n, next[client]);
        next[client] += 1;
    }
    assert_eq!(next, [50; 16]);
}

#[tokio::test]
async fn tickets_are_futures() {
    let dir = TempDir::new().unwrap();
    let journal = open(dir.path()).journal;
    let (one, two) = (journal.commit(&ended([1])), journal.commit(&ended([2])));
    assert_eq!((two.await, one.await), (Ok(()), Ok(())));
}

#[test]
fn only_one_process_at_a_time() {
    let dir = TempDir::new().unwrap();
    let first = open(dir.path());
    let error = try_open(dir.path()).unwrap_err();
    assert!(matches!(&error, OpenError::Locked(path) if path == dir.path()), "{error}");
    drop(first);
    open(dir.path());
}

/// Other threads start programs: between fork and exec their children have the journal's files open.
#[test]
fn a_forked_child_does_not_keep_a_closed_journal_locked() {
    let dir = TempDir::new().unwrap();
    let journal = open(dir.path());
    // SAFETY: the child only waits for its end.
    let child = unsafe { libc::fork() };
    if child == 0 {
        loop {
            // SAFETY: no pointers.
            unsafe { libc::pause() };
        }
    }
    drop(journal);
    let again = try_open(dir.path());
    // SAFETY: the child is this test's, and not waited for yet; nobody wants its status.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, ptr::null_mut(), 0);
    }
    assert!(again.is_ok(), "{again:?}");
}

#[test]
fn more_records_than_a_frame_holds_are_several_frames() {
    let dir = in_memory();
    let journal = open(dir.path()).journal;
    // 17 bytes each.
    let many = 2 * MAX_FRAME_LEN as u128 / 17;
    journal.commit(&ended(0..many)).wait().unwrap();
    journal.commit(&ended([1])).wait().unwrap();
    assert_eq!((count(&journal, "journal_commits"), count(&journal, "journal_groups")), (2, 5));
    drop(journal);
    assert_eq!(open(dir.path()).records, ended((0..many).chain([1])));
}

/// A journal with four commits; returns its sound part.
fn sample(dir: &Path) -> Vec<u8> {
    let journal = open(dir).journal;
    for lease in 0..4 {
        journal.commit(&ended([lease])).wait().unwrap();
    }
    let len = count(&journal, "journal_bytes");
    drop(journal);
    let mut bytes = fs::read(dir.join("journal")).unwrap();
    assert_eq!(len, HEADER_LEN as u64 + 4 * 37);
    assert!(bytes.len() >= 8 << 20 && bytes[len as usize..].iter().all(|&byte| byte == 0));
    bytes.truncate(len as usize);
    bytes
}

/// A directory for large files, on a file system where syncing is free if there is one.
fn in_memory() -> TempDir {
    TempDir::new_in("/dev/shm").or_else(|_| TempDir::new()).unwrap()
}

/// What a start finds in a journal with these bytes. If it starts, what is committed then must be there at the next
/// start.
fn restart(dir: &Path, bytes: &[u8]) -> Result<(Vec<Record>, Option<Torn>), OpenError> {
    fs::write(dir.join("journal"), bytes).unwrap();
    let Found { journal, records, torn } = try_open(dir)?;
    journal.commit(&ended([99])).wait().unwrap();
    drop(journal);
    let again = open(dir);
    assert_eq!((again.records, again.torn), ([&records[..], &ended([99])].concat(), None));
    Ok((records, torn))
}

#[test]
fn a_journal_cut_at_any_byte_keeps_its_whole_commits() {
    let dir = in_memory();
    let bytes = sample(dir.path());
    for cut in 0..=bytes.len() {
        let found = restart(dir.path(), &bytes[..cut]);
        if cut < HEADER_LEN {
            let error = found.unwrap_err();
            assert!(matches!(error, OpenError::Corrupt { corrupt: Corrupt::Header, .. }), "cut at {cut}: {error}");
            continue;
        }
        let whole = (cut - HEADER_LEN) / 37;
        let at = HEADER_LEN + whole * 37;
        // Zeros at the end may as well have been written ahead.
        let lost = bytes[at..cut].iter().rposition(|&byte| byte != 0).map_or(0, |last| last as u64 + 1);
        let torn = (lost > 0).then_some(Torn { at: at as u64, lost });
        assert_eq!(found.unwrap(), (ended(0..whole as u128), torn), "cut at {cut}");
    }
}

#[test]
fn a_flipped_byte_is_a_torn_tail_or_refused() {
    let dir = in_memory();
    let mut bytes = sample(dir.path());
    let last = bytes.len() - 37;
    let sound = bytes.len();
    // As a file is after a crash: with the zeros ahead.
    bytes.resize(sound + 10_000, 0);
    for at in 0..sound {
        bytes[at] ^= 0xff;
        let found = restart(dir.path(), &bytes);
        bytes[at] ^= 0xff;
        if at >= last {
            assert_eq!(found.unwrap(), (ended(0..3), Some(Torn { at: last as u64, lost: 37 })), "byte {at}");
            continue;
        }
        let error = found.unwrap_err();
        match &error {
            OpenError::Corrupt { corrupt: Corrupt::Header, .. } => assert!(at < HEADER_LEN, "byte {at}"),
            OpenError::Corrupt { corrupt: Corrupt::Frame { at: frame, next }, .. } => {
                let start = HEADER_LEN + (at - HEADER_LEN) / 37 * 37;
                assert_eq!((*frame, *next), (start as u64, start as u64 + 37), "byte {at}");
            }
            _ => panic!("byte {at}: {error}"),
        }
        assert!(error.to_string().contains("bring the file back from a backup, or move it away"), "{error}");
    }
}

#[test]
fn a_compaction_replaces_what_was_and_keeps_what_comes() {
    let dir = TempDir::new().unwrap();
    let journal = open(dir.path()).journal;
    for _ in 0..100 {
        drop(journal.commit(&seen(0..1000)));
    }
    // State that takes its time to read and to write, and commits meanwhile.
    journal.commit(&seen(1000..100_000)).wait().unwrap();
    thread::scope(|scope| {
        let ticket = journal.compact();
        assert_eq!(journal.compact().wait(), Err(JournalError::Compacting));
        for client in 1..5 {
            let journal = &journal;
            scope.spawn(move || {
                for n in 0..100 {
                    journal.commit(&seen([client << 64 | n])).wait().unwrap();
                }
            });
        }
        ticket.wait().unwrap();
    });
    assert_eq!(count(&journal, "journal_compactions"), 1);
    let state = HEADER_LEN as u64 + frame_len(&[LEFT]) + frame_len(&seen(0..100_000));
    let since = 400 * frame_len(&seen([0]));
    // Frames of state are 1 MiB; commits that came together share one.
    let bytes = count(&journal, "journal_bytes");
    assert!((state..state + since + 2 * FRAME_HEADER_LEN as u64).contains(&bytes), "{state} {bytes}");
    drop(journal);
    let records = open(dir.path()).records;
    assert_eq!(records.len(), 1 + 100_000 + 400);
    assert_eq!((&records[0], &records[1..=100_000]), (&LEFT, &seen(0..100_000)[..]));
    let expected: BTreeSet<_> = (1..5).flat_map(|client| (0..100).map(move |n| client << 64 | n)).collect();
    let since = records[100_001..].iter().map(|record| match record {
        Record::Seen { sender, nonce: 1 } => *sender,
        record => panic!("{record:?}"),
    });
    assert_eq!(since.collect::<BTreeSet<_>>(), expected);
}

#[test]
fn a_compaction_leaves_nothing_of_leases_that_ended() {
    let dir = TempDir::new().unwrap();
    let journal = open(dir.path()).journal;
    journal.commit(&granted(0..1000)).wait().unwrap();
    journal.commit(&ended(2..1000)).wait().unwrap();
    journal.commit(&[Record::Renewed { lease: 1, at: Nanos(20), expires: Nanos(200) }]).wait().unwrap();
    journal.compact().wait().unwrap();
    let renewed = Record::Granted(Grant { expires: Nanos(200), ..grant(1) });
    let left = [Record::Started { epoch: 0, at: Nanos(20) }, Record::Granted(grant(0)), renewed];
    assert_eq!(count(&journal, "journal_bytes"), HEADER_LEN as u64 + frame_len(&left));
    // The next one reads what that one wrote, and what came since.
    journal.commit(&ended([0])).wait().unwrap();
    journal.compact().wait().unwrap();
    journal.commit(&ended([3])).wait().unwrap();
    drop(journal);
    assert_eq!(open(dir.path()).records, [&left[..1], &left[2..], &ended([3])].concat());
    assert!(!dir.path().join("journal.new").exists());
}

/// With so many leases that the journal is read in several passes, everything that it adds up to is there exactly once.
#[test]
fn a_long_journal_is_compacted_in_passes() {
    let dir = in_memory();
    let journal = open(dir.path()).journal;
    for first in (0..600_000).step_by(50_000) {
        journal.commit(&granted(first..first + 50_000)).wait().unwrap();
    }
    let handle = |lease| Handle { handle: lease, lease, target: 0, kind: 1, rights: 1, expires: Nanos(1 << 40) };
    for lease in (0..1000).step_by(10) {
        let later = Nanos(1000);
        let of_leases = [
            Record::Renewed { lease, at: Nanos(20), expires: later },
            Record::Exported(handle(lease)),
            Record::Imported { handle: lease, importer: 1, key: 5 },
            Record::Ended { lease: lease + 1 },
            Record::LeaseRevoked { lease: lease + 2, at: later },
            Record::Exported(handle(lease + 3)),
            Record::LeaseRevoked { lease: lease + 3, at: later },
            Record::LeaseFenced { lease: lease + 3 },
            Record::Seen { sender: lease, nonce: 3 },
            Record::TokenRevoked { token: lease, until: Nanos(1 << 40) },
            // Forgotten: it lapsed.
            Record::TokenRevoked { token: lease + 1, until: Nanos(1000) },
        ];
        drop(journal.commit(&of_leases));
    }
    journal.commit(&[Record::Started { epoch: 7, at: Nanos(1000) }, Record::FenceSet { epoch: 4 }]).wait().unwrap();
    assert!(count(&journal, "journal_bytes") > 64 << 20);
    drop(journal);
    let Found { journal, records, .. } = open(dir.path());
    let mut state: Recovered = records.into_iter().collect();
    state.forget_lapsed();
    assert_eq!((state.leases.len(), state.handles.len(), state.latest), (599_900, 100, Nanos(1000)));
    journal.compact().wait().unwrap();
    drop(journal);
    let records = open(dir.path()).records;
    // The start, the fence, the leases, those revoked, those fenced, handles and attachments, senders and tokens.
    assert_eq!(records.len(), 1 + 1 + 599_900 + 200 + 100 + 100 + 100 + 100 + 100);
    assert!(records.into_iter().collect::<Recovered>() == state);
}

/// The same with a restart right after: first the state, then every commit since, once each and in order.
#[test]
fn a_restart_after_a_compaction_finds_state_and_commits() {
    let dir = TempDir::new().unwrap();
    let journal = open(dir.path()).journal;
    drop(journal.commit(&seen(0..50_000)));
    let ticket = journal.compact();
    let later: Vec<_> = (1 << 64..(1 << 64) + 300).collect();
    // In the queue together with the compaction, and behind it.
    drop(journal.commit(&seen(later[..100].iter().copied())));
    thread::scope(|scope| {
        scope.spawn(|| later[100..].iter().for_each(|&sender| journal.commit(&seen([sender])).wait().unwrap()));
        ticket.wait().unwrap();
    });
    drop(journal);
    assert_eq!(open(dir.path()).records, [vec![LEFT], seen(0..50_000), seen(later)].concat());
}

#[test]
fn an_unfinished_compaction_is_forgotten() {
    let dir = in_memory();
    let journal = open(dir.path()).journal;
    // So long that the journal is closed first.
    let many = ended(0..900_000);
    for _ in 0..4 {
        journal.commit(&many).wait().unwrap();
    }
    let ticket = journal.compact();
    drop(journal);
    let error = ticket.wait().unwrap_err();
    let cancelled = |error| matches!(error, JournalError::Compaction(failure) if failure.errno == libc::ECANCELED);
    assert!(error == JournalError::Closed || cancelled(error), "{error}");
    assert!(!dir.path().join("journal.new").exists());
    fs::write(dir.path().join("journal.new"), "what a killed process left").unwrap();
    assert_eq!(open(dir.path()).records.len(), 4 * many.len());
    assert!(!dir.path().join("journal.new").exists());
}

#[test]
fn a_compaction_that_fails_leaves_the_journal_as_it_was() {
    let dir = TempDir::new().unwrap();
    let journal = open(dir.path()).journal;
    journal.commit(&seen([1])).wait().unwrap();
    journal.commit(&seen([2])).wait().unwrap();
    // Damage to what was durable: to a frame in the middle, to the last one.
    let file = fs::File::options().read(true).write(true).open(dir.path().join("journal")).unwrap();
    let (last, mut byte) = (HEADER_LEN as u64 + frame_len(&seen([1])), [0]);
    for at in [last - 1, last + 30] {
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[!byte[0]], at).unwrap();
        let error = journal.compact().wait().unwrap_err();
        let failure = Failure { what: "reading back", errno: libc::EBADMSG };
        assert_eq!(error, JournalError::Compaction(failure), "byte {at}");
        assert_eq!(
            error.to_string(),
            "compaction: reading back the journal failed: Bad message (os error 74); \
            the journal goes on as it was"
        );
        file.write_all_at(&byte, at).unwrap();
    }
    // A directory in the way of the new file.
    fs::create_dir(dir.path().join("journal.new")).unwrap();
    let error = journal.compact().wait().unwrap_err();
    assert!(matches!(error, JournalError::Compaction(failure) if failure.errno == libc::EISDIR), "{error}");
    assert_eq!((count(&journal, "journal_compactions"), count(&journal, "journal_failed_compactions")), (0, 3));
    fs::remove_dir(dir.path().join("journal.new")).unwrap();
    journal.commit(&seen([3])).wait().unwrap();
    drop(journal);
    let journal = {
        let found = open(dir.path());
        assert_eq!(found.records, seen([1, 2, 3]));
        found.journal
    };
    journal.compact().wait().unwrap();
}

#[test]
fn a_journal_grows_beyond_its_first_chunk_and_asks_for_compaction() {
    let dir = in_memory();
    let journal = open(dir.path()).journal;
    let many = ended(0..900_000);
    let mut commits = 0;
    while !journal.wants_compaction() {
        journal.commit(&many).wait().unwrap();
        commits += 1;
    }
    assert_eq!(commits, 5, "64 MiB are 4.4 times 15.3 MB");
    // After a failure the next attempt waits for 16 MiB more.
    fs::create_dir(dir.path().join("journal.new")).unwrap();
    journal.compact().wait().unwrap_err();
    fs::remove_dir(dir.path().join("journal.new")).unwrap();
    for more in [false, false, true] {
        assert_eq!(journal.wants_compaction(), more);
        journal.commit(&many).wait().unwrap();
    }
    journal.compact().wait().unwrap();
    assert!(!journal.wants_compaction());
    assert!(fs::metadata(dir.path().join("journal")).unwrap().len() <= 8 << 20);
}

#[test]
fn commits_land_where_no_reader_would_take_them_for_others() {
    // The id of a journal is its own: frames copied from another file are not its frames.
    let (one, other) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let (bytes, foreign) = (sample(one.path()), sample(other.path()));
    let file = fs::File::options().write(true).open(one.path().join("journal")).unwrap();
    file.write_all_at(&foreign[HEADER_LEN..], bytes.len() as u64).unwrap();
    drop(file);
    let found = open(one.path());
    assert_eq!(found.records, ended(0..4));
    assert_eq!(found.torn, Some(Torn { at: bytes.len() as u64, lost: 4 * 37 }));
    let seen: BTreeSet<_> = [&bytes[16..24], &foreign[16..24]].into();
    assert_eq!(seen.len(), 2);
}
