//! Atomics and waiting: the standard ones, or loom's in its tests.

#[cfg(loom)]
pub(crate) use loom::{
    hint::spin_loop as spin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};
#[cfg(not(loom))]
pub(crate) use std::{
    hint::spin_loop as spin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};
