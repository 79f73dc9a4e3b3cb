//! What the listeners count.

use berth_identity::link::FRAMES_DROPPED;
use berth_port::{Family, Tables};

/// What is counted here. The link, the node, the journal and the blocks of regions count as well.
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
        /// Because there were too many, or too many of one peer.
        connections_refused: CONNECTIONS_REFUSED { reason: "full" },
        /// They had not said what they want when newcomers needed their places.
        connections_displaced: CONNECTIONS_REFUSED { reason: "displaced" },
        /// They said nothing, or took nothing, for too long.
        connections_timed_out: CONNECTIONS_REFUSED { reason: "timed_out" },
        /// QUIC handshakes: unknown keys among them.
        handshakes_failed: CONNECTIONS_REFUSED { reason: "handshake_failed" },
        /// There were many connections.
        handshakes_retried: "QUIC handshakes that were asked to show where their peer is",
        streams_reset: "QUIC streams reset as malformed or too slow",
        sends_failed: "datagrams that could not be sent",
        /// Block accesses over FBBU: too many were under way.
        shim_crowded_out: FRAMES_DROPPED { reason: "crowded_out" },
        proxy_connections: CONNECTIONS { kind: "proxy" },
    }
}

const REGION_SIZE: Family = Family::gauge("region_size_bytes", "bytes of a region");
const REGION_FREE: Family = Family::gauge("region_free_bytes", "bytes of a region that can be leased");

berth_port::counters! {
    /// By region; what its blocks count is `berth_store::COUNTERS`.
    const REGIONS {
        "region_*_size_bytes": REGION_SIZE { region: * },
        "region_*_free_bytes": REGION_FREE { region: * },
    }
}
