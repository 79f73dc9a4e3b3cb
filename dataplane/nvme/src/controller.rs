//! What the connections of one controller share: an association of a host with a subsystem, or with discovery.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use berth_lease::{Quiescence, Table};
use berth_port::Nanos;
use berth_wire::nvme::admin::Event;

use crate::{abort::Aborts, health::Record, target::Subsystem};

/// A controller. Its admin queue's connection ends it.
#[derive(Debug)]
pub(crate) struct Controller {
    pub(crate) id: u16,
    /// HOSTNQN of its Connect.
    pub(crate) host: String,
    pub(crate) host_id: [u8; 16],
    /// `None`: it is one of discovery.
    pub(crate) subsystem: Option<Arc<Subsystem>>,
    /// KATO: how long its host may say nothing, in milliseconds; 0: for ever.
    kato: AtomicU32,
    /// When it said something last, in nanoseconds; as much as a sixteenth of KATO old.
    heard: AtomicU64,
    pub(crate) record: Record,
    /// Abort commands that wait for its I/O queues.
    pub(crate) aborts: Aborts,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// While it is enabled.
    enabled: Option<Arc<Enabled>>,
    /// Accesses of queues that have ended.
    draining: Option<Quiescence>,
    over: bool,
    /// What the host is to be told, as [`Event::bit`] has it.
    notices: u32,
    waker: Option<Waker>,
}

/// One time that a controller is enabled: its I/O queues.
#[derive(Debug, Default)]
pub(crate) struct Enabled {
    /// They have ended, and access nothing any more.
    pub(crate) over: Arc<AtomicBool>,
    /// A bit for each that is connected.
    queues: Mutex<[u64; 4]>,
}

/// A queue identifier that is in use.
#[derive(Debug)]
pub(crate) struct QueueId {
    enabled: Arc<Enabled>,
    id: u16,
}

impl Controller {
    pub(crate) fn new(
        id: u16,
        host: String,
        host_id: [u8; 16],
        subsystem: Option<Arc<Subsystem>>,
        kato: u32,
        now: Nanos,
    ) -> Self {
        let (kato, heard) = (AtomicU32::new(kato), AtomicU64::new(now.0));
        let (record, aborts, state) = (Record::default(), Aborts::default(), Mutex::default());
        Self { id, host, host_id, subsystem, kato, heard, record, aborts, state }
    }

    pub(crate) fn is_of(&self, subsystem: &Arc<Subsystem>) -> bool {
        self.subsystem.as_ref().is_some_and(|own| Arc::ptr_eq(own, subsystem))
    }

    pub(crate) fn kato(&self) -> u32 {
        self.kato.load(Relaxed)
    }

    pub(crate) fn set_kato(&self, millis: u32, now: Nanos) {
        self.heard.store(now.0, Relaxed);
        self.kato.store(millis, Relaxed);
    }

    /// The host has said something; false where that comes too late. Queues of many cores call this: what they share is
    /// written seldom.
    #[inline]
    pub(crate) fn hear(&self, now: Nanos) -> bool {
        let patience = self.patience();
        let silent = now - Nanos(self.heard.load(Relaxed));
        if patience.is_zero() {
            return true;
        }
        if silent > patience {
            return false;
        }
        if silent > patience / 16 {
            self.heard.store(now.0, Relaxed);
        }
        true
    }

    /// Whether the host has said nothing for longer than KATO, and what that may be late by.
    pub(crate) fn is_silent(&self, now: Nanos) -> bool {
        let patience = self.patience();
        !patience.is_zero() && now - Nanos(self.heard.load(Relaxed)) > patience
    }

    /// KATO, and the sixteenth by which the last word may be later than it was written down.
    #[inline]
    fn patience(&self) -> Duration {
        let kato = Duration::from_millis(self.kato.load(Relaxed).into());
        kato + kato / 8
    }

    /// Begins a time of I/O.
    pub(crate) fn enable(&self) {
        let mut state = self.state();
        if !state.over {
            state.enabled.get_or_insert_default();
        }
    }

