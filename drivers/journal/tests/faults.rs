//! Full and failing disks. Without the right to mount, these pass without a check; `crash.rs` has one that needs no
//! rights.

#[path = "../../store/tests/common/mount.rs"]
mod mount;

use std::{fs, path::Path, process::Command};

use berth_fabric::journal::Record;
use berth_journal::{Journal, JournalError, OpenError, Opened};
use mount::{Loop, mount, private_tmpfs};

fn ended(lease: u128, copies: usize) -> Vec<Record> {
    vec![Record::Ended { lease }; copies]
}

/// The journal in `dir`, and its records.
fn open(dir: &Path) -> Result<(Opened, Vec<Record>), OpenError> {
    let mut records = Vec::new();
    let opened = Journal::open(dir, |record| records.push(record))?;
    Ok((opened, records))
}

fn fill(dir: &Path) {
    let full = fs::write(dir.join("other"), vec![1; 80 << 20]).unwrap_err();
    assert_eq!(full.raw_os_error(), Some(libc::ENOSPC));
}

#[test]
fn a_full_disk_fails_compactions_first_and_commits_when_the_room_is_used_up() {
    let Some(dir) = private_tmpfs("20m") else { return };
    let state = dir.path().join("state");
    let journal = open(&state).unwrap().0.journal;
    fill(dir.path());
    // What is written ahead is used all the same.
    journal.commit(&ended(1, 1000)).wait().unwrap();
    let error = journal.compact().wait().unwrap_err();
    assert!(matches!(error, JournalError::Compaction(failure) if failure.errno == libc::ENOSPC), "{error}");
    assert_eq!(journal.failure(), None);
    journal.commit(&ended(3, 1000)).wait().unwrap();
    let error = journal.commit(&ended(4, 600_000)).wait().unwrap_err();
    let failure = journal.failure().unwrap();
    assert_eq!((failure.what, failure.errno, error), ("making room in", libc::ENOSPC, JournalError::Degraded(failure)));
    // Room alone does not help: the node is to be started anew.
    fs::remove_file(dir.path().join("other")).unwrap();
    assert_eq!(journal.commit(&ended(5, 1)).wait(), Err(error));
    drop(journal);
    let (found, records) = open(&state).unwrap();
    assert_eq!((records, found.torn), ([ended(1, 1000), ended(3, 1000)].concat(), None));
    drop(found.journal);
    // Where not even a first journal fits, the node does not start.
    fill(dir.path());
    let error = open(&dir.path().join("new")).unwrap_err();
    assert!(matches!(&error, OpenError::Io { source, .. } if source.raw_os_error() == Some(libc::ENOSPC)), "{error}");
}

/// The device loses the blocks under an open journal, so that nothing can be synced to them any more.
#[test]
fn a_failed_sync_is_final() {
    let Some(dir) = private_tmpfs("64m") else { return };
    let disk = dir.path().join("disk");
    let Some(device) = Loop::new(&disk, 48 << 20, 512) else { return };
    let device_path = device.path().to_str().unwrap();
    let formatted = Command::new("mkfs.ext4").args(["-q", "-O", "^has_journal", device_path]).status();
    if !formatted.is_ok_and(|status| status.success()) {
        return;
    }
    let mounted = dir.path().join("mounted");
    fs::create_dir(&mounted).unwrap();
    assert!(mount(&[device_path, mounted.to_str().unwrap()]));
    let journal = open(&mounted.join("state")).unwrap().0.journal;
    journal.commit(&ended(1, 1)).wait().unwrap();
    let punched = Command::new("fallocate").args(["--punch-hole", "--length", "48MiB"]).arg(&disk).status();
    assert!(punched.unwrap().success());
    fill(dir.path());
    // The page cache takes the write; its way to the disk is what fails.
    let error = journal.commit(&ended(2, 1)).wait().unwrap_err();
    let failure = journal.failure().unwrap();
    assert_eq!((failure.what, error), ("syncing", JournalError::Degraded(failure)));
    assert!([libc::EIO, libc::ENOSPC].contains(&failure.errno), "{failure}");
    assert!(error.to_string().ends_with("nothing can be granted until the cause is removed and the node started anew"));
    // A second fdatasync would succeed, for the kernel has told once; it is not asked.
    fs::remove_file(dir.path().join("other")).unwrap();
    assert_eq!(journal.commit(&ended(3, 1)).wait(), Err(error));
    let mut commits = None;
    journal.counters(&mut |name, value| commits = commits.or((name == "journal_commits").then_some(value)));
    assert_eq!(commits, Some(1));
    drop(journal);
    let unmounted = Command::new("umount").arg(&mounted).status();
    assert!(unmounted.unwrap().success());
}
