//! The disk of the state directory is full, and has room again.

use std::{fs, path::PathBuf, process::Command, time::Duration};

use berth_client::{Alloc, Client, Data, Error, Via};
use berth_fabric::journal::Record;
use berth_journal::Journal;
use berth_wire::fabric::{LeaseStatus, Status};

use crate::{
    common::Berth,
    site::{Site, endpoint, quic, token},
};

/// A memory file system for a node's state.
struct Small(PathBuf);

impl Small {
    fn mount(site: &Site) -> Self {
        let path = site.folder.path().join("state");
        fs::create_dir(&path).unwrap();
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", "size=24m", "tmpfs"]).arg(&path).status().unwrap();
        assert!(mounted.success(), "this test mounts a small tmpfs, as root");
        Self(path)
    }

    /// Takes all the space there is.
    fn fill(&self) {
        let full = fs::write(self.0.join("fill"), vec![1; 32 << 20]).unwrap_err();
        assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
    }

    fn free(&self) {
        fs::remove_file(self.0.join("fill")).unwrap();
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// Brings the journal close to the end of what is written ahead, less the headroom, by records that mean nothing.
fn nearly_used_up(state: &std::path::Path) {
    const USED: u64 = (6 << 20) - (32 << 10);
    let journal = Journal::open(state, drop).unwrap().journal;
    let mut bytes = 0;
    while bytes < USED {
        journal.commit(&vec![Record::Ended { lease: 1 }; 500]).wait().unwrap();
        journal.counters(&mut |name, value| bytes = if name == "journal_bytes" { value } else { bytes });
    }
}

#[tokio::test]
async fn while_the_disk_is_full_nothing_is_granted_and_nothing_is_lost() {
    let site = Site::new();
    let small = Small::mount(&site);
    let state = small.0.clone();
    tokio::task::spawn_blocking(move || nearly_used_up(&state)).await.unwrap();
    let berth = site.start();
    let client = quic(&berth, &site.holder).await;
    let token = token(&client).await;
    let kept = client.lease_alloc(&token, &Alloc::memory(4096, 300)).await.unwrap();
    small.fill();
    // What was written ahead is used first; then there is a word for it.
    let mut last = client.lease_alloc(&token, &Alloc::memory(4096, 300)).await.unwrap();
    let refused = loop {
        match client.lease_alloc(&token, &Alloc::memory(4096, 300)).await {
            Ok(grant) => {
                client.lease_free(last.lease_id).await.unwrap();
                last = grant;
            }
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, Error::Refused { status: Status::CapacityExceeded, .. }), "{refused:?}");
    // What was granted goes on, and can end.
    client.lease_free(last.lease_id).await.unwrap();
    let mut data = Data::open(&site.holder, &kept, Via::Tcp, None).await.unwrap();
    data.write(0, b"on").await.unwrap();
    // Reads use no room up, though each has a nonce.
    let over_udp = Client::udp(site.holder.clone(), endpoint(&berth, "control-udp"), None).await.unwrap();
    over_udp.ping().await.unwrap();
    let used = || fs::read(small.0.join("journal")).unwrap().iter().rposition(|byte| *byte != 0);
    let before = used();
    for _ in 0..12 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        over_udp.ping().await.unwrap();
    }
    assert_eq!(used(), before);
    // There is room again: within a second or so, grants go on.
    small.free();
    let mut again = None;
    for _ in 0..50 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        again = client.lease_alloc(&token, &Alloc::memory(4096, 300)).await.ok();
        if again.is_some() {
            break;
        }
    }
    let again = again.expect("a grant within 5 s");
    client.close().await;
    let stopped = berth.stop();
    assert_eq!(stopped.status.code(), Some(0), "{}", stopped.stderr);
    assert_eq!(
        (&stopped.counters["control"]["journal_degraded"], &stopped.counters["control"]["journal_full"]),
        (&0.into(), &0.into())
    );
    assert_eq!(stopped.stderr.matches("the disk of the state directory is full").count(), 1, "{}", stopped.stderr);
    assert_eq!(stopped.stderr.matches("the disk of the state directory has room again").count(), 1);
    // Every answer holds after a restart.
    let berth: Berth = site.start();
    let client = quic(&berth, &site.holder).await;
    for lease in [kept.lease_id, again.lease_id] {
        assert_eq!(client.lease_query(lease).await.unwrap().status, LeaseStatus::Active);
    }
    assert_eq!(client.lease_list().await.unwrap().len(), 2);
}
