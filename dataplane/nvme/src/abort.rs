//! Abort of commands of I/O queues: the admin queue asks, the queue that has the command decides, the admin queue answers.

use std::{
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use berth_port::Nanos;
use berth_wire::nvme::admin::Abort;

/// Abort commands of a controller that may wait at a time; ACL is one less (Base, "Identify Controller").
pub(crate) const ABORTS: usize = 4;

/// How long a queue may take to decide. Without a verdict by then, as where the queue has ended, nothing is aborted.
const PATIENCE: Duration = Duration::from_secs(1);

/// The Abort commands of a controller that wait for I/O queues.
#[derive(Debug, Default)]
pub(crate) struct Aborts {
    /// How many are not decided: all that queues look at otherwise.
    asked: AtomicUsize,
    list: Mutex<Vec<Asked>>,
}

#[derive(Debug)]
struct Asked {
    command: Abort,
    /// The slot of the Abort command itself.
    slot: usize,
    since: Nanos,
    /// Whether the command is aborted, once that is decided.
    verdict: Option<bool>,
}

impl Aborts {
    /// Asks the queue that `command` names; false where as many wait as may.
    pub(crate) fn ask(&self, command: Abort, slot: usize, now: Nanos) -> bool {
        let mut list = self.lock();
        let has_room = list.len() < ABORTS;
        if has_room {
            list.push(Asked { command, slot, since: now, verdict: None });
            self.asked.fetch_add(1, Relaxed);
        }
        has_room
    }

    /// Whether an Abort command names I/O queue `queue` and is not decided. One relaxed load where none waits.
    #[inline]
    pub(crate) fn asks(&self, queue: u16) -> bool {
        self.asked.load(Relaxed) > 0
            && self.lock().iter().any(|asked| asked.verdict.is_none() && asked.command.queue == queue)
    }

    /// A queue decides: `abort` ends the command of a CID, or says false where it cannot.
    pub(crate) fn decide(&self, queue: u16, mut abort: impl FnMut(u16) -> bool) {
        self.settle(|asked| (asked.command.queue == queue).then(|| abort(asked.command.cid)));
    }

    /// What no queue has decided in time is not aborted.
    pub(crate) fn expire(&self, now: Nanos) {
        if self.asked.load(Relaxed) > 0 {
            self.settle(|asked| (now > asked.since + PATIENCE).then_some(false));
        }
    }

    fn settle(&self, mut verdict: impl FnMut(&Asked) -> Option<bool>) {
        for asked in self.lock().iter_mut().filter(|asked| asked.verdict.is_none()) {
            asked.verdict = verdict(asked);
            self.asked.fetch_sub(usize::from(asked.verdict.is_some()), Relaxed);
        }
    }

    /// An Abort command that can be answered: its slot, and whether the other command was aborted.
    pub(crate) fn take(&self) -> Option<(usize, bool)> {
        let mut list = self.lock();
        let at = list.iter().position(|asked| asked.verdict.is_some())?;
        let asked = list.swap_remove(at);
        Some((asked.slot, asked.verdict == Some(true)))
    }

    /// Whether one can be answered.
    pub(crate) fn is_decided(&self) -> bool {
        self.lock().iter().any(|asked| asked.verdict.is_some())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Asked>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
