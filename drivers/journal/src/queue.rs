//! Work that waits for the writer: groups of commits, and a compaction.

use std::{
    collections::VecDeque,
    fmt,
    sync::{
        Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
};

use berth_fabric::journal::FRAME_HEADER_LEN;
use berth_port::Family;
use tokio::sync::oneshot;

use crate::{Failure, JournalError};

/// Told when it is over.
pub(crate) type Done = oneshot::Sender<Result<(), JournalError>>;

/// A group takes no further commits from this many bytes on.
const GROUP: usize = 1 << 20;

/// A journal shorter than this many bytes is not worth compacting.
const COMPACT: u64 = 64 << 20;

/// Bytes by which the journal must grow after a failed compaction before another is worth it.
const RETRY: u64 = 16 << 20;

const COMPACTIONS: Family = Family::counter("journal_compactions", "times the journal was written anew");

berth_port::counters! {
    pub(crate) struct Counters {
        commits = journal_commits: "commits to the journal",
        groups = journal_groups: "groups of commits, each made durable by one fdatasync",
        bytes = journal_bytes: gauge "length of the journal",
        compactions = journal_compactions: COMPACTIONS { outcome: "done" },
        failed_compactions = journal_failed_compactions: COMPACTIONS { outcome: "failed" },
        full = journal_full: gauge "1 while the disk of the journal is full and nothing is granted",
        degraded = journal_degraded: gauge "1 where the journal has failed and nothing is granted any more",
    }
}

/// Commits that become durable together.
#[derive(Debug)]
pub(crate) struct Group {
    /// Room for a frame's header, followed by the records.
    pub(crate) frame: Vec<u8>,
    /// Those who wait for the records.
    pub(crate) waiters: Vec<Done>,
}

/// The writer's next task.
pub(crate) enum Work {
    /// Make this group durable.
    Group(Group),
    /// Begin a compaction.
    Compact(Done),
    /// A compaction's thread has ended, with or without success.
    Written,
    /// Check whether a full disk has room again.
    Room,
    /// Nothing more will come.
    Close,
}

/// State shared by the journal's users, its writer, and the compaction.
pub(crate) struct Queue {
    state: Mutex<State>,
    ready: Condvar,
    /// Length of the journal.
    len: AtomicU64,
    /// Length from which a compaction is worth it.
    compact_at: AtomicU64,
    /// Tells a running compaction to give up.
    pub(crate) cancelled: AtomicBool,
    /// Whether the disk is full.
    pub(crate) full: AtomicBool,
    commits: AtomicU64,
    groups: AtomicU64,
    compactions: AtomicU64,
    failed_compactions: AtomicU64,
}

#[derive(Default)]
struct State {
    work: VecDeque<Work>,
    compacting: bool,
    closed: bool,
    failure: Option<Failure>,
}

impl Queue {
    pub(crate) fn new(len: u64) -> Self {
        Self {
            state: Mutex::default(),
            ready: Condvar::new(),
            len: len.into(),
            compact_at: COMPACT.into(),
            cancelled: false.into(),
            full: false.into(),
            commits: 0.into(),
            groups: 0.into(),
            compactions: 0.into(),
            failed_compactions: 0.into(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing that runs under the lock leaves the state half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds encoded records to the group being gathered, and to further groups. Each piece is at most a frame long, and
    /// there is at least one.
    pub(crate) fn append(&self, pieces: &[Vec<u8>], done: Done) {
        let mut state = self.state();
        if let Some(failure) = state.failure {
            let _ = done.send(Err(JournalError::Degraded(failure)));
            return;
        }
        let before = state.work.len();
        for records in pieces {
            match state.work.back_mut() {
                Some(Work::Group(group)) if group.frame.len() + records.len() <= GROUP => {
                    group.frame.extend_from_slice(records);
                }
                _ => {
                    let frame = [&[0; FRAME_HEADER_LEN], &records[..]].concat();
                    state.work.push_back(Work::Group(Group { frame, waiters: Vec::new() }));
                }
            }
        }
        // The groups are durable in their order.
        if let Some(Work::Group(group)) = state.work.back_mut() {
            group.waiters.push(done);
        }
        let more = state.work.len() > before;
        // Else the writer would wake up to wait for the lock.
        drop(state);
        if more {
            self.ready.notify_one();
        }
    }

    /// Asks for a compaction of everything appended so far.
    pub(crate) fn compact(&self, done: Done) {
        let mut state = self.state();
        let refused = match state.failure {
            Some(failure) => Some(JournalError::Degraded(failure)),
            None => state.compacting.then_some(JournalError::Compacting),
        };
        if let Some(refused) = refused {
            let _ = done.send(Err(refused));
            return;
        }
        state.compacting = true;
        state.work.push_back(Work::Compact(done));
        self.ready.notify_one();
    }

    /// Tells the writer that the compaction's thread has ended.
    pub(crate) fn written(&self) {
        // Ahead of the commits that wait: they are fewer to copy.
        self.state().work.push_front(Work::Written);
        self.ready.notify_one();
    }

    /// Makes the writer check whether a full disk has room again.
    pub(crate) fn look_for_room(&self) {
        self.state().work.push_back(Work::Room);
        self.ready.notify_one();
    }

    /// Waits for the next task.
    pub(crate) fn next(&self) -> Work {
        let mut state = self.state();
        loop {
            if let Some(work) = state.work.pop_front() {
                return work;
            }
            if state.closed {
                return Work::Close;
            }
            state = self.ready.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Tells the waiters of a group that it is durable.
    pub(crate) fn committed(&self, group: Vec<Done>, len: u64) {
        self.len.store(len, Release);
        self.groups.fetch_add(1, Relaxed);
        self.commits.fetch_add(group.len() as u64, Relaxed);
        for done in group {
            // Nobody may wait any more.
            let _ = done.send(Ok(()));
        }
    }

    /// Length of the journal that is durable.
    pub(crate) fn durable(&self) -> u64 {
        self.len.load(Acquire)
    }

    /// Ends a compaction: with the journal's new length, or the failure.
    pub(crate) fn compacted(&self, result: Result<u64, Failure>, done: Done) {
        self.state().compacting = false;
        if let Ok(len) = result {
            self.len.store(len, Relaxed);
            self.compact_at.store(COMPACT.max(2 * len), Relaxed);
            self.compactions.fetch_add(1, Relaxed);
        } else {
            self.compact_at.store(self.len.load(Relaxed) + RETRY, Relaxed);
            self.failed_compactions.fetch_add(1, Relaxed);
        }
        let _ = done.send(result.map(drop).map_err(JournalError::Compaction));
    }

    /// Makes everything that waits or comes later fail.
    pub(crate) fn fail(&self, failure: Failure, group: Vec<Done>) {
        let mut state = self.state();
        let failure = *state.failure.get_or_insert(failure);
        let waiting = std::mem::take(&mut state.work);
        drop(state);
        self.cancelled.store(true, Relaxed);
        let tell = |done: Done| {
            let _ = done.send(Err(JournalError::Degraded(failure)));
        };
        group.into_iter().for_each(tell);
        for work in waiting {
            match work {
                Work::Group(group) => group.waiters.into_iter().for_each(tell),
                Work::Compact(done) => tell(done),
                Work::Written | Work::Room | Work::Close => {}
            }
        }
    }

    pub(crate) fn close(&self) {
        self.state().closed = true;
        self.cancelled.store(true, Relaxed);
        self.ready.notify_one();
    }

    pub(crate) fn failure(&self) -> Option<Failure> {
        self.state().failure
    }

    pub(crate) fn wants_compaction(&self) -> bool {
        let outgrown = self.len.load(Relaxed) > self.compact_at.load(Relaxed);
        let state = self.state();
        outgrown && !state.compacting && state.failure.is_none()
    }

    pub(crate) fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        let counters = Counters {
            commits: self.commits.load(Relaxed),
            groups: self.groups.load(Relaxed),
            bytes: self.len.load(Relaxed),
            compactions: self.compactions.load(Relaxed),
            failed_compactions: self.failed_compactions.load(Relaxed),
            full: self.full.load(Relaxed).into(),
            degraded: self.failure().is_some().into(),
        };
        counters.report(visit);
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("len", &self.len).finish_non_exhaustive()
    }
}
