//! Atomics, locks and waiting: the real ones, or loom's.

#[cfg(loom)]
pub(crate) use loom::{
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering, fence},
    },
    thread::yield_now,
};
#[cfg(not(loom))]
pub(crate) use std::{
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering, fence},
    },
    thread::yield_now,
};

/// Waits for a writer that is a few stores away from done.
#[inline]
pub(crate) fn spin() {
    #[cfg(loom)]
    loom::thread::yield_now();
    #[cfg(not(loom))]
    std::hint::spin_loop();
}
