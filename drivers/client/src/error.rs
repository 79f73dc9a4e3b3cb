//! What can go wrong, in words that say what it means.

use std::{io, net::SocketAddr};

use berth_identity::token::DelegateError;
use berth_tls::quic::TlsError;
use berth_wire::fabric::{
    FabricError, Op, Status,
    data::{IoStatus, page, two_sided},
};

/// Why an operation has no result.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The node answered with a status other than OK.
    #[error("{op}: the node answered {status} (0x{:04X}): {}", status.code(), status.meaning())]
    Refused {
        /// What was asked for.
        op: Op,
        /// What the node answered.
        status: Status,
    },
    /// The node answered with a status that this client does not know.
    #[error("{op}: the node answered the unknown status 0x{code:04X}; it may be newer than this client")]
    UnknownStatus {
        /// What was asked for.
        op: Op,
        /// The status.
        code: u16,
    },
    /// A page operation was refused.
    #[error("{op}: the node answered {status}: {}", status.meaning())]
    Page {
        /// What was asked for.
        op: page::Op,
        /// What the node answered.
        status: page::Status,
    },
    /// FBMU, FBBU, FBMT or FBBT refused an access.
    #[error("the node answered {}: {}", .0, .0.meaning())]
    Access(IoStatus),
    /// A two-sided access was refused.
    #[error("the node answered {}: {}", .0, .0.meaning())]
    TwoSided(two_sided::Status),
    /// The node closed the connection: its lease has ended, or something was not in order.
    #[error("the node closed the connection; the lease may have ended")]
    Closed,
    /// Nothing came back in time.
    #[error("no answer from {node} within {seconds} s: is it running, and is this key enrolled there?")]
    Timeout {
        /// Who was asked.
        node: SocketAddr,
        /// How long, in seconds.
        seconds: u64,
    },
    /// What came back is not what the protocol says.
    #[error("the node's answer is malformed: {0}")]
    Malformed(#[from] FabricError),
    /// What came back does not belong to what was asked.
    #[error("the node answered another request")]
    Mismatch,
    /// The lease names no endpoint of this kind.
    #[error("the lease is not served over {0}; its bindings name how it is")]
    NoEndpoint(&'static str),
    /// Blocks are read and written whole.
    #[error("offset and length of a block lease are multiples of 512")]
    Unaligned,
    /// More bytes than the lease has.
    #[error("bytes {offset} to {} are not within the lease's {len}", offset.saturating_add(*asked))]
    OutOfRange {
        /// The first byte.
        offset: u64,
        /// How many.
        asked: u64,
        /// Bytes of the lease.
        len: u64,
    },
    /// A socket failed.
    #[error("{node}: {source}")]
    Io {
        /// Whom the socket is connected to.
        node: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The connection was not made, or was lost.
    #[error("{node}: {source}: is this key enrolled there?")]
    Connection {
        /// Whom it is with.
        node: SocketAddr,
        /// Why.
        source: quinn::ConnectionError,
    },
    /// The connection was not even tried.
    #[error("{node}: {source}")]
    Connect {
        /// Whom it would be with.
        node: SocketAddr,
        /// Why.
        source: quinn::ConnectError,
    },
    /// TLS could not be set up.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// A token could not be passed on.
    #[error(transparent)]
    Delegate(#[from] DelegateError),
    /// The system gives no random bytes.
    #[error("no random bytes: {0}")]
    Random(#[from] getrandom::Error),
}
