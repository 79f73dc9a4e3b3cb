//! Requests in a device's memory that have no answer yet, and who answers them once their dispatcher has ended.

use std::sync::Arc;

use crate::{
    ErrorCode, SlotIndex,
    abi::FREE,
    ring::Owner,
    sync::{
        AtomicBool, Lane,
        Ordering::{AcqRel, Acquire, Release},
    },
};

/// Which requests of a [`posted`](crate::posted) ring have no answer that was taken yet, for whoever answers them in place of a
/// dispatcher that has ended.
#[derive(Debug, Clone)]
pub struct Outstanding {
    /// By slot, whether its request was announced, and nobody has taken or given up its answer. Who changes one from true is
    /// the one to end that request, where two might.
    out: Arc<[AtomicBool]>,
    rx: Lane,
    tx: Lane,
    /// Of the memory of both lanes.
    _owners: [Owner; 2],
}

impl Outstanding {
    pub(crate) fn new(rx: Lane, tx: Lane, slots: u32, owners: [Owner; 2]) -> Self {
        Self { out: (0..slots).map(|_| AtomicBool::new(false)).collect(), rx, tx, _owners: owners }
    }

    pub(crate) fn set(&self, slot: SlotIndex, is_out: bool) {
        self.out[slot.0 as usize].store(is_out, Release);
    }

    /// Takes it on to end the request of this slot; false if there is none, or somebody else did.
    pub(crate) fn take(&self, slot: SlotIndex) -> bool {
        self.out[slot.0 as usize].compare_exchange(true, false, AcqRel, Acquire).is_ok()
    }

    /// Answers every request that has no answer with this code, and clears all flags of requests. The ring must have no
    /// dispatcher: one that begins afterwards finds the requests that were announced since. Returns how many were answered.
    pub fn refuse(&self, code: ErrorCode) -> usize {
        let mut refused = 0;
        for slot in (0..self.out.len() as u32).map(SlotIndex) {
            // The flag first: its producer frees it last.
            if self.tx.load(slot) != FREE {
                continue;
            }
            let is_out = self.take(slot);
            // Before its producer may fill the slot again. A flag of a request that is not out is a stray one, or of a request
            // that is just being announced, which its producer gives up.
            self.rx.withdraw(slot);
            if is_out {
                self.tx.store(slot, code.to_flag());
                refused += 1;
            }
        }
        refused
    }
}
