//! Counters.

use berth_port::{
    Tables,
    families::{PEERS, PSN_GAPS, PSN_LOST, RX_DROPPED},
};

/// Declarations of an endpoint's counters.
pub const COUNTERS: Tables = &[Taken::TABLE, Gaps::TABLE, Refusal::TABLE];

berth_port::counters! {
    /// Why a datagram was refused. Each counts once, by the first check it fails, in this order (IBTA 9.6, 9.8).
    #[repr(u8)]
    pub enum Refusal {
        /// It is too short for its headers, wrongly padded, or of another header version.
        Malformed = roce_malformed: RX_DROPPED { reason: "roce_malformed" },
        /// The ICRC does not match the packet.
        BadIcrc = roce_bad_icrc: RX_DROPPED { reason: "bad_icrc" },
        /// The operation belongs to another transport, or is not supported.
        UnknownOpcode = roce_unknown_opcode: RX_DROPPED { reason: "unknown_opcode" },
        /// No queue pair has the destination's number.
        UnknownQpn = roce_unknown_qpn: RX_DROPPED { reason: "unknown_qpn" },
        /// It does not come from the queue pair's peer.
        WrongSource = roce_wrong_source: RX_DROPPED { reason: "wrong_source" },
        /// Its partition key does not match.
        WrongPKey = roce_wrong_p_key: RX_DROPPED { reason: "wrong_p_key" },
        /// Its sequence number is in the past: a duplicate, or overtaken.
        StalePsn = roce_stale_psn: RX_DROPPED { reason: "stale_psn" },
        /// It is from the middle or end of a message whose start was lost or refused.
        Orphan = roce_orphans: RX_DROPPED { reason: "orphan" },
        /// The message has more or fewer bytes than announced, or a middle packet is shorter than the first.
        BadLength = roce_bad_length: RX_DROPPED { reason: "bad_length" },
        /// The write names a key other than the peer's.
        WrongRkey = roce_wrong_rkey: RX_DROPPED { reason: "wrong_rkey" },
        /// The write goes beyond the peer's slots, even if by one byte only.
        OutOfRange = roce_out_of_range: RX_DROPPED { reason: "out_of_range" },
        /// The immediate names a slot that does not exist. The message's bytes have been written.
        SlotOverrun = slot_overruns: RX_DROPPED { reason: "slot_overrun" },
        /// The immediate names a slot other than the one written to, or one that was not filled from its start without
        /// a gap. The message's bytes have been written.
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
    /// Packets, frames and messages that were received and sent, and peers.
    pub(crate) struct Taken {
        packets = roce_packets: "RoCEv2 packets that were taken",
        messages = roce_messages: "RoCEv2 messages that were taken whole",
        sent = roce_sent: "RoCEv2 packets that were sent",
        peers_joined: PEERS { event: "joined" },
        peers_left: PEERS { event: "left" },
    }
}

berth_port::counters! {
    /// Losses and restarts within sequences.
    #[derive(Clone, Copy, PartialEq, Eq)]
    pub(crate) struct Gaps {
        events = psn_gaps: PSN_GAPS,
        lost = psn_lost: PSN_LOST,
        restarts = psn_restarts: "senders that began anew",
        broken = roce_broken_messages: "RoCEv2 messages that a gap or the next one's start ended",
    }
}
