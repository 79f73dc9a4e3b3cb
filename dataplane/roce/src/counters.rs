//! What is counted.

use berth_port::{
    Tables,
    families::{PEERS, PSN_GAPS, PSN_LOST, RX_DROPPED},
};

/// What an endpoint counts.
pub const COUNTERS: Tables = &[Taken::TABLE, Gaps::TABLE, Refusal::TABLE];

berth_port::counters! {
    /// Why a datagram was not taken. Each is counted once, by the first check that it fails, in this order (IBTA 9.6, 9.8).
    #[repr(u8)]
    pub enum Refusal {
        /// Too short for its headers, wrongly padded, or of another header version.
        Malformed = roce_malformed: RX_DROPPED { reason: "roce_malformed" },
        /// The ICRC is not that of the packet.
        BadIcrc = roce_bad_icrc: RX_DROPPED { reason: "bad_icrc" },
        /// Another transport's operation, or one that is not supported.
        UnknownOpcode = roce_unknown_opcode: RX_DROPPED { reason: "unknown_opcode" },
        /// No queue pair has this number.
        UnknownQpn = roce_unknown_qpn: RX_DROPPED { reason: "unknown_qpn" },
        /// Not from the queue pair's peer.
        WrongSource = roce_wrong_source: RX_DROPPED { reason: "wrong_source" },
        /// Another partition.
        WrongPKey = roce_wrong_p_key: RX_DROPPED { reason: "wrong_p_key" },
        /// Its number is past: a duplicate, or overtaken.
        StalePsn = roce_stale_psn: RX_DROPPED { reason: "stale_psn" },
        /// In the middle or at the end of a message whose start was lost or refused.
        Orphan = roce_orphans: RX_DROPPED { reason: "orphan" },
        /// More or fewer bytes than the message said, or a middle packet shorter than the first.
        BadLength = roce_bad_length: RX_DROPPED { reason: "bad_length" },
        /// A write with another key.
        WrongRkey = roce_wrong_rkey: RX_DROPPED { reason: "wrong_rkey" },
        /// A write beyond the peer's slots, if by one byte.
        OutOfRange = roce_out_of_range: RX_DROPPED { reason: "out_of_range" },
        /// An immediate that names a slot which does not exist. What the message wrote has landed.
        SlotOverrun = slot_overruns: RX_DROPPED { reason: "slot_overrun" },
        /// An immediate that names another slot than the message wrote, or one that was not filled from its start on
        /// without a gap. What the message wrote has landed.
        SlotMismatch = slot_mismatches: RX_DROPPED { reason: "slot_mismatch" },
    }
}

/// The counters of an endpoint.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) taken: Taken,
    pub(crate) gaps: Gaps,
    pub(crate) refused: [u64; Refusal::TABLE.len()],
}

impl Counters {
    pub(crate) fn report(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        self.taken.report(visit);
        self.gaps.report(visit);
        Refusal::report(self.refused, visit);
    }
}

berth_port::counters! {
    /// What was taken and sent, and by whom.
    pub(crate) struct Taken {
        packets = roce_packets: "RoCEv2 packets that were taken",
        messages = roce_messages: "RoCEv2 messages that were taken whole",
        sent = roce_sent: "RoCEv2 packets that were sent",
        peers_joined: PEERS { event: "joined" },
        peers_left: PEERS { event: "left" },
    }
}

berth_port::counters! {
    /// What happened to sequences.
    #[derive(Clone, Copy, PartialEq, Eq)]
    pub(crate) struct Gaps {
        events = psn_gaps: PSN_GAPS,
        lost = psn_lost: PSN_LOST,
        restarts = psn_restarts: "senders that began anew",
        broken = roce_broken_messages: "RoCEv2 messages that a gap or the next one's start ended",
    }
}
