//! What the listeners count.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident)*) => {
        /// Events of the listeners.
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $($(#[$doc])* pub(crate) $name: Count,)*
        }

        impl Counters {
            /// Reports every counter under its name.
            pub(crate) fn report(&self, visit: &mut dyn FnMut(&'static str, u64)) {
                $(visit(stringify!($name), self.$name.0.load(Relaxed));)*
            }
        }
    };
}

counters! {
    /// Ops that were answered, over either carrier.
    requests_answered
    /// Ops that got no answer because the journal failed.
    requests_not_durable
    /// Connections that were accepted.
    connections
    /// Connections that were refused because there were too many, or too many of one peer.
    connections_refused
    /// Connections that had not said what they want when newcomers needed their places.
    connections_displaced
    /// Connections that were closed because they said nothing, or took nothing, for too long.
    connections_timed_out
    /// QUIC handshakes that failed: unknown keys among them.
    handshakes_failed
    /// QUIC handshakes that were asked to begin anew, by peers that show where they are: there were many connections.
    handshakes_retried
    /// QUIC streams that were reset because what they carried is malformed or came too slowly.
    streams_reset
    /// Datagrams that could not be sent.
    sends_failed
    /// Block accesses over FBBU that were dropped because too many were under way.
    shim_crowded_out
    /// Connections through TCP proxies.
    proxy_connections
}

/// One counter.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    /// One more.
    pub(crate) fn add(&self) {
        self.0.fetch_add(1, Relaxed);
    }
}
