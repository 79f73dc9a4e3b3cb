//! Counter families that several kinds of port share; see [`counters!`](crate::counters).

use crate::Family;

/// Counts the frames that the port lent to its service.
pub const RX_FRAMES: Family = Family::counter("rx_frames", "frames received");
/// Frames longer than the buffer, which were cut off.
pub const RX_TRUNCATED: Family =
    Family::counter("rx_truncated", "frames longer than the port takes, given to the service cut off");
/// Label `reason` says why a frame did not reach the service.
pub const RX_DROPPED: Family = Family::counter("rx_dropped", "frames that were not given to the service");
/// Counts calls, not frames.
pub const RX_ERRORS: Family = Family::counter("rx_errors", "receive calls that failed");
/// Polls that received nothing although frames may have waited, because answers were still queued.
pub const RX_HELD: Family =
    Family::counter("rx_held", "polls that received nothing, because answers waited for room at the device");
/// Frames that [`Verdict::Keep`](crate::Verdict::Keep) left where they were.
pub const RX_KEPT: Family = Family::counter("rx_kept", "frames that were left in their buffers for another reader");
/// Frames handed over to the device, not frames confirmed as sent.
pub const TX_FRAMES: Family = Family::counter("tx_frames", "frames that the device took");
/// Times that the device had no room; the frames stay queued.
pub const TX_DEFERRED: Family =
    Family::counter("tx_deferred", "times that the device took no more and the rest stayed queued");
/// Label `reason` says why a frame was not sent.
pub const TX_DROPPED: Family = Family::counter("tx_dropped", "frames that were to be sent and were not");
/// ICMP errors that came back for frames of this port.
pub const ICMP_ERRORS: Family = Family::counter("icmp_errors", "ICMP errors about frames that were sent");
/// Each gap counts once, whatever its length.
pub const PSN_GAPS: Family = Family::counter("psn_gaps", "times that packet sequence numbers were missing");
/// Sum of the lengths of all gaps.
pub const PSN_LOST: Family = Family::counter("psn_lost", "packet sequence numbers that were missing");
/// Peers by label `event`: joined, left, failed or refused.
pub const PEERS: Family = Family::counter("peers", "peers of RDMA or libfabric, by what became of them");
