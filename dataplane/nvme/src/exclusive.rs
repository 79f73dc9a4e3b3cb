//! What one connection of a subsystem does at a time.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    task::{Context, Poll, Waker},
};

use crate::target::Subsystem;

/// Lets one in at a time.
#[derive(Debug, Default)]
pub(crate) struct Exclusive {
    taken: AtomicBool,
    waiting: Mutex<Vec<Waker>>,
}

/// Whoever has it is in; out when it is dropped.
#[derive(Debug)]
pub(crate) struct Pass(Arc<Subsystem>);

impl Pass {
    /// `None` where another one is in.
    pub(crate) fn take(subsystem: &Arc<Subsystem>) -> Option<Self> {
        (!subsystem.fused.taken.swap(true, SeqCst)).then(|| Self(subsystem.clone()))
    }
}

impl Exclusive {
    /// Ready where nobody is in; the task is woken when one comes out otherwise.
    pub(crate) fn poll(&self, cx: &Context<'_>) -> Poll<()> {
        if !cx.waker().will_wake(Waker::noop()) {
            self.waiting.lock().unwrap_or_else(PoisonError::into_inner).push(cx.waker().clone());
        }
        if self.taken.load(SeqCst) { Poll::Pending } else { Poll::Ready(()) }
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let Exclusive { taken, waiting } = &self.0.fused;
        taken.store(false, SeqCst);
        let waiting = std::mem::take(&mut *waiting.lock().unwrap_or_else(PoisonError::into_inner));
        waiting.into_iter().for_each(Waker::wake);
    }
}