    /// Ends all I/O queues. [`Controller::is_drained`] says when none of their accesses goes on.
    pub(crate) fn disable(&self, table: &Table) {
        let mut state = self.state();
        if let Some(enabled) = state.enabled.take() {
            enabled.over.store(true, SeqCst);
            state.draining = Some(table.quiescence());
        }
    }

    /// Whether no access of queues that have ended goes on.
    pub(crate) fn is_drained(&self) -> bool {
        let mut state = self.state();
        let over = state.draining.as_mut().is_none_or(Quiescence::is_over);
        if over {
            state.draining = None;
        }
        over
    }

    /// The time that I/O queues may join; `None` where it is not enabled.
    pub(crate) fn enabled(&self) -> Option<Arc<Enabled>> {
        self.state().enabled.clone()
    }

    pub(crate) fn has_queue(&self, id: u16) -> bool {
        self.enabled().is_some_and(|enabled| enabled.is_claimed(id))
    }

    pub(crate) fn queues(&self) -> u64 {
        self.enabled().map_or(0, |enabled| enabled.lock().iter().map(|word| u64::from(word.count_ones())).sum())
    }

    pub(crate) fn has_queues(&self) -> bool {
        self.enabled().is_some_and(|enabled| *enabled.lock() != [0; 4])
    }

    /// The association is over: no queue of it accesses anything from now on.
    pub(crate) fn end(&self) {
        let mut state = self.state();
        state.over = true;
        if let Some(enabled) = state.enabled.take() {
            enabled.over.store(true, SeqCst);
        }
    }

    /// The lease is not the host's any more.
    pub(crate) fn lease_ended(&self) {
        self.end();
        self.notify(Event::Namespace);
    }

    /// The host has other leases than before.
    pub(crate) fn leases_changed(&self) {
        self.notify(Event::Discovery);
    }

    /// Tells the admin queue of something.
    pub(crate) fn notify(&self, event: Event) {
        let mut state = self.state();
        state.notices |= event.bit();
        drop(state);
        self.wake();
    }

    /// Has the admin queue look what it can answer.
    pub(crate) fn wake(&self) {
        let waker = self.state().waker.take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// What there is to be told, in bits of [`Event::bit`].
    pub(crate) fn take_notices(&self) -> u32 {
        std::mem::take(&mut self.state().notices)
    }

    /// Ready where there is something to be told, or an Abort command to be answered.
    pub(crate) fn poll_notices(&self, cx: &Context<'_>) -> Poll<()> {
        let mut state = self.state();
        if state.notices != 0 || self.aborts.is_decided() {
            return Poll::Ready(());
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Enabled {
    fn lock(&self) -> MutexGuard<'_, [u64; 4]> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a queue identifier is in use.
    pub(crate) fn is_claimed(&self, id: u16) -> bool {
        self.lock().get(usize::from(id) / 64).is_some_and(|word| word & 1 << (id % 64) != 0)
    }

    /// Takes a queue identifier below 256; `None` where it is in use.
    pub(crate) fn claim(self: &Arc<Self>, id: u16) -> Option<QueueId> {
        let mut queues = self.lock();
        let (word, bit) = (queues.get_mut(usize::from(id) / 64)?, 1 << (id % 64));
        if *word & bit != 0 {
            return None;
        }
        *word |= bit;
        Some(QueueId { enabled: self.clone(), id })
    }
}

impl QueueId {
    /// QID, from 1 to 255.
    pub(crate) fn number(&self) -> u16 {
        self.id
    }

    /// Whether the queue has ended.
    #[inline]
    pub(crate) fn is_over(&self) -> bool {
        self.enabled.over.load(SeqCst)
    }
}

impl Drop for QueueId {
    fn drop(&mut self) {
        let mut queues = self.enabled.lock();
        queues[usize::from(self.id) / 64] &= !(1 << (self.id % 64));
    }
}
