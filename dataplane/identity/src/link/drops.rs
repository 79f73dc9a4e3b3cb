//! Why input is dropped, counted.

use berth_wire::fabric::FabricError;

macro_rules! drops {
    ($($(#[$doc:meta])* $variant:ident = $name:literal, $text:literal;)*) => {
        /// Why a datagram, a message or a fragment was dropped.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
        pub enum Drop {
            $($(#[$doc])* #[error($text)] $variant,)*
        }

        impl Drop {
            const ALL: &'static [(Self, &'static str)] = &[$((Self::$variant, $name)),*];
        }
    };
}

drops! {
    /// Not a frame, or not the payload of its type.
    Malformed = "frames_malformed", "the frame or its payload is malformed";
    /// A message type that is not for this end, or that nobody waits for.
    Unexpected = "frames_unexpected", "nobody waits for this message here";
    /// Nobody enrolled the sender.
    Unenrolled = "frames_unenrolled", "the sender is not enrolled";
    /// A signature is required and there is none.
    Unsigned = "frames_unsigned", "a signature is missing";
    /// A signature that does not verify, or a presenter who is not the sender.
    Forged = "frames_forged", "a signature does not verify, or the presenter is not the sender";
    /// The nonce was used, or lies below the replay window.
    Replayed = "frames_replayed", "the nonce was used before, or is too old";
    /// A copy of an answered request from another address than the first.
    Elsewhere = "frames_elsewhere", "a copy of a request came from another address than the first";
    /// The sender has as much under way as its share is.
    OverShare = "frames_over_share", "the sender has as much under way as its share is";
    /// Fragments of one message that disagree or overlap; all of them are dropped.
    Conflicting = "fragments_conflicting", "fragments of one message disagree or overlap";
    /// Incomplete messages that outlived their time.
    TimedOut = "fragments_timed_out", "a message stayed incomplete for too long";
    /// Incomplete messages that gave way to newer ones, at a limit.
    Evicted = "fragments_evicted", "an incomplete message gave way to newer ones";
}

impl From<FabricError> for Drop {
    fn from(_: FabricError) -> Self {
        Self::Malformed
    }
}

/// Counts what was dropped, by reason.
#[derive(Debug, Clone, Copy, Default)]
pub struct Drops([u64; Drop::ALL.len()]);

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
        for (reason, name) in Drop::ALL {
            visit(name, self.get(*reason));
        }
    }
}
