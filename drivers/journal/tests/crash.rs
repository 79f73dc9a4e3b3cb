//! A process that is killed while it commits and compacts, and one whose file cannot grow.

use std::{
    collections::{BTreeSet, HashSet},
    env,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use berth_fabric::journal::Record;
use berth_journal::{Journal, JournalError, Opened};
use tempfile::TempDir;

const DIR: &str = "BERTH_TEST_JOURNAL_DIR";
const ROUND: &str = "BERTH_TEST_JOURNAL_ROUND";
const WRITERS: u128 = 4;
const ROUNDS: u128 = 12;

/// Prints a line at once, past the test harness's capture.
fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    out.write_all(format!("{line}\n").as_bytes()).and_then(|()| out.flush()).unwrap();
}

/// This test binary as a new process that runs `test` in a journal's directory.
fn child(test: &str, dir: &Path) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture"]).env(DIR, dir).stdout(Stdio::piped()).stderr(Stdio::null());
    command
}

/// Not a test by itself: commits and compacts until it is killed.
#[test]
fn child_that_is_killed() {
    let Ok(dir) = env::var(DIR) else { return };
    let round: u128 = env::var(ROUND).unwrap().parse().unwrap();
    let journal = Journal::open(Path::new(&dir), drop).unwrap().journal;
    thread::scope(|scope| {
        for writer in 0..WRITERS {
            let journal = &journal;
            scope.spawn(move || {
                for n in 0.. {
                    // A compaction leaves as many of these as there were.
                    let sender = round << 64 | writer << 32 | n;
                    journal.commit(&[Record::Seen { sender, nonce: 1 }]).wait().unwrap();
                    say(&format!("done {writer} {n}"));
                }
            });
        }
        loop {
            journal.compact().wait().unwrap();
            say("compacted");
        }
    });
}

#[test]
fn what_a_killed_process_said_is_there() {
    let dir = TempDir::new().unwrap();
    let mut acknowledged = HashSet::new();
    for round in 0..ROUNDS {
        let mut child = child("child_that_is_killed", dir.path()).env(ROUND, round.to_string()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        // So many lines whatever the speed of the disk, and in the middle of whatever follows them.
        let mut said: Vec<_> = lines.by_ref().filter(|line| line.starts_with("done")).take(20).collect();
        said.extend(lines.by_ref().find(|line| line == "compacted"));
        thread::sleep(Duration::from_micros((round as u64 * 7919) % 20_000));
        child.kill().unwrap();
        child.wait().unwrap();
        said.extend(lines);
        let mut records = Vec::new();
        Journal::open(dir.path(), |record| records.push(record)).unwrap();
        for line in said {
            // A last line may be cut short.
            if let ["done", writer, n] = line.split(' ').collect::<Vec<_>>()[..]
                && let (Ok(writer), Ok(n)) = (writer.parse::<u128>(), n.parse::<u128>())
            {
                acknowledged.insert(round << 64 | writer << 32 | n);
            }
        }
        let mut found = BTreeSet::new();
        for (place, record) in records.into_iter().enumerate() {
            let sender = match record {
                Record::Seen { sender, nonce: 1 } => sender,
                // A compaction begins with it.
                Record::Started { epoch: 0, .. } if place == 0 => continue,
                record => panic!("{record:?}"),
            };
            assert!(found.insert(sender), "{sender:x} twice");
            assert!(sender as u32 == 0 || found.contains(&(sender - 1)), "{sender:x} before its predecessor");
        }
        let lost: Vec<_> = acknowledged.iter().filter(|sender| !found.contains(sender)).collect();
        assert!(lost.is_empty(), "round {round}: {lost:x?}");
    }
    assert!(acknowledged.len() >= 20 * ROUNDS as usize);
}

/// Not a test by itself: its file cannot grow as far as it needs.
#[test]
fn child_without_room() {
    let Ok(dir) = env::var(DIR) else { return };
    let limit = libc::rlimit { rlim_cur: 12 << 20, rlim_max: 12 << 20 };
    // SAFETY: the limit lives; to ignore a signal runs no code of ours.
    unsafe {
        assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit), 0);
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
    }
    let journal = Journal::open(Path::new(&dir), drop).unwrap().journal;
    // 1.7 MB each: seven fit below the limit.
    let commits: Vec<_> = (0..10).map(|lease| journal.commit(&vec![Record::Ended { lease }; 100_000])).collect();
    let results: Vec<_> = commits.into_iter().map(berth_journal::Ticket::wait).collect();
    let failure = journal.failure().unwrap();
    assert_eq!((failure.what, failure.errno), ("making room in", libc::EFBIG));
    let degraded = Err(JournalError::Degraded(failure));
    assert_eq!(results, [vec![Ok(()); 7], vec![degraded; 3]].concat());
    // Small ones would fit, and yet nothing is committed any more.
    assert_eq!(journal.commit(&[Record::Ended { lease: 99 }]).wait(), degraded);
    assert_eq!(journal.compact().wait(), degraded);
    let mut state = None;
    journal.counters(&mut |name, value| state = state.or((name == "journal_degraded").then_some(value)));
    assert_eq!(state, Some(1));
    say("as it should be");
}

#[test]
fn a_file_that_cannot_grow_degrades_the_journal() {
    let dir = TempDir::new().unwrap();
    let output = child("child_without_room", dir.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("as it should be"), "{said}");
    let mut records = 0;
    let Opened { journal, torn } = Journal::open(dir.path(), |_| records += 1).unwrap();
    assert_eq!((records, torn), (700_000, None));
    // With the cause gone the node goes on.
    journal.commit(&[Record::Ended { lease: 99 }]).wait().unwrap();
}
