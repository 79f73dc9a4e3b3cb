//! Errors of the journal.

use std::{io, path::PathBuf};

use berth_fabric::journal::Corrupt;

/// Why a journal could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has the journal in this directory open.
    #[error("{} is in use by another process: every node needs a state directory of its own", .0.display())]
    Locked(PathBuf),
    /// Data that had become durable is damaged.
    #[error(
        "{}: {corrupt}; the node does not start, since it could grant what is leased already or revive what was \
         revoked: bring the file back from a backup, or move it away to start without leases (clients then have to \
         allocate anew)", .path.display()
    )]
    Corrupt {
        /// Path of the journal.
        path: PathBuf,
        /// Kind and place of the damage.
        corrupt: Corrupt,
    },
    /// The file system failed.
    #[error("{what} {}: {source}", .path.display())]
    Io {
        /// The step that failed.
        what: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// The write or sync that failed. The journal takes nothing after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{what} the journal failed: {}", io::Error::from_raw_os_error(*.errno))]
pub struct Failure {
    /// The step that failed, such as `writing`.
    pub what: &'static str,
    /// The system's error number.
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
    /// This commit or an earlier one failed. Whether the next start replays it is unknown.
    #[error("{0}: nothing can be granted until the cause is removed and the node started anew")]
    Degraded(Failure),
    /// The compaction failed; the journal is as before.
    #[error("compaction: {0}; the journal goes on as it was")]
    Compaction(Failure),
    /// A compaction is already under way.
    #[error("a compaction is under way")]
    Compacting,
    /// The journal was closed before.
    #[error("the journal is closed")]
    Closed,
}
