//! What can go wrong, and what to do about it.

use std::{io, path::PathBuf};

use berth_fabric::journal::Corrupt;

/// Why a journal is not opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has it.
    #[error("{} is in use by another process: every node needs a state directory of its own", .0.display())]
    Locked(PathBuf),
    /// What was durable is damaged.
    #[error(
        "{}: {corrupt}; the node does not start, since it could grant what is leased already or revive what was \
         revoked: bring the file back from a backup, or move it away to start without leases (clients then have to \
         allocate anew)", .path.display()
    )]
    Corrupt {
        /// The journal.
        path: PathBuf,
        /// What is wrong with it.
        corrupt: Corrupt,
    },
    /// The file system failed.
    #[error("{what} {}: {source}", .path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// With which file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
}

/// The write or sync that failed, after which the journal takes nothing more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{what} the journal failed: {}", io::Error::from_raw_os_error(*.errno))]
pub struct Failure {
    /// What was tried, such as `writing`.
    pub what: &'static str,
    /// The system's answer.
    pub errno: i32,
}

impl Failure {
    pub(crate) fn new(what: &'static str, error: &io::Error) -> Self {
        Self { what, errno: error.raw_os_error().unwrap_or(libc::EIO) }
    }
}

/// Why a commit or a compaction is not durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum JournalError {
    /// This commit or one before it failed. Whether it is replayed at the next start is unknown.
    #[error("{0}: nothing can be granted until the cause is removed and the node started anew")]
    Degraded(Failure),
    /// The compaction failed; the journal goes on as it was.
    #[error("compaction: {0}; the journal goes on as it was")]
    Compaction(Failure),
    /// A compaction is under way.
    #[error("a compaction is under way")]
    Compacting,
    /// The journal was closed first.
    #[error("the journal is closed")]
    Closed,
}
