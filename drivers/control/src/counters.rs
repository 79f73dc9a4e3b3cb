//! Counters of the listeners.

use berth_port::{Family, Tables};

/// Declarations of the counters here. The link, the node, the journal and the regions' blocks have their own.
pub const COUNTERS: Tables = &[Counters::TABLE, REGIONS];

const CONNECTIONS: Family = Family::counter("connections", "connections accepted");
const CONNECTIONS_REFUSED: Family =
    Family::counter("connections_refused", "connections that were refused or ended by the node");

berth_port::counters! {
    /// Events of the listeners.
    pub(crate) struct Counters of Count {
        requests_answered: "ops answered",
        requests_not_durable: "ops left unanswered because the journal failed",
        connections: CONNECTIONS { kind: "control" },
        /// There were too many connections in all, or of one peer.
        connections_refused: CONNECTIONS_REFUSED { reason: "full" },
        /// The peer had not identified itself when a newcomer needed the place.
        connections_displaced: CONNECTIONS_REFUSED { reason: "displaced" },
        /// The peer sent nothing, or accepted nothing, for too long.
        connections_timed_out: CONNECTIONS_REFUSED { reason: "timed_out" },
        /// Failed QUIC handshakes, those with unknown keys included.
        handshakes_failed: CONNECTIONS_REFUSED { reason: "handshake_failed" },
        /// QUIC handshakes that had to prove their address, because there were many connections.
        handshakes_retried: "QUIC handshakes that were asked to show where their peer is",
        streams_reset: "QUIC streams reset as malformed or too slow",
        sends_failed: "datagrams that could not be sent",
        proxy_connections: CONNECTIONS { kind: "proxy" },
    }
}

const REGION_SIZE: Family = Family::gauge("region_size_bytes", "bytes of a region");
const REGION_FREE: Family = Family::gauge("region_free_bytes", "bytes of a region that can be leased");

berth_port::counters! {
    /// By region. The counters of its blocks are in `berth_lease::BLOCK_COUNTERS`.
    const REGIONS {
        "region_*_size_bytes": REGION_SIZE { region: * },
        "region_*_free_bytes": REGION_FREE { region: * },
    }
}
