//! Why input is dropped, counted.

use berth_port::Family;
use berth_wire::fabric::FabricError;

/// Messages over UDP that were not taken, by `reason`.
pub const FRAMES_DROPPED: Family = Family::counter("frames_dropped", "messages over UDP that were not taken");

berth_port::counters! {
    /// Why a datagram, a message or a fragment was dropped.
    #[derive(thiserror::Error)]
    pub enum Drop {
        /// Not a frame, or not the payload of its type.
        #[error("the frame or its payload is malformed")]
        Malformed = frames_malformed: FRAMES_DROPPED { reason: "malformed" },
        /// A message type that is not for this end, or that nobody waits for.
        #[error("nobody waits for this message here")]
        Unexpected = frames_unexpected: FRAMES_DROPPED { reason: "unexpected" },
        /// Nobody enrolled the sender.
        #[error("the sender is not enrolled")]
        Unenrolled = frames_unenrolled: FRAMES_DROPPED { reason: "unenrolled" },
        /// A signature is required and there is none.
        #[error("a signature is missing")]
        Unsigned = frames_unsigned: FRAMES_DROPPED { reason: "unsigned" },
        /// A signature that does not verify, or a presenter who is not the sender.
        #[error("a signature does not verify, or the presenter is not the sender")]
        Forged = frames_forged: FRAMES_DROPPED { reason: "forged" },
        /// The nonce was used, or lies below the replay window.
        #[error("the nonce was used before, or is too old")]
        Replayed = frames_replayed: FRAMES_DROPPED { reason: "replayed" },
        /// A copy of an answered request from another address than the first.
        #[error("a copy of a request came from another address than the first")]
        Elsewhere = frames_elsewhere: FRAMES_DROPPED { reason: "elsewhere" },
        /// The sender has as much under way as its share is.
        #[error("the sender has as much under way as its share is")]
        OverShare = frames_over_share: FRAMES_DROPPED { reason: "over_share" },
        /// Fragments of one message that disagree or overlap; all of them are dropped.
        #[error("fragments of one message disagree or overlap")]
        Conflicting = fragments_conflicting: FRAMES_DROPPED { reason: "fragments_conflicting" },
        /// Incomplete messages that outlived their time.
        #[error("a message stayed incomplete for too long")]
        TimedOut = fragments_timed_out: FRAMES_DROPPED { reason: "fragments_timed_out" },
        /// Incomplete messages that gave way to newer ones, at a limit.
        #[error("an incomplete message gave way to newer ones")]
        Evicted = fragments_evicted: FRAMES_DROPPED { reason: "fragments_evicted" },
    }
}

impl From<FabricError> for Drop {
    fn from(_: FabricError) -> Self {
        Self::Malformed
    }
}

/// Counts what was dropped, by reason.
#[derive(Debug, Clone, Copy, Default)]
pub struct Drops([u64; Drop::TABLE.len()]);

impl Drops {
    /// Counts `times` drops for this reason.
    pub fn add(&mut self, reason: Drop, times: u64) {
        self.0[reason as usize] += times;
    }

    /// How often this was the reason.
    pub fn get(&self, reason: Drop) -> u64 {
        self.0[reason as usize]
    }

    /// Reports every counter.
    pub fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        Drop::report(self.0, visit);
    }
}
