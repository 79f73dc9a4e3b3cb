//! The journal of grants on disk: appended to, synced in groups, compacted, replayed.
//!
//! [`berth_fabric::journal`] says what the bytes mean; this crate makes them durable. A directory holds one journal:
//!
//! ```text
//! journal        the header, frames, then zeros that were written in advance
//! journal.new    a compaction that is not finished; removed at the next start
//! journal.lock   locked by the process that has the journal open
//! ```
//!
//! One thread writes. Everything committed while it waited for the disk becomes the next frame, with one write and one
//! fdatasync. Zeros are written ahead, so that the fdatasync of a frame has no metadata to write.
//!
//! A compaction writes the state that the journal adds up to as a new journal, which then takes its place. That state
//! needs to be kept nowhere else: a separate thread reads it back from the file, up to the compaction's place in the
//! queue.
//!
//! A full disk is noticed in time: if there is no room to write ahead, the journal reports that it is full while 2 MiB
//! of headroom are left, and its users stop granting. This ends when there is room again.
//!
//! After the first failed write or fdatasync nothing is known about the contents of the disk, and trying again would
//! not tell. That commit and all later ones fail, and the node is degraded until it is restarted.

mod compact;
mod error;
mod file;
mod queue;
mod writer;

use std::{
    path::Path,
    pin::Pin,
    sync::{Arc, atomic::Ordering::Relaxed},
    task::{Context, Poll},
    thread::JoinHandle,
};

use berth_fabric::journal::{Record, encode};
use tokio::sync::oneshot;

pub use error::{Failure, JournalError, OpenError};
pub use file::Torn;

use berth_port::Tables;

/// Declarations of a journal's counters.
pub const COUNTERS: Tables = &[queue::Counters::TABLE];
use queue::Queue;

/// Bytes of one commit's records that become durable together, plus the last record: half of what a frame can hold.
const PIECE: usize = 8 << 20;

/// An open journal, shared by reference. Dropping it commits what is queued.
#[derive(Debug)]
pub struct Journal {
    queue: Arc<Queue>,
    writer: Option<JoinHandle<()>>,
}

/// Result of [`Journal::open`].
#[derive(Debug)]
pub struct Opened {
    /// The journal, ready for commits.
    pub journal: Journal,
    /// A commit that a crash cut short, and that was never answered. It has been cut off.
    pub torn: Option<Torn>,
}

/// A commit under way. It proceeds whether or not this is awaited.
#[derive(Debug)]
#[must_use = "nothing may be answered before the commit is durable"]
pub struct Ticket(oneshot::Receiver<Result<(), JournalError>>);

impl Journal {
    /// Opens the journal in `dir`, or begins one there. Passes all its records to `record`, in the order of their
    /// commits. After an error, the records passed must not be used.
    pub fn open(dir: &Path, record: impl FnMut(Record)) -> Result<Opened, OpenError> {
        let (file, torn) = file::open(dir, record)?;
        let queue = Arc::new(Queue::new(file.end()));
        queue.full.store(file.is_full(), Relaxed);
        let writer = writer::spawn(file, Arc::clone(&queue)).map_err(|source| {
            let what = "cannot start a thread to write";
            OpenError::Io { what, path: dir.to_owned(), source }
        })?;
        Ok(Opened { journal: Self { queue, writer: Some(writer) }, torn })
    }

    /// Appends `records`. The journal has the order of the calls; the ticket tells when all of them are durable.
    ///
    /// After a crash, all or none of up to 8 MiB of records are there; of more than that, perhaps only the first ones.
    /// Only the callers bound the queue: one that waits for its tickets adds no more than it waits for.
    pub fn commit(&self, records: &[Record]) -> Ticket {
        let (done, ticket) = oneshot::channel();
        let mut pieces = vec![Vec::new()];
        for record in records {
            let piece = pieces.last_mut().expect("there is one");
            encode(record, piece);
            if piece.len() > PIECE {
                pieces.push(Vec::new());
            }
        }
        self.queue.append(&pieces, done);
        Ticket(ticket)
    }

    /// Replaces everything committed before this call with records that add up to the same state
    /// ([`Recovered`](berth_fabric::Recovered)). Commits go on meanwhile and are kept.
    ///
    /// The ticket reports a failure; the journal then is as before.
    pub fn compact(&self) -> Ticket {
        let (done, ticket) = oneshot::channel();
        self.queue.compact(done);
        Ticket(ticket)
    }

    /// Whether the journal has outgrown its size after the last compaction, so that another is worth it. Not while one
    /// runs, nor soon after one failed.
    pub fn wants_compaction(&self) -> bool {
        self.queue.wants_compaction()
    }

    /// The failure after which nothing can be committed any more; `None` while the journal works.
    pub fn failure(&self) -> Option<Failure> {
        self.queue.failure()
    }

    /// Whether the disk is full. Commits are still taken while the headroom lasts, for operations that end leases;
    /// nothing new should be begun.
    pub fn is_full(&self) -> bool {
        self.queue.full.load(Relaxed)
    }

    /// Makes the writer check again whether the disk is full; [`Journal::is_full`] has the result soon after.
    pub fn look_for_room(&self) {
        self.queue.look_for_room();
    }

    /// Reports `journal_commits`, `journal_groups` (one fdatasync each), `journal_bytes` (the file's length),
    /// `journal_compactions`, `journal_failed_compactions`, `journal_full` and `journal_degraded` (0 or 1).
    pub fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        self.queue.counters(visit);
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.queue.close();
        if let Some(writer) = self.writer.take() {
            let ended = writer.join();
            debug_assert!(ended.is_ok(), "the journal's thread does not panic");
        }
    }
}

impl Ticket {
    /// Blocks until the records are durable or lost.
    ///
    /// # Panics
    /// On a thread that runs asynchronous tasks.
    pub fn wait(self) -> Result<(), JournalError> {
        self.0.blocking_recv().unwrap_or(Err(JournalError::Closed))
    }
}

/// Can be awaited in any executor.
impl Future for Ticket {
    type Output = Result<(), JournalError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context).map(|done| done.unwrap_or(Err(JournalError::Closed)))
    }
}
