//! What counters of several kinds of port have in common outside; see [`counters!`](crate::counters).

use crate::Family;

/// Frames received.
pub const RX_FRAMES: Family = Family::counter("rx_frames", "frames received");
/// Frames cut off.
pub const RX_TRUNCATED: Family =
    Family::counter("rx_truncated", "frames longer than the port takes, given to the service cut off");
/// Frames that were not given to the service, by `reason`.
pub const RX_DROPPED: Family = Family::counter("rx_dropped", "frames that were not given to the service");
/// Receive calls that failed.
pub const RX_ERRORS: Family = Family::counter("rx_errors", "receive calls that failed");
/// Polls that received nothing on purpose.
pub const RX_HELD: Family =
    Family::counter("rx_held", "polls that received nothing, because answers waited for room at the device");
/// Frames that the device took.
pub const TX_FRAMES: Family = Family::counter("tx_frames", "frames that the device took");
/// Times that the device took no more.
pub const TX_DEFERRED: Family =
    Family::counter("tx_deferred", "times that the device took no more and the rest stayed queued");
/// Frames that were not sent, by `reason`.
pub const TX_DROPPED: Family = Family::counter("tx_dropped", "frames that were to be sent and were not");
/// ICMP errors.
pub const ICMP_ERRORS: Family = Family::counter("icmp_errors", "ICMP errors about frames that were sent");
/// Gaps in packet sequence numbers.
pub const PSN_GAPS: Family = Family::counter("psn_gaps", "times that packet sequence numbers were missing");
/// How long those gaps were.
pub const PSN_LOST: Family = Family::counter("psn_lost", "packet sequence numbers that were missing");
/// What became of peers, by `event`.
pub const PEERS: Family = Family::counter("peers", "peers of RDMA or libfabric, by what became of them");
