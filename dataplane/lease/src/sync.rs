//! Atomics, locks and waiting: the standard ones, or loom's in its tests.

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

/// Waits for a writer that needs only a few more stores.
#[inline]
pub(crate) fn spin() {
    #[cfg(loom)]
    loom::thread::yield_now();
    #[cfg(not(loom))]
    std::hint::spin_loop();
}
