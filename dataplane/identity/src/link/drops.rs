//! Reasons for which messages are dropped, and their counts.

use berth_port::Family;
use berth_wire::fabric::FabricError;

/// Exported with label `reason`.
const FRAMES_DROPPED: Family = Family::counter("frames_dropped", "messages over UDP that were not taken");

berth_port::counters! {
    /// Why a datagram, a message or a fragment was dropped.
    #[derive(thiserror::Error)]
    pub enum Drop {
        /// It is not a frame, or its payload does not fit its type.
        #[error("the frame or its payload is malformed")]
        Malformed = frames_malformed: FRAMES_DROPPED { reason: "malformed" },
        /// Its message type is not for this end, or nobody waits for it.
        #[error("nobody waits for this message here")]
        Unexpected = frames_unexpected: FRAMES_DROPPED { reason: "unexpected" },
        /// The sender is not enrolled.
        #[error("the sender is not enrolled")]
        Unenrolled = frames_unenrolled: FRAMES_DROPPED { reason: "unenrolled" },
        /// A required signature is missing.
        #[error("a signature is missing")]
        Unsigned = frames_unsigned: FRAMES_DROPPED { reason: "unsigned" },
        /// A signature does not verify, or the presenter is not the sender.
        #[error("a signature does not verify, or the presenter is not the sender")]
        Forged = frames_forged: FRAMES_DROPPED { reason: "forged" },
        /// The nonce was used, or is below the replay window.
        #[error("the nonce was used before, or is too old")]
        Replayed = frames_replayed: FRAMES_DROPPED { reason: "replayed" },
        /// It is a copy of an answered request, from another address than the first copy.
        #[error("a copy of a request came from another address than the first")]
        Elsewhere = frames_elsewhere: FRAMES_DROPPED { reason: "elsewhere" },
        /// The sender has its full share of requests under way.
        #[error("the sender has as much under way as its share is")]
        OverShare = frames_over_share: FRAMES_DROPPED { reason: "over_share" },
        /// Fragments of one message disagree or overlap; all of them are dropped.
        #[error("fragments of one message disagree or overlap")]
        Conflicting = fragments_conflicting: FRAMES_DROPPED { reason: "fragments_conflicting" },
        /// The message stayed incomplete for too long.
        #[error("a message stayed incomplete for too long")]
        TimedOut = fragments_timed_out: FRAMES_DROPPED { reason: "fragments_timed_out" },
        /// The incomplete message was displaced by a newer one at a limit.
        #[error("an incomplete message gave way to newer ones")]
        Evicted = fragments_evicted: FRAMES_DROPPED { reason: "fragments_evicted" },
    }
}

impl From<FabricError> for Drop {
    fn from(_: FabricError) -> Self {
        Self::Malformed
    }
}

/// Counts of drops, by reason.
#[derive(Debug, Clone, Copy, Default)]
pub struct Drops([u64; Drop::TABLE.len()]);

impl Drops {
    /// Counts `times` drops.
    pub fn add(&mut self, reason: Drop, times: u64) {
        self.0[reason as usize] += times;
    }

    /// Number of drops for this reason.
    pub fn get(&self, reason: Drop) -> u64 {
        self.0[reason as usize]
    }

    /// Calls `visit` with the name and value of each counter.
    pub fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        Drop::report(self.0, visit);
    }
}
