//! Outcomes of connections.

use berth_port::{Family, Tables};

/// Declarations of the counters of every rendezvous.
pub const COUNTERS: Tables = &[Counters::TABLE];

const RENDEZVOUS: Family =
    Family::counter("rendezvous", "connections of peers to the rendezvous, by what became of them");

berth_port::counters! {
    pub(crate) struct Counters of Count {
        taken = rendezvous_peers: RENDEZVOUS { event: "taken" },
        gone = rendezvous_gone: RENDEZVOUS { event: "gone" },
        refused = rendezvous_refused: RENDEZVOUS { event: "refused" },
        full = rendezvous_full: RENDEZVOUS { event: "full" },
        displaced = rendezvous_displaced: RENDEZVOUS { event: "displaced" },
        malformed = rendezvous_malformed: RENDEZVOUS { event: "malformed" },
        timed_out = rendezvous_timed_out: RENDEZVOUS { event: "timed_out" },
    }
}
