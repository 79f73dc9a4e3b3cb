//! What authentication takes from the machine: bytes that nobody can guess, and a thread for arithmetic.

use std::{
    net::IpAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    task::{Context, Poll, Waker},
};

use super::{DhValue, Exponentiation, Random};

/// The machine, as queues that authenticate need it. No call may block.
pub trait Machine: Send + Sync {
    /// Bytes of the kernel's generator, for one transaction.
    fn random(&self) -> Random;

    /// Has a thread run `job` soon, for a connection from `peer`. A peer with many jobs must not keep others waiting.
    fn compute(&self, peer: IpAddr, job: Job);
}

/// Arithmetic that a queue waits for. One that is dropped has failed.
pub struct Job {
    work: Exponentiation,
    result: Weak<Slot>,
}

/// The result of a [`Job`], for the queue that waits for it.
pub(super) struct Computing(Arc<Slot>);

#[derive(Default)]
struct Slot {
    is_over: AtomicBool,
    inner: Mutex<(Option<DhValue>, Option<Waker>)>,
}

impl Job {
    pub(super) fn new(work: Exponentiation) -> (Self, Computing) {
        let slot = Arc::new(Slot::default());
        (Self { work, result: Arc::downgrade(&slot) }, Computing(slot))
    }

    /// Whether its connection still waits for it.
    pub fn is_wanted(&self) -> bool {
        self.result.strong_count() > 0
    }

    /// Computes: up to tenths of a second.
    pub fn run(self) {
        let value = self.work.compute();
        if let Some(slot) = self.result.upgrade() {
            slot.lock().0 = value;
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let Some(slot) = self.result.upgrade() else { return };
        slot.is_over.store(true, SeqCst);
        let waker = slot.lock().1.take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Computing {
    pub(super) fn is_over(&self) -> bool {
        self.0.is_over.load(SeqCst)
    }

    /// The value, once it is over.
    pub(super) fn take(self) -> Option<DhValue> {
        self.0.lock().0.take()
    }

    pub(super) fn poll(&self, cx: &Context<'_>) -> Poll<()> {
        if !self.is_over() {
            self.0.lock().1 = Some(cx.waker().clone());
        }
        // Looked at again: it may have ended before there was a waker.
        if self.is_over() { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Slot {
    fn lock(&self) -> MutexGuard<'_, (Option<DhValue>, Option<Waker>)> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
