//! What is counted.

/// Why a datagram was not taken. Each is counted once, by the first check that it fails, in this order (IBTA 9.6, 9.8).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Refusal {
    /// Too short for its headers, wrongly padded, or of another header version.
    Malformed,
    /// The ICRC is not that of the packet.
    BadIcrc,
    /// Another transport's operation, or one that is not supported.
    UnknownOpcode,
    /// No queue pair has this number.
    UnknownQpn,
    /// Not from the queue pair's peer.
    WrongSource,
    /// Another partition.
    WrongPKey,
    /// Its number is past: a duplicate, or overtaken.
    StalePsn,
    /// In the middle or at the end of a message whose start was lost or refused.
    Orphan,
    /// More or fewer bytes than the message said, or a middle packet shorter than the first.
    BadLength,
    /// A write with another key.
    WrongRkey,
    /// A write beyond the peer's slots, if by one byte.
    OutOfRange,
    /// An immediate that names a slot which does not exist. What the message wrote has landed.
    SlotOverrun,
    /// An immediate that names another slot than the message wrote, or one that was not filled from its start on
    /// without a gap. What the message wrote has landed.
    SlotMismatch,
}

impl Refusal {
    /// All, in the order of their numbers.
    pub const ALL: [Self; 13] = [
        Self::Malformed,
        Self::BadIcrc,
        Self::UnknownOpcode,
        Self::UnknownQpn,
        Self::WrongSource,
        Self::WrongPKey,
        Self::StalePsn,
        Self::Orphan,
        Self::BadLength,
        Self::WrongRkey,
        Self::OutOfRange,
        Self::SlotOverrun,
        Self::SlotMismatch,
    ];

    /// The name of its counter.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Malformed => "roce_malformed",
            Self::BadIcrc => "roce_bad_icrc",
            Self::UnknownOpcode => "roce_unknown_opcode",
            Self::UnknownQpn => "roce_unknown_qpn",
            Self::WrongSource => "roce_wrong_source",
            Self::WrongPKey => "roce_wrong_p_key",
            Self::StalePsn => "roce_stale_psn",
            Self::Orphan => "roce_orphans",
            Self::BadLength => "roce_bad_length",
            Self::WrongRkey => "roce_wrong_rkey",
            Self::OutOfRange => "roce_out_of_range",
            Self::SlotOverrun => "slot_overruns",
            Self::SlotMismatch => "slot_mismatches",
        }
    }
}

/// The counters of an endpoint.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// Datagrams that were taken.
    pub(crate) packets: u64,
    /// Messages that were taken whole.
    pub(crate) messages: u64,
    pub(crate) refused: [u64; Refusal::ALL.len()],
    pub(crate) gaps: Gaps,
    pub(crate) sent: u64,
    pub(crate) peers_added: u64,
    pub(crate) peers_removed: u64,
}

/// What happened to sequences.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gaps {
    /// How often numbers were missing.
    pub(crate) events: u64,
    /// How many were.
    pub(crate) lost: u64,
    /// Messages under way that ended by a gap, or by the next one's start.
    pub(crate) broken: u64,
    /// Senders that began anew.
    pub(crate) restarts: u64,
}

impl Counters {
    pub(crate) fn report(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        for (name, value) in [
            ("roce_packets", self.packets),
            ("roce_messages", self.messages),
            ("psn_gaps", self.gaps.events),
            ("psn_lost", self.gaps.lost),
            ("psn_restarts", self.gaps.restarts),
            ("roce_broken_messages", self.gaps.broken),
            ("roce_sent", self.sent),
            ("roce_peers_added", self.peers_added),
            ("roce_peers_removed", self.peers_removed),
        ] {
            visit(name, value);
        }
        for refusal in Refusal::ALL {
            visit(refusal.name(), self.refused[refusal as usize]);
        }
    }
}
