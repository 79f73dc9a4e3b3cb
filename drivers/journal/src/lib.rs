//! The journal of grants on disk: appended, fsynced in groups, compacted, replayed.
//!
//! [`berth_fabric::journal`] says what the bytes mean; this crate makes them durable. A directory holds one journal:
//!
//! ```text
//! journal        the header, frames, then zeros that were written in advance
//! journal.new    a compaction that is not finished; removed at the next start
//! journal.lock   locked by the process that has the journal open
//! ```
//!
//! One thread writes. Whatever was committed while it waited for the disk becomes the next frame: one write and one
//! fdatasync for all of it. Zeros are written ahead so that the fdatasync of a frame has no metadata to write.
//!
//! A compaction writes what the journal adds up to as a new one, which takes its place. That state is nowhere else to
//! be kept: a thread of its own reads it back from the file, up to where the compaction stands in the queue.
//!
//! A full disk is seen before it hurts: if there is no room to write ahead, the journal says that it is full while a
//! headroom of 2 MiB is left, and its users stop granting. That passes when there is room again.
//!
//! After the first failed write or fdatasync nothing is known about what is on the disk, and asking again would not
//! tell: that commit and all later ones fail, and the node is degraded until it is started anew.

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

/// What a journal counts.
pub const COUNTERS: Tables = &[queue::Counters::TABLE];
use queue::Queue;

/// Records of one commit that become durable together, in bytes, and one record more: half of what a frame holds.
const PIECE: usize = 8 << 20;

/// An open journal; shared by reference. Dropping it commits what is queued.
#[derive(Debug)]
pub struct Journal {
    queue: Arc<Queue>,
    writer: Option<JoinHandle<()>>,
}

/// What [`Journal::open`] found.
#[derive(Debug)]
pub struct Opened {
    /// The journal, ready for commits.
    pub journal: Journal,
    /// What a crash had left of a last commit, which was not answered; it is cut off now.
    pub torn: Option<Torn>,
}

/// A commit under way. It happens whether or not this is awaited.
#[derive(Debug)]
#[must_use = "nothing may be answered before the commit is durable"]
pub struct Ticket(oneshot::Receiver<Result<(), JournalError>>);

impl Journal {
    /// Opens the journal in `dir`, or begins one there, and hands all its records to `record`, in the order of their
    /// commits. After an error those it was handed may not be used.
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

    /// Appends `records`. The order of calls is the order in the journal; the ticket says when all of them are durable.
    ///
    /// A crash leaves all or none of up to 8 MiB of records, and of more than that perhaps the first ones. What is
    /// queued is bounded by the callers alone: one that waits for its tickets adds no more than it waits for.
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

    /// Replaces all that was committed before this call with the records that come to the same
    /// ([`Recovered`](berth_fabric::Recovered)). Commits go on meanwhile, and are kept.
    ///
    /// A failure is the ticket's: the journal goes on as it was.
    pub fn compact(&self) -> Ticket {
        let (done, ticket) = oneshot::channel();
        self.queue.compact(done);
        Ticket(ticket)
    }

    /// Whether the journal has outgrown what the last compaction left, so that another is worth it. Not while one runs,
    /// nor soon after one failed.
    pub fn wants_compaction(&self) -> bool {
        self.queue.wants_compaction()
    }

    /// Why nothing can be committed any more, if so: the node is degraded.
    pub fn failure(&self) -> Option<Failure> {
        self.queue.failure()
    }

    /// Whether the disk is full. Commits are still taken while the headroom lasts, for what ends leases; nothing should
    /// be begun.
    pub fn is_full(&self) -> bool {
        self.queue.full.load(Relaxed)
    }

    /// Looks once more whether the disk is full; [`Journal::is_full`] tells soon.
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

/// Works in every executor.
impl Future for Ticket {
    type Output = Result<(), JournalError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context).map(|done| done.unwrap_or(Err(JournalError::Closed)))
    }
}
